"""The division of a quantization becomes part of the constants before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvmopt.operators.scaled_sum import scaled_sum
from tvmopt.passes.graph import (
    Array,
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    sizes,
)
from tvmopt.passes.quantized import RANGES, Params, dequantized, params, quantize

ROUNDED = (
    "add", "subtract", "multiply", "divide", "exp", "log", "sqrt", "rsqrt", "power", "tanh", "erf", "sigmoid",
    "nn.silu", "nn.gelu", "nn.gelu_tanh", "nn.softmax", "nn.layer_norm", "nn.rms_norm", "nn.group_norm",
    "nn.batch_norm", "nn.attention", "nn.avg_pool2d", "nn.conv1d", "nn.conv2d", "nn.conv3d", "matmul", "mean", "sum",
)  # fmt: skip
"""Operators whose float32 results are rounded, so that one rounding more is nothing new."""
BOUNDS = ("nn.relu", "maximum", "minimum", "clip")
"""Operators that choose one of two numbers, so that what they give is rounded where their operand is."""


@dataclass(frozen=True)
class Sum:
    """A sum of integer tensors, each times a constant, and of a constant: float64, shaped to broadcast."""

    terms: tuple[tuple[Expr, Array], ...]
    constant: Array


@rewrite_pass("tvmopt.FoldRequantization")
class FoldRequantization(Rewrite):
    """Scale what is quantized next by the constants that multiply and shift it already.

        Before                                                    After
        f = R.add(R.multiply(R.astype(i, "float32"), m), b)       f = R.add(R.multiply(.., m / s), b' / s)
        r = R.nn.relu(R.add(f, R.dequantize(q, t, y)))            g = tvmopt.scaled_sum(f, q, t / s)
        o = R.quantize(r, s, z)                                   o = R.quantize(R.nn.relu(g), 1, z)

    What is rounded to an integer is the sum of integers times constants, computed in fp32 as before: the constants are
    multiplied in float64 and rounded once. A number can become its neighbour only where the real one lies between two
    integers within fp32's error.

    A bound that is no tighter than the type's own range goes: of a ReLU before a quantization with zero point 0, and of
    a ReLU6 whose 6 is the number 255 stands for, nothing is left. A division by constants before the quantization,
    as FoldChannelScales leaves one, is a scale as well.

    What is quantized otherwise, and has been computed in float32, perhaps between bounds, is multiplied by the
    reciprocal, joined with the constants that it is multiplied by already:
    y = R.quantize(R.multiply(R.nn.gelu(f), 1 / s), 1, z).

    Applies when   what is quantized is a sum of integers times constants, perhaps between bounds, and every value on
                   the way has one reader; or the rounded result of a float32 operator.
    Declines when  1. it is anything else: an input, or what only moves numbers, is divided
    Gain           a division an element, 5 to 16 cycles a vector; of a residual with a scale of its own a subtraction,
                   and three of its four bytes (see :mod:`tvmopt.operators.scaled_sum`).
    Order          after ConvertIntegerProducts, and FoldConstant: a quantised bias is a constant then.
    """

    rounds = 1

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a quantization per tensor."""
        own = params(graph, value) if op_name(value) == "quantize" else None
        if own is None or dtype(value.args[0]) != "float32":
            return None
        x, scale = value.args[0], np.array(own.scale)
        call = graph.call(x, "divide") if graph.single(x) else None
        divisor = graph.array(call.args[1]) if call is not None else None
        if call is not None and divisor is not None and _positive(divisor) and sizes(call.args[0]) == sizes(x):
            x, scale = call.args[0], own.scale * divisor.astype("float64")
        if (scale == 1.0).all():
            return None
        low, high = (bound - own.zero for bound in RANGES[dtype(value)])
        new = self._divided(graph, x, scale, (low, high), name_of(var))
        if new is None:
            new = _multiplied(graph, x, scale, name_of(var))
        if new is None:
            self.declined(var, "1: what is quantized is no rounded result of float32: it is divided")
            return None
        self.applied(var)
        return quantize(new, Params(1.0, own.zero), dtype(value))

    def _divided(self, graph: Graph, expr: Expr, scale: Array, limits: tuple[int, int], name: str) -> Expr | None:
        """`expr / scale`, the scale inside of the constants, as far as it lies between the limits; None where `expr` is
        no sum of integers."""
        call = graph.call(expr, *BOUNDS)
        if call is None:
            found = _sum(graph, expr)
            return None if found is None or not found.terms else _written(graph, found, scale, expr, name)
        bounds = _bounds(graph, call)
        inner = self._divided(graph, call.args[0], scale, limits, name) if bounds and graph.single(expr) else None
        if inner is None or bounds is None:
            return None
        low, high = bounds[0] / scale, bounds[1] / scale
        if not (np.rint(low) <= limits[0]).all():
            bounded = relax.op.maximum(inner, const(low, like=expr)) if low.any() else relax.op.nn.relu(inner)
            inner = graph.emit(bounded, name)
        if not (np.rint(high) >= limits[1]).all():
            inner = graph.emit(relax.op.minimum(inner, const(high, like=expr)), name)
        return inner


def _multiplied(graph: Graph, expr: Expr, scale: Array, name: str) -> Expr | None:
    """`expr / scale` as a product: with constants that `expr` is multiplied by already, or with the reciprocal; None
    for numbers that are not rounded results of float32 anyway: an input's, and what only moves them."""
    call = graph.call(expr, "multiply") if graph.single(expr) else None
    for x, factor in graph.binary(expr, "multiply") if call is not None else ():
        values = graph.array(factor)
        if values is not None and sizes(x) == sizes(expr) is not None and values.dtype == np.float32:
            return graph.emit(relax.op.multiply(x, const(values.astype("float64") / scale, like=expr)), name)
    source = expr
    while graph.op(source) in BOUNDS:
        source = graph.value(source).args[0]
    if graph.op(source) not in ROUNDED:
        return None
    return graph.emit(relax.op.multiply(expr, const(1.0 / scale, like=expr)), name)


def _positive(values: Array) -> bool:
    return bool((values > 0).all() and np.isfinite(values).all())


def _bounds(graph: Graph, call: Call) -> tuple[float, float] | None:
    """The numbers that a call keeps its first operand between."""
    name, infinite = op_name(call), float("inf")
    if name == "nn.relu":
        return 0.0, infinite
    if name == "clip":
        return float(call.args[1].value), float(call.args[2].value)
    bound = graph.scalar(call.args[1])
    if bound is None:
        return None
    return (bound, infinite) if name == "maximum" else (-infinite, bound)


def _sum(graph: Graph, expr: Expr) -> Sum | None:
    """`expr` as a sum of integer tensors times constants; None where it is something else, or where a value on the way
    has other readers, who would need it still."""
    array = graph.array(expr)
    if array is not None:
        return Sum((), array.astype("float64")) if array.dtype == np.float32 else None
    found = dequantized(graph, expr)
    if found is not None:
        x, p = found
        return Sum(((x, np.array(p.scale)),), np.array(-p.zero * p.scale))
    call = graph.call(expr, "astype", "multiply", "add", "subtract")
    if call is None or dtype(expr) != "float32" or not graph.single(expr):
        return None
    if op_name(call) == "astype":
        whole = dtype(call.args[0]) in ("int32", "uint8", "int8")
        return Sum(((call.args[0], np.array(1.0)),), np.array(0.0)) if whole else None
    left, right = (_sum(graph, a) for a in call.args)
    return None if left is None or right is None else _combined(op_name(call), left, right)


def _combined(name: str, left: Sum, right: Sum) -> Sum | None:
    if name == "multiply":
        if left.terms and right.terms:
            return None
        factor, other = (right.constant, left) if left.terms else (left.constant, right)
        return Sum(tuple((x, m * factor) for x, m in other.terms), other.constant * factor)
    sign = -1.0 if name == "subtract" else 1.0
    more = tuple((x, sign * m) for x, m in right.terms)
    return Sum(left.terms + more, left.constant + sign * right.constant)


def _written(graph: Graph, total: Sum, scale: Array, like: Expr, name: str) -> Expr | None:
    """The sum divided by `scale`. Sums of products (int32) live in registers: they are multiplied first; tensors of
    bytes come from memory: they are one operator."""
    if any(sizes(x) is None or sizes(x) != sizes(like) for x, _ in total.terms):
        return None
    wide = [(x, const(factor / scale, like=like)) for x, factor in total.terms if dtype(x) == "int32"]
    small = [(x, const(_spread(factor / scale, like), like=like)) for x, factor in total.terms if dtype(x) != "int32"]
    value: Expr = const(_spread(total.constant / scale, like), like=like)
    started = bool(np.any(total.constant)) or not wide
    for x, factor in wide:
        real = graph.emit(relax.op.astype(x, "float32"), name)
        product = graph.emit(relax.op.multiply(real, factor), name)
        value = graph.emit(relax.op.add(product, value), name) if started else product
        started = True
    return graph.emit(scaled_sum(value, small), name) if small else value


def _spread(values: Array, like: Expr) -> Array:
    """With as many axes as `like`."""
    return np.reshape(values, (1,) * (rank(like) - np.ndim(values)) + np.shape(values))
