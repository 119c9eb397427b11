"""Rows by a matrix of 2, 4 or 8 bits as one kernel: each weight is read once, and decoded in registers.

For a panel of `nr` columns (a task), a tile of `mr` rows, vectors v of columns::

    for a group g, for a word r of 32 / bits codes
      value[i, v] = decode(word[r, v], i) - zero[v]                          shared by the rows
      part[m, v] += value[0, v] * x[m, k] + value[1, v] * x[m, k + 1] + ...  a chain of its own, so that words overlap
    acc[m, v] += part[m, v] * scale[v]

A code is decoded without a conversion. In the low half of a word it stands at bit p, and so it does in the high half,
shifted down once a word::

    float(bits of 2^E | word & (code's bits))  =  2^E + code * 2^(E - 23 + p)      E = 23 - c - p: the second term is
    less 2^E + 2^(bits-1) * 2^-c               =  (code - 2^(bits-1)) * 2^-c       code * 2^-c; all of it is exact

With AVX-512 a code of 2 or 4 bits is the index of a permutation of these numbers instead, which looks at the low four
bits of a lane (of 2 bits the table repeats): 0.87 of the time.

The scales are 2^c times as large, 2^c being at least the largest code's magnitude times the group. So a group's sum is
no larger than the largest x: large inputs overflow no sooner than with a float32 matrix.

A panel is one stream of words: after those of a group come its scales, and its zero points where there are any. The
words a few rows ahead are prefetched. The last panel begins before its place where the columns do not divide, and
computes some columns twice. float32. From more than :data:`MOST_ROWS` rows on, a piece of a panel is decoded once for
all of them (many_rows.py): as fast as the product of a float32 matrix, which would take four to sixteen times the
memory. Where the number of rows is open, a decoder's prompt and its steps share one form of the weights.

Measured   1 row, 4096x4096 in 4 bits, one thread of a busy Zen 4: 0.15 of the float32 product's time, 8 rows 0.46.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmopt.lowering.common import OPAQUE, flat
from tvmopt.lowering.loops import (
    INDEX,
    as_index,
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
from tvmopt.schedules.cpu.packed.many_rows import by_pieces, tile_rows
from tvmopt.schedules.cpu.packed.operands import operands_of
from tvmopt.schedules.cpu.packed.tasks import panel_vectors, part_of, row_parts
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
PERMUTED = 16
"""Lanes of a permutation by the low four bits of a lane: AVX-512."""
MOST_ROWS, TILE_ROWS = 8, 4
AHEAD = 16
"""Rows of words that are prefetched ahead: 4 KB of panels of 64 columns."""
HALF = 16
"""Bits of a half of a word, which a float's 23 bits hold."""
WORDS = 4
"""Words written out one after the other in a step of the loop."""


def product(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """The operator of :mod:`tvmopt.operators.packed_product`."""
    of = operands_of(bb, call, machine)
    if isinstance(of, Declined):
        return of
    permutes = machine.has("avx512f") and machine.lanes("float32") == PERMUTED
    writer = _Writer(of.packing, of.rows, of.zeros is not None, machine, permutes)
    words = relax.const(writer.packed(of.codes, of.scales, of.zeros), "int32")
    args = [of.x, words, relax.const(writer.table(), "float32")]
    out = relax.TensorType([of.count, of.packing.n], "float32")
    y = relax.call_tir(bb.add_func(writer.func(), "packed_product"), args, out)
    return flat(bb, bb.emit(y), (*of.outer, of.packing.n))


class _Writer:
    """Writes the kernel of one product, and packs its weights."""

    def __init__(self, packing: Packing, rows: Any, zeros: bool, machine: Machine, permutes: bool) -> None:
        lanes = machine.lanes("float32")
        self.packing, self.m, self.zeros, self.lanes = packing, rows, zeros, lanes
        self.registers = machine.vector_registers
        vectors = panel_vectors(packing.n, lanes, machine.cores)
        self.nr = vectors * lanes
        self.panels = -(-packing.n // self.nr)
        self.mr = tile_rows(self.registers, vectors)
        few = isinstance(rows, int) and rows <= MOST_ROWS
        self.parts = 1 if few else row_parts(rows, self.panels, self.mr, machine.cores)
        self.per = 32 // packing.bits
        self.words = packing.group // self.per
        self.stride = self.words + 1 + zeros
        self.middle = 2 ** (packing.bits - 1)
        self.exponent = packing.bits + (packing.group - 1).bit_length()  # c
        self.permutes = permutes and packing.bits < 8
        self.locals: list[Any] = []
        self.x = new_buffer("x", rows, packing.groups * packing.group)
        self.w = new_buffer("w", self.panels, packing.groups * self.stride, self.nr, dtype="int32")
        self.t = new_buffer("table", PERMUTED)
        self.y = new_buffer("y", rows, packing.n)

    def starts(self) -> Any:
        """The first column of each panel."""
        return np.minimum(np.arange(self.panels) * self.nr, self.packing.n - self.nr)

    def table(self) -> Any:
        """What each index of a permutation stands for, over 2^c; of 2 bits the codes repeat."""
        codes = np.arange(PERMUTED) % 2**self.packing.bits
        return ((codes - self.middle) / 2**self.exponent).astype(np.float32)

    def packed(self, codes: Any, scales: Any, zeros: Any) -> Any:
        """The stream of each panel: int32 [panels, groups * stride, nr]."""
        p = self.packing
        wide = unpack(codes.reshape(p.n, -1), p.bits, p.groups * p.group).astype(np.uint32)
        shifts = (np.arange(self.per) * p.bits).astype(np.uint32)
        words = np.bitwise_or.reduce(wide.reshape(p.n, p.groups, self.words, self.per) << shifts, axis=-1)
        rows = [words, (scales.astype(np.float32) * np.float32(2**self.exponent)).view(np.uint32)[..., None]]
        if self.zeros:
            beyond = (zeros.astype(np.float64) - self.middle) / 2**self.exponent
            rows.append(beyond.astype(np.float32).view(np.uint32)[..., None])
        stream = np.concatenate(rows, -1).reshape(p.n, -1)
        columns = self.starts()[:, None] + np.arange(self.nr)
        return np.ascontiguousarray(stream[columns].transpose(0, 2, 1)).view(np.int32)

    def func(self) -> Any:
        """PrimFunc(x, words, table, y)."""
        panel, part = tirx.Var("vp", INDEX), tirx.Var("vr", INDEX)
        start = panel * self.nr
        if self.panels * self.nr != self.packing.n:
            start = tirx.min(start, const_index(self.packing.n - self.nr))
        if isinstance(self.m, int) and self.m <= MOST_ROWS:
            tiles = self._tiles(panel, start)
        else:
            first, count = part_of(self.m, part, self.parts, self.mr)
            tiles = [by_pieces(self, panel, start, (first, count), AHEAD)]
        if not isinstance(self.m, int):
            few = seq(self._open_tiles(panel, start))
            few = few if self.parts == 1 else tirx.IfThenElse(part == 0, few, None)
            tiles = [tirx.IfThenElse(self.m <= MOST_ROWS, few, seq(tiles))]
        loops = nest(
            "packed", [(panel, self.panels), (part, self.parts)], ("panel", "part"),
            list(map(everything, (self.x, self.w, self.t))), [everything(self.y)], seq(tiles), self.locals,
            {"tvmopt.kernel": "packed"},
        )  # fmt: skip
        return prim_func([self.x, self.w, self.t, self.y], loops, OPAQUE)

    def _tiles(self, panel: Expr, start: Expr) -> list[Any]:
        whole, rest = divmod(self.m, TILE_ROWS)
        tiles = [self._tile(panel, start, i * TILE_ROWS, TILE_ROWS) for i in range(whole)]
        return [*tiles, *([self._tile(panel, start, whole * TILE_ROWS, rest)] if rest else [])]

    def _open_tiles(self, panel: Expr, start: Expr) -> list[Any]:
        """A loop over whole tiles, and a body for each number of rows that may be left."""
        whole = tirx.floordiv(self.m, const_index(TILE_ROWS))
        left = self.m - whole * TILE_ROWS
        tiles = loop(whole, lambda i: self._tile(panel, start, i * TILE_ROWS, TILE_ROWS), "tile")
        bodies = [(n, self._tile(panel, start, whole * TILE_ROWS, n)) for n in range(1, TILE_ROWS)]
        return [tiles, *(tirx.IfThenElse(left == n, body, None) for n, body in bodies)]

    def number(self, panel: Expr, place: Expr, v: int) -> Expr:
        """A vector of a panel's scales or zero points."""
        row = load(self.w, panel, place, vector(v * self.lanes, self.lanes))
        return tirx.reinterpret(vector_type("float32", self.lanes), row)

    def local(self, name: str, dtype: str = "float32") -> Any:
        buffer = new_buffer(f"{name}_{len(self.locals)}", self.lanes, dtype=dtype)
        self.locals.append(buffer)
        return buffer

    def _tile(self, panel: Expr, start: Expr, first: Any, rows: int) -> Any:
        """`rows` rows from `first` on, by all columns of a panel."""
        cells = [(m, v) for m in range(rows) for v in range(self.nr // self.lanes)]
        acc, part = ({cell: self.local(name) for cell in cells} for name in ("acc", "part"))
        whole, group = vector(0, self.lanes), self.packing.group

        def zero(buffers: dict[tuple[int, int], Any]) -> list[Any]:
            return [store(b, splat(0.0, self.lanes), whole) for b in buffers.values()]

        def row(place: Expr, v: int) -> Expr:
            return load(self.w, panel, place, vector(v * self.lanes, self.lanes))

        def number(place: Expr, v: int) -> Expr:
            return self.number(panel, place, v)

        def one(g: Expr) -> Any:
            base = g * self.stride
            step = min(WORDS, self.words)

            def trip(r: Expr) -> Any:
                parts = []
                for n in range(step):
                    place = base + r * step + n
                    lines = range(0, self.nr, LINE // 4)
                    parts += [prefetch(self.w, [panel, place + AHEAD, const_index(c)]) for c in lines]
                    parts += self._word(
                        place, g * group + (r * step + n) * self.per, first, rows, row, number, base, part
                    )
                return seq(parts)

            scaled = [
                store(acc[c], load(acc[c], whole) + load(part[c], whole) * number(base + self.words, c[1]), whole)
                for c in cells
            ]
            return seq([*zero(part), loop(self.words // step, trip, "r"), *scaled])

        done = [
            store(self.y, load(acc[m, v], whole), as_index(first + m), vector(start + v * self.lanes, self.lanes))
            for m, v in cells
        ]
        return seq([*zero(acc), loop(self.packing.groups, one, "g"), *done])

    def _word(
        self, place: Expr, k: Expr, first: Any, rows: int, row: Any, number: Any, base: Expr, part: dict[Any, Any]
    ) -> list[Any]:
        """The codes of one word by the x of its rows, added to the group's sums."""
        statements, whole = [], vector(0, self.lanes)
        for v in range(self.nr // self.lanes):
            word = self.local("word", "int32")
            statements.append(store(word, row(place, v), whole))
            values = []
            for i in range(self.per):
                value = self.local("value")
                decoded = self.decoded(load(word, whole), i)
                if self.zeros:
                    decoded = decoded - number(base + self.words + 1, v)
                statements.append(store(value, decoded, whole))
                values.append(value)
            for m in range(rows):
                chain = None
                for i, value in enumerate(values):
                    term = load(value, whole) * spread(load(self.x, as_index(first + m), k + i), self.lanes)
                    chain = term if chain is None else chain + term
                statements.append(store(part[m, v], load(part[m, v], whole) + chain, whole))
        return statements

    def decoded(self, word: Expr, i: int) -> Expr:
        """(code i - 2^(bits-1)) * 2^-c of each lane; see the module's docstring."""
        bits = self.packing.bits
        if self.permutes:
            index = word >> splat(i * bits, self.lanes, "int32") if i else word
            table = load(self.t, vector(0, PERMUTED))
            return tirx.call_llvm_pure_intrin("float32x16", "llvm.x86.avx512.permvar.sf.512", table, index)
        half, place = divmod(i * bits, HALF)
        if half:
            word = word >> splat(HALF, self.lanes, "int32")
        power = 23 - self.exponent - place
        code = tirx.bitwise_and(word, splat((2**bits - 1) << place, self.lanes, "int32"))
        number = tirx.bitwise_or(code, splat((power + 127) << 23, self.lanes, "int32"))
        base = 2.0**power + self.middle * 2.0**-self.exponent
        return tirx.reinterpret(vector_type("float32", self.lanes), number) - splat(base, self.lanes)
