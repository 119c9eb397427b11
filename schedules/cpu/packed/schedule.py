"""Products of packed weights, CPU: panels to threads; compute.py writes the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvmopt.lowering.prefetch import with_prefetch
from tvmopt.scheduling.blocks import annotated, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class PackedProblem:
    """How many panels there are, and whether threads share them."""

    panels: int


def recognise(func: Any, machine: Machine) -> PackedProblem | None:
    """A block that the lowering marked `packed`."""
    block = annotated(func, "packed")
    return None if block is None else PackedProblem(extents(block)[0])


def knobs(problem: PackedProblem, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(machine.cores > 1 and problem.panels > 1)
    return Space({"parallel": (parallel, 1 - parallel) if problem.panels > 1 else (0,)})


def apply(sch: Any, problem: PackedProblem, knobs: Knobs) -> None:
    """One loop over the panels."""
    (panel,) = sch.get_loops(sch.get_sblock("packed"))
    if knobs["parallel"]:
        sch.parallel(panel)


def open_sizes(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A kernel with an open number of rows: its panels to threads."""
    block = annotated(func, "packed")
    if block is None:
        return None
    sch = Schedule(func)
    if machine.cores > 1 and extents(block)[0] > 1:
        sch.parallel(sch.get_loops(sch.get_sblock("packed"))[0])
    return sch.mod["main"]


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with what its prefetches call."""
    return func if annotated(func, "packed") is None else with_prefetch(func)
