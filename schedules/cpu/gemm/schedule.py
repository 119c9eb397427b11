"""GEMM, CPU: X[rows, K] times packed panels Wp[P, K, nr], with its elementwise epilogue - an mr x nr tile of C in
registers.                                                                        (v = lanes, nv = nr / v)

registers  mr*nv accumulators + nv (B) + 1 (A) <= vector_regs      14*2 + 2 + 1 = 31 <= 32
latency    mr*nv >= fma_latency * fma_ports                        28 >= 4 * 2
loads      (mr + nv) / load_ports <= mr*nv / fma_ports             16/2 <= 28/2
order      for panel: for row tile: for k. The panel, K*nr*4 bytes, stays in L2 while the row tiles pass;
           X, read once a panel, comes from L2 or L3 at mr*4 bytes every mr*nv/ports cycles. Where it is more than L2
           holds and the weights are not, pieces of its rows pass all panels one after the other; where C has long
           rows, each row tile does.
rows       a tail of M % mr rows is its own loop (TVM's LoopPartition on the row-tile loop), so the main loop has
           no branch.
ahead      while a panel is multiplied the next one is prefetched, a line or less a step (lowering/prefetch.py): the
           same loops in C, 49x160x960 with weights from memory, 73 us instead of 90; 67 with weights in cache. A tile
           that has a panel to itself leaves no time for the next one: it fetches ahead in its own.
tasks      panels; of one panel, tiles of rows, the last of which may be lower; where panels do not divide evenly over
           the cores and mr divides M, `m_chunks` pieces of the rows each, the last one shorter by the tiles that are
           missing (LoopPartition again: a bound, no branch). Neighbouring tasks share rows. Many more rows than columns
           are cut into even parts, one a core, which then reads what it wrote itself (`near_rows`).
sums       of one row of float32 in runs of RUN terms at most: n terms in one sum are off by sqrt(n/2) units in the
           last place of a term's size, runs of r by sqrt(r/2 + n/2r). A row is bound by memory, so the runs cost it
           nothing; tiles of several rows are bound by arithmetic, and add up all terms one after the other.
columns    zeros beyond N in the last panel. The epilogue of a panel that is alone is whole vectors and a rest of
           scalars (LoopPartition), or two vectors that overlap in one register; of several panels, vectors of
           gcd(N, v), so that none straddles a row.
Measured   Zen 5, one core, peak 267 GFLOP/s: 196x256x768 255, 197x256x768 (11 rows) 257, 12544x64x256 257.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvmopt.lowering.overlap import OVERLAP, ROW, vector_for
from tvmopt.schedules.cpu._loops import prefetch_panels, vectorize_columns, vectorize_epilogue
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.cost_model import (
    HIGHEST_OPEN,
    MANY_ROWS,
    cached_pieces,
    cached_rows,
    choose_rows,
    common_vector,
    fits,
    halves,
    near_rows,
    open_height,
    product_worth_threads,
    products_from,
    row_pieces,
)
from tvmopt.scheduling.facts import largest_divisor
from tvmopt.scheduling.family import Knobs, RowTiles, Space
from tvmopt.targets import Machine

AHEAD = 1024
"""Numbers of a panel that one tile of rows fetches ahead where no other tile shares the panel and its weights come from
memory: 4 KB. The processor's own prefetchers stop at the end of a page, where the next one is then on its way. All of
BERT-base, two threads of a Xeon, one row: 0.98 of its time with 1 KB; eight rows: 0.69 of that without, 0.82 with 1 KB,
0.81 with 8 KB."""

ENOUGH = 16
"""Tiles of open rows of a piece, where panels are cut into pieces of rows though they divide almost evenly (15 over two
cores): each core reads half of the rows, which the kernel before it has often left in its own cache, in place of all.
480 to 480 channels in a recogniser of text, 960 pixels: 0.76 of the time; alone 0.95. 64 rows alone: 1.04."""

NEAR = 4
"""Tiles of open rows of a piece at least, where there are pieces because there are many more rows than columns."""

ROW_APART = 8192
"""Bytes of a row of the result from which on a panel's columns lie on other pages in each row. Where the result is more
than L2 holds and the weights are not, each row tile passes all panels then: 1000x10x3072 941 us, and 310 to 450."""

RUN, SHORT_RUN = 256, 64
"""Terms of one row that are added up one after the other at most, where a sum is long and can be cut evenly into runs
that are not shorter than the second."""


def run_of(k: int) -> int:
    """Terms of a run: a divisor of the sum's length, or all of it.

    >>> run_of(2048), run_of(768), run_of(576), run_of(511), run_of(1009)
    (256, 256, 192, 511, 1009)
    """
    run = largest_divisor(k, RUN)
    return run if k >= 2 * RUN and run >= SHORT_RUN else k


@dataclass(frozen=True)
class GemmProblem:
    """m rows, n columns, a reduction of k; nr: the panel's width; lanes of a vector; threads: whether the work pays for
    them; far: whether the weights come from memory; floats, doubles: whether the operands are float32, float64."""

    m: int
    n: int
    k: int
    nr: int
    lanes: int
    cores: int
    threads: bool
    far: bool = False
    floats: bool = False
    doubles: bool = False

    @property
    def panels(self) -> int:
        return -(-self.n // self.nr)

    @property
    def run(self) -> int:
        """Terms of a run of the sum."""
        return run_of(self.k) if self.floats and self.m == 1 else self.k


def recognise(func: tirx.PrimFunc, machine: Machine) -> GemmProblem | None:
    """A block that the lowering marked `gemm`, its shape read off the loops (see scheduling/normalize.py)."""
    block, out = annotated(func, "gemm"), consumer(func, "gemm")
    if block is None or out is None or len(extents(block)) != 4:
        return None
    m, _panels, nr, k = extents(block)
    n = extents(out)[-1]
    kinds = {str(region.source.ty.dtype) for region in block.reads}
    doubles = kinds == {"float64"}
    machine = machine.of_doubles if doubles else machine
    threads = product_worth_threads(2.0 * m * n * k, machine)
    far = machine.comes_from_memory(4 * n * k)
    floats = kinds == {"float32"}
    return GemmProblem(m, n, k, nr, machine.lanes(), machine.cores, threads, far, floats, doubles)


def knobs(problem: GemmProblem, machine: Machine) -> Space:
    """`mr`: rows of the tile; `m_chunks`: pieces of M, for more tasks than panels; `unroll_k`."""
    machine = machine.of_doubles if problem.doubles else machine
    near = near_rows(problem.m, problem.n, problem.nr, machine) if problem.threads else 0
    analytic = near or choose_rows(problem.m, problem.nr, machine, problem.panels)
    nv = max(1, problem.nr // machine.lanes())
    others = [r for r in (4, 6, 8, 10, 12, 13, 14, 16, 20, 24) if r <= problem.m and fits(r, nv, machine)]
    chunks = machine.cores if near else row_pieces(problem.m, analytic, problem.panels, machine.cores)
    if chunks == 1 and not problem.m % analytic:
        tiles, weights = problem.m // analytic, 4 * problem.n * problem.k
        chunks = cached_pieces(tiles, 4 * problem.m * problem.k, weights, problem.panels, machine)
        apart = 4 * problem.n >= ROW_APART and 4 * problem.m * problem.n > machine.l2
        if apart and weights <= machine.l2 // 2:
            chunks = tiles
    return Space(
        {
            "mr": (analytic, *(r for r in others if r != analytic)),
            "m_chunks": (chunks, *(c for c in (1, 2, 4, 8) if c != chunks and c <= -(-problem.m // analytic))),
            "unroll_k": (1, 2, 4),
        }
    )


def open_rows(problem: GemmProblem, machine: Machine) -> RowTiles:
    """Tiles for an open number of rows, or single samples that have rows enough.

    Where a quarter of L2 holds the weights, fetching them ahead brings nothing, and few rows in two or three tiles take
    1.08 of the time of one at most: there is a third of the code. (Where it does not: 768x3072 by 3 rows 1.67.)
    """
    if problem.m >= HIGHEST_OPEN:
        return RowTiles()
    machine = machine.of_doubles if problem.doubles else machine
    highest = open_height(problem.nr, machine)
    height = max(1, highest // problem.m)
    held = 4 * problem.n * problem.k <= machine.l2 // 4
    near = -(-MANY_ROWS * problem.n // (problem.cores * height))  # tiles of a piece of many more rows than columns
    idle = -(-problem.panels // problem.cores) * problem.cores / problem.panels  # of the slower half

    def of_tile(tile: GemmProblem) -> dict[str, int]:
        return {"mr": min(tile.m, highest), "m_chunks": 1, "unroll_k": 1}

    return RowTiles(
        height,
        lower=halves(height // 2) if held else tuple(range(height - 1, 0, -1)),
        fetching=problem.panels > 1 and not held,
        pieces=problem.cores if idle <= 1.1 else 2 * problem.cores,
        enough=2 if idle > 1.1 else min(ENOUGH, near) if idle > 1 else max(NEAR, near),
        cached=cached_rows(4 * problem.m * problem.k, 4 * problem.n * problem.k, problem.panels, machine),
        threads_from=products_from(2.0 * problem.m * problem.n * problem.k, machine),
        knobs=of_tile,
        fetching_knobs=lambda tile: of_tile(tile) | {"fetch": 1},
    )


def apply(sch: tvm.s_tir.Schedule, problem: GemmProblem, knobs: Knobs) -> None:
    """Tile, compute the accumulators under the row tile, vectorise. Knob `fetch`: tiles of open rows share a panel."""
    gemm = sch.get_sblock("gemm")
    (out,) = sch.get_consumers(gemm)
    m, n = sch.get_loops(out)
    tile, m_in = sch.split(m, [None, knobs["mr"]])
    m_chunk, m_tile = sch.split(tile, [knobs["m_chunks"], None])
    panel, n_in = sch.split(n, [None, problem.nr])
    sch.reorder(m_chunk, panel, m_tile, m_in, n_in)
    sch.compute_at(gemm, m_tile, preserve_unit_loops=True)
    total = runs = None
    if problem.run < problem.k:
        gemm, total, runs = _in_runs(sch, gemm, problem)
    rows, one, cols, k = sch.get_loops(gemm)[-4:]
    k_out, k_in = sch.split(k, [None, knobs["unroll_k"]])
    sch.reorder(k_out, k_in, one, rows, cols)
    sch.unroll(k_in)
    sch.unroll(rows)
    vectorize_columns(sch, cols, common_vector(problem.nr, problem.lanes))
    sch.annotate(m_tile, "pragma_loop_partition_hint", 1)
    steps = [k_out] if runs is None else [runs, k_out]
    shared = bool(knobs.get("fetch"))
    prefetch_panels(sch, [m_tile], steps, problem.panels, problem.nr * problem.k, problem.nr,
        least=1 if shared else 2, ahead=AHEAD if problem.far and not shared else 0)  # fmt: skip
    parallel = sch.fuse(m_chunk, panel)
    if problem.threads:
        sch.parallel(m_tile if problem.panels == knobs["m_chunks"] == 1 else parallel)
    if total is not None:
        sch.decompose_reduction(total, runs)
    sch.decompose_reduction(gemm, k_out)
    sch.unroll(m_in)
    if 3 < problem.n < problem.lanes:
        sch.annotate(n_in, OVERLAP, vector_for(problem.n, problem.lanes))
        sch.annotate(n_in, ROW, problem.n)
    else:
        vectorize_epilogue(sch, n_in, problem.n, problem.nr, problem.lanes)


def _in_runs(sch: tvm.s_tir.Schedule, gemm: Any, problem: GemmProblem) -> tuple[Any, Any, Any]:
    """Cut the sum into runs: the block of one run's tile, which stays in registers, lies under the loop that adds it to
    the runs before. Returns this block, and the other one, and that loop."""
    *_, rows, one, cols, k = sch.get_loops(gemm)
    runs, _ = sch.split(k, [None, problem.run])
    run = sch.rfactor(runs, 0)
    sch.reorder(runs, one, rows, cols)
    sch.compute_at(run, runs, preserve_unit_loops=True)
    sch.unroll(rows)
    vectorize_columns(sch, cols, common_vector(problem.nr, problem.lanes))
    return run, gemm, runs
