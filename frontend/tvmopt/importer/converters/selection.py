"""What chooses elements by their values: NonZero and Compress, whose results are as long as a run finds.

TVM has a function of its compiler for them, which an artifact lacks. Here the place of an element that is chosen is
the number of those up to it, and the result is cut where the last one stands:

    x           0  7  0  5  3        chosen     0  1  0  1  1
    ends     0  0  1  1  2  3        places     1  3  4  (ends - 1 says where each stands)

The 0 in front is how many there are of nothing, where `x` was selected itself.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import Dim
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def _chosen(b: Build, x: Any) -> tuple[Any, Any]:
    """Of a vector: the indices of its elements other than 0, followed by anything, and how many there are, [1]."""
    (count,) = shape_of(x)
    flags = x if dtype_of(x) == "bool" else b.emit(relax.op.not_equal(x, const(0, dtype_of(x))))
    all_ends = b.emit(relax.op.cumsum(b.concat([const([0], "int64"), b.cast(flags, "int64")], 0), axis=0))
    ends = b.slice(all_ends, 0, 1, count + 1)
    target = b.where(flags, b.sub(ends, 1), b.number(count))  # one place behind all others for what is not chosen
    order = b.emit(relax.op.scatter_elements(b.zeros((count + 1,), "int64"), target, b.arange(count), axis=0))
    return b.slice(order, 0, 0, count), b.slice(all_ends, 0, count, count + 1)


def nonzero(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """NonZero: the indices [rank, n] of elements other than 0, in the order of memory; NaN is other than 0."""
    b, x = Build(bb, ctx.name), inputs[0]
    shape = shape_of(x)
    if not shape:  # NumPy and the definition do not say how many rows there are; onnxruntime has one
        raise ctx.unsupported("its input is one number and no tensor of axes", "put a Reshape to [1] before it")
    if 0 in shape:
        return const(np.zeros((len(shape), 0)), "int64")
    order, count = _chosen(b, b.reshape(x, (prod(shape),)))
    rows = []
    for axis, size in enumerate(shape):
        place = order
        if axis + 1 < len(shape):
            place = b.emit(relax.op.floor_divide(place, b.number(prod(shape[axis + 1 :]))))
        if axis:
            place = b.emit(relax.op.mod(place, b.number(size)))
        rows.append(b.reshape(place, (1, prod(shape))))
    return b.cut(b.concat(rows, 0), 1, 0, count, ctx.decided(1))


def compress(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Compress: the slices of an axis, or the elements in the order of memory, for which a condition holds.

    What a condition says beyond the end of the axis is of nothing, as in onnxruntime; where the sizes are known it is
    refused.
    """
    b, x, condition = Build(bb, ctx.name), inputs[0], inputs[1]
    if "axis" not in attrs:
        x = b.reshape(x, (prod(shape_of(x)),))
    axis = int(attrs.get("axis", 0)) % len(shape_of(x))
    (length,), size = shape_of(condition), shape_of(x)[axis]
    if isinstance(length, int) and isinstance(size, int) and length > size:
        raise ctx.invalid(f"A condition of {length} elements chooses from an axis of {size}.", "repair the model", 1)
    if 0 in (length, size):
        return b.slice(x, axis, 0, 0)
    if isinstance(length, Dim) or isinstance(size, Dim):  # at some sizes it may be longer than the axis
        condition = b.both(condition, b.less(b.arange(length), b.number(size)))
    order, count = _chosen(b, condition)
    return relax.op.take(x, b.cut(order, 0, 0, count, ctx.decided(axis)), axis, "clip")


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "NonZero"): nonzero,
    ("", "Compress"): compress,
}
