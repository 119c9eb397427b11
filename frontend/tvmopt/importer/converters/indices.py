"""Gather, Scatter and their kin; and the checks for every converter in which a value becomes an address or a divisor.

A constant that is out of range is refused here, with the node's name. A value of a run is looked at by an operator of
our own (:mod:`tvmopt.operators.checks`), so that no kernel reads or writes where the caller's numbers point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvmopt.dims import Size, interval, is_open
from tvmopt.importer.converters.common import Build, const, dtype_of, is_float, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.protos import MOST_ELEMENTS
from tvmopt.importer.sizes import from_tvm, shape_to_tvm
from tvmopt.importer.symbols import CUT_BEFORE_SELECTION
from tvmopt.operators.checks import Check, checked

REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def index(b: Build, ctx: Context, number: int, extents: Sequence[Size], value: Any = None, wrap: bool = True) -> Any:
    """Input `number` of the node (or `value`, made of it) as indices from 0 to the extent - 1.

    Args:
        extents: of the axis; several: of the axes that each component of the last axis of the indices stands for.
        wrap: negative values count from the end; else they are not allowed.

    Raises:
        ModelError: a constant is out of range.
    """
    if is_open(extents):
        value = ctx.node_inputs[number] if value is None else value
        return _inside(b, ctx, number, value, shape_to_tvm(extents), wrap)
    low = tuple(-e if wrap else 0 for e in extents)
    return _checked(b, ctx, number, value, "an index", low, tuple(e - 1 for e in extents), wrap)


def within(b: Build, ctx: Context, number: int, what: str, low: int, high: int, value: Any = None) -> Any:
    """Input `number` of the node (or `value`, made of it), refused where it is not from `low` to `high`; `what`: its
    name with an article."""
    return _checked(b, ctx, number, value, what, (low,), (high,), False)


def nonzero(b: Build, ctx: Context, number: int, what: str, value: Any = None) -> Any:
    """Input `number` of the node (or `value`, made of it), integers, refused where it is 0."""
    return _checked(b, ctx, number, value, what, (), (), False)


def _checked(
    b: Build, ctx: Context, number: int, value: Any, what: str, low: tuple[int, ...], high: tuple[int, ...], wrap: bool
) -> Any:
    value = ctx.node_inputs[number] if value is None else value
    name = f"{ctx.domain}::{ctx.op_type}" if ctx.domain else ctx.op_type
    ranges = [f"from {a} to {z}" for a, z in zip(low, high, strict=True)]
    bounds = " and ".join(dict.fromkeys(ranges)) if ranges else "other than 0"
    check = Check(
        f"{name}: {what} is {'out of range' if low else '0'}.",
        f"node '{ctx.name}', input '{ctx.node.input[number]}'",
        f"pass values {bounds}" if len(ranges) < 2 else f"pass components {bounds}, in this order",
        *((low, high, wrap) if low else ()),
    )
    known = ctx.array(value)
    if known is None:
        _sized(ctx, value, number)
        return b.emit(checked(value, check))
    if not check.allows(known):
        raise ctx.invalid(check.what, f"a constant of the model: {check.fix.replace('pass', 'it takes')}", number)
    return const(check.passed(known), dtype_of(value))


def _sized(ctx: Context, value: Any, number: int) -> None:
    """Refuse a tensor of which not even a name of its sizes is known."""
    if not isinstance(value.ty.shape, relax.ShapeExpr):
        raise ctx.unsupported(f"the rank of its input '{ctx.node.input[number]}' is not known", CUT_BEFORE_SELECTION)


def _extents(ctx: Context, x: Any, axes: Sequence[int]) -> list[Size]:
    """The sizes of these axes of the node's first input."""
    try:
        return [from_tvm(list(x.ty.shape.values)[a]) for a in axes]
    except (AttributeError, ValueError):
        told = "the size of the axis it indexes is decided by values, at run time"
        raise ctx.unsupported(told, CUT_BEFORE_SELECTION) from None


def _indexes(ctx: Context, x: Any, axes: Sequence[int]) -> bool:
    """Whether input 1 is known to hold indices of these axes of x, so that no check is needed."""
    shape = x.ty.shape
    return isinstance(shape, relax.ShapeExpr) and ctx.indexes(1, [shape.values[a] for a in axes])


def _inside(b: Build, ctx: Context, number: int, at: Any, extents: Sequence[Any], wrap: bool) -> Any:
    """Input `number` of the node, `at`, as indices of axes whose sizes are open, of which there may be none; negative
    ones count from the end with `wrap`.

    The first and the last element of what is never empty need no check.
    """
    known = ctx.array(at)
    least = min((_least(size) for size in extents), default=0)
    there = known is not None and bool(((known < least) & (known >= (-least if wrap else 0))).all())
    at = b.cast(at, "int64")
    end = b.reshape(b.sizes(extents), (len(extents),) if len(extents) > 1 else ())
    if wrap:
        at = b.where(b.less(at, 0), b.add(at, end), at)
    if there:
        return at
    inside = b.emit(relax.op.logical_and(b.greater(at, -1), b.less(at, end)))
    outside = b.emit(relax.op.logical_not(inside))
    fix = "pass indices of elements that there are" + (", or negative ones that count from the end" if wrap else "")
    nothing = refused(b, ctx, number, outside, "an index is out of range", fix)
    return b.add(b.minimum(b.maximum(at, 0), b.sub(end, 1)), nothing)


def refused(b: Build, ctx: Context, number: int, wrong: Any, what: str, fix: str) -> Any:
    """Zeros, int64, to add to indices; an error of the run, about input `number`, where one of the booleans `wrong` is
    true. A check knows numbers alone, so it looks at 0 or 1."""
    check = Check(f"{ctx.op_type}: {what}.", f"node '{ctx.name}', input '{ctx.node.input[number]}'", fix, (0,), (0,))
    return b.emit(checked(b.cast(wrong, "int64"), check))


def at_least(b: Build, ctx: Context, at: Any, size: Size, least: Size, what: str) -> Any:
    """What says which elements of an axis are read, `at`, where a run may find that the axis has fewer than `least`: an
    error then.

    Args:
        at: indices or coordinates of any type.
        what: the axis, and why it must have elements: "axis 0 is empty, so ...".
    """
    if interval(size - least, {})[0] >= 0:
        return at
    short = b.less(b.number(size), b.number(least))
    nothing = b.reshape(refused(b, ctx, 0, short, what, "pass values of which enough are chosen"), ())
    return b.add(at, b.cast(nothing, dtype_of(at)))


def _least(extent: Any) -> int:
    """The least that a size may be, as far as its name tells."""
    try:
        return int(max(0, interval(from_tvm(extent), {})[0]))
    except ValueError:
        return 0


def gather(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Gather: slices of x along an axis."""
    x, at = inputs[0], inputs[1]
    axis = attrs.get("axis", 0) % len(x.ty.shape)
    if _indexes(ctx, x, [axis]):
        return relax.op.take(x, at, axis, "clip")
    if not isinstance(x.ty.shape[axis], tirx.IntImm):
        at = _inside(Build(bb, ctx.name), ctx, 1, at, [x.ty.shape[axis]], wrap=True)
        return relax.op.take(x, at, axis, "clip")
    at = index(Build(bb, ctx.name), ctx, 1, _extents(ctx, x, [axis]))
    if all(isinstance(value, tvm.ir.GenericConst) for value in (x, at)):
        return const(np.take(x.value.numpy(), at.value.numpy(), axis), dtype_of(x))
    return relax.op.take(x, at, axis)


def gather_elements(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GatherElements: for each index the element along one axis."""
    axis = attrs.get("axis", 0) % len(inputs[0].ty.shape)
    if _indexes(ctx, inputs[0], [axis]):
        return relax.op.gather_elements(inputs[0], inputs[1], axis)
    at = index(Build(bb, ctx.name), ctx, 1, _extents(ctx, inputs[0], [axis]))
    return relax.op.gather_elements(inputs[0], at, axis)


def gather_nd(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GatherND: slices at positions behind the batch axes."""
    x, batch = inputs[0], attrs.get("batch_dims", 0)
    at = _position(Build(bb, ctx.name), ctx, x, inputs[1], batch)
    return relax.op.gather_nd(x, at, batch)


def _position(b: Build, ctx: Context, x: Any, at: Any, first: int) -> Any:
    """Input 1 of the node: positions in the axes of x from `first` on."""
    depth = at.ty.shape[-1]
    if not isinstance(depth, tirx.IntImm):
        raise ctx.unsupported("the length of a position is decided by values, at run time", CUT_BEFORE_SELECTION)
    axes = range(first, first + int(depth))
    if _indexes(ctx, x, axes):
        return at
    return index(b, ctx, 1, _extents(ctx, x, axes)) if int(depth) else at


def scatter_elements(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ScatterElements, and Scatter, its old name: write, or combine, elements along one axis."""
    b, axis = Build(bb, ctx.name), attrs.get("axis", 0) % len(inputs[0].ty.shape)
    at = index(b, ctx, 1, _extents(ctx, inputs[0], [axis]))
    own, shape = shape_of(at), shape_of(inputs[0])
    if 0 in (*own, *shape):
        return inputs[0]  # TVM's kernels divide by the sizes
    if any(o != s for i, (o, s) in enumerate(zip(own, shape, strict=True)) if i != axis):
        whole = b.emit(_coordinates(b, at, own, axis))  # TVM's own steps through the data by the indices' shape
        return relax.op.scatter_nd(inputs[0], whole, inputs[2], REDUCTIONS[attrs.get("reduction", "none")])
    if ctx.op_type == "Scatter":
        return ctx.stock([inputs[0], at, inputs[2]], attrs)
    return relax.op.scatter_elements(inputs[0], at, inputs[2], axis, REDUCTIONS[attrs.get("reduction", "none")])


def _coordinates(b: Build, at: Any, shape: Sequence[Size], axis: int) -> Any:
    """All coordinates, [*shape, rank], of elements of which `at` has the one along `axis`."""
    parts = []
    for i, extent in enumerate(shape):
        if i == axis:
            steps = b.cast(at, "int64")
        else:
            steps = b.reshape(b.arange(extent), [extent if k == i else 1 for k in range(len(shape))])
            steps = b.broadcast(steps, shape)
        parts.append(b.reshape(steps, (*shape, 1)))
    return relax.op.concat(parts, len(shape))


def scatter_nd(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ScatterND: write, or combine, slices at positions."""
    at = _position(Build(bb, ctx.name), ctx, inputs[0], inputs[1], 0)
    if 0 in (*shape_of(inputs[0]), *shape_of(inputs[2])):
        return inputs[0]
    return relax.op.scatter_nd(inputs[0], at, inputs[2], REDUCTIONS[attrs.get("reduction", "none")])


def divide(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Div: of integers towards zero; the smallest integer by -1 is itself, as NumPy has it."""
    if is_float(dtype_of(inputs[0])):
        return ctx.stock(inputs, attrs)
    return integer_ratio(bb, ctx, inputs[0], inputs[1], relax.op.divide)


def integer_ratio(bb: relax.BlockBuilder, ctx: Context, x: Any, y: Any, op: Any) -> Any:
    """Quotient or remainder of integers: a divisor of 0 is refused, and the one quotient that overflows is avoided."""
    b = Build(bb, ctx.name)
    y = nonzero(b, ctx, 1, "a divisor")
    known, dtype = ctx.array(y), dtype_of(x)
    if dtype.startswith("int") and (known is None or (known == -1).any()):
        other = b.emit(relax.op.bitwise_xor(x, const(np.iinfo(dtype).min, dtype)))  # TVM holds x == INT_MIN to be false
        overflow = b.both(b.equal(y, -1), b.equal(other, 0))
        y = b.where(overflow, 1, y)
    return op(x, y)


def range_(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Range; where a run computes its numbers, they may not make it endless, or longer than memory.

    The length is computed in float64 first, which no difference of int64 leaves, and checked: a step of 0 makes it
    infinite or NaN. That of integers is then counted exactly.
    """
    start, limit, step = inputs[0], inputs[1], inputs[2]
    if not all(isinstance(v, relax.Expr) for v in (start, limit, step)) or all(
        ctx.array(v) is not None for v in (start, limit, step)
    ):
        return ctx.stock([start, limit, step], attrs)
    b, dtype = Build(bb, ctx.name), dtype_of(step)
    if not is_float(dtype):
        step = nonzero(b, ctx, 2, "the step")
    first, last, by = (b.reshape(v, ()) for v in (start, limit, step))
    far = b.sub(last, first) if is_float(dtype) else b.sub(b.cast(last, "float64"), b.cast(first, "float64"))
    rough = b.emit(relax.op.ceil(b.div(b.cast(far, "float64"), b.cast(by, "float64"))))
    rough = b.where(b.less(rough, MOST_ELEMENTS + 1), rough, const(MOST_ELEMENTS + 1, "float64"))  # NaN is not less
    rough = b.maximum(rough, 0)
    rough = within(b, ctx, 2, "the length, (limit - start) / step,", 0, MOST_ELEMENTS, rough)
    if is_float(dtype):
        count = b.cast(rough, "int64")
    else:
        gap = b.sub(b.cast(first, "int64"), b.cast(last, "int64"))
        exact = b.emit(relax.op.negative(b.emit(relax.op.floor_divide(gap, b.cast(by, "int64")))))
        count = b.where(b.greater(rough, -1), b.maximum(exact, 0), const(0, "int64"))  # behind the check
    sizes = bb.match_cast(b.reshape(count, (1,)), relax.TensorType([1], "int64"))
    length = tirx.Var("range_len", "int64")
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(sizes)), relax.ShapeType([length]))
    places = b.cast(b.emit(relax.op.arange(0, length, 1, "int64")), dtype)
    return b.add(b.mul(places, by), first)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "Scatter"): scatter_elements,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
    ("", "Div"): divide,
}
