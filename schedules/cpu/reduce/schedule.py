"""Reductions over axes that are not the last, CPU: global pooling over NHWC, sums over a batch - and the
loop nests that the generic fallback uses for any reduction.

    order      outer spatial | reduced axes | a strip of the contiguous spatial axis: every load of the innermost loop
               is contiguous, LLVM vectorises it, and the strip of accumulators stays in L1 (no sum across lanes)
    strip      512 elements: 2 KB of accumulators beside the stream that passes; narrower where one core had them all
    floor      bytes of the input / bandwidth
    Measured   Zen 5, 1 thread: mean of 1x7x7x2048 over 7x7 2.2 us (182 GB/s, L2); max of 1x49x2048 2.3 us

Reductions of the last axes are `rows`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cpu._loops import STRIPS, inline_cheap, lying_together, reduction_nest, spatial_nest
from tvmopt.scheduling.cost_model import worth_threads
from tvmopt.scheduling.facts import block_facts, facts
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import vector_axis
from tvmopt.targets import Machine

NARROWEST = 64


@dataclass(frozen=True)
class ReductionProblem:
    """machine: for its lanes; nanoseconds: one core's time, roughly; columns: of the contiguous axes; rows: results,
    divided by these."""

    machine: Machine
    nanoseconds: float
    rows: int
    columns: int


def recognise(func: Any, machine: Machine) -> ReductionProblem | None:
    """One reduction, unclaimed or marked `reduce`, with a contiguous spatial axis for its vectors; the rest spatial."""
    blocks = facts(func)
    if blocks is None or any(b.store is None or not b.trivial or "O" in b.kinds for b in blocks):
        return None
    reductions = [b for b in blocks if "R" in b.kinds]
    if len(reductions) != 1 or any(b.kernel for b in blocks if b.kernel != "reduce"):
        return None
    here = reductions[0]
    if here.kernel != "reduce" and len(here.loads) != 2:  # the accumulator and one input: no products
        return None
    spatial = [i for i, kind in enumerate(here.kinds) if kind == "S"]
    inner = vector_axis(here, spatial)
    if inner is None:
        return None
    columns = math.prod(here.extents[i] for i in lying_together(here, spatial, inner))
    rows = math.prod(here.extents[i] for i in spatial) // columns
    return ReductionProblem(machine, sum(b.nanoseconds(machine) for b in blocks), rows, columns)


def knobs(problem: ReductionProblem, machine: Machine) -> Space:
    """Threads or not; elements of a strip."""
    parallel, strip = int(worth_threads(problem.nanoseconds, machine)), STRIPS[0]
    if parallel and problem.rows * -(-problem.columns // strip) < machine.cores:
        strip = max(NARROWEST, problem.columns * problem.rows // machine.cores)
    return Space({"parallel": (parallel, 1 - parallel), "strip": (strip, *(s for s in STRIPS if s != strip))})


def apply(sch: Any, problem: ReductionProblem, knobs: Knobs) -> None:
    for block in inline_cheap(sch):
        here = block_facts(sch, block)
        if here is None or not here.trivial:
            continue
        if here.spatial:
            spatial_nest(sch, block, False)
        else:
            reduction_nest(sch, block, here, problem.machine, bool(knobs["parallel"]), knobs["strip"])
