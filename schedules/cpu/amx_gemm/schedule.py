"""GEMM, AMX: X[rows, K] times packed panels of 32 columns, with its elementwise epilogue - blocks of 2x2 tiles.

tiles      4 of C, 2 of A, 2 of B: 4 loads for 4 products of 16x16x32 (bytes: 16x16x64) a step, 64 cycles (see
           _amx/cost.py)
order      for panel: for block of rows: for step. The panel, K*64 bytes (K*32 where a number is a byte), stays in
           L1 up to 24 KB, else in L2, while the blocks pass; X, read once a panel, comes from L2.
result     a block's 32x32 sums are stored once, 4 KB in L1, and its epilogue reads them there
task       a panel, or a piece of its rows where panels are too few; it configures the tiles and releases them
rows       blocks as high as makes M come out best; a last one of fewer rows has a configuration of its own
Measured   not yet: checked by running the machine code in an emulator (tests/amx). Predictions: docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvmopt.schedules.cpu._amx.cost import choose_height
from tvmopt.schedules.cpu._amx.lower import HEIGHT
from tvmopt.schedules.cpu._loops import vectorize_columns
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.cost_model import common_vector, product_worth_threads, row_pieces
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class AmxGemmProblem:
    """m rows, n columns, a sum of `steps` steps; width: of a panel; lanes of a vector; threads: whether the work
    pays for them."""

    m: int
    n: int
    steps: int
    width: int
    lanes: int
    cores: int
    threads: bool

    @property
    def panels(self) -> int:
        return -(-self.n // self.width)


def recognise(func: tirx.PrimFunc, machine: Machine) -> AmxGemmProblem | None:
    """A block that the lowering marked `amx_gemm`, in normal form (see scheduling/normalize.py)."""
    block, out = annotated(func, "amx_gemm"), consumer(func, "amx_gemm")
    if block is None or out is None or len(extents(block)) != 5:
        return None
    m, _panels, width, steps, _words = extents(block)
    n = extents(out)[-1]
    threads = product_worth_threads(64.0 * m * n * steps, machine, tiles=True)
    return AmxGemmProblem(m, n, steps, width, machine.lanes(), machine.cores, threads)


def knobs(problem: AmxGemmProblem, machine: Machine) -> Space:
    """`height`: rows of a block; `m_chunks`: pieces of M, for more tasks than panels."""
    height = choose_height(problem.m, problem.width, problem.steps, machine)
    chunks = row_pieces(problem.m, height, problem.panels, machine.cores)
    others = [h for h in (32, 28, 26, 24, 16) if h != height and h <= problem.m]
    return Space(
        {
            "height": (height, *others),
            "m_chunks": (chunks, *(c for c in (1, 2, 4, 8) if c != chunks and c <= -(-problem.m // height))),
        }
    )


def apply(sch: Any, problem: AmxGemmProblem, knobs: Knobs) -> None:
    """Blocks of rows under panels; the product's own loops become instructions later (lower.py)."""
    gemm = sch.get_sblock("amx_gemm")
    (out,) = sch.get_consumers(gemm)
    m, n = sch.get_loops(out)
    block, m_in = sch.split(m, [None, knobs["height"]])
    m_chunk, m_block = sch.split(block, [knobs["m_chunks"], None])
    panel, n_in = sch.split(n, [None, problem.width])
    sch.reorder(m_chunk, panel, m_block, m_in, n_in)
    sch.compute_at(gemm, m_block, preserve_unit_loops=True)
    sch.annotate(gemm, HEIGHT, knobs["height"])
    sch.annotate(m_block, "pragma_loop_partition_hint", 1)
    parallel = sch.fuse(m_chunk, panel)
    if problem.threads:
        sch.parallel(parallel)
    vectorize_columns(
        sch, n_in, common_vector(problem.n if problem.n % problem.width else problem.width, problem.lanes)
    )
