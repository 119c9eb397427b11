"""Recurrences, CPU: directions and runs of sequences to threads; the kernel is `tvmopt.legalize.recurrent`'s.

Where cores share each step (mode "steps") the kernel has its parallel loop inside, and nothing is left to choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvmopt.scheduling.blocks import annotated, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

NAME, VERSION = "recurrent", 1


@dataclass(frozen=True)
class Shape:
    """tasks: directions times runs of sequences; mode: see `tvmopt.legalize.recurrent_plan.Plan`."""

    tasks: int
    mode: str


def recognise(func: Any, machine: Machine) -> Shape | None:
    """A block that the legalizer marked `recurrent`."""
    block = annotated(func, NAME)
    return None if block is None else Shape(prod(extents(block)), str(block.annotations["tvmopt.mode"]))


def knobs(shape: Shape, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(shape.mode == "tasks" and machine.cores > 1)
    free = shape.mode != "steps" and shape.tasks > 1
    return Space({"parallel": (parallel, 1 - parallel) if free else (0,)})


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """One loop over the tasks."""
    task = sch.fuse(*sch.get_loops(sch.get_sblock(NAME)))
    if knobs["parallel"]:
        sch.parallel(task)
