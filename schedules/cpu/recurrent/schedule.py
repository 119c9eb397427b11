"""Recurrences, CPU: directions and runs of sequences to threads; compute.py writes the kernel.

Where cores share each step (mode "steps") the kernel has its parallel loop inside, and nothing is left to choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.s_tir import Schedule

from tvmopt.scheduling.blocks import annotated, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class RecurrentProblem:
    """tasks: directions times runs of sequences; mode: see `RecurrentPlan` in tile.py."""

    tasks: int
    mode: str


def recognise(func: Any, machine: Machine) -> RecurrentProblem | None:
    """A block that the lowering marked `recurrent`."""
    block = annotated(func, "recurrent")
    return None if block is None else RecurrentProblem(prod(extents(block)), str(block.annotations["tvmopt.mode"]))


def open_sizes(func: Any, machine: Machine) -> Any | None:
    """A kernel of an open number of steps or sequences: tasks to threads if its plan says so."""
    block = annotated(func, "recurrent")
    if block is None:
        return None
    sch = Schedule(func)
    mode = str(block.annotations["tvmopt.mode"])
    apply(sch, RecurrentProblem(0, mode), {"parallel": int(mode == "tasks")})
    return sch.mod["main"]


def knobs(problem: RecurrentProblem, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(problem.mode == "tasks" and machine.cores > 1)
    free = problem.mode != "steps" and problem.tasks > 1
    return Space({"parallel": (parallel, 1 - parallel) if free else (0,)})


def apply(sch: Any, problem: RecurrentProblem, knobs: Knobs) -> None:
    """One loop over the tasks."""
    task = sch.fuse(*sch.get_loops(sch.get_sblock("recurrent")))
    if knobs["parallel"]:
        sch.parallel(task)
