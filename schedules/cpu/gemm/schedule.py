"""GEMM, CPU: X[rows, K] times packed panels Wp[P, K, nr], with its elementwise epilogue - an mr x nr tile of C in
registers.                                                                        (v = lanes, nv = nr / v)

registers  mr*nv accumulators + nv (B) + 1 (A) <= vector_regs      14*2 + 2 + 1 = 31 <= 32
latency    mr*nv >= fma_latency * fma_ports                        28 >= 4 * 2
loads      (mr + nv) / load_ports <= mr*nv / fma_ports             16/2 <= 28/2
order      for panel: for row tile: for k. The panel, K*nr*4 bytes, stays in L2 while the row tiles pass;
           X, read once a panel, comes from L2 or L3 at mr*4 bytes every mr*nv/ports cycles. Where it is more than L2
           holds and the weights are not, pieces of its rows pass all panels one after the other.
rows       a tail of M % mr rows is its own loop (TVM's LoopPartition on the row-tile loop), so the main loop has
           no branch.
ahead      while a panel is multiplied the next one is prefetched, a line or less a step (lowering/prefetch.py): the
           same loops in C, 49x160x960 with weights from memory, 73 us instead of 90; 67 with weights in cache.
tasks      panels; where those do not divide evenly over the cores and mr divides M, `m_chunks` pieces of the rows each,
           the last one shorter by the tiles that are missing (LoopPartition again: a bound, no branch). Neighbouring
           tasks share rows.
columns    zeros beyond N in the last panel. The epilogue of a panel that is alone is whole vectors and a rest of
           scalars (LoopPartition); of several panels, vectors of gcd(N, v), so that none straddles a row.
Measured   Zen 5, one core, peak 267 GFLOP/s: 196x256x768 255, 197x256x768 (11 rows) 257, 12544x64x256 257.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx

from tvmopt.schedules.cpu._loops import prefetch_panels, vectorize_columns, vectorize_epilogue
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.cost_model import (
    HIGHEST_OPEN,
    cached_pieces,
    choose_rows,
    common_vector,
    fits,
    open_height,
    product_worth_threads,
    row_pieces,
)
from tvmopt.scheduling.family import Knobs, RowTiles, Space
from tvmopt.targets import Machine

AHEAD = 256
"""Numbers of a panel that a product of one row fetches ahead, where its weights come from memory: 1 KB. On a Xeon with
AMX one core reads 14.0 GB/s without, 16.7 with 256 bytes, 17.3 with 1 KB, 17.2 with 3 KB; two cores 13.3 and 16.7 each.
From L3 it makes no difference, from L2 it costs a fifth."""


@dataclass(frozen=True)
class GemmProblem:
    """m rows, n columns, a reduction of k; nr: the panel's width; lanes of a vector; threads: whether the work pays for
    them; far: whether the weights are more than L2 holds."""

    m: int
    n: int
    k: int
    nr: int
    lanes: int
    cores: int
    threads: bool
    far: bool = False

    @property
    def panels(self) -> int:
        return -(-self.n // self.nr)


def recognise(func: tirx.PrimFunc, machine: Machine) -> GemmProblem | None:
    """A block that the lowering marked `gemm`, its shape read off the loops (see scheduling/normalize.py)."""
    block, out = annotated(func, "gemm"), consumer(func, "gemm")
    if block is None or out is None or len(extents(block)) != 4:
        return None
    m, _panels, nr, k = extents(block)
    n = extents(out)[-1]
    threads = product_worth_threads(2.0 * m * n * k, machine)
    return GemmProblem(m, n, k, nr, machine.lanes(), machine.cores, threads, 4 * n * k > machine.l2)


def knobs(problem: GemmProblem, machine: Machine) -> Space:
    """`mr`: rows of the tile; `m_chunks`: pieces of M, for more tasks than panels; `unroll_k`."""
    analytic = choose_rows(problem.m, problem.nr, machine, problem.panels)
    nv = max(1, problem.nr // machine.lanes())
    others = [r for r in (4, 6, 8, 10, 12, 13, 14, 16, 20, 24) if r <= problem.m and fits(r, nv, machine)]
    chunks = row_pieces(problem.m, analytic, problem.panels, machine.cores)
    if chunks == 1 and not problem.m % analytic:
        chunks = cached_pieces(problem.m // analytic, 4 * problem.m * problem.k, 4 * problem.n * problem.k,
            problem.panels, machine)  # fmt: skip
    return Space(
        {
            "mr": (analytic, *(r for r in others if r != analytic)),
            "m_chunks": (chunks, *(c for c in (1, 2, 4, 8) if c != chunks and c <= -(-problem.m // analytic))),
            "unroll_k": (1, 2, 4),
        }
    )


def open_rows(problem: GemmProblem, machine: Machine) -> RowTiles:
    """Tiles for an open number of rows, or single samples that have rows enough. The first two tiles prefetch the next
    panel, half of it each; with more of them there would be more time, but every smaller number of rows would wait for
    its weights (BERT at 16 tokens: 1.43 times)."""
    if problem.m >= HIGHEST_OPEN:
        return RowTiles()
    highest = open_height(problem.nr, machine)
    height = max(1, highest // problem.m)
    uneven = -(-problem.panels // problem.cores) * problem.cores / problem.panels
    return RowTiles(
        height,
        first=2 * height if problem.panels > 1 else 0,
        pieces=2 * problem.cores if uneven > 1.1 else 1,
        knobs=lambda tile: {"mr": min(tile.m, highest), "m_chunks": 1, "unroll_k": 1},
    )


def apply(sch: tvm.s_tir.Schedule, problem: GemmProblem, knobs: Knobs) -> None:
    """Tile, compute the accumulators under the row tile, vectorise."""
    gemm = sch.get_sblock("gemm")
    (out,) = sch.get_consumers(gemm)
    m, n = sch.get_loops(out)
    tile, m_in = sch.split(m, [None, knobs["mr"]])
    m_chunk, m_tile = sch.split(tile, [knobs["m_chunks"], None])
    panel, n_in = sch.split(n, [None, problem.nr])
    sch.reorder(m_chunk, panel, m_tile, m_in, n_in)
    sch.compute_at(gemm, m_tile, preserve_unit_loops=True)
    rows, one, cols, k = sch.get_loops(gemm)[3:]
    k_out, k_in = sch.split(k, [None, knobs["unroll_k"]])
    sch.reorder(k_out, k_in, one, rows, cols)
    sch.unroll(k_in)
    sch.unroll(rows)
    vectorize_columns(sch, cols, common_vector(problem.nr, problem.lanes))
    sch.annotate(m_tile, "pragma_loop_partition_hint", 1)
    prefetch_panels(sch, [m_tile], [k_out], problem.panels, problem.nr * problem.k, problem.nr,
        ahead=AHEAD if problem.m == 1 and problem.far else 0)  # fmt: skip
    parallel = sch.fuse(m_chunk, panel)
    if problem.threads:
        sch.parallel(parallel)
    sch.decompose_reduction(gemm, k_out)
    sch.unroll(m_in)
    vectorize_epilogue(sch, n_in, problem.n, problem.nr, problem.lanes)
