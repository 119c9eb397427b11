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

from tvmopt.schedules.cuda import _window
from tvmopt.schedules.cuda._reductions import cross_reduction, find_rows, parts_of
from tvmopt.scheduling.blocks import inline_spatial
from tvmopt.scheduling.facts import block_facts, facts
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import vector_axis
from tvmopt.targets import Machine


@dataclass(frozen=True)
class ReductionProblem:
    """outputs, reduced: their number and the elements of each; parts: the analytic number of warps for an output."""

    outputs: int
    reduced: int
    parts: int


def recognise(func: Any, machine: Machine) -> ReductionProblem | None:
    """One reduction of one tensor, unclaimed, with a contiguous spatial axis; the rest spatial over the outputs."""
    blocks = facts(func)
    if blocks is None or any(b.kernel or b.store is None or not b.trivial or "O" in b.kinds for b in blocks):
        return None
    reductions = [b for b in blocks if "R" in b.kinds]
    if len(reductions) != 1 or len(reductions[0].loads) != 2:
        return None
    main = reductions[0]
    spatial = [k for k, kind in enumerate(main.kinds) if kind == "S"]
    if vector_axis(main, spatial) is None or find_rows(func) or _window.recognise(func, machine, 1):
        return None
    outputs = math.prod(main.extents[k] for k in spatial)
    if blocks[-1] is not main and blocks[-1].elements != outputs:
        return None
    reduced = main.elements // outputs
    return ReductionProblem(outputs, reduced, parts_of(outputs, reduced, machine))


def knobs(problem: ReductionProblem, machine: Machine) -> Space:
    """`parts`: warps for an output."""
    return Space({"parts": (problem.parts, *(p for p in (1, 2, 4, 8, 16, 32) if p != problem.parts))})


def apply(sch: Any, problem: ReductionProblem, knobs: Knobs) -> None:
    blocks = inline_spatial(sch)
    main = next(b for b in blocks if any(int(v.iter_type) == 2 for v in sch.get(b).iter_vars))
    cross_reduction(sch, main, blocks[-1], block_facts(sch, main), knobs["parts"])
