"""The fallback for any PrimFunc that no family recognises: parallel, contiguous, never a naive loop where
avoidable.

    spatial blocks     as `elementwise`: inlined, one pass, contiguous innermost loop, outer loop over threads
    reductions         over a non-contiguous axis: `outer x reduction x contiguous spatial loop` - LLVM
                       vectorises the innermost loop, accumulators stay in L1;
                       over the contiguous axis: `rfactor` into 16 to 64 partial sums when the axis divides,
                       because a chain of dependent additions runs at one element per `fma_latency` cycles
    left alone         dynamic shapes, opaque blocks, bindings that are not one loop an axis: unscheduled,
                       and said so

Every step is tried by itself: a primitive that refuses leaves the function as it was. Discovery puts this
family last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cpu._facts import BlockFacts, facts, largest_divisor, step
from tvmopt.schedules.cpu._loops import block_facts, inline_spatial, spatial_nest, worth_threads
from tvmopt.targets import Machine

from tvmopt.scheduling.family import Knobs, Space

NAME, VERSION = "generic", 1


@dataclass(frozen=True)
class Shape:
    """What the fallback needs to know: the machine, and how many blocks there are."""

    machine: Machine
    blocks: int


def recognise(func: Any, machine: Machine) -> Shape | None:
    """Any static function of plain loops and blocks."""
    blocks = facts(func)
    return None if blocks is None else Shape(machine, len(blocks))


def knobs(shape: Shape, machine: Machine) -> Space:
    """`strip`: elements of the loop inside a reduction; `chunk`: of a spatial block's inner loop."""
    return Space({"chunk": (4096, 1024, 16384), "strip": (512, 64, 128, 256)})


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """Schedule what can be scheduled, block by block; the rest stays as it came, correct and slow."""
    import tvm

    machine = shape.machine
    for block in inline_spatial(sch):
        here = block_facts(sch, block)
        if here is None or not here.trivial or "O" in here.kinds or here.store is None:
            continue
        parallel = worth_threads(here.nanoseconds(machine.lanes(), machine.ghz), machine)
        try:
            if here.spatial:
                spatial_nest(sch, block, parallel, knobs["chunk"])
            else:
                _reduction(sch, block, here, machine, parallel, knobs["strip"])
        except tvm.s_tir.ScheduleError:
            continue


def _reduction(sch: Any, block: Any, here: BlockFacts, machine: Machine, parallel: bool, limit: int) -> None:
    loops = sch.get_loops(block)
    if len(loops) != len(here.extents):
        return
    spatial = [i for i, kind in enumerate(here.kinds) if kind == "S"]
    reduce = [i for i, kind in enumerate(here.kinds) if kind == "R"]
    inner = _vector_axis(here, spatial)
    if inner is not None:
        outer = [i for i in spatial if i != inner]
        sch.reorder(*[loops[i] for i in (*outer, *reduce, inner)])
        block_outer, strip = sch.split(loops[inner], [None, largest_divisor(here.extents[inner], limit)])
        sch.reorder(*[loops[i] for i in outer], block_outer, *[loops[i] for i in reduce], strip)
        _threads(sch, [*[loops[i] for i in outer], block_outer], parallel)
        return
    _threads(sch, [loops[i] for i in spatial], parallel)
    _partial_sums(sch, block, here, machine)


def _threads(sch: Any, loops: list[Any], parallel: bool) -> None:
    if parallel and loops:
        sch.parallel(sch.fuse(*loops) if len(loops) > 1 else loops[0])


def _vector_axis(here: BlockFacts, spatial: list[int]) -> int | None:
    """The spatial axis along which the store is contiguous and every load contiguous or constant."""
    assert here.store is not None
    for i in reversed(spatial):
        if here.extents[i] < 4:
            continue
        # along axis i alone: ask for the step with i moved last
        order = [j for j in range(len(here.extents)) if j != i] + [i]
        variables = [here.variables[j] for j in order]
        extents = [here.extents[j] for j in order]
        if step(here.store, variables, extents, len(extents) - 1) != 1:
            continue
        if all(step(a, variables, extents, len(extents) - 1) in (0, 1) for a in here.loads):
            return i
    return None


def _partial_sums(sch: Any, block: Any, here: BlockFacts, machine: Machine) -> None:
    last = here.kinds.rfind("R")
    lanes = largest_divisor(here.extents[last], 4 * machine.lanes())
    if lanes < 4 or here.extents[last] < 2 * lanes:
        return
    loop = sch.get_loops(block)[-1]
    _, lane = sch.split(loop, [None, lanes])
    partial = sch.rfactor(lane, -1)
    rest = sch.get_loops(partial)
    spatial_loops = sch.get_loops(block)
    if len(spatial_loops) > 1:
        sch.compute_at(partial, spatial_loops[-2], preserve_unit_loops=True)
        rest = sch.get_loops(partial)
    # ... x chunks x lanes: the lanes innermost, so that LLVM makes vectors of them
    if len(rest) >= 2:
        kinds = [int(v.iter_type) for v in sch.get(partial).iter_vars]
        if kinds[-1] == 0 and int(sch.get(rest[-1]).extent) != lanes:
            sch.reorder(rest[-1], rest[-2])
