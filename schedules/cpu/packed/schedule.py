"""Products of packed weights, CPU: panels, and parts of the rows, to threads; compute.py and rounded.py write the
kernels, round_rows.py one that is scheduled as it stands."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvmopt.lowering.prefetch import with_prefetch
from tvmopt.scheduling.blocks import annotated, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

ROWS = "packed_rows"
"""The annotation of a kernel that rounds rows: it has threads of its own."""


@dataclass(frozen=True)
class PackedProblem:
    """How many tasks there are, for threads to share; 0: a kernel that is scheduled as it stands."""

    tasks: int


def recognise(func: Any, machine: Machine) -> PackedProblem | None:
    """A block that the lowering marked `packed`, or one that rounds the rows."""
    if annotated(func, ROWS) is not None:
        return PackedProblem(0)
    block = annotated(func, "packed")
    return None if block is None else PackedProblem(prod(extents(block)))


def knobs(problem: PackedProblem, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(machine.cores > 1 and problem.tasks > 1)
    return Space({"parallel": (parallel, 1 - parallel) if problem.tasks > 1 else (0,)})


def apply(sch: Any, problem: PackedProblem, knobs: Knobs) -> None:
    """One loop over the tasks."""
    if knobs["parallel"]:
        sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("packed"))))


def open_sizes(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A kernel with an open number of rows: its tasks to threads."""
    if annotated(func, ROWS) is not None:
        return func
    block = annotated(func, "packed")
    if block is None:
        return None
    sch = Schedule(func)
    if machine.cores > 1 and prod(extents(block)) > 1:
        sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock("packed"))))
    return sch.mod["main"]


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with what its prefetches call."""
    return func if annotated(func, "packed") is None else with_prefetch(func)
