"""Reductions over axes that are not the last, GPU: global pooling over NHWC, sums over a batch.

    threads    32 neighbouring outputs of the contiguous axis a warp; `parts` warps share the reduced elements and join
               their partial results through shared memory
    loads      of a warp contiguous: 32 * itemsize bytes
    parts      what fills the multiprocessors with the outputs there are, at most 32 and at most the reduced elements
    floor      bytes of the input / bandwidth

Reductions of the last axes are `rows`; small windows with many outputs are `pool`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda import pool, rows
from tvmopt.schedules.cuda._threads import fused
from tvmopt.scheduling.blocks import inline_spatial
from tvmopt.scheduling.facts import BlockFacts, block_facts, facts
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import vector_axis
from tvmopt.targets import Machine

NAME, VERSION = "reduce", 1
WARP = 32


@dataclass(frozen=True)
class Shape:
    """outputs, reduced: their number and the elements of each; parts: the analytic number of warps for an output."""

    outputs: int
    reduced: int
    parts: int


def recognise(func: Any, machine: Machine) -> Shape | None:
    """One reduction of one tensor, unclaimed, with a contiguous spatial axis; the rest spatial over the outputs."""
    blocks = facts(func)
    if blocks is None or any(b.kernel or b.store is None or not b.trivial or "O" in b.kinds for b in blocks):
        return None
    reductions = [b for b in blocks if "R" in b.kinds]
    if len(reductions) != 1 or len(reductions[0].loads) != 2:
        return None
    main = reductions[0]
    spatial = [k for k, kind in enumerate(main.kinds) if kind == "S"]
    if vector_axis(main, spatial) is None or rows.recognise(func, machine) or pool.recognise(func, machine):
        return None
    outputs = math.prod(main.extents[k] for k in spatial)
    if blocks[-1] is not main and blocks[-1].elements != outputs:
        return None
    reduced = main.elements // outputs
    return Shape(outputs, reduced, parts_of(outputs, reduced, machine))


def parts_of(outputs: int, reduced: int, machine: Machine) -> int:
    """Warps that share an output's elements.

    >>> h100 = Machine.load("nvidia-h100")
    >>> parts_of(2048, 49, h100), parts_of(1 << 20, 49, h100), parts_of(64, 4, h100)
    (16, 1, 4)
    """
    parts = 1
    while parts < WARP and 2 * parts <= reduced and outputs // WARP * parts < 4 * machine.cores:
        parts *= 2
    return parts


def knobs(shape: Shape, machine: Machine) -> Space:
    """`parts`: warps for an output."""
    return Space({"parts": (shape.parts, *(p for p in (1, 2, 4, 8, 16, 32) if p != shape.parts))})


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    blocks = inline_spatial(sch)
    main = next(b for b in blocks if any(int(v.iter_type) == 2 for v in sch.get(b).iter_vars))
    cross_reduction(sch, main, blocks[-1], block_facts(sch, main), knobs["parts"])


def cross_reduction(sch: Any, main: Any, last: Any, here: BlockFacts | None, parts: int) -> None:
    """32 outputs a warp, `parts` warps an output; `last` is `main` or the epilogue behind it."""
    alone = sch.get(last).name_hint == sch.get(main).name_hint
    loops = sch.get_loops(last)
    if alone:
        kinds = [int(v.iter_type) for v in sch.get(main).iter_vars]
        spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
        reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
        sch.reorder(*spatial, *reduced)
    else:
        spatial, reduced = loops, []
        sch.set_scope(main, 0, "local")
    grid, thread = sch.split(fused(sch, spatial), [None, WARP])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if not alone:
        sch.compute_at(main, thread, preserve_unit_loops=False)
        reduced = sch.get_loops(main)[2:]
    _, part = sch.split(fused(sch, reduced), [None, parts])
    sch.bind(part, "threadIdx.y")
