"""Planes of float32 resized, NCHW: each row as its rows are needed, then the columns, a plane or a piece of it a task.

    for a plane, for a block of rows of the result
      for a row r of the picture that no block before needed                      `news`: the first, and how many
        line[r % depth, x] = sum over k of across[k, x] * in[r, places[k, x]]     whole vectors
      for a row y of the block
        out[y, x] = sum over k of down[k, y] * line[slots[k, y], x]               whole vectors

The columns of a picture are known: each vector of a line is written out, its taps are permutations of the few vectors
of the row that hold them, and nothing is gathered. Of long lines, vectors that repeat themselves further on are a loop.
A row that several rows of the result read is resized once, into a ring of lines that stays in L1. Linear interpolation
has two taps, cubic four, one that is smoothed by the scale more: places and weights are all that tells them apart.

floor      4*(inputs + outputs) / bandwidth of the cache they live in; the store of the result is most of it
Measured   one core of a Zen 4, us, in brackets plain loops and the better of onnxruntime and OpenVINO: cubic, 64x40x40
           by 2 68 (714, 922), 80x33x17 by 1.5 26 (231, 153), 256x13x13 by 2 40 (381, 163), 3x224x224 by 0.5 with
           antialias 40 (151, 313); linear, 3x240x320 by 1.25 56 (313, 489), 3x720x1280 by 2 5946 (23108, 19890)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, constant, known, samples
from tvmopt.lowering.loops import (
    INDEX,
    NANOSECONDS,
    Index,
    as_index,
    const_index,
    each_vector,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    spread,
    store,
    vector,
)
from tvmopt.lowering.overlap import vector_for
from tvmopt.operators.interpolate import Taps
from tvmopt.schedules.cpu._permuted import PARTS, begins_of, permuted, starts_of
from tvmopt.schedules.cpu.resample.shrunk import BITS, Shrunk
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]
Expr = Any
WRITTEN = 64
"""Taps of a line's vectors that are written out, one by one."""
MOST = 256
"""Taps that are written out at most, where vectors that repeat themselves are loops."""
MOST_ROWS = 16
"""Taps of a row that are written out at most."""


def resize2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.image.resize2d` of float32, NCHW, linear."""
    x, attrs = call.args[0], call.attrs
    shape, out = samples(x), samples(call)
    if (str(attrs.method), str(attrs.layout)) != ("linear", "NCHW"):
        return Declined(f"{attrs.method} interpolation, {attrs.layout}")
    if shape is None or out is None:
        return Declined(UNFIT)
    transform = str(attrs.coordinate_transformation_mode)
    if transform not in ("half_pixel", "align_corners", "asymmetric"):
        return Declined(f"the transformation {transform}")
    rows, columns = (neighbours(shape[axis], out[axis], transform) for axis in (2, 3))
    return _resized(bb, call, rows, columns, machine)


def interpolate(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`tvmopt.interpolate` of :mod:`tvmopt.operators.interpolate`."""
    tables = [value for table in call.args[1:] if (value := constant(bb, table)) is not None]
    if len(tables) < len(call.args) - 1:
        return Declined("tables that are no constants")
    return _resized(bb, call, Taps(*tables[:2]), Taps(*tables[2:]), machine)


UNFIT = "an open or empty picture, or another type than float32 and float64"


def _resized(
    bb: relax.BlockBuilder, call: relax.Call, rows: Taps, columns: Taps, machine: Machine
) -> relax.Expr | Declined:  # fmt: skip
    """Rows and columns of the planes of a call's first argument."""
    x, shape, out = call.args[0], samples(call.args[0]), samples(call)
    dtype = str(x.ty.dtype)
    if shape is None or out is None or dtype not in BITS or dtype != str(call.ty.dtype):
        return Declined(UNFIT)
    batch = shape[0] if isinstance(shape[0], int) else tirx.Var("n", INDEX)
    count, sizes = known(batch) * shape[1], (batch, *shape[1:])
    most = 4 * machine.cores if machine.cores > 1 and count < 4 * machine.cores else 1
    pieces = next((d for d in divisors(out[2]) if d * count >= most), out[2])
    across = Across(columns, shape[3], machine.lanes())
    line = 4 * len(across.starts) * across.narrow
    down = Down(rows, out[2] // pieces).blocks(line, machine.l1d // 2)
    reason = dtype if dtype != "float32" else across.reason or down.reason
    if not reason and down.depth * line > machine.l2 // 4:
        reason = "lines that are more than a quarter of L2"
    if reason:
        other = Shrunk(rows, columns, sizes, dtype, pieces, machine)
        if other.windows.are_sparse:
            return Declined(f"{reason}, and taps that lie apart")
        func, tables = other.func(), [relax.const(table, str(table.dtype)) for table in other.tables]
    else:
        func = kernel(down, across, sizes, machine)
        tables = [
            relax.const(down.news, INDEX), relax.const(down.slots, INDEX),
            relax.const(rows.weights.T.astype(np.float32)), relax.const(across.weights),
        ]  # fmt: skip
    result = relax.TensorType(list(out), dtype)
    return relax.call_tir(bb.add_func(func, "resize_planes"), [x, *tables], result)


def neighbours(size: int, out: int, transform: str) -> Taps:
    """The two neighbours of each element of an axis of `out` elements, and their weights.

    >>> taps = neighbours(2, 4, "half_pixel")
    >>> taps.places.T.tolist(), taps.weights.T.tolist()
    ([[0, 0, 0, 1], [0, 1, 1, 1]], [[0.25, 0.75, 0.25, 0.75], [0.75, 0.25, 0.75, 0.25]])
    """
    at = np.arange(out, dtype=np.float64)
    if transform == "align_corners":
        at = at * (size - 1) / max(out - 1, 1)
    else:
        shift = 0.5 if transform == "half_pixel" else 0.0
        at = (at + shift) * size / out - shift
    low = np.floor(at)
    places = np.clip(np.stack([low, low + 1], 1), 0, size - 1).astype(np.int64)
    return Taps(places, np.stack([1 - (at - low), at - low], 1))


@dataclass(frozen=True)
class Down:
    """How rows of the result are sums of lines.

    Attributes:
        taps: the rows of the picture that each reads.
        per: rows of a task. block: rows that are summed behind the lines that are new for them.
    """

    taps: Taps
    per: int = 1
    block: int = 1

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """The first and the last row that each block reads."""
        places = self.taps.places.reshape(len(self.taps.places) // self.block, -1)
        return places.min(1), places.max(1)

    @cached_property
    def depth(self) -> int:
        """Lines of the ring: as many as lie between those that a block reads."""
        low, high = self.ends
        return int((high - low).max()) + 1

    @property
    def ascends(self) -> bool:
        """Whether no block of a task reads what lies before that of the block before it, whose lines may be gone."""
        return all((np.diff(end.reshape(-1, self.per // self.block)) >= 0).all() for end in self.ends)

    @property
    def reason(self) -> str:
        """Why it is not done so; empty where it is."""
        if self.taps.count > MOST_ROWS:
            return f"sums of more than {MOST_ROWS} rows"
        return "" if self.ascends else "rows that come back to lines which are gone"

    @property
    def slots(self) -> Array:
        """int64 [taps, rows]: which lines of the ring a row of the result reads."""
        return np.ascontiguousarray(self.taps.places.T % self.depth)

    @property
    def news(self) -> Array:
        """int64 [2, blocks]: the first line that is new for a block, and how many are: all of a task's first one.

        >>> places = np.array([[0, 0], [0, 1], [0, 1], [1, 1]])
        >>> Down(Taps(places, np.ones((4, 2))), 2).news.tolist()
        [[0, 1, 0, 2], [1, 1, 2, 0]]
        """
        low, high = self.ends
        begins = self.per // self.block
        first = np.maximum(low, np.concatenate([[-1], high[:-1]]) + 1)
        first[::begins] = low[::begins]
        return np.stack([first, high + 1 - first])

    def blocks(self, line: int, most: int) -> Down:
        """The longest blocks whose lines, of `line` bytes each, take at most `most` bytes."""
        sizes = [replace(self, block=block) for block in divisors(self.per)[::-1]]
        return next((one for one in sizes if one.depth * line <= most), sizes[-1])


class Across:
    """How rows of the picture become lines.

    Attributes:
        taps: the columns of the picture that each reads. width: columns of the picture.
        wide, narrow: numbers of a vector of the picture's rows and of lines.
        starts: where each vector of a line begins; the last one may overlap the one before. Lines have them one behind
            the other: a vector that was stored in two pieces would wait for both.
    """

    def __init__(self, taps: Taps, width: int, lanes: int) -> None:
        self.taps, self.width, self.out = taps, width, len(taps.places)
        self.wide, self.narrow = vector_for(width, lanes), vector_for(self.out, lanes)
        self.starts = starts_of(self.out, self.narrow)

    @property
    def weights(self) -> Array:
        """float32 [taps, vectors, numbers]."""
        columns = np.array(self.starts)[:, None] + np.arange(self.narrow)
        return np.ascontiguousarray(self.taps.weights.T[:, columns], np.float32)

    def columns(self, start: int) -> list[Array]:
        """The columns that the vector of a line at `start` reads, for each tap."""
        return list(self.taps.places[start : start + self.narrow].T)

    def begins(self, columns: Sequence[Array]) -> list[list[int]]:
        """Where the vectors of a row begin that hold the columns of each tap of a vector of a line. Taps that one
        behind the other are in as many vectors as one of them alone read the same vectors.

        >>> Across(Taps(np.zeros((4, 2), int), np.ones((4, 2))), 16, 4).begins([np.arange(4) * 2, np.arange(4) * 2 + 1])
        [[0, 4], [0, 4]]
        """
        found: list[list[int]] = []
        while len(found) < len(columns):
            rest, most = columns[len(found) :], 1
            alone = len(begins_of(rest[0], self.width, self.wide))
            while most < len(rest) and len(begins_of(np.stack(rest[: most + 1]), self.width, self.wide)) <= alone:
                most += 1
            found += [begins_of(np.stack(rest[:most]), self.width, self.wide)] * most
        return found

    @cached_property
    def runs(self) -> list[tuple[int, int, int, int]]:
        """The vectors of a line: the first of a run, how many are written out, how often they come, and by how many
        columns each time further on.

        >>> three = np.minimum(np.arange(999)[:, None] // 3 + [0, 1], 332)
        >>> Across(Taps(three, np.ones((999, 2))), 333, 16).runs
        [(0, 3, 20, 16), (60, 1, 1, 0), (61, 1, 1, 0), (62, 1, 1, 0)]
        """
        if len(self.starts) * self.taps.count <= WRITTEN:
            return [(v, 1, 1, 0) for v in range(len(self.starts))]
        lowest, kinds = [], []
        for columns in map(self.columns, self.starts):
            low = min(int(places.min()) for places in columns)
            begins = [[begin - low for begin in one] for one in self.begins(columns)]
            lowest.append(low)
            kinds.append((begins, [(places - low).tolist() for places in columns]))
        found, v = [], 0
        while v < len(kinds):
            longest = max(MOST // self.taps.count, 1)
            times = {period: _repeats(kinds, lowest, v, period) for period in range(1, longest + 1)}
            period = max(times, key=lambda one: (times[one] - 1) * one)
            further = lowest[v + period] - lowest[v] if times[period] > 1 else 0
            found.append((v, period, times[period], further))
            v += period * times[period]
        return found

    @property
    def reason(self) -> str:
        """Why it is not done so; empty where it is."""
        if max(len(begins) for start in self.starts for begins in self.begins(self.columns(start))) > PARTS:
            return f"taps in more than {PARTS} vectors"
        if sum(period for _, period, _, _ in self.runs) * self.taps.count > MOST:
            return f"lines of more than {MOST} taps of vectors"
        return ""


def _repeats(kinds: Sequence[Any], lowest: Sequence[int], v: int, period: int) -> int:
    """How often `period` vectors come from vector v on, each time as many columns further."""
    u = v + period
    if u >= len(kinds):
        return 1
    further = lowest[u] - lowest[v]
    while u < len(kinds) and kinds[u] == kinds[u - period] and lowest[u] - lowest[u - period] == further:
        u += 1
    return (u - v) // period


def kernel(down: Down, across: Across, shape: tuple[Any, ...], machine: Machine) -> tirx.PrimFunc:
    """PrimFunc(x, new lines of blocks, rows' lines of the ring, their weights, weights of columns, y). Few planes are
    cut into pieces of the result's rows, each of which makes the lines that it reads."""
    (batch, channels, *_), width, count = shape, across.out, len(across.starts)
    rows, taps = down.taps.places.shape
    x, y = new_buffer("x", *shape), new_buffer("y", batch, channels, rows, width)
    per, block = down.per, down.block
    news, slots = new_buffer("news", 2, rows // block, dtype=INDEX), new_buffer("slots", taps, rows, dtype=INDEX)
    weights, factors = new_buffer("down", taps, rows), new_buffer("across", across.taps.count, count, across.narrow)
    n, c, piece = at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "c", "piece"))
    lines, whole = new_buffer("lines", down.depth, count, across.narrow), vector(0, across.narrow)

    def line(r: Expr) -> Any:
        slot = tirx.truncmod(r, const_index(down.depth)) if down.ends[1].max() >= down.depth else r

        def some(first: int, period: int, further: int, time: Index) -> Any:
            def one(v: int, at: Index) -> Any:
                return store(lines, _of_row(across, x, factors, (n, c, r), v, at, time * further), slot, at, whole)

            return seq([one(v, v + time * period) for v in range(first, first + period)])

        return seq(
            [
                loop(times, partial(some, first, period, further), "run") if times > 1 else some(first, period, 0, 0)
                for first, period, times, further in across.runs
            ]
        )

    def row(here: Expr) -> Any:
        def done(v: Any, start: Any) -> Any:
            terms = [
                spread(load(weights, k, here), across.narrow) * load(lines, load(slots, k, here), v, whole)
                for k in range(taps)
            ]
            return store(y, reduce(operator.add, terms), n, c, here, vector(start, across.narrow))

        return each_vector(width, across.narrow, done)

    def together(b: Expr) -> Any:
        here = piece * (per // block) + b
        made = loop(load(news, 1, here), lambda i: line(load(news, 0, here) + i), "line")
        return seq([made, loop(block, lambda i: row(here * block + i), "y")])

    made = int(down.news[1].sum())
    cycles = count * (made * (2 * across.taps.count + 1) + rows * (taps + 1))
    notes = {"tvmopt.kernel": "rows", NANOSECONDS: known(batch) * channels * cycles / machine.ghz}
    axes = list(zip(at, (as_index(batch), channels, rows // per), strict=True))
    starts, extents = (n, c, piece * per, const_index(0)), (1, 1, per, width)
    written = [Range.from_min_extent(s, const_index(e)) for s, e in zip(starts, extents, strict=True)]
    inputs = [x, news, slots, weights, factors]
    loops = nest(
        "resize", axes, ("n", "c", "piece"), [everything(b) for b in inputs], [BufferRegion(y, written)],
        loop(per // block, together, "block"), [lines], notes,
    )  # fmt: skip
    return prim_func([*inputs, y], loops, OUT_ELEMENTWISE_FUSABLE)


def _of_row(across: Across, x: Any, factors: Any, row: tuple[Expr, ...], v: int, at: Index, further: Index) -> Any:
    """Vector `at` of a line, which is as vector v, of columns that lie `further` on."""

    def read(begin: int) -> Expr:
        return load(x, *row, vector(begin + further, across.wide))

    columns = across.columns(across.starts[v])
    terms = [
        load(factors, k, at, vector(0, across.narrow)) * permuted(read, begins, across.wide, places)
        for k, (begins, places) in enumerate(zip(across.begins(columns), columns, strict=True))
    ]
    return reduce(operator.add, terms)
