"""The fallback on a GPU for any PrimFunc that no family recognises: never a naive loop.

    spatial blocks    inlined into their readers; one pass, vectors where runs are contiguous
    reductions        contiguous along the reduced axes: a warp or a block a row (`rows`); contiguous along a spatial
                      axis: a thread an output where outputs fill the GPU, else warps share an output (`reduce`)
    several outputs   (argmax with its value): a thread an output
    left to dlight    products of two tensors that no family took, dynamic shapes, opaque blocks,
                      bindings that are not one loop an axis

Discovery puts this family last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda._reductions import cross_reduction, is_product, parts_of
from tvmopt.schedules.cuda._threads import fill, one_pass, vector_width
from tvmopt.schedules.cuda._window import serial_reduction
from tvmopt.scheduling.blocks import fused, inline_spatial
from tvmopt.scheduling.facts import BlockFacts, block_facts, facts
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import vector_axis
from tvmopt.targets import Machine

SHORT = 288
"""Elements of a product that one thread adds up: 32 channels of a 3 x 3 window."""


@dataclass(frozen=True)
class GenericProblem:
    """machine: for grids and vectors."""

    machine: Machine


def recognise(func: Any, machine: Machine) -> GenericProblem | None:
    """Any static function of plain loops and blocks; long products are left to dlight's Matmul and GEMV."""
    blocks = facts(func)
    if blocks is None or any(b.kernel or "O" in b.kinds or not b.trivial or long_product(b) for b in blocks):
        return None
    return GenericProblem(machine)


def long_product(block: BlockFacts) -> bool:
    """A matrix product; not a convolution of small groups, whose dlight schedule TVM refuses to lower."""
    reduced = math.prod(e for e, kind in zip(block.extents, block.kinds, strict=True) if kind == "R")
    return reduced > SHORT and is_product(block)


def knobs(problem: GenericProblem, machine: Machine) -> Space:
    """`threads` a block of a one-pass nest; `lanes`: threads that share a contiguous reduction."""
    return Space({"threads": (256, 64, 128, 512), "lanes": (32, 64, 128, 256)})


def apply(sch: Any, problem: GenericProblem, knobs: Knobs) -> None:
    """Every block a kernel of its own, apart from what is inlined."""
    for block in inline_spatial(sch):
        now = block_facts(sch, block)
        assert now is not None
        if now.spatial:
            vector = fill(now.elements, vector_width(now) if now.store else 1, problem.machine)[0]
            one_pass(sch, block, vector, knobs["threads"])
        else:
            _reduction(sch, block, now, problem.machine, knobs)


def _reduction(sch: Any, block: Any, now: BlockFacts, machine: Machine, knobs: Knobs) -> None:
    spatial = [k for k, kind in enumerate(now.kinds) if kind == "S"]
    outputs = math.prod(now.extents[k] for k in spatial)
    reduced = now.elements // max(outputs, 1)
    contiguous = vector_axis(now, spatial) is not None
    if now.store is None or not spatial or reduced == 1:  # TVM aborts on a reduction of one element over threads
        _thread_an_output(sch, block, now, knobs["threads"])
    elif not contiguous and reduced >= 32:
        _lanes(sch, block, now, knobs["lanes"])
    elif outputs >= 64 * machine.cores:
        serial_reduction(sch, block, block, 1, knobs["threads"], unroll=False)
    else:
        cross_reduction(sch, block, block, now, parts_of(outputs, reduced, machine))


def _ordered(sch: Any, block: Any, now: BlockFacts) -> tuple[list[Any], list[Any]]:
    loops = sch.get_loops(block)
    spatial = [loop for loop, kind in zip(loops, now.kinds, strict=True) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, now.kinds, strict=True) if kind == "R"]
    sch.reorder(*spatial, *reduced)
    return spatial, reduced


def _thread_an_output(sch: Any, block: Any, now: BlockFacts, threads: int) -> None:
    spatial, _ = _ordered(sch, block, now)
    flat = fused(sch, spatial) if spatial else sch.add_unit_loop(sch.get_loops(block)[0])
    grid, thread = sch.split(flat, [None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _lanes(sch: Any, block: Any, now: BlockFacts, lanes: int) -> None:
    """The reduced axes over a block's lanes, an output a block."""
    spatial, reduced = _ordered(sch, block, now)
    sch.bind(fused(sch, spatial), "blockIdx.x")
    _, lane = sch.split(fused(sch, reduced), [None, lanes])
    sch.bind(lane, "threadIdx.x")
