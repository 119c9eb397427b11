"""Operators whose result has the shape that the folding walk found, open sizes among its own: reshapes, slices, ranges.

Static shapes go the way of every operator: TVM's converter, or ours in the other files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import Dim, OpenSize, Size, is_open, least, most
from tvmopt.importer.converters import indices as indexed
from tvmopt.importer.converters import shape as static
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.open_values import BEYOND, from_the_end
from tvmopt.importer.sizes import shape_to_tvm, to_tvm


def _result_shape(ctx: Context) -> tuple[Size, ...]:
    """The shape of the first output."""
    known = ctx.output_types[0]
    if known is None:
        raise OpenSize("the shape of its result is not known")
    return known[1]


def _is_static(inputs: Inputs, ctx: Context) -> bool:
    """Whether neither the result nor an input that carries data has an open size."""
    known = ctx.output_types[0]
    given = [v for v in inputs if v is not None]
    if known is None or is_open(known[1]) or any(isinstance(v, np.ndarray) for v in given):
        return False
    return not any(is_open(shape_of(v)) for v in given)


def reshape(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Reshape, Flatten: to the shape that is known."""
    if _is_static(inputs, ctx):
        return static.reshape(bb, inputs, attrs, ctx) if ctx.op_type == "Reshape" else ctx.stock(inputs, attrs)
    return Build(bb, ctx.name).reshape(inputs[0], _result_shape(ctx))


def squeeze(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Squeeze: by a reshape where sizes are open."""
    if _is_static(inputs, ctx):
        return ctx.stock(inputs, attrs)
    if ctx.output_types[0] is None and inputs[1] is None and "axes" not in attrs:
        raise OpenSize("it does not say which axes it removes, and whether an open size is 1 is not known")
    return reshape(bb, inputs, attrs, ctx)


def expand(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Expand: spread over the shape that is known."""
    if _is_static(inputs, ctx):
        return ctx.stock(inputs, attrs) if ctx.array(inputs[1]) is not None else _as_it_is(bb, inputs, ctx)
    return Build(bb, ctx.name).broadcast(inputs[0], _result_shape(ctx))


def _as_it_is(bb: relax.BlockBuilder, inputs: Inputs, ctx: Context) -> Result:
    """Expand by sizes that a run computes, of a tensor that has no axis of one element: there is nothing to spread,
    and what is not its own size or 1 is refused."""
    (x, wanted), b = inputs[:2], Build(bb, ctx.name)
    count = shape_of(wanted)[0]
    if count == 0:
        return x
    own = shape_of(x)[-count:]
    fits = b.emit(relax.op.logical_or(b.equal(wanted, const(np.array(own), dtype_of(wanted))), b.equal(wanted, 1)))
    wrong = b.emit(relax.op.logical_not(fits))
    fix = f"pass {list(own)}, or 1 in place of any of these"
    zeros = indexed.refused(b, ctx, 1, wrong, "its shape does not fit its input", fix)
    return b.where(b.equal(b.sum(zeros, None), 0), x, 0)  # always: x is behind the check


def constant_of_shape(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ConstantOfShape: one value everywhere. TVM's `full` cannot be lowered where that is infinite or no number."""
    if _is_static(inputs, ctx):
        return ctx.stock(inputs, attrs)
    value = np.ravel(attrs.get("value", np.zeros(1, np.float32)))
    return Build(bb, ctx.name).broadcast(const(value[0], str(value.dtype)), _result_shape(ctx))


def range_(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Range from, to and by sizes; else as with numbers that a run computes."""
    bounds = [ctx.array(v) for v in inputs]
    if _is_static(inputs, ctx) or any(b is None for b in bounds):
        return indexed.range_(bb, inputs, attrs, ctx)
    start, stop, step = (np.ravel(b)[0] for b in bounds if b is not None)
    known = ctx.output_types[0]
    if known and isinstance(step, int | np.integer) and step < 0:  # TVM counts upwards only
        b = Build(bb, ctx.name)
        steps = b.mul(b.arange(known[1][0]), const(int(step), "int64"))
        return b.cast(b.add(steps, b.number(start)), known[0])
    if known and isinstance(step, int | np.integer) and step > 0:  # none where it ends before it begins
        stop = start + known[1][0] * step
    return relax.op.arange(to_tvm(start), to_tvm(stop), to_tvm(step), dtype=known[0] if known else "int64")


FARTHEST = 1 << 31
"""A step beyond every axis: to add a larger one to a size leaves 64 bits."""


def slice_(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Slice whose axes or bounds are open; the walk has seen to it that those of a positive step are inside."""
    if _is_static(inputs, ctx):
        far = ctx.array(inputs[4])
        if far is not None and (np.abs(far.astype(np.float64)) > FARTHEST).any():
            inputs = Inputs([*inputs[:4], const(np.clip(far, -FARTHEST, FARTHEST), "int64")])
        return ctx.stock(_from_inside(inputs, ctx), attrs)
    x, out = inputs[0], _result_shape(ctx)
    own = shape_of(x)
    starts, ends, given, strides = (
        list(attrs[name]) if name in attrs else _list(ctx, inputs[i + 1], name)
        for i, name in enumerate(("starts", "ends", "axes", "steps"))
    )
    axes = [int(a) % len(own) for a in (given or range(len(starts)))]
    steps = [min(int(s), FARTHEST) for s in (strides or [1] * len(starts))]
    b = Build(bb, ctx.name)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == -1 and isinstance(own[axis], Dim) and not isinstance(start, Dim):
            x = b.emit(relax.op.flip(b.slice(x, axis, 0, out[axis]), axis))  # all of it, or the first ones
        elif step < 1:  # from the back to the front: where it begins and ends beyond the axis is for Python to say
            if any(isinstance(size, Dim) for size in (own[axis], start, end)):
                return ctx.stock(inputs, attrs)
            places = np.arange(own[axis])[slice(int(start), int(end), step)]
            x = b.emit(relax.op.take(x, const(places, "int64"), axis))
    kept = [i for i, s in enumerate(steps) if s > 0]
    axes, steps, starts = ([values[i] for i in kept] for values in (axes, steps, starts))
    own = shape_of(x)
    firsts = [_place(own[a], s) for a, s in zip(axes, starts, strict=True)]
    # behind the last element: where the end stands before the beginning there is none, and not a number below that
    lasts = [f + out[a] * s - (s - 1) for a, f, s in zip(axes, firsts, steps, strict=True)]
    if all((f, own[a], s) == (0, out[a], 1) for a, f, s in zip(axes, firsts, steps, strict=True)):
        return x
    return relax.op.strided_slice(x, axes, shape_to_tvm(firsts), shape_to_tvm(lasts), steps, assume_inbound=True)


def _from_inside(inputs: Inputs, ctx: Context) -> Inputs:
    """The inputs of a Slice of known sizes; one that goes back from before an axis begins there, as ONNX says, where
    Python's would be empty."""
    own, (starts, axes, steps) = shape_of(inputs[0]), (ctx.array(inputs[i]) for i in (1, 3, 4))
    if starts is None or steps is None or not (steps < 0).any():
        return inputs
    along = np.arange(len(starts)) if axes is None else axes
    first = np.array([-own[int(a)] for a in along])
    return Inputs([inputs[0], const(np.where(steps < 0, np.maximum(starts, first), starts), "int64"), *inputs[2:]])


def _list(ctx: Context, value: Any, what: str) -> list[Any]:
    """The elements of an input that must be known; none if it is left out."""
    array = ctx.array(value, what)
    return [] if array is None else list(np.ravel(array))


def _place(size: Size, place: Size) -> Size:
    """Where a bound lies, counted from the start (see `tvmopt.importer.open_shapes.moving.slice_bounds`)."""
    place = place if hasattr(place, "terms") else int(place)
    if isinstance(place, int) and abs(place) >= BEYOND:
        return size if place > 0 else 0
    if from_the_end(place):
        return most(size + place, 0)
    return place if not isinstance(place, int) and isinstance(size, int) else least(place, size)


def tile(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Tile by open numbers of times: an axis of one element is spread, others stand beside a new one."""
    if _is_static(inputs, ctx):
        return ctx.stock(inputs, attrs)
    b, x, repeats = Build(bb, ctx.name), inputs[0], _list(ctx, inputs[1], "repeats")
    own = shape_of(x)
    apart = [d for size, times in zip(own, repeats, strict=True) for d in (1, size)]
    spread = [d for size, times in zip(own, repeats, strict=True) for d in (times, size)]
    return b.reshape(b.broadcast(b.reshape(x, apart), spread), _result_shape(ctx))


def shape_as_data(b: Build, array: Any, dtype: str) -> Any:
    """A tensor whose elements are sizes, for who reads it as data."""
    return b.cast(b.reshape(b.sizes(shape_to_tvm(np.ravel(array))), np.shape(array)), dtype)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Reshape"): reshape,
    ("", "Flatten"): reshape,
    ("", "Squeeze"): squeeze,
    ("", "Expand"): expand,
    ("", "ConstantOfShape"): constant_of_shape,
    ("", "Range"): range_,
    ("", "Slice"): slice_,
    ("", "Tile"): tile,
}
