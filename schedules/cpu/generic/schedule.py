"""The fallback for any PrimFunc that no family recognises: parallel, contiguous, never a naive loop where avoidable.

    spatial blocks     as `elementwise`: inlined, one pass, contiguous innermost loop, outer loop over threads
    reductions         over a non-contiguous axis: `outer x reduction x contiguous spatial loop` - LLVM
                       vectorises the innermost loop, accumulators stay in L1;
                       over the contiguous axis: `rfactor` into 16 to 64 partial sums when the axis divides,
                       because a chain of dependent additions runs at one element per `fma_latency` cycles
    left alone         dynamic shapes, opaque blocks, bindings that are not one loop an axis: unscheduled, and said so

Every step is tried by itself: a primitive that refuses leaves the function as it was. Discovery puts this family last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cpu._loops import inline_cheap, reduction_nest, spatial_nest
from tvmopt.scheduling.cost_model import worth_threads
from tvmopt.scheduling.facts import block_facts, facts
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class GenericProblem:
    """What the fallback needs to know: the machine, and how many blocks there are."""

    machine: Machine
    blocks: int


def recognise(func: Any, machine: Machine) -> GenericProblem | None:
    """Any static function of plain loops and blocks."""
    blocks = facts(func)
    return None if blocks is None else GenericProblem(machine, len(blocks))


def knobs(problem: GenericProblem, machine: Machine) -> Space:
    """`strip`: elements of the loop inside a reduction; `chunk`: of a spatial block's inner loop."""
    return Space({"chunk": (4096, 1024, 16384), "strip": (512, 64, 128, 256)})


def apply(sch: Any, problem: GenericProblem, knobs: Knobs) -> None:
    """Schedule what can be scheduled, block by block; the rest stays as it came, correct and slow."""
    import tvm

    machine = problem.machine
    for block in inline_cheap(sch):
        here = block_facts(sch, block)
        if here is None or not here.trivial or "O" in here.kinds or here.store is None:
            continue
        parallel = worth_threads(here.nanoseconds(machine), machine)
        try:
            if here.spatial:
                spatial_nest(sch, block, parallel, knobs["chunk"])
            else:
                reduction_nest(sch, block, here, machine, parallel, knobs["strip"])
        except tvm.s_tir.ScheduleError:
            continue
