"""GEMM, AMX: X[rows, K] bf16 times packed panels of 32 columns, with its elementwise epilogue - blocks of 2x2 tiles.

tiles      4 of C, 2 of A, 2 of B: 4 loads for 4 products of 16x16x32 a step, 64 cycles (see _amx/cost.py)
order      for panel: for block of rows: for step. The panel, K*64 bytes, stays in L1 up to K = 384, else in L2, while
           the blocks pass; X, read once a panel, comes from L2.
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
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.tile import common_vector, row_pieces
from tvmopt.targets import Machine


@dataclass(frozen=True)
class Shape:
    """m rows, n columns, a sum of `steps` steps; width: of a panel; lanes of a vector."""

    m: int
    n: int
    steps: int
    width: int
    lanes: int
    cores: int

    @property
    def panels(self) -> int:
        return -(-self.n // self.width)


def recognise(func: tirx.PrimFunc, machine: Machine) -> Shape | None:
    """A block that the lowering marked `amx_gemm`, in normal form (see scheduling/normalize.py)."""
    block, out = annotated(func, "amx_gemm"), consumer(func, "amx_gemm")
    if block is None or out is None or len(extents(block)) != 5:
        return None
    m, _panels, width, steps, _pairs = extents(block)
    return Shape(m, extents(out)[-1], steps, width, machine.lanes(), machine.cores)


def knobs(shape: Shape, machine: Machine) -> Space:
    """`height`: rows of a block; `m_chunks`: pieces of M, for more tasks than panels."""
    height = choose_height(shape.m, shape.width, shape.steps, machine)
    chunks = row_pieces(shape.m, height, shape.panels, machine.cores)
    others = [h for h in (32, 28, 26, 24, 16) if h != height and h <= shape.m]
    return Space(
        {
            "height": (height, *others),
            "m_chunks": (chunks, *(c for c in (1, 2, 4, 8) if c != chunks and c <= -(-shape.m // height))),
        }
    )


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """Blocks of rows under panels; the product's own loops become instructions later (lower.py)."""
    gemm = sch.get_sblock("amx_gemm")
    (out,) = sch.get_consumers(gemm)
    m, n = sch.get_loops(out)
    block, m_in = sch.split(m, [None, knobs["height"]])
    m_chunk, m_block = sch.split(block, [knobs["m_chunks"], None])
    panel, n_in = sch.split(n, [None, shape.width])
    sch.reorder(m_chunk, panel, m_block, m_in, n_in)
    sch.compute_at(gemm, m_block, preserve_unit_loops=True)
    sch.annotate(gemm, HEIGHT, knobs["height"])
    sch.annotate(m_block, "pragma_loop_partition_hint", 1)
    parallel = sch.fuse(m_chunk, panel)
    if shape.m * shape.n * shape.steps > 250_000:  # some 2 us of one core: below, waking a thread costs more
        sch.parallel(parallel)
    vectorize_columns(sch, n_in, common_vector(shape.n if shape.n % shape.width else shape.width, shape.lanes))
