"""Many rows by packed weights: a piece of a panel is decoded once into a buffer, and multiplied by all rows from there.

For a panel of `nr` columns and a part of the rows (a task)::

    for a block of `BLOCK` rows
      for a piece of `DEPTH` weights of a column
        B[k, v] = (decode(word) - zero) * scale                        as the float32 matrix has it, to the bit
        for a tile of `mr` rows of the block
          C[m, v] = sum_k x[m, k] * B[k, v]        registers: mr * nr / lanes sums, nr / lanes weights, one x
          sums[m, v] += C[m, v]                    y[m, v] itself where one piece is all of the column

registers  mr * nv + nv (B) + 1 (x) <= vector registers                 6 * 4 + 4 + 1 = 29 <= 32
decoding   4 instructions a vector of weights, to BLOCK multiply-adds   2 % of the time at 192 rows, 25 % at 16
B          DEPTH * nr * 4 bytes = 64 KB stays in L2; the sums, BLOCK * nr * 4 = 48 KB, beside it

The sums of the pieces are the task's own: the last panel may share columns with the one before it.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import const_index, load, loop, new_buffer, seq, splat, spread, store, vector
from tvmopt.lowering.prefetch import LINE, prefetch

Expr = Any
BLOCK, DEPTH = 192, 256


def tile_rows(registers: int, vectors: int) -> int:
    """Rows of a register tile of so many vectors of columns; each number of rows that may be left has its own body.

    >>> tile_rows(32, 4), tile_rows(16, 4), tile_rows(32, 1)
    (6, 3, 12)
    """
    return min(12, max(1, registers * 3 // 4 // vectors))


def by_pieces(w: Any, panel: Expr, start: Expr, rows: tuple[Expr, Expr], ahead: int) -> Any:
    """The statement for one panel and some rows (the first, how many); `w` writes the kernel (compute.py)."""
    return _ManyRows(w, panel, start, rows, ahead).statement()


class _ManyRows:
    """Writes what one task does."""

    def __init__(self, writer: Any, panel: Expr, start: Expr, rows: tuple[Expr, Expr], ahead: int) -> None:
        self.w, self.panel, self.start, self.ahead = writer, panel, start, ahead
        self.begin, self.count = rows
        self.known = isinstance(writer.m, int)  # then one part alone has rows left, and it is known how many
        packing = writer.packing
        self.vectors = writer.nr // writer.lanes
        self.mr = writer.mr
        self.block = -(-BLOCK // self.mr) * self.mr
        self.deep = max(1, DEPTH // packing.group)  # groups of a piece
        self.pieces = -(-packing.groups // self.deep)
        depth = min(self.deep, packing.groups) * packing.group
        self.b = new_buffer("decoded", depth, writer.nr)
        writer.locals.append(self.b)
        if self.pieces > 1:
            self.sums = new_buffer("sums", self.block, writer.nr)
            writer.locals.append(self.sums)

    def statement(self) -> Any:
        """Blocks of rows."""
        blocks = tirx.floordiv(self.count + (self.block - 1), const_index(self.block))
        return loop(blocks, self._block, "block")

    def _block(self, number: Expr) -> Any:
        first = number * self.block
        rows = tirx.min(const_index(self.block), self.count - first)
        first = self.begin + first
        if self.pieces == 1:
            return self._piece(first, rows, const_index(0))
        # TVM allocates a buffer where all that touches it is: not inside the loop, whose next trip reads the sums
        touched = store(self.sums, splat(0.0, self.w.lanes), 0, vector(0, self.w.lanes))
        return seq([touched, loop(self.pieces, lambda piece: self._piece(first, rows, piece), "piece")])

    def _piece(self, first: Expr, rows: Expr, piece: Expr) -> Any:
        packing = self.w.packing
        base = piece * self.deep
        groups: Any = min(self.deep, packing.groups)
        if packing.groups % groups:
            groups = tirx.min(const_index(groups), const_index(packing.groups) - base)
        decode = loop(groups, lambda g: self._decode(base + g, g * packing.group), "g")
        return seq([decode, *self._tiles(first, rows, piece, groups * packing.group)])

    def _decode(self, g: Expr, k: Expr) -> Any:
        """The weights of one group."""
        w = self.w
        base, whole = g * w.stride, vector(0, w.lanes)

        def word(r: Expr) -> Any:
            parts = [
                prefetch(w.w, [self.panel, base + r + self.ahead, const_index(c)]) for c in range(0, w.nr, LINE // 4)
            ]
            for v in range(self.vectors):
                place = vector(v * w.lanes, w.lanes)
                codes = w.local("word", "int32")
                parts.append(store(codes, load(w.w, self.panel, base + r, place), whole))
                for i in range(w.per):
                    value = w.decoded(load(codes, whole), i)
                    if w.zeros:
                        value = value - w.number(self.panel, base + w.words + 1, v)
                    value = value * w.number(self.panel, base + w.words, v)
                    parts.append(store(self.b, value, k + r * w.per + i, place))
            return seq(parts)

        return loop(w.words, word, "r")

    def _tiles(self, first: Expr, rows: Expr, piece: Expr, depth: Any) -> list[Any]:
        """Whole tiles, and a body for each number of rows that may be left: one where the rows are known."""
        whole = tirx.floordiv(rows, const_index(self.mr))
        tiles = loop(whole, lambda i: self._tile(first, i * self.mr, self.mr, piece, depth), "tile")
        beyond = whole * self.mr
        rests = [r for r in range(1, self.mr) if not self.known or r == self.w.m % self.mr]
        bodies = [tirx.IfThenElse(rows - beyond == r, self._tile(first, beyond, r, piece, depth), None) for r in rests]
        return [tiles, *bodies] if not self.known or self.w.m >= self.mr else bodies

    def _tile(self, first: Expr, place: Expr, rows: int, piece: Expr, depth: Any) -> Any:
        """`rows` rows from `first + place` on by the decoded weights."""
        w, whole = self.w, vector(0, self.w.lanes)
        cells = [(m, v) for m in range(rows) for v in range(self.vectors)]
        acc = {cell: w.local("acc") for cell in cells}
        packing = w.packing

        def step(k: Expr) -> Any:
            parts, weights = [], []
            for v in range(self.vectors):
                weights.append(w.local("weight"))
                parts.append(store(weights[-1], load(self.b, k, vector(v * w.lanes, w.lanes)), whole))
            for m in range(rows):
                x = spread(load(w.x, first + place + m, piece * (self.deep * packing.group) + k), w.lanes)
                parts += [
                    store(acc[m, v], load(acc[m, v], whole) + load(weights[v], whole) * x, whole)
                    for v in range(self.vectors)
                ]
            return seq(parts)

        cleared = [store(buffer, splat(0.0, w.lanes), whole) for buffer in acc.values()]
        return seq([*cleared, loop(depth, step, "k"), self._keep(acc, first, place, piece)])

    def _keep(self, acc: dict[tuple[int, int], Any], first: Expr, place: Expr, piece: Expr) -> Any:
        """Add a tile's sums to those of the pieces before; behind the last piece, they are the result."""
        w, whole = self.w, vector(0, self.w.lanes)

        def out(m: int, v: int, value: Expr) -> Any:
            return store(w.y, value, first + place + m, vector(self.start + v * w.lanes, w.lanes))

        if self.pieces == 1:
            return seq([out(m, v, load(a, whole)) for (m, v), a in acc.items()])

        def before(m: int, v: int) -> tuple[Expr, Expr]:
            return place + m, vector(v * w.lanes, w.lanes)

        start = [store(self.sums, load(a, whole), *before(*c)) for c, a in acc.items()]
        add = [store(self.sums, load(self.sums, *before(*c)) + load(a, whole), *before(*c)) for c, a in acc.items()]
        done = [out(*c, load(self.sums, *before(*c)) + load(a, whole)) for c, a in acc.items()]
        last = tirx.IfThenElse(piece == self.pieces - 1, seq(done), seq(add))
        return tirx.IfThenElse(piece == 0, seq(start), last)
