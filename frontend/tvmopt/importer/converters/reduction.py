"""Reductions whose cases TVM has no kernel for: bool, and the empty set; and the determinant."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import Dim, OpenSize, is_open
from tvmopt.importer.converters.common import Build, const, dtype_of, is_float, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least
from tvmopt.importer.converters.static_inputs import REDUCTIONS

_OPS: dict[str, Callable[..., Any]] = {
    "ReduceMax": relax.op.max,
    "ReduceMin": relax.op.min,
    "ReduceSum": relax.op.sum,
    "ReduceMean": relax.op.mean,
    "ReduceProd": relax.op.prod,
}
_EMPTY = {"ReduceSum": 0, "ReduceProd": 1, "ReduceL1": 0, "ReduceL2": 0, "ReduceSumSquare": 0}


def _axes(ctx: Context, inputs: Inputs, attrs: dict[str, Any], rank: int) -> list[int] | None:
    """The axes to reduce, in order; None means: none at all (noop_with_empty_axes)."""
    given = attrs.get("axes")
    if given is None and inputs[1] is not None:
        given = ctx.array(inputs[1], "axes")
    if given is None or not len(given):
        return None if attrs.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({int(a) % rank for a in np.ravel(given)})


def _of_nothing(name: str, dtype: str) -> float | int | bool:
    """What the standard gives for the empty set."""
    if name in _EMPTY:
        return _EMPTY[name]
    if name == "ReduceMean":  # onnxruntime's, for integers
        return np.nan if is_float(dtype) else 0
    low = name in ("ReduceMax", "ReduceLogSum", "ReduceLogSumExp")
    if dtype == "bool":
        return not low
    if is_float(dtype):
        return -np.inf if low else np.inf
    info = np.iinfo(dtype)
    return int(info.min if low else info.max)


def _reduce(name: str) -> Converter:
    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b = Build(bb, ctx.name)
        x = inputs[0]
        shape, dtype = shape_of(x), dtype_of(x)
        axes, keep = _axes(ctx, inputs, attrs, len(shape)), bool(attrs.get("keepdims", 1))
        if axes is None:
            axes = []
        if any(shape[a] == 0 for a in axes):
            out = [1 if i in axes else s for i, s in enumerate(shape) if keep or i not in axes]
            return b.full(out, _of_nothing(name, dtype), dtype)
        return _compute(b, name, x, axes, keep)

    return convert


def largest_double(dtype: str) -> float:
    """The largest double that an integer type holds.

    >>> largest_double("uint8"), largest_double("int64") < 2.0**63
    (255.0, True)
    """
    top = int(np.iinfo(dtype).max)
    return float(top) if int(float(top)) <= top else float(np.nextafter(float(top), 0.0))


def _compute(b: Build, name: str, x: Any, axes: list[int], keep: bool) -> Any:
    """The reduction in Relax operators; float16 and bfloat16 are summed in float32."""
    dtype = dtype_of(x)
    if name in ("ReduceMax", "ReduceMin"):
        if not axes:
            return x
        if dtype == "bool":
            return b.cast(b.emit(_OPS[name](b.cast(x, "int8"), axes, keep)), "bool")
        return _OPS[name](x, axes, keep)
    wide = b.wide(x)
    if name in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2") and not is_float(dtype):
        wide = b.cast(x, "float64")  # the root of a sum of squares fits where the squares do not

    def fold(op: Callable[..., Any], value: Any) -> Any:
        return b.emit(op(value, axes, keep)) if axes else value

    if name == "ReduceMean" and not is_float(dtype):  # C's division, as in onnxruntime: towards zero
        wide, elements = b.cast(x, "uint64" if dtype == "uint64" else "int64"), math.prod(shape_of(x)[a] for a in axes)
        count = b.cast(b.reshape(b.number(elements), ()), dtype_of(wide))
        out = b.emit(relax.op.divide(fold(relax.op.sum, wide), count))
    elif name in _OPS:
        out = fold(_OPS[name], wide)
    elif name == "ReduceL1":
        out = fold(relax.op.sum, b.emit(relax.op.abs(wide)))
    elif name == "ReduceSumSquare":
        out = fold(relax.op.sum, b.mul(wide, wide))
    elif name == "ReduceL2":
        out = b.emit(relax.op.sqrt(fold(relax.op.sum, b.mul(wide, wide))))
        if not is_float(dtype):
            out = b.minimum(out, largest_double(dtype))
    elif name == "ReduceLogSum":
        out = b.emit(relax.op.log(fold(relax.op.sum, wide)))
    else:  # log-sum-exp, with the maximum taken out; an infinite maximum is left in
        highest = b.emit(relax.op.max(wide, axes, True)) if axes else wide
        finite = b.where(b.less(b.emit(relax.op.abs(highest)), np.inf), highest, 0.0)
        total = fold(relax.op.sum, b.emit(relax.op.exp(b.sub(wide, finite))))
        out = b.add(b.emit(relax.op.log(total)), b.reshape(finite, shape_of(total)))
    return b.cast(out, dtype)


def det(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Det of [..., n, n], by elimination with partial pivoting, unrolled over n.

    In float64: rows around 1000 that differ by 1 have a determinant around 1000, of products around 10**6.
    """
    b = Build(bb, ctx.name)
    shape = shape_of(inputs[0])
    n, batch = shape[-1], math.prod(shape[:-2])
    if isinstance(n, Dim):
        raise OpenSize(f"the size of its matrices, {n}, is open")
    if n == 0:  # the product of nothing
        return b.ones(shape[:-2], dtype_of(inputs[0]))
    if n > 64:
        raise ctx.unsupported(f"matrices of {n} x {n}; elimination is unrolled up to 64")
    m, dtype = b.cast(b.reshape(inputs[0], (batch, n, n)), "float64"), "float64"
    result = b.ones((batch, 1, 1), dtype)
    for size in range(n, 1, -1):
        column = b.slice(m, 2, 0, 1)
        best = b.emit(relax.op.argmax(b.emit(relax.op.abs(column)), 1, True))  # [batch, 1, 1], int64
        rows = const(np.arange(size).reshape(1, size, 1), "int64")
        chosen = b.cast(b.equal(rows, best), dtype)  # [batch, size, 1]
        pivot_row = b.sum(b.mul(m, chosen), 1, True)
        first_row = b.slice(m, 1, 0, 1)
        m = b.add(m, b.mul(chosen, b.sub(first_row, pivot_row)))  # the pivot's row becomes the first one
        sign = b.where(b.equal(best, 0), 1.0, const(-1.0, dtype))
        pivot = b.slice(pivot_row, 2, 0, 1)
        result = b.mul(result, b.mul(pivot, sign))
        safe = b.where(b.equal(pivot, 0.0), 1.0, pivot)
        below = b.slice(b.slice(m, 1, 1, size), 2, 0, 1)
        tail = b.slice(b.slice(m, 1, 1, size), 2, 1, size)
        m = b.sub(tail, b.mul(b.div(below, safe), b.slice(pivot_row, 2, 1, size)))
    return b.reshape(b.cast(b.mul(result, m), dtype_of(inputs[0])), shape[:-2])


def place_of(what: str) -> Converter:
    """ArgMax or ArgMin, `what`: an axis that a run finds to be empty has no such element."""

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b, shape = Build(bb, ctx.name), shape_of(inputs[0])
        places = b.emit(ctx.stock(inputs, attrs))
        axis = attrs.get("axis", 0) % len(shape)
        if not is_open((shape[axis],)):
            return places
        return at_least(b, ctx, places, shape[axis], 1, f"axis {axis} is empty, so it has no {what}")

    return convert


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "ArgMax"): place_of("largest element"),
    ("", "ArgMin"): place_of("smallest element"),
    **{("", name): _reduce(name) for name in REDUCTIONS},
    ("", "Det"): det,
}
