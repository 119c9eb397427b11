"""Tensors of float32 read at coordinates of a grid, CPU: as vectors of channels, which lie behind each other.

    pictures  = transpose(x)                                         [n, pixels, channels]
    for an axis, for a tap: places, weights of all points            vectors of points, once for all channels
    for a point, for the taps of all axes
      y[point, channels] += weight * pictures[place, channels]       whole vectors; what lies outside is masked
    transpose(y)

Nothing is gathered, and what belongs to a point is computed once: with the channels outermost each number of the result
gathers its elements, and computes their places again.

floor      both transposes, 8*(inputs + outputs) bytes; points * taps * channels / lanes products, one or two a cycle
Measured   one core of a Zen 4, us, 64 channels of 56 x 56, in brackets gathers and onnxruntime: linear 94 (600, 363),
           nearest 67 (187, 1300), cubic 215 (1790, 6860); 4 channels, linear 24 (41, 56). Both transposes are 56 of 94
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import OPAQUE, OUT_ELEMENTWISE_FUSABLE, call_with_pattern, flat, sizes
from tvmopt.operators.grid_sample import Sampling
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

CHANNELS, READS = 4, 4
"""So many channels are worth a layout in which they lie behind each other, where one element is read for as many of a
picture: to move a number takes an eighth of the time that it takes to gather one."""
LARGEST = 2**30
"""Pixels of a picture whose places int32 counts, twice as many beside them: a reflection's."""


def grid_sample(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`tvmopt.grid_sample` of :mod:`tvmopt.operators.grid_sample`."""
    x, grid = call.args
    sampling, shape, grid_shape = Sampling.of(call), sizes(x), sizes(grid)
    if shape is None or grid_shape is None:
        return Declined("tensors of unknown shapes")
    reason = _reason(shape, grid_shape, sampling)
    if reason:
        return Declined(reason)
    (batch, channels, *picture), points = shape, grid_shape[1:-1]
    count, pixels = math.prod(points), math.prod(picture)
    pictures = bb.emit(relax.op.permute_dims(flat(bb, x, (batch, channels, pixels)), (0, 2, 1)))
    places = flat(bb, grid, (batch, count, len(picture)))
    tables = [table for axis in range(len(picture)) for table in _tables(bb, places, sampling, picture, axis)]
    each, outside = len(tables) // len(picture), sampling.padding == "zeros"

    def sample_channels(data: te.Tensor, *tables: te.Tensor) -> te.Tensor:
        axes = [tables[i : i + each] for i in range(0, len(tables), each)]
        shape = (data.shape[0], count, channels)
        return te.compute(shape, lambda n, p, c: _sum_of(data, axes, outside, n, p, c), name="grid_sample")

    # no transpose is fused with it: its vectors are those of the channels
    args = [pictures, *tables]
    found = bb.emit(call_with_pattern(bb, sample_channels, args, "sample_channels", OUT_ELEMENTWISE_FUSABLE))
    return flat(bb, bb.emit(relax.op.permute_dims(found, (0, 2, 1))), (batch, channels, *points))


def _reason(x: Sequence[Any], grid: Sequence[Any], sampling: Sampling) -> str:
    """Why vectors of channels are not worth two transposes; empty where they are. The number of pictures may be
    open."""
    (channels, *picture), points = x[1:], grid[1:-1]
    if not all(isinstance(d, int) and d > 0 for d in (channels, *picture, *points)):
        return "an open or empty picture or grid"
    if sampling.dtype != "float32" or math.prod(picture) > LARGEST:
        return f"a picture of {sampling.dtype} of {math.prod(picture)} pixels"
    if channels < CHANNELS:
        return f"{channels} channels"
    reads = math.prod(points) * sampling.count ** len(picture)
    return f"{reads} elements read of {math.prod(picture)}" if READS * reads < math.prod(picture) else ""


def _tables(
    bb: relax.BlockBuilder, grid: Any, sampling: Sampling, picture: Sequence[int], axis: int
) -> list[Any]:  # fmt: skip
    """Places int32 and weights float32 [taps, n, points] of one axis. A place counts elements of the picture, -1 is one
    outside; where a single element is read, there are no weights."""
    stride, taps = math.prod(picture[axis + 1 :]), sampling.count

    def tapped(value_of: Callable[[Any, Any, Any], Any]) -> Any:
        def grid_table(points: te.Tensor) -> te.Tensor:
            def one(k: Any, n: Any, p: Any) -> Any:
                at = tirx.Var("at", sampling.dtype)
                found = sampling.taps(at, picture[axis], "int32")
                values = [value_of(*tap) for tap in found]
                chosen = values[-1]
                for number, value in enumerate(values[:-1]):
                    chosen = tirx.Select(k == number, value, chosen)
                # read in front of the choice: in an arm TVM makes `k*N + n - 6` of n, which is elsewhere in other arms
                return tirx.Let(at, points(n, p, len(picture) - 1 - axis), chosen)

            return te.compute((taps, *points.shape[:2]), one, name="grid_table")

        return bb.emit(call_with_pattern(bb, grid_table, [grid], "grid_table", OPAQUE))

    def place(index: Any, _weight: Any, inside: Any) -> Any:
        return tirx.Select(inside, index * stride, tirx.const(-1, "int32"))

    return [tapped(place), *([tapped(lambda _index, weight, _inside: weight)] if taps > 1 else [])]


def _sum_of(data: Any, axes: Sequence[Sequence[Any]], outside: bool, n: Any, p: Any, c: Any) -> Any:
    """One number of the result: of pictures [n, pixels, channels], by the tables of each axis.

    Args:
        outside: whether elements may lie outside; they count as 0.
    """
    total = None
    for chosen in product(range(int(axes[0][0].shape[0])), repeat=len(axes)):
        known = [[table(k, n, p) for table in tables] for k, tables in zip(chosen, axes, strict=True)]
        places = [tables[0] for tables in known]
        value = data(n, tirx.max(sum(places[1:], places[0]), 0), c)
        if outside:
            value = _unless(reduce(operator.or_, places), value)
        if len(known[0]) > 1:
            value = value * math.prod([tables[1] for tables in known[1:]], start=known[0][1])
        total = value if total is None else total + value
    return total


def _unless(sign: Any, value: Any) -> Any:
    """A float32, and 0 where an int32 is negative: by its bits, for TVM makes a branch of a choice between loads."""
    mask = tirx.bitwise_not(tirx.shift_right(sign, tirx.const(31, "int32")))
    return tirx.reinterpret("float32", tirx.bitwise_and(tirx.reinterpret("int32", value), mask))
