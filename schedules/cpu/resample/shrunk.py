"""Planes of floats that become much smaller, NCHW: each row of the result as sums of rows, then as dot products.

    for a plane, for a row y of the result
      for `ROWS` taps k of its rows: line[x] += down[y, k] * in[rows[y, k], x]     whole vectors, rows side by side
      for a group of w columns of the result
        for a chunk c of t taps, for a column j of the group
          sums[j, 0..t) += line[start[j] + c*t .. + t) * across[j, c, 0..t)        whole vectors
        out[y, group] = sums added up over their lanes, which makes one vector of them
      if a number of the row is infinite or NaN, out[y, :] again, tap by tap

What a column of the result reads lies side by side, so that nothing is gathered: its window has as many places as the
longest one, and weights of 0 where it reads nothing. Those turn an infinity into NaN, so such rows are computed again.
Taps are loops: with antialiasing they are as many as the picture shrinks, times two or four, in both directions.

floor      4*inputs / bandwidth of where they live: rows are read once from there, and a second time (cubic: three times
           more) from L2; rows * columns * taps / t products of vectors beside rows * taps * width / lanes
Measured   one thread of a Zen 4, us, in brackets plain loops and onnxruntime: antialiased, linear, 3x1080x1920 to
           224x224 1427 (2777, 5310; from memory, whose bandwidth allows 1240), 3x480x640 to 64x64 106 (180, 690),
           3x512x512 to 33x31 87 (291, 652); cubic, 3x480x640 192 (364, 1580). Two or four taps without antialiasing,
           3x1080x1920 287 and 661 (357, 294 and 1095, 61300)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, known
from tvmopt.lowering.loops import (
    INDEX,
    NANOSECONDS,
    Index,
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
    vector_type,
)
from tvmopt.lowering.overlap import vector_for
from tvmopt.operators.interpolate import Taps
from tvmopt.schedules.cpu._permuted import starts_of
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]
Expr = Any
Row = tuple[Expr, Expr, Expr]
"""A picture, a channel and a row of the result."""
ROWS = 8
"""Rows of the picture that are added to a line at once: so many are read side by side, each in order."""
BYTES = 32
"""Bytes of a vector of a dot product at most: longer ones are more work to add up, and seldom full."""
APART = 2
"""A window has so many times as many places as taps at most."""
BITS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF << 52)}
"""The integers that have as many bits, and the bits of an infinity; those of NaN are greater."""


class Windows:
    """What the columns of the result read of a line, side by side.

    Attributes:
        taps: their places and weights. width: of a line. t: numbers of a vector of a window. w: columns of a group.
        groups: the first column of each; the last group may overlap the one before.
        span: places of a window. chunks: vectors of a window; the last may overlap the one before.
        starts: int64 [groups, w]: where the windows begin.

    >>> places = np.array([[0, 0, 1], [1, 2, 3], [3, 4, 5]])
    >>> windows = Windows(Taps(places, np.array([[1., 2, 3], [4, 5, 6], [7, 8, 9]])), 6, 8)
    >>> windows.starts.tolist(), windows.span, windows.weights[0].tolist()
    ([[0, 1], [1, 3]], 3, [[[3.0, 3.0], [4.0, 5.0]], [[0.0, 0.0], [0.0, 6.0]]])
    """

    def __init__(self, taps: Taps, width: int, lanes: int) -> None:
        self.taps, self.width, out = taps, width, len(taps.places)
        low, high = taps.places.min(1), taps.places.max(1)
        self.span = int((high - low).max()) + 1
        self.t, self.w = vector_for(self.span, lanes), vector_for(out, lanes)
        self.groups, self._begins = starts_of(out, self.w), starts_of(self.span, self.t)
        self.chunks = len(self._begins)
        self._columns = np.array(self.groups)[:, None] + np.arange(self.w)
        self.starts = np.minimum(low, width - self.span)[self._columns]

    @property
    def weights(self) -> Array:
        """[groups, chunks, w, t], each weight once."""
        places, out = self.taps.places, len(self.taps.places)
        window = np.zeros((out, self.span))
        start = np.minimum(places.min(1), self.width - self.span)
        np.add.at(window, (np.arange(out)[:, None], places - start[:, None]), self.taps.weights)
        parts = np.stack([window[:, begin : begin + self.t] for begin in self._begins])  # [chunks, out, t]
        parts[-1, :, : self.chunks * self.t - self.span] = 0  # what the chunk before has
        return np.ascontiguousarray(parts[:, self._columns].swapaxes(0, 1))

    @property
    def are_columns(self) -> bool:
        """Whether each is the column that it reads, and nothing is to be summed."""
        places = self.taps.places
        return (
            self.span == 1
            and np.array_equal(places[:, 0], np.arange(self.width))
            and bool((self.taps.weights == 1).all())
        )

    @property
    def are_sparse(self) -> bool:
        """Whether most of their weights are 0."""
        return self.span > APART * self.taps.count


@dataclass(frozen=True)
class Shrunk:
    """The kernel of a call.

    Attributes:
        rows, columns: the taps of the axes. shape: of the picture. pieces: into which a plane's result is cut.
    """

    rows: Taps
    columns: Taps
    shape: tuple[Any, ...]
    dtype: str
    pieces: int
    machine: Machine

    @cached_property
    def windows(self) -> Windows:
        """Of the columns."""
        most = BYTES // np.dtype(self.dtype).itemsize
        return Windows(self.columns, self.shape[3], min(self.machine.lanes(self.dtype), most))

    @cached_property
    def tables(self) -> list[Array]:
        """What the kernel reads beside the picture: places and weights of rows; of columns the windows' starts and
        weights, places and weights."""
        places, weights = self.rows.places, self.rows.weights.astype(self.dtype)
        if self.windows.are_columns:
            return [places, weights]
        of_windows = [self.windows.starts, self.windows.weights.astype(self.dtype)]
        return [places, weights, *of_windows, self.columns.places, self.columns.weights.astype(self.dtype)]

    def func(self) -> tirx.PrimFunc:
        """PrimFunc(x, tables, y)."""
        (batch, channels, *_), out, tables = self.shape, len(self.columns.places), self.tables
        count, taps = self.rows.places.shape
        x, y = self._buffer("x", *self.shape), self._buffer("y", batch, channels, count, out)
        given = [new_buffer(f"table_{i}", *table.shape, dtype=str(table.dtype)) for i, table in enumerate(tables)]
        n, c, piece = at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "c", "piece"))
        line, per = self._buffer("line", self.shape[3]), count // self.pieces
        lines, ends = self._line(x, given[0], given[1], line)
        columns, sums = (self._copied, []) if self.windows.are_columns else self._columns(*given[2:])

        def row(i: Expr) -> Any:
            here = (n, c, piece * per + i)
            return seq([lines(here), columns(line, y, here)])

        vectors, windows = self.shape[3] / self.machine.lanes(self.dtype), self.windows
        cycles = count * (2 * taps * vectors + (0 if windows.are_columns else out * (windows.chunks + 2)))
        notes = {"tvmopt.kernel": "rows", NANOSECONDS: known(batch) * channels * cycles / self.machine.ghz}
        axes = list(zip(at, (as_index(batch), channels, self.pieces), strict=True))
        begins, extents = (n, c, piece * per, const_index(0)), (1, 1, per, out)
        written = [Range.from_min_extent(s, const_index(e)) for s, e in zip(begins, extents, strict=True)]
        loops = nest(
            "resize", axes, ("n", "c", "piece"), [everything(b) for b in (x, *given)], [BufferRegion(y, written)],
            loop(per, row, "y"), [line, *ends, *sums], notes,
        )  # fmt: skip
        return prim_func([x, *given, y], loops, OUT_ELEMENTWISE_FUSABLE)

    def _buffer(self, name: str, *shape: Index) -> Any:
        return new_buffer(name, *shape, dtype=self.dtype)

    def _line(self, x: Any, places: Any, weights: Any, line: Any) -> tuple[Callable[[Row], Any], list[Any]]:
        """How a row of the result is summed in a line, and the buffers for that: a last vector that overlaps the
        others has one of its own, for it is added to."""
        width, taps = self.shape[3], self.rows.count
        lanes = vector_for(width, self.machine.lanes(self.dtype))
        end, rest = self._buffer("end", lanes), width % lanes
        first = (taps - 1) % ROWS + 1

        def added(to: Any, at: Index, begin: Index, row: Row, tap: Index, number: int, old: bool) -> Any:
            """A vector with so many taps more, or of these alone."""
            terms = [load(to, vector(at, lanes))] if old else []
            for k in range(number):
                value = load(x, *row[:2], load(places, row[2], tap + k), vector(begin, lanes))
                terms.append(spread(load(weights, row[2], tap + k), lanes) * value)
            return store(to, reduce(operator.add, terms), vector(at, lanes))

        def some(row: Row, tap: Index, number: int, old: bool) -> Any:
            taken = (row, tap, number, old)
            vectors = loop(width // lanes, lambda v: added(line, v * lanes, v * lanes, *taken), "v")
            return seq([vectors, added(end, 0, width - lanes, *taken)]) if rest else vectors

        def summed(row: Row) -> Any:
            parts = [some(row, 0, first, False)]
            if taps > ROWS:
                turns = (taps - first) // ROWS
                parts.append(loop(turns, lambda i: some(row, i * ROWS + first, ROWS, True), "tap"))
            if rest:
                parts.append(store(line, load(end, vector(0, lanes)), vector(width - lanes, lanes)))
            return seq(parts)

        return summed, [end] if rest else []

    def _columns(self, starts: Any, across: Any, places: Any, weights: Any) -> tuple[Callable[..., Any], list[Any]]:
        """How a line becomes a row of the result, and the buffers for that."""
        windows, out, span = self.windows, len(self.columns.places), self.windows.span
        t, w, whole = windows.t, windows.w, vector(0, windows.t)
        bits, infinite = BITS[self.dtype]
        sums = [self._buffer(f"sum_{j}", t) for j in range(w)]
        trees = [sums[i : i + t] for i in range(0, w, t)]
        total, largest = self._buffer("total", 1), new_buffer("largest", w, dtype=bits)

        def group(line: Any, y: Any, row: Row, g: Expr) -> Any:
            def chunk(i: Expr) -> Any:
                begin = i * t if span % t == 0 else tirx.min(i * t, const_index(span - t))
                products = [
                    load(line, vector(load(starts, g, j) + begin, t)) * load(across, g, i, j, whole) for j in range(w)
                ]
                return seq([store(to, load(to, whole) + one, whole) for to, one in zip(sums, products, strict=True)])

            first = g * w if out % w == 0 else tirx.min(g * w, const_index(out - w))
            found = [load(tree[0], vector(0, len(tree))) for tree in trees]
            value = found[0] if len(found) == 1 else tirx.Shuffle(found, list(range(w)))
            size = tirx.bitwise_and(
                tirx.reinterpret(vector_type(bits, w), value), splat(np.iinfo(bits).max, w, bits)
            )  # fmt: skip
            return seq(
                [
                    *(store(part, splat(0.0, t, self.dtype), whole) for part in sums),
                    loop(windows.chunks, chunk, "chunk"),
                    *(statement for tree in trees for statement in added_up(tree, t)),
                    store(largest, tirx.max(load(largest, vector(0, w)), size), vector(0, w)),
                    store(y, value, *row, vector(first, w)),
                ]
            )

        def exactly(line: Any, y: Any, row: Row) -> Any:
            """The numbers of a row one by one, of what they read and nothing else."""

            def one(j: Expr) -> Any:
                def tap(k: Expr) -> Any:
                    return store(total, load(total, 0) + load(line, load(places, j, k)) * load(weights, j, k), 0)

                clear = store(total, tirx.const(0.0, self.dtype), 0)
                return seq([clear, loop(self.columns.count, tap, "k"), store(y, load(total, 0), *row, j)])

            return loop(out, one, "j")

        def columns(line: Any, y: Any, row: Row) -> Any:
            most = reduce(tirx.max, [load(largest, lane) for lane in range(w)])
            return seq(
                [
                    store(largest, splat(0, w, bits), vector(0, w)),
                    loop(len(windows.groups), lambda g: group(line, y, row, g), "group"),
                    tirx.IfThenElse(most >= tirx.const(infinite, bits), exactly(line, y, row), None),
                ]
            )

        return columns, [total, largest, *sums]

    def _copied(self, line: Any, y: Any, row: Row) -> Any:
        """A line that is a row of the result."""
        lanes = vector_for(self.shape[3], self.machine.lanes(self.dtype))
        return in_vectors(
            self.shape[3], lanes, lambda at: store(y, load(line, vector(at, lanes)), *row, vector(at, lanes))
        )  # fmt: skip


def added_up(vectors: list[Any], lanes: int) -> list[Any]:
    """Statements by which the first of some vectors becomes their sums over the lanes, in order: neighbouring lanes of
    two vectors are added, which makes one vector of them, until there is one. Of fewer vectors than lanes, their halves
    are added before."""
    statements, count = [], len(vectors)
    while lanes > count:
        lanes //= 2
        for one in vectors:
            halves = load(one, vector(0, lanes)) + load(one, vector(lanes, lanes))
            statements.append(store(one, halves, vector(0, lanes)))
    whole = vector(0, lanes)
    even, odd = (list(range(start, 2 * lanes, 2)) for start in (0, 1))
    while count > 1:
        count //= 2
        for i in range(count):
            a, b = (load(one, whole) for one in vectors[2 * i : 2 * i + 2])
            statements.append(store(vectors[i], tirx.Shuffle([a, b], even) + tirx.Shuffle([a, b], odd), whole))
    return statements
