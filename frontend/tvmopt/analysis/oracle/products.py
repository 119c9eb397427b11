"""Matrix products and attention."""

from __future__ import annotations

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported, is_real


def matmul(call: Call, a: Array, b: Array) -> Result:
    if a.dtype.kind in "iu":
        return np.matmul(a.astype(np.int64), b.astype(np.int64)).astype(a.dtype)
    return np.matmul(call.operand(a), call.operand(b))


def gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Result:
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if not is_real(a.dtype):
        y = np.matmul(a.astype(np.int64), b.astype(np.int64))
        if alpha == 1 and (c is None or beta == 1):
            return (y if c is None else y + c.astype(np.int64)).astype(a.dtype)
        return np.trunc(alpha * y + (0 if c is None else beta * c.astype(np.float64))).astype(np.int64).astype(a.dtype)
    y = call.operand(a) @ call.operand(b)
    y = y if alpha == 1 else y * a.dtype.type(alpha)
    return y if c is None else y + (c if beta == 1 else c * a.dtype.type(beta))


def matmul_integer(call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Result:
    return integer_product(a, b, a_zero, b_zero).astype(np.int64).astype(np.int32)


def integer_product(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """The product of integers, exactly, as float64; zero points may be one per row of `a` or a column of `b`."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if a_zero is not None:
        z = a_zero.astype(np.float64)
        x = x - (z[:, None] if z.ndim == 1 and z.size > 1 else z)
    if b_zero is not None:
        y = y - b_zero.astype(np.float64)
    return np.asarray(np.matmul(x, y))


def einsum(call: Call, *inputs: Array) -> Result:
    if not all(is_real(x.dtype) for x in inputs):
        raise Unsupported("Einsum of integers")
    return np.einsum(call.get("equation").replace(" ", ""), *map(call.operand, inputs), optimize=len(inputs) > 2)


def softmax_last(x: Array) -> Array:
    """Along the last axis, stable."""
    moved = x - x.max(-1, keepdims=True)
    e = np.exp(moved)
    return np.asarray(e / e.sum(-1, keepdims=True))


TABLE: dict[str, Operator] = {"MatMul": matmul, "Gemm": gemm, "MatMulInteger": matmul_integer, "Einsum": einsum}
