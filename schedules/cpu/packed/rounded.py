"""Rows rounded to 8 bits by packed weights: integer products of four numbers a lane, and float32 sums of the groups.

For a panel of `nr` columns, a tile of `mr` rows, vectors v of columns (a task is a panel and a part of the rows)::

    for a group g
      part[m, v] = lift[m]                                               -2^(bits-1) * the sum of the row's bytes
      for a word r of 32 / bits codes, for a slice i of four of them
        part[m, v] = dot4(part[m, v], (word[r, v] >> bits * i) & mask, bytes of x)      vpdpbusd: u8 * s8, 4 a lane
      acc[m, v] += float(part[m, v]) * scale[v] * step[m]

Codes stay as they are, without a sign, and no instruction moves them between lanes: byte j of slice i of a word is the
code 4 i + j. A group's sum is exact, and below 2^24, so float32 holds it. Zero points are one more multiply-add a
group: acc -= (scale * zero)[v] * (step * sum of the bytes)[m].

instructions   a word of 16 columns: a load, 2 less one shifts and masks a slice, mr products a slice
registers      mr * nv (part) + mr * nv (acc) + nv (codes) + word, step <= vector registers     2 * 6 * 2 + 2 + 2 <= 32
peak           of a group: group / 4 products and 2 multiplications a cell: 0.8 of vpdpbusd's with groups of 32, 0.94
               of 128, where products and multiplications take turns (Zen 4: one of 512 bits a cycle)
memory         one row reads bits / 8 + 4 / group bytes a weight: less than it computes, so it waits for memory

One form serves every number of rows: a tile of 6 decodes each word for 6 products a slice, in instructions that other
units execute meanwhile. One row has all the columns of a panel as one tile, so that a panel is read once.

Where the weights come from memory (more than half of L2) and the machine asks for it (`Machine.stream_ahead`), one row
multiplies two panels at once, group by group, and fetches ahead in both: two streams wait for two pages at a time. A
Xeon reads 14.3 GB/s by one stream, 15.8 with prefetches, 16.5 by two with prefetches (of 18.2 that it can read), and
where memory is in pages of 4 KB 10.8, 11.8 and 14.6 (of 14.6); from L3 it is all the same.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.tirx.op import call_intrin

from tvmopt.lowering import quads
from tvmopt.lowering.common import OPAQUE, flat
from tvmopt.lowering.loops import (
    INDEX,
    const_index,
    everything,
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
from tvmopt.lowering.prefetch import LINE, prefetch
from tvmopt.operators.codes import unpack
from tvmopt.operators.packed_product import Packing
from tvmopt.schedules.cpu.packed.compute import WORDS
from tvmopt.schedules.cpu.packed.operands import operands_of
from tvmopt.schedules.cpu.packed.round_rows import MORE, WORD, RoundRows, row_words
from tvmopt.schedules.cpu.packed.tasks import panel_vectors, part_of, row_parts
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
CELLS, FEW = 12, 2
"""Sums of a tile; rows up to which a tile has all vectors of a panel."""
AHEAD = 32
"""Rows of words that tiles of more than `FEW` rows prefetch ahead: 8 KB of panels of 64 columns. Fewer rows compute so
little that they follow the processor's own prefetcher, which a panel, being one stream, keeps busy; instructions to
prefetch would take the places of loads that wait. On a Zen 4, one row by 2 to 5 MB from L3 takes 0.82 to 0.91 of the
time without them, and a step of a decoder from memory 0.8. Where a machine asks for it, they do prefetch."""
UNEVEN = 1.1
"""Two panels are one task unless a core then has so many times as many panels as before."""


def product(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.rounded_product` of :mod:`tvmopt.operators.packed_product`: a kernel that rounds, and the product."""
    of = operands_of(bb, call, machine)
    if isinstance(of, Declined):
        return of
    packing, zeros = of.packing, of.zeros is not None
    writer = _Writer(packing, of.rows, zeros, machine)
    words = relax.const(writer.packed(of.codes, of.scales, of.zeros), "int32")
    middle = None if zeros else 2 ** (packing.bits - 1)
    lanes = machine.lanes("float32")
    rounding = RoundRows(of.rows, packing.groups, packing.group, middle, lanes, machine.cores > 1)
    stream = relax.TensorType([of.count, row_words(packing.groups, packing.group)], "int32")
    stream = bb.emit(relax.call_tir(bb.add_func(rounding.func(), "round_rows"), [of.x], stream))
    out = relax.TensorType([of.count, packing.n], "float32")
    y = relax.call_tir(bb.add_func(writer.func(), "rounded_product"), [stream, words], out)
    return flat(bb, bb.emit(y), (*of.outer, packing.n))


class _Writer:
    """Writes the kernel of one product, and packs its weights."""

    def __init__(self, packing: Packing, rows: Any, zeros: bool, machine: Machine) -> None:
        lanes = machine.lanes("float32")
        self.packing, self.m, self.zeros, self.lanes = packing, rows, zeros, lanes
        self.vectors = panel_vectors(packing.n, lanes, machine.cores)
        self.nr = self.vectors * lanes
        self.panels = -(-packing.n // self.nr)
        self.mr = CELLS // min(2, self.vectors) * machine.vector_registers // 32 or 1
        self.parts = row_parts(rows, self.panels, self.mr, machine.cores)
        self.words = packing.group * packing.bits // 32
        self.slices = 8 // packing.bits
        self.stride = self.words + 1 + zeros
        far = machine.comes_from_memory(packing.groups * self.stride * WORD * packing.n)
        self.ahead = machine.stream_ahead if far else 0
        self.together = 2 if self.ahead and _even(self.panels, machine.cores) else 1
        self.tasks = -(-self.panels // self.together)
        self.deep = packing.group // WORD + MORE  # words of a row's group
        self.locals: list[Any] = []
        self.x = new_buffer("x", rows, row_words(packing.groups, packing.group), dtype="int32")
        self.w = new_buffer("w", self.panels, packing.groups * self.stride, self.nr, dtype="int32")
        self.y = new_buffer("y", rows, packing.n)

    def packed(self, codes: Any, scales: Any, zeros: Any) -> Any:
        """The stream of each panel: int32 [panels, groups * stride, nr]."""
        p, per = self.packing, 32 // self.packing.bits
        wide = unpack(codes.reshape(p.n, -1), p.bits, p.groups * p.group).astype(np.uint32)
        places = np.arange(per)
        shifts = (8 * (places % WORD) + p.bits * (places // WORD)).astype(np.uint32)
        words = np.bitwise_or.reduce(wide.reshape(p.n, p.groups, self.words, per) << shifts, axis=-1)
        rows = [words, scales.astype(np.float32).view(np.uint32)[..., None]]
        if self.zeros:
            rows.append((scales.astype(np.float32) * zeros.astype(np.float32)).view(np.uint32)[..., None])
        stream = np.concatenate(rows, -1).reshape(p.n, -1)
        starts = np.minimum(np.arange(self.panels) * self.nr, p.n - self.nr)
        columns = starts[:, None] + np.arange(self.nr)
        return np.ascontiguousarray(stream[columns].transpose(0, 2, 1)).view(np.int32)

    def func(self) -> Any:
        """PrimFunc(x, words, y)."""
        quads.install()
        self.task, part = tirx.Var("vp", INDEX), tirx.Var("vr", INDEX)
        body = seq(self._known() if isinstance(self.m, int) and self.parts == 1 else self._open(part))
        loops = nest(
            "packed", [(self.task, self.tasks), (part, self.parts)], ("panel", "part"),
            [everything(self.x), everything(self.w)], [everything(self.y)], body, self.locals,
            {"tvmopt.kernel": "packed"},
        )  # fmt: skip
        return prim_func([self.x, self.w, self.y], loops, OPAQUE)

    def _panel(self, i: Any) -> Expr:
        """Panel `i` of a task; an odd last one is multiplied twice."""
        panel = self.task * self.together + i
        return panel if self.tasks * self.together == self.panels else tirx.min(panel, const_index(self.panels - 1))

    def _start(self, panel: Expr) -> Expr:
        """The first column of a panel."""
        start = panel * self.nr
        whole = self.panels * self.nr == self.packing.n
        return start if whole else tirx.min(start, const_index(self.packing.n - self.nr))

    def _known(self) -> list[Any]:
        """Tiles as equal as can be: 8 rows are 4 and 4."""
        tiles = -(-self.m // self.mr)
        low, more = divmod(self.m, tiles)
        high = [loop(more, lambda i: self._tile(i * (low + 1), low + 1), "tile")] if more else []
        return [*high, loop(tiles - more, lambda i: self._tile(i * low + more * (low + 1), low), "tile")]

    def _open(self, part: Expr) -> list[Any]:
        """A loop over the whole tiles of a part of the rows, and a body for each number of rows that may be left."""
        first, count = part_of(self.m, part, self.parts, self.mr)
        whole = tirx.floordiv(count, const_index(self.mr))
        beyond = first + whole * self.mr
        tiles = loop(whole, lambda i: self._tile(first + i * self.mr, self.mr), "tile")
        left = count - whole * self.mr
        # of a known number of rows one part alone has some left, and it is known how many
        few = [n for n in range(1, self.mr) if not isinstance(self.m, int) or n == self.m % self.mr]
        rests = [tirx.IfThenElse(left == n, self._tile(beyond, n), None) for n in few]
        return [tiles, *rests]

    def _tile(self, first: Expr, rows: int) -> Any:
        """`rows` rows from `first` on, by all columns of a task: together where the rows are few, else by pairs."""
        if rows == 1 and self.together > 1:
            return self._cells(first, rows, [(self._panel(i), range(self.vectors)) for i in range(self.together)])
        width = self.vectors if rows <= FEW else min(2, self.vectors)
        columns = [range(v, min(v + width, self.vectors)) for v in range(0, self.vectors, width)]

        def of(i: Any) -> Any:
            return seq([self._cells(first, rows, [(self._panel(i), vs)]) for vs in columns])

        return of(0) if self.together == 1 else loop(self.together, of, "strip")

    def _local(self, name: str, dtype: str) -> Any:
        buffer = new_buffer(f"{name}_{len(self.locals)}", self.lanes, dtype=dtype)
        self.locals.append(buffer)
        return buffer

    def _row(self, panel: Expr, place: Expr, v: int) -> Expr:
        return load(self.w, panel, place, vector(v * self.lanes, self.lanes))

    def _number(self, panel: Expr, place: Expr, v: int) -> Expr:
        return tirx.reinterpret(vector_type("float32", self.lanes), self._row(panel, place, v))

    def _cells(self, first: Expr, rows: int, strips: list[tuple[Expr, range]]) -> Any:
        """`rows` rows by some vectors of columns of each of some panels."""
        cells = [(m, s, v) for m in range(rows) for s, (_, columns) in enumerate(strips) for v in columns]
        whole = vector(0, self.lanes)
        acc = {c: self._local("acc", "float32") for c in cells}
        part = {c: self._local("part", "int32") for c in cells}

        def group(g: Expr) -> Any:
            base, x = g * self.stride, g * self.deep
            step = min(WORDS, self.words)
            behind = x + self.packing.group // WORD
            lifts = [
                splat(0, self.lanes, "int32") if self.zeros else spread(load(self.x, first + m, behind + 1), self.lanes)
                for m in range(rows)
            ]
            lifted = [store(part[c], lifts[c[0]], whole) for c in cells]

            def trip(r: Expr) -> Any:
                parts = []
                for n in range(step):
                    place, at = base + r * step + n, x + (r * step + n) * self.slices
                    for s, (panel, columns) in enumerate(strips):
                        mine = {(m, v): part[m, s, v] for m in range(rows) for v in columns}
                        parts += [*self._fetch(panel, place, rows, columns, len(strips))]
                        parts += self._word(panel, place, at, first, mine, columns)
                return seq(parts)

            numbers = [
                fetch
                for n in range(self.words, self.stride)
                for panel, columns in (strips if rows <= FEW else ())
                for fetch in self._fetch(panel, base + n, rows, columns, len(strips))
            ]
            return seq([*lifted, loop(self.words // step, trip, "r"), *numbers, *scaled(base, behind)])

        def scaled(base: Expr, behind: Expr) -> list[Any]:
            statements = []
            for m, s, v in cells:
                panel = strips[s][0]
                step = tirx.reinterpret("float32", load(self.x, first + m, behind))
                real = load(part[m, s, v], whole).astype(vector_type("float32", self.lanes))
                scale = self._number(panel, base + self.words, v)
                value = load(acc[m, s, v], whole) + real * scale * spread(step, self.lanes)
                if self.zeros:
                    total = tirx.reinterpret("float32", load(self.x, first + m, behind + 1))
                    value = value - self._number(panel, base + self.words + 1, v) * spread(total, self.lanes)
                statements.append(store(acc[m, s, v], value, whole))
            return statements

        cleared = [store(a, splat(0.0, self.lanes), whole) for a in acc.values()]
        starts = [self._start(panel) for panel, _ in strips]
        done = [
            store(self.y, load(acc[m, s, v], whole), first + m, vector(starts[s] + v * self.lanes, self.lanes))
            for m, s, v in cells
        ]
        return seq([*cleared, loop(self.packing.groups, group, "g"), *done])

    def _fetch(self, panel: Expr, place: Expr, rows: int, columns: range, strips: int) -> list[Any]:
        """Prefetches of these columns some rows of words further on."""
        few = self.ahead and max(1, self.ahead // strips // (self.nr * WORD))
        distance = AHEAD if rows > FEW else few
        lines = range(columns.start * self.lanes, columns.stop * self.lanes, LINE // WORD) if distance else ()
        return [prefetch(self.w, [panel, place + distance, const_index(c)]) for c in lines]

    def _word(
        self, panel: Expr, place: Expr, x: Expr, first: Expr, part: dict[tuple[int, int], Any], columns: range
    ) -> list[Any]:
        """The codes of a word of each column by the bytes of the rows."""
        lanes, whole, bits = self.lanes, vector(0, self.lanes), self.packing.bits
        words = {v: self._local("word", "int32") for v in columns}
        statements = [store(words[v], self._row(panel, place, v), whole) for v in columns]
        mask = int("1" * bits, 2) * 0x01010101
        for i in range(self.slices):
            codes = {}
            for v in columns:
                value = load(words[v], whole)
                value = value >> splat(i * bits, lanes, "int32") if i else value
                if bits < 8:
                    codes[v] = self._local("codes", "int32")
                    statements.append(store(codes[v], value & splat(mask, lanes, "int32"), whole))
                else:
                    codes[v] = words[v]
            for m in sorted({m for m, _ in part}):
                numbers = spread(load(self.x, first + m, x + i), lanes)
                for v in columns:
                    old, new = load(part[m, v], whole), load(codes[v], whole)
                    total = call_intrin(vector_type("int32", lanes), quads.DOT4_ADD, old, new, numbers)
                    statements.append(store(part[m, v], total, whole))
        return statements


def _even(panels: int, cores: int) -> bool:
    """Whether cores share pairs of panels about as evenly as panels.

    >>> _even(14, 1), _even(14, 2), _even(16, 2), _even(16, 16)
    (True, False, True, False)
    """
    return 2 * ceil(ceil(panels / 2) / cores) <= UNEVEN * ceil(panels / cores)
