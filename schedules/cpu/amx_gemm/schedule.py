"""GEMM, AMX: X[rows, K] times packed panels of 32 columns, with its elementwise epilogue - blocks of 2x2 tiles.

tiles      4 of C, 2 of A, 2 of B: 4 loads for 4 products of 16x16x32 (bytes: 16x16x64) a step, 64 cycles (see
           _amx/cost.py)
order      for panel: for block of rows: for step. The panel, K*64 bytes (K*32 where a number is a byte), stays in
           L1 up to 24 KB, else in L2, while the blocks pass; X, read once a panel, comes from L2.
           Or rows outermost, where all weights stay in L2 and are no more than the result: then lines of X, of the
           result and of a residual are touched once, not once a panel. Steps from L2 take 0.88 of the rate from L1.
result     a block's 32x32 sums are stored once, 4 KB in L1, and its epilogue reads them there
task       a panel, or a piece of its rows where panels are too few (rows outermost: a piece of all rows); it
           configures the tiles and releases them
rows       blocks as high as makes M come out best; a last one of fewer rows has a configuration of its own
Measured   a Xeon with AMX, one core, bf16, a busy machine, least times in a whole ResNet-50: 3136x64x256 with a
           residual 464 us with panels outermost, 310 with rows; 784x128x512 142 and 115; 49x2048x512 205 and 250.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvmopt.schedules.cpu._amx.cost import HEIGHT as HEIGHT_OF_TILES
from tvmopt.schedules.cpu._amx.cost import WORDS, choose_height, rows_cycles
from tvmopt.schedules.cpu._amx.instructions import WORD_BYTES
from tvmopt.schedules.cpu._amx.lower import HEIGHT
from tvmopt.schedules.cpu._loops import vectorize_columns
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.cost_model import common_vector, row_pieces, worth_threads
from tvmopt.scheduling.facts import epilogue_cycles
from tvmopt.scheduling.family import Knobs, RowTiles, Space
from tvmopt.targets import Machine

LEAST = 2.0
"""Work from which a product gets threads, in times of waking one: its epilogue, too, is shared. Not timed apart."""


@dataclass(frozen=True)
class AmxGemmProblem:
    """m rows, n columns, a sum of `steps` steps; width: of a panel; lanes of a vector; result: bytes of a number of the
    result; threads: whether the work pays for them."""

    m: int
    n: int
    steps: int
    width: int
    lanes: int
    result: int
    cores: int
    threads: bool

    @property
    def panels(self) -> int:
        return -(-self.n // self.width)

    @property
    def weights(self) -> int:
        """Bytes of all panels."""
        return self.panels * self.steps * self.width * WORD_BYTES * WORDS


def recognise(func: tirx.PrimFunc, machine: Machine) -> AmxGemmProblem | None:
    """A block that the lowering marked `amx_gemm`, in normal form (see scheduling/normalize.py)."""
    block, out = annotated(func, "amx_gemm"), consumer(func, "amx_gemm")
    if block is None or out is None or len(extents(block)) != 5:
        return None
    m, _panels, width, steps, _words = extents(block)
    n, size = extents(out)[-1], np.dtype(str(out.writes[0].source.dtype)).itemsize
    height = choose_height(m, width, steps, machine)
    cycles = -(-n // width) * rows_cycles(m, height, width, steps, machine) + epilogue_cycles(out, machine)
    threads = worth_threads(cycles / machine.ghz, machine, LEAST)
    return AmxGemmProblem(m, n, steps, width, machine.lanes(), size, machine.cores, threads)


def knobs(problem: AmxGemmProblem, machine: Machine) -> Space:
    """`height`: rows of a block; `rows_outer`: the order; `m_chunks`: pieces of M, for more tasks than panels, or with
    rows outermost for all tasks."""
    height = choose_height(problem.m, problem.width, problem.steps, machine)
    outer = rows_outer(problem, machine)
    chunks = row_pieces(problem.m, height, 1 if outer else problem.panels, machine.cores)
    others = [h for h in (32, 28, 26, 24, 16) if h != height and h <= problem.m]
    return Space(
        {
            "height": (height, *others),
            "rows_outer": (int(outer), int(not outer)),
            "m_chunks": (chunks, *(c for c in (1, 2, 4, 8) if c != chunks and c <= -(-problem.m // height))),
        }
    )


def open_rows(problem: AmxGemmProblem, machine: Machine) -> RowTiles:
    """Blocks of two tiles for an open number of rows, what is left in one block of its own height; or single samples
    that have rows enough."""
    if problem.m >= HEIGHT_OF_TILES:
        return RowTiles(together=True)
    height = max(1, HEIGHT_OF_TILES // problem.m)
    uneven = -(-problem.panels // problem.cores) * problem.cores / problem.panels
    return RowTiles(
        height,
        lower=tuple(range(height - 1, 0, -1)),
        together=True,
        pieces=2 * problem.cores if uneven > 1.1 else 1,
        knobs=lambda tile: {"height": min(tile.m, HEIGHT_OF_TILES), "rows_outer": 0, "m_chunks": 1},
    )


def rows_outer(problem: AmxGemmProblem, machine: Machine) -> bool:
    """Whether rows are the outer loop: all panels stay in a quarter of L2 and are no more than what is written, and the
    blocks of rows divide over the cores with at most a tenth of waiting.

    >>> m = Machine.load("sapphirerapids")
    >>> sizes = ((3136, 64, 256), (784, 128, 512), (196, 1024, 256), (49, 2048, 512))  # rows, K, columns, of bf16
    >>> [rows_outer(AmxGemmProblem(rows, n, k // 32, 32, 16, 2, 1, True), m) for rows, k, n in sizes]
    [True, True, False, False]
    >>> [rows_outer(AmxGemmProblem(3136, 256, 2, 32, 16, 2, cores, True), m) for cores in (2, 14, 16)]
    [True, True, False]
    """
    tiles, tail = divmod(problem.m, choose_height(problem.m, problem.width, problem.steps, machine))
    waits = problem.cores > 1 and (tail > 0 or -(-tiles // problem.cores) * problem.cores > 1.1 * tiles)
    few = min(machine.l2 // 4, problem.m * problem.n * problem.result)
    return problem.weights <= few and not waits


def apply(sch: Any, problem: AmxGemmProblem, knobs: Knobs) -> None:
    """Blocks of rows under panels or around them; the product's own loops become instructions later (lower.py)."""
    gemm = sch.get_sblock("amx_gemm")
    (out,) = sch.get_consumers(gemm)
    m, n = sch.get_loops(out)
    block, m_in = sch.split(m, [None, knobs["height"]])
    m_chunk, m_block = sch.split(block, [knobs["m_chunks"], None])
    panel, n_in = sch.split(n, [None, problem.width])
    around = (m_block, panel) if knobs["rows_outer"] else (panel, m_block)
    sch.reorder(m_chunk, *around, m_in, n_in)
    sch.compute_at(gemm, around[1], preserve_unit_loops=True)
    sch.annotate(gemm, HEIGHT, knobs["height"])
    sch.annotate(m_block, "pragma_loop_partition_hint", 1)
    task = m_chunk if knobs["rows_outer"] else sch.fuse(m_chunk, panel)
    if problem.threads:
        sch.parallel(task)
    vectorize_columns(
        sch, n_in, common_vector(problem.n if problem.n % problem.width else problem.width, problem.lanes)
    )
