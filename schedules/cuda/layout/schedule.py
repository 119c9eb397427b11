"""Data movement on a GPU: transposes, concatenations, splits, pads, gathers and resizes, with what is fused to them.

transpose   the axis contiguous in the load and the one contiguous in the store differ: tiles of 32 x 32 go through
            shared memory, rows padded by one element so that a column's 32 words lie in 32 banks; a warp reads 32
            contiguous elements and writes 32 contiguous elements
otherwise   as `elementwise`, with vectors as wide as contiguous runs between seams allow
floor       bytes read and written once / bandwidth
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda._threads import fill, one_pass, vector_width
from tvmopt.scheduling.blocks import fused, inline_spatial
from tvmopt.scheduling.facts import BlockFacts, block_facts, moving_blocks
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import along, one_pass_blocks, transposed
from tvmopt.targets import Machine

TILE = 32
"""Threads of a warp, banks of shared memory."""


@dataclass(frozen=True)
class LayoutProblem:
    """machine: for the grid; elements: iterations of the last block."""

    machine: Machine
    elements: int


def recognise(func: Any, machine: Machine) -> LayoutProblem | None:
    """All blocks spatial and unclaimed, and some access that `elementwise` does not take."""
    blocks = moving_blocks(func)
    if blocks is None or one_pass_blocks(func) is not None:
        return None
    return LayoutProblem(machine, blocks[-1].elements)


def knobs(problem: LayoutProblem, machine: Machine) -> Space:
    """`rows`: of a tile that a block's threads move at a time (32 * rows threads); `threads` of a one-pass block."""
    _, threads = fill(problem.elements, 1, machine)
    return Space({"rows": (8, 4, 16), "threads": (threads, *(t for t in (64, 128, 256, 512) if t != threads))})


def apply(sch: Any, problem: LayoutProblem, knobs: Knobs) -> None:
    for block in inline_spatial(sch):
        facts_now = block_facts(sch, block)
        tile = tiled_axes(facts_now) if facts_now is not None and facts_now.trivial else None
        if facts_now is not None and tile is not None and len(sch.get_loops(block)) == len(facts_now.extents):
            transpose(sch, block, facts_now, tile, knobs["rows"])
            continue
        width = vector_width(facts_now) if facts_now is not None and facts_now.trivial else 1
        one_pass(sch, block, fill(problem.elements, width, problem.machine)[0], knobs["threads"])


def tiled_axes(block: BlockFacts) -> tuple[int, int] | None:
    """(stored, loaded) where both runs are long enough for a tile; a short run is left to the caches."""
    axes = transposed(block)
    if axes is None or min(block.extents[axis] for axis in axes) < TILE // 2:
        return None
    return axes


def transpose(sch: Any, block: Any, facts_now: BlockFacts, axes: tuple[int, int], rows: int) -> None:
    """A tile of shared memory for every load that is contiguous along the other axis."""
    stored, loaded = axes
    turned = [a.buffer for a in facts_now.loads if along(facts_now, a, loaded) == 1]
    reads = [region.source for region in sch.get(block).reads]
    copies = [sch.cache_read(block, k, "shared") for k, b in enumerate(reads) if any(b.same_as(t) for t in turned)]
    loops = sch.get_loops(block)
    s_tile, s_in = sch.split(loops[stored], [None, TILE])
    l_tile, l_in = sch.split(loops[loaded], [None, TILE])
    rest = [loop for k, loop in enumerate(loops) if k not in axes]
    sch.reorder(*rest, l_tile, s_tile, l_in, s_in)
    grid = fused(sch, [*rest, l_tile, s_tile])
    sch.bind(grid, "blockIdx.x")
    for copy in copies:
        sch.compute_at(copy, grid, preserve_unit_loops=True)
        _move(sch, copy, rows)
        sch.storage_align(copy, 0, -2, TILE, 1)
    repeat, row = sch.split(l_in, [None, rows])
    sch.reorder(repeat, row, s_in)
    sch.bind(row, "threadIdx.y")
    sch.bind(s_in, "threadIdx.x")


def _move(sch: Any, copy: Any, rows: int) -> None:
    """The tile, contiguous along its last long axis: a warp a row."""
    loops = sch.get_loops(copy)[1:]
    extents = [int(sch.get(loop).extent) for loop in loops]
    flat = fused(sch, loops)
    if len([e for e in extents if e > 1]) == 0:
        return
    _, row, lane = sch.split(flat, [None, rows, TILE])
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
