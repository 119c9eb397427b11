"""Resampled pictures, CPU: tiles of rows to threads; columns.py and rows.py write the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvmopt.scheduling.blocks import annotated, extents
from tvmopt.scheduling.cost_model import worth_threads
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

KERNEL = "resample"
NANOSECONDS = 0.25
"""One core's time for a product of a vector, roughly."""


@dataclass(frozen=True)
class ResampleProblem:
    """How many tiles of rows there are, and one core's time for all of them."""

    tasks: int
    nanoseconds: float


def recognise(func: Any, machine: Machine) -> ResampleProblem | None:
    """The block that the lowering marked."""
    block = annotated(func, KERNEL)
    if block is None or not extents(block):
        return None
    tasks = prod(extents(block))
    return ResampleProblem(tasks, tasks * float(block.annotations["tvmopt.products"]) * NANOSECONDS)


def knobs(problem: ResampleProblem, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(problem.tasks > 1 and worth_threads(problem.nanoseconds, machine))
    return Space({"parallel": (parallel, 1 - parallel)})


def apply(sch: Any, problem: ResampleProblem, knobs: Knobs) -> None:
    """One loop over the pictures and their tiles."""
    task = sch.fuse(*sch.get_loops(sch.get_sblock(KERNEL)))
    if knobs["parallel"]:
        sch.parallel(task)


def open_sizes(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A kernel for an open number of pictures: their tiles to threads."""
    if annotated(func, KERNEL) is None:
        return None
    sch = Schedule(func)
    task = sch.fuse(*sch.get_loops(sch.get_sblock(KERNEL)))
    if machine.cores > 1:
        sch.parallel(task)
    return sch.mod["main"]
