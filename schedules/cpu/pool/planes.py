"""Pooling of NCHW pictures as they lie, a plane a task: first along the columns of a window, then along its rows.

    for a plane, for a row y of its result
      line[L + x] = max or sum over ky of x[y*sy + ky*dy - T, x]         T, L: numbers of border on the top, on the left
      out[y, x]   = max or sum over kx of line[x*sx + kx*dx]

A window of K x K takes 2K operations a number where its taps one by one take K*K. The line has the border's numbers at
both ends, rows outside the picture are left out of the first loop, so nothing asks where a tap lies. The last vector of
a row overlaps the one before. With a stride sx, vectors of sx * V numbers are read and taken apart. Planes whose lines
all fit a part of L1 make them all before the second loop, which would wait for the vectors just written.

floor      4*(inputs + outputs) / bandwidth of the cache they live in
           K/sy vectors a vector of the picture, K a vector of the result (2K with a stride), three operations each for
           a maximum, which keeps a NaN
Measured   one core of a Xeon with AVX-512, us, in brackets the better of onnxruntime and OpenVINO: maxima, 64x112x112
           3x3 by 2 141 (406), 480x14x14 3x3 39 (74), 32x200x200 7x7 635 (2145); average, 512x13x13 13x13 87 (189)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, known, samples
from tvmopt.lowering.loops import (
    INDEX,
    NANOSECONDS,
    as_index,
    const_index,
    everything,
    in_vectors,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    spread,
    store,
    vector,
)
from tvmopt.lowering.overlap import vector_for
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
Statement = Any
STRIDE = 4
"""Columns between windows at most: vectors of so many times their length are taken apart."""
TAPS = 32
"""Of a column, up to which they are written out."""
LINES = 4096
"""Numbers of the lines that a plane may have at once: 16 KB."""


@dataclass(frozen=True)
class Axis:
    """A window along one axis: `size` numbers, `out` results, `taps` of each, `before` numbers of border."""

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Numbers of a line with its borders that windows read."""
        return (self.out - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    @property
    def whole(self) -> tuple[int, int]:
        """The first result whose taps all lie inside, and the one behind the last; equal where there is none."""
        first = -(-self.before // self.stride)
        last = (self.size - 1 + self.before - (self.taps - 1) * self.dilation) // self.stride + 1
        first, last = min(first, self.out), min(last, self.out)
        return (first, last) if first < last else (0, 0)

    def shares(self, include: bool) -> np.ndarray[Any, Any]:
        """1 over the number of taps of each result that count: those inside, or with `include` in the border, too.

        >>> Axis(5, 3, 3, 2, 1, 1, 1).shares(False).round(2).tolist()
        [0.5, 0.33, 0.5]
        """
        low, high = (-self.before, self.size + self.after) if include else (0, self.size)
        place = np.arange(self.out)[:, None] * self.stride - self.before + np.arange(self.taps) * self.dilation
        counts = np.maximum(((place >= low) & (place < high)).sum(1), 1)
        return np.asarray(1.0 / counts)


@dataclass(frozen=True)
class Pool:
    """A pooling of planes; `kind` is "max" or "avg"; `include`: averages count the border."""

    kind: str
    rows: Axis
    columns: Axis
    include: bool

    @property
    def nothing(self) -> float:
        """What changes no result."""
        return float("-inf") if self.kind == "max" else 0.0

    @property
    def shares(self) -> list[np.ndarray[Any, Any]]:
        """1 over the number of taps of a row and of a column of the result."""
        return [axis.shares(self.include) for axis in (self.rows, self.columns)]

    @property
    def varies(self) -> bool:
        """Whether averages are of different numbers of taps."""
        return self.kind == "avg" and any((s != s[0]).any() for s in self.shares)


def planes(kind: str) -> Any:
    """The lowering of `R.nn.max_pool2d` and `R.nn.avg_pool2d` of float32 in NCHW; `kind` is "max" or "avg"."""

    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
        attrs, (x,) = call.attrs, call.args
        shape, out = samples(x), samples(call)
        if shape is None or out is None or str(x.ty.dtype) != "float32":
            return Declined("an open or empty picture, or another type than float32")
        if {str(attrs.layout), str(attrs.out_layout or attrs.layout)} != {"NCHW"}:
            return Declined(f"the layout {attrs.layout}")
        rows, columns = (_axis(attrs, shape, out, axis) for axis in (0, 1))
        if columns.stride > STRIDE:
            return Declined(f"a stride of more than {STRIDE} columns")
        pool = Pool(kind, rows, columns, bool(getattr(attrs, "count_include_pad", False)))
        own = shape[0] if isinstance(shape[0], int) else tirx.Var("n", INDEX)
        func = pool_kernel(pool, own, shape[1], machine)
        shares = [relax.const(s.astype(np.float32)) for s in pool.shares] if pool.varies else []
        result = relax.TensorType(list(out), "float32")
        return relax.call_tir(bb.add_func(func, f"{kind}_pool_planes"), [x, *shares], result)

    return lowering


def _axis(attrs: Any, shape: Sequence[Any], out: Sequence[Any], axis: int) -> Axis:
    before, after = int(attrs.padding[axis]), int(attrs.padding[axis + 2])
    taps, stride, dilation = (int(values[axis]) for values in (attrs.pool_size, attrs.strides, attrs.dilation))
    return Axis(shape[2 + axis], out[2 + axis], taps, stride, dilation, before, after)


def pool_kernel(pool: Pool, batch: Any, channels: int, machine: Machine) -> tirx.PrimFunc:
    """PrimFunc(x, [shares of rows, shares of columns], y). Few planes are cut into pieces of the result's rows."""
    count, rows = known(batch) * channels, pool.rows.out
    most = 4 * machine.cores if machine.cores > 1 and count < 4 * machine.cores else 1
    pieces = next((d for d in divisors(rows) if d * count >= most), rows)
    x = new_buffer("x", batch, channels, pool.rows.size, pool.columns.size)
    shares = [new_buffer(f"shares_{i}", axis.out) for i, axis in enumerate((pool.rows, pool.columns)) if pool.varies]
    y = new_buffer("y", batch, channels, rows, pool.columns.out)
    at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "c", "piece"))
    plane = Plane(pool, x, y, shares, at, machine.lanes())
    body = plane.program(rows // pieces)
    axes = list(zip(at, (as_index(batch), channels, pieces), strict=True))
    notes = {"tvmopt.kernel": "rows", NANOSECONDS: count * plane.cycles / machine.ghz}
    loops = nest(
        f"{pool.kind}_pool", axes, ("n", "c", "piece"), [everything(b) for b in (x, *shares)],
        [_written(y, at, rows // pieces)], body, plane.buffers, notes,
    )  # fmt: skip
    return prim_func([x, *shares, y], loops, OUT_ELEMENTWISE_FUSABLE)


class Plane:
    """Builds the statements of a task: `rows` rows of one plane of the result."""

    def __init__(self, pool: Pool, x: Any, y: Any, shares: Sequence[Any], at: tuple[Expr, ...], lanes: int) -> None:
        self.pool, self.x, self.y, self.shares, self.at = pool, x, y, shares, at
        self.wide, self.narrow = (vector_for(n, lanes) for n in (pool.columns.size, pool.columns.out))
        columns = pool.columns
        least = max(columns.reach, columns.before + columns.size)
        spread_out = columns.out * columns.stride + (columns.taps - 1) * columns.dilation
        self.pitch = -(-max(least, spread_out) // lanes) * lanes
        self.buffers: list[Any] = []
        self.total = self._local("total", max(self.wide, self.narrow))

    def _local(self, name: str, *shape: int) -> Any:
        self.buffers.append(new_buffer(name, *shape))
        return self.buffers[-1]

    @property
    def cycles(self) -> float:
        """Of one plane, one core, its data in L2."""
        rows, columns = self.pool.rows, self.pool.columns
        each = 1.5 if self.pool.kind == "max" else 0.5
        along = -(-columns.size // self.wide) * rows.taps
        across = -(-columns.out // self.narrow) * columns.taps * (1 if columns.stride == 1 else 2)
        return each * rows.out * (along + across)

    def program(self, rows: int) -> Statement:
        """The statements."""
        first = self.at[2] * rows
        if rows * self.pitch <= LINES:
            self.lines = self._local("lines", rows, self.pitch)
            return seq(
                [
                    loop(rows, lambda r: seq([*self.borders(r), self.down(first + r, r)]), "y"),
                    loop(rows, lambda r: self.across(first + r, r), "y"),
                ]
            )
        self.lines = self._local("lines", 1, self.pitch)
        both = loop(rows, lambda r: seq([self.down(first + r, 0), self.across(first + r, 0)]), "y")
        return seq([*self.borders(0), both])

    def borders(self, line: Any) -> list[Statement]:
        """The numbers left and right of the picture's."""
        columns = self.pool.columns
        end = columns.before + columns.size
        places = [*range(columns.before), *range(end, columns.reach)]
        return [store(self.lines, splat(self.pool.nothing, 1), line, place) for place in places]

    def down(self, y: Expr, line: Any) -> Statement:
        """The line of row y of the result: over the rows of the picture that its windows read."""
        rows = self.pool.rows
        place = y * rows.stride - rows.before

        def all_taps(start: Any) -> list[Statement]:
            return self._joined([self._row(place + k * rows.dilation, start) for k in range(rows.taps)], self.wide)

        def inner_taps(start: Any) -> list[Statement]:
            low = tirx.max(const_index(0), tirx.floordiv(rows.dilation - 1 - place, const_index(rows.dilation)))
            high = tirx.floordiv(rows.size - 1 - place, const_index(rows.dilation)) + 1
            count = tirx.max(const_index(0), tirx.min(const_index(rows.taps), high) - low)
            more = loop(
                count, lambda k: self._add(self._row(place + (low + k) * rows.dilation, start), self.wide), "ky"
            )
            return [store(self.total, splat(self.pool.nothing, self.wide), vector(0, self.wide)), more]

        def row(taps: Callable[[Any], list[Statement]]) -> Statement:
            def done(start: Any) -> Statement:
                to = vector(start + self.pool.columns.before, self.wide)
                return seq([*taps(start), store(self.lines, load(self.total, vector(0, self.wide)), line, to)])

            return in_vectors(self.pool.columns.size, self.wide, done)

        first, last = rows.whole if rows.taps <= TAPS else (0, 0)
        if (first, last) == (0, rows.out):
            return row(all_taps)
        if first == last:
            return row(inner_taps)
        return tirx.IfThenElse(tirx.all(y >= first, y < last), row(all_taps), row(inner_taps))

    def across(self, y: Expr, line: Any) -> Statement:
        """Row y of the result from its line."""
        columns, lanes = self.pool.columns, self.narrow

        def done(start: Any) -> Statement:
            values = [self._tap(line, start, k * columns.dilation) for k in range(columns.taps)]
            scaled = self._scaled(load(self.total, vector(0, lanes)), y, start)
            return seq([*self._joined(values, lanes), store(self.y, scaled, *self.at[:2], y, vector(start, lanes))])

        return in_vectors(columns.out, lanes, done)

    def _row(self, y: Expr, start: Any) -> Expr:
        return load(self.x, *self.at[:2], y, vector(start, self.wide))

    def _tap(self, line: Any, start: Any, offset: int) -> Expr:
        """Numbers start*stride + offset, and so on at every stride."""
        stride, lanes = self.pool.columns.stride, self.narrow
        if stride == 1 or lanes == 1:
            return load(self.lines, line, vector(start * stride + offset, lanes))
        begin, phase = start * stride + offset // stride * stride, offset % stride
        parts = [load(self.lines, line, vector(begin + part * lanes, lanes)) for part in range(stride)]
        return tirx.Shuffle(parts, [phase + stride * lane for lane in range(lanes)])

    def _joined(self, values: Sequence[Expr], lanes: int) -> list[Statement]:
        return [store(self.total, values[0], vector(0, lanes)), *(self._add(value, lanes) for value in values[1:])]

    def _add(self, value: Expr, lanes: int) -> Statement:
        total = load(self.total, vector(0, lanes))
        return store(self.total, tirx.max(value, total) if self.pool.kind == "max" else total + value, vector(0, lanes))

    def _scaled(self, value: Expr, y: Expr, start: Any) -> Expr:
        if self.pool.kind == "max":
            return value
        if not self.pool.varies:
            down, across = self.pool.shares
            return value * splat(float(down[0] * across[0]), self.narrow)
        down, across = self.shares
        return value * (load(across, vector(start, self.narrow)) * spread(load(down, y), self.narrow))


def _written(y: Any, at: tuple[Expr, ...], rows: int) -> Any:
    n, c, piece = at
    starts = (n, c, piece * rows, const_index(0))
    extents = (1, 1, rows, int(y.shape[3]))
    ranges = [Range.from_min_extent(s, const_index(e)) for s, e in zip(starts, extents, strict=True)]
    return BufferRegion(y, ranges)
