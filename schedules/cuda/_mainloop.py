"""A matrix product on tensor cores as a tile program: what GEMM, batched GEMM and convolution share.

    grid    x: tiles of C, in groups of 8 rows of tiles so that neighbours share operands in L2;  y: batch or
            parts of K
    stage   each thread copies its chunks of A and B (16 bytes; 8, 4 or 2 where rows are not aligned) by
            cp.async, zeros beyond the edges, into a ring of `stages` swizzled tiles
    step    wait for the oldest stage, one barrier, start the copies of the step `stages - 1` ahead, then for each 32
            bytes of K: ldmatrix fragments, mma.m16n8k16 (fp16, bf16) or m16n8k8 (tf32), fp32 accumulators
    end     accumulators to shared memory (the operands are done with), then _epilogue.py

One barrier a step is enough: a stage is overwritten only after the barrier behind the step that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue
from tvmopt.scheduling.cuda_tile import CudaTile

Expr = Any
GROUP = 8

KINDS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32x3", "tf32": "tf32"}


class Operand(Protocol):
    """Where an operand's chunks come from."""

    @property
    def chunk(self) -> int:
        """Elements of one copy: a power of two that divides what lies together in memory."""

    def at(self, row: Expr, k: Expr, batch: Expr) -> tuple[Expr, Expr | None]:
        """Address of the chunk at (row, k), k a multiple of `chunk`, and whether it is inside (None: always)."""


@dataclass(frozen=True)
class Rows:
    """A matrix X[batch, rows, k] or, with `across`, X[batch, k, rows], row-major.

    Attributes:
        buffer: may have any shape; it is read in row-major order.
        pitch: elements between rows; rows, k: its extents; step: elements between matrices of the batch (0:
        one).
        padded: row and k indices run up to these.
    """

    buffer: Any
    rows: int
    k: int
    pitch: int
    chunk: int
    padded: tuple[int, int]
    step: int = 0
    across: bool = False

    def at(self, row: Expr, k: Expr, batch: Expr) -> tuple[Expr, Expr | None]:
        inside = T.both(T.below(row, self.rows, 1, self.padded[0]), T.below(k, self.k, 1, self.padded[1]))
        place = k * self.pitch + row if self.across else row * self.pitch + k
        offset = place + batch * self.step if self.step else place
        return T.pointer(self.buffer, offset), inside


@dataclass(frozen=True)
class Product:
    """C[m, n] += A[m, k] * B[n, k] or, with `b.across`, B[k, n], per batch entry.

    Attributes:
        part: length of one part of K; several parts make the batch index the part's number.
        groups: the batch's results lie side by side, as columns.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    part: int
    parts: int = 1
    groups: bool = False


class Program:
    """The tile program of a product."""

    def __init__(
        self, product: Product, tile: CudaTile, a: Operand, b: Any, epilogue: Epilogue, kind: str = ""
    ) -> None:
        self.p, self.t, self.a, self.b, self.epilogue = product, tile, a, b, epilogue
        self.kind = kind or KINDS[product.dtype]
        self.tiles_m, self.tiles_n = T.ceildiv(product.m, tile.bm), T.ceildiv(product.n, tile.bn)
        self.kernel = T.GridProgram(tile.threads, [self.tiles_m * self.tiles_n, product.batch * product.parts])
        self.smem = self.kernel.alloc(T.shared(tile.shared))
        warps_m, warps_n = tile.warps
        self.mi, self.ni = tile.bm // warps_m // 16, tile.bn // warps_n // 8
        self.acc = self.kernel.alloc(T.local(self.mi * self.ni * 4, "float32", "acc"))
        self.fa = self.kernel.alloc(T.local(self.mi * 4, "uint32", "fa"))
        self.fb = self.kernel.alloc(T.local(self.ni * 2, "uint32", "fb"))
        self.run = self.kernel.alloc(T.local(epilogue.width, "float32", "run"))
        warp = self.kernel.tx // 32
        self.row0, self.col0 = warp // warps_n * (tile.bm // warps_m), warp % warps_n * (tile.bn // warps_n)
        self.tile_m, self.tile_n = self._order(self.kernel.block[0])
        self.m0, self.n0 = self.tile_m * tile.bm, self.tile_n * tile.bn

    def install(self, sch: Any) -> None:
        """Write the kernel into the schedule."""
        statements = [self._zero(), *self._loop(), *self._end()]
        self.kernel.buffers.extend(self.epilogue.buffers)
        T.install(sch, self.kernel, statements)

    def _order(self, pid: Expr) -> tuple[Expr, Expr]:
        """Tiles in groups of GROUP rows, column by column within a group."""
        if self.tiles_m <= GROUP:
            return pid % self.tiles_m, pid // self.tiles_m
        whole = GROUP * self.tiles_n
        group = pid // whole
        if self.tiles_m % GROUP == 0:
            return group * GROUP + pid % GROUP, pid % whole // GROUP
        rows = tirx.min(T.int_(GROUP), self.tiles_m - group * GROUP)
        return group * GROUP + pid % whole % rows, pid % whole // rows

    def _zero(self) -> Any:
        return T.call(f"zero<{self.mi * self.ni * 4}>", T.pointer(self.acc))

    @property
    def steps(self) -> int:
        return T.ceildiv(self.p.part, self.t.bk)

    def _loop(self) -> list[Any]:
        t = self.t
        ahead = t.stages - 1
        first = [
            s
            for i in range(ahead)
            for s in (
                self._copies(T.int_(i), T.int_(i)) if i < self.steps else None,
                T.call("cp_async_commit"),
            )
        ]

        def step(i: Expr) -> Any:
            slot = tirx.floormod(i, T.int_(t.stages))
            later = self._copies(i + ahead, tirx.floormod(i + ahead, T.int_(t.stages)))
            return T.seq(
                [
                    T.call(f"cp_async_wait<{t.stages - 2}>"),
                    T.barrier(),
                    T.when(i + ahead < self.steps, later) if self.steps > ahead else None,
                    T.call("cp_async_commit"),
                    *self._multiply(slot),
                ]
            )

        return [*first, T.loop(self.steps, step, "step")]

    def _copies(self, step: Expr, slot: Expr) -> Any:
        t, p = self.t, self.p
        base = slot * t.stage_bytes
        batch = self.kernel.block[1]
        k0 = step * t.bk + (batch * p.part if p.parts > 1 else 0)
        a = self._fill(self.a, t.bm, self.m0, base, k0, batch)
        b_base = base + t.bm * t.row_bytes
        if self.b.across:
            return T.seq([a, self._fill_across(b_base, k0, batch)])
        return T.seq([a, self._fill(self.b, t.bn, self.n0, b_base, k0, batch)])

    def _fill(self, operand: Operand, rows: int, row0: Expr, base: Expr, k0: Expr, batch: Expr) -> Any:
        """Copy rows of K: consecutive threads take the chunks of a row."""
        t = self.t
        size = operand.chunk * t.itemsize
        chunks = t.bk // operand.chunk

        def one(index: Expr) -> Any:
            row, k = index // chunks, index % chunks * operand.chunk
            address, inside = operand.at(row0 + row, k0 + k, batch)
            to = handle(f"at<{t.row_bytes}>", T.pointer(self.smem, base), row, k * t.itemsize)
            return chunk_copy(size, to, address, inside)

        return self._each(rows * chunks, one)

    def _fill_across(self, base: Expr, k0: Expr, batch: Expr) -> Any:
        """Copy bk rows of N columns, for a B that lies [K, N]."""
        t, b = self.t, self.b
        size = b.chunk * t.itemsize
        chunks = t.bn // b.chunk

        def one(index: Expr) -> Any:
            k, column = index // chunks, index % chunks * b.chunk
            address, inside = b.at(self.n0 + column, k0 + k, batch)
            to = handle(f"at<{t.bn * t.itemsize}>", T.pointer(self.smem, base), k, column * t.itemsize)
            return chunk_copy(size, to, address, inside)

        return self._each(t.bk * chunks, one)

    def _each(self, count: int, one: Any) -> Any:
        """`one` for every index below count, shared out over the threads; unrolled up to 16."""
        threads = self.t.threads
        rounds = T.ceildiv(count, threads)

        def turn(i: Expr) -> Any:
            index = i * threads + self.kernel.tx
            return T.when(None if count % threads == 0 else index < count, one(index))

        return T.loop(rounds, turn, "i", unroll=rounds <= 16)

    def _multiply(self, slot: Expr) -> list[Any]:
        t, row = self.t, self.t.row_bytes
        a = T.pointer(self.smem, slot * t.stage_bytes)
        b = T.pointer(self.smem, slot * t.stage_bytes + t.bm * row)
        made = []
        for kb in range(0, row, 32):
            made.append(T.call(f"load_a<{row}, {self.mi}>", T.pointer(self.fa), a, self.row0, kb))
            if self.b.across:
                name = f"load_b_kn<{t.bn * t.itemsize}, {self.ni}>"
                made.append(T.call(name, T.pointer(self.fb), b, self.col0, kb // t.itemsize))
            else:
                made.append(T.call(f"load_b_nk<{row}, {self.ni}>", T.pointer(self.fb), b, self.col0, kb))
            name = f"mma_tile<tvmopt::{self.kind}, {self.mi}, {self.ni}>"
            made.append(T.call(name, T.pointer(self.acc), T.pointer(self.fa), T.pointer(self.fb)))
        return made

    def _end(self) -> list[Any]:
        t, p, width = self.t, self.p, self.epilogue.width
        tile = T.pointer(self.smem)
        stage = T.call(f"stage<{self.mi}, {self.ni}, {t.stride}>", tile, T.pointer(self.acc), self.row0, self.col0)
        runs = t.bn // width

        def one(index: Expr) -> Any:
            row, column = index // runs, index % runs * width
            m, n = self.m0 + row, self.n0 + column
            inside = T.both(T.below(m, p.m, 1, self.tiles_m * t.bm), T.below(n, p.n, 1, self.tiles_n * t.bn))
            read = T.call(f"unstage<{width}, {t.stride}>", T.pointer(self.run), tile, row, column)
            return T.when(inside, T.seq([read, *self.epilogue.run(self._axes(m, n), self.run)]))

        turns = T.ceildiv(t.bm * runs, t.threads)

        def turn(i: Expr) -> Any:
            index = i * t.threads + self.kernel.tx
            return T.when(None if t.bm * runs % t.threads == 0 else index < t.bm * runs, one(index))

        return [
            T.call("cp_async_wait<0>"),
            T.barrier(),
            stage,
            T.barrier(),
            T.loop(turns, turn, "turn"),
        ]

    def _axes(self, m: Expr, n: Expr) -> list[Expr]:
        """The epilogue block's axes: the batch or part, the row taken apart, the column."""
        extents = [int(iv.dom.extent) for iv in self.epilogue.block.iter_vars]
        if self.p.groups:
            return [*rows_of(extents[:-1], m), self.kernel.block[1] * self.p.n + n]
        batched = self.p.batch * self.p.parts > 1
        rest = rows_of(extents[1:-1] if batched else extents[:-1], m)
        return [*([self.kernel.block[1]] if batched else []), *rest, n]


def rows_of(extents: Sequence[int], m: Expr) -> list[Expr]:
    """Row m of a matrix whose rows have several dimensions: their indices."""
    rows: list[Expr] = []
    for position, extent in reversed(list(enumerate(extents))):
        rows.insert(0, m if position == 0 else tirx.floormod(m, T.int_(extent)))
        m = tirx.floordiv(m, T.int_(extent))
    return rows


def handle(name: str, *args: Any) -> Expr:
    """A call of `_device.cuh` that returns an address."""
    return tirx.call_extern("handle", f"tvmopt::{name}", *map(T.int_, args))


def chunk_copy(size: int, to: Expr, address: Expr, inside: Expr | None) -> Any:
    """`size` bytes to shared memory, zeros where not `inside`."""
    ok = tirx.const(1, T.INDEX) if inside is None else tirx.Cast(T.INDEX, inside)
    if size == 2:
        return T.call("copy2", to, address, ok)
    return T.call(f"cp_async<{size}>", to, address, ok)
