"""Batched GEMM of two activations, CPU: C[batch, m, n] = sum_k A[batch, m, k] * B[batch, k, n] - the register tile
of GEMM on unpacked operands.

B's rows are read where they lie: nr consecutive elements a step of k, the next step N*4 bytes further. Packing B would
cost K*N moves for K*N*M/lanes FMAs; below M = 64 or so it does not pay, and above it the hardware prefetcher follows
the stride. Where N is no multiple of half a vector (197 tokens), the lowering packs B into zero-padded panels instead.
Where C is more than L2 holds, a row tile passes all columns before the next one; where a quarter of L3 does not hold
it, it is written past the caches.
Tasks: the batch; where that is less than two a core, the column tiles of each too (each packs its own columns), or, of
a packed B and many rows, first the panels of B and then the row tiles of each matrix.
Measured   Zen 5, one core: 12 x 128x64x128 236, 12 x 128x128x64 249 GFLOP/s; two matrices of 64x256x256 246.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import tirx

from tvmopt.lowering.stream_stores import STREAM, streamed
from tvmopt.scheduling.blocks import annotated, consumer, extents, fused
from tvmopt.scheduling.cost_model import choose_rows, common_vector, fits, product_worth_threads
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

PIECE = 48
"""Rows of each core at least."""


@dataclass(frozen=True)
class BatchGemmProblem:
    """C is [batch, m, n], the reduction is k long; nr: width of a packed panel of B, 0 where B is read as it lies;
    batch is 0 for two plain matrices; cores: of the machine; threads: whether the work pays for them; packs: this
    kernel packs B, too (words of bytes come packed); rows_first: a row tile passes all columns before the next one, for
    C is more than L2 holds: columns first, each of its lines would be written in pieces, and fetched for each.
    streamed: C is written past the caches."""

    batch: int
    m: int
    n: int
    k: int
    nr: int
    lanes: int
    cores: int = 1
    threads: bool = True
    packs: bool = False
    rows_first: bool = False
    streamed: bool = False

    @property
    def split(self) -> bool:
        """Whether the batch alone is too few tasks."""
        return self.batch < 2 * self.cores and self.cores > 1

    @property
    def matrices(self) -> bool:
        """Whether tasks are whole matrices: there are enough, or cores share them evenly and each matrix is packed."""
        return not self.split or (self.packs and self.threads and max(1, self.batch) % self.cores == 0)

    @property
    def shared(self) -> bool:
        """Whether cores share the rows of each matrix, after they have packed its B together."""
        return self.packs and self.threads and not self.matrices and self.m >= PIECE * self.cores

    @property
    def last_panel(self) -> bool:
        """Whether rows of C fill several panels in whole vectors and then a part of one, which gets code of its own."""
        narrow = 2 * common_vector(self.n, self.lanes) < self.lanes
        return narrow and 0 < self.nr < self.n and (self.matrices or self.shared or not self.threads)

    @property
    def written(self) -> int:
        """Columns that are written together."""
        return self.lanes if self.last_panel else common_vector(self.n, self.lanes)


def recognise(func: tirx.PrimFunc, machine: Machine) -> BatchGemmProblem | None:
    """A block that the lowering marked `batch_gemm`."""
    block, out = annotated(func, "batch_gemm"), consumer(func, "batch_gemm")
    if block is None or out is None:
        return None
    *batch, m, n = extents(out)
    *rest, last, k = extents(block)
    packed = len(rest) > len(batch) + 1
    if len(batch) > 1:
        return None
    threads = product_worth_threads(2.0 * prod(batch) * m * n * k, machine)
    return BatchGemmProblem(
        batch[0] if batch else 0, m, n, k, last if packed else 0, machine.lanes(), machine.cores, threads,
        annotated(func, "pack") is not None, 4 * k * n <= machine.l2 // 2 and 4 * m * n > machine.l2 // 2,
        streamed(prod(batch) * m * n, n, machine),
    )  # fmt: skip


def knobs(problem: BatchGemmProblem, machine: Machine) -> Space:
    """`vec`: lanes of a vector; `nv`: vectors of the tile; `mr`: its rows."""
    if problem.nr:
        vec, options = problem.lanes, [problem.nr // problem.lanes]
    else:
        vec = vector_width(problem.n, problem.lanes)
        count = -(-problem.n // vec)
        options = sorted((v for v in (1, 2, 3, 4) if count % v == 0), key=lambda v: abs(v - 2))
    mr = choose_rows(problem.m, options[0] * problem.lanes, machine)
    heights = (r for r in (4, 6, 8, 12, 14) if r != mr and r <= problem.m and fits(r, options[0], machine))
    return Space({"vec": (vec,), "nv": tuple(options), "mr": (mr, *heights)})


def vector_width(n: int, lanes: int) -> int:
    """The vector in which rows of `n` are read as they lie: gcd(n, lanes), or all of a short row.

    >>> vector_width(64, 16), vector_width(24, 16), vector_width(3, 16)
    (16, 8, 3)
    """
    width = common_vector(n, lanes)
    return width if width * 2 >= lanes or n > lanes else n


def apply(sch: tvm.s_tir.Schedule, problem: BatchGemmProblem, knobs: Knobs) -> None:
    """Tile rows and columns, accumulate in registers, parallel over the batch."""
    gemm = sch.get_sblock("batch_gemm")
    (out,) = sch.get_consumers(gemm)
    *lead, m, n = sch.get_loops(out)
    m_tile, m_in = sch.split(m, [None, knobs["mr"]])
    n_tile, n_vec, n_in = sch.split(n, [None, knobs["nv"], knobs["vec"]])
    inner = n_tile if problem.shared or (problem.rows_first and problem.matrices) else m_tile
    sch.reorder(*((m_tile, n_tile) if inner is n_tile else (n_tile, m_tile)), m_in, n_vec, n_in)
    sch.compute_at(gemm, inner, preserve_unit_loops=True)
    *ones, cols, k = sch.get_loops(gemm)[len(lead) + 2 :]
    rows = ones.pop(len(lead))
    vectors, col = sch.split(cols, [None, knobs["vec"]])
    sch.reorder(k, *ones, rows, vectors, col)
    sch.vectorize(col)
    sch.unroll(vectors)
    sch.unroll(rows)
    if problem.m % knobs["mr"]:
        sch.annotate(m_tile, "pragma_loop_partition_hint", 1)
    if problem.last_panel:
        sch.annotate(n_tile, "pragma_loop_partition_hint", 1)
    if problem.packs:
        pack = sch.get_sblock("pack")
        if problem.shared:
            *panels, _, _ = sch.get_loops(pack)
            sch.parallel(fused(sch, panels))
        elif lead and problem.matrices:
            sch.compute_at(pack, lead[-1], preserve_unit_loops=True)
        elif inner is m_tile:  # else all of it first: a row tile passes all panels
            sch.compute_at(pack, n_tile, preserve_unit_loops=True)
        sch.vectorize(sch.split(sch.get_loops(pack)[-1], [None, common_vector(problem.n, problem.lanes)])[1])
    if problem.shared:
        sch.parallel(m_tile)
    elif problem.threads and (lead or problem.split):
        tasks = lead if problem.matrices else [*lead, n_tile]
        sch.parallel(fused(sch, tasks))
    sch.decompose_reduction(gemm, k)
    sch.unroll(m_in)
    if problem.nr:  # columns beyond N are dropped
        sch.vectorize(sch.split(sch.fuse(n_vec, n_in), [None, problem.written])[1])
    else:
        sch.unroll(n_vec)
        sch.vectorize(n_in)
    if problem.streamed:
        sch.annotate(out, STREAM, problem.lanes)
