"""Matrix products and attention."""

from __future__ import annotations

from typing import Any

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


EXACT = 256
"""As many products of differences of bytes have a sum below 2^24, which float32 holds exactly."""


def integer_product(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """The product of integers, exactly, as float64; zero points may be one per row of `a` or a column of `b`. That of
    bytes is added up in float32 as far as it is exact, which takes half the time."""
    bytes_ = a.dtype.itemsize == b.dtype.itemsize == 1
    kind: Any = np.float32 if bytes_ else np.float64
    x, y = a.astype(kind), b.astype(kind)
    if a_zero is not None:
        z = a_zero.astype(kind)
        x = x - (z[:, None] if z.ndim == 1 and z.size > 1 else z)
    if b_zero is not None:
        y = y - b_zero.astype(kind)
    columns = max(1, x.shape[-1])
    step = EXACT if bytes_ else columns
    pieces = (slice(start, start + step) for start in range(0, columns, step))
    parts = (np.matmul(x[..., piece], y[piece] if y.ndim == 1 else y[..., piece, :]) for piece in pieces)
    return np.asarray(sum(parts, np.float64(0)))


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
