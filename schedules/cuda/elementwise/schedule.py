"""Elementwise, broadcast and other one-pass chains on a GPU: inlined into one kernel that reads and writes once.

floor      (bytes of distinct inputs + outputs) / bandwidth
threads    one thread a vector of 16 bytes of the widest type, exact grid; a warp then moves 512 contiguous bytes
small      with fewer vectors than fill the multiprocessors the vector is narrowed: latency counts, not bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda._threads import fill, one_pass, vector_width, vectors
from tvmopt.scheduling.blocks import inline_spatial
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import one_pass_blocks
from tvmopt.targets import Machine


@dataclass(frozen=True)
class ElementwiseProblem:
    """elements: iterations of the last block; width: of the widest vector; vector, threads: the analytic point."""

    elements: int
    width: int
    vector: int
    threads: int


def recognise(func: Any, machine: Machine) -> ElementwiseProblem | None:
    """All blocks spatial and unclaimed, without borders or seams, contiguous or constant along the last axis."""
    blocks = one_pass_blocks(func)
    if blocks is None:
        return None
    return shape_of(blocks, machine)


def shape_of(blocks: Any, machine: Machine) -> ElementwiseProblem:
    """The vector that suits every block: they are inlined into the last."""
    width = min(vector_width(block) for block in blocks)
    return ElementwiseProblem(blocks[-1].elements, width, *fill(blocks[-1].elements, width, machine))


def knobs(problem: ElementwiseProblem, machine: Machine) -> Space:
    """`vector`: elements a thread; `threads` a block."""
    threads = [t for t in (64, 128, 256, 512, 1024) if t != problem.threads]
    return Space({"vector": vectors(problem.width, problem.vector), "threads": (problem.threads, *threads)})


def apply(sch: Any, problem: ElementwiseProblem, knobs: Knobs) -> None:
    for block in inline_spatial(sch):
        one_pass(sch, block, knobs["vector"], knobs["threads"])
