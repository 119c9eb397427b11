"""The fallback for any PrimFunc that no family recognises: parallel, contiguous, never a naive loop where
avoidable.

    spatial blocks     as `elementwise`: inlined, one pass, contiguous innermost loop, outer loop over threads
    reductions         over a non-contiguous axis: `outer x reduction x contiguous spatial loop` - LLVM
                       vectorises the innermost loop, accumulators stay in L1;
                       over the contiguous axis: `rfactor` into 16 to 64 partial sums when the axis divides,
                       because a chain of dependent additions runs at one element per `fma_latency` cycles
    left alone         dynamic shapes, opaque blocks, bindings that are not one loop an axis: unscheduled,
                       and said so

Every step is tried by itself: a primitive that refuses leaves the function as it was. It is not a family (it
would recognise everything); `scheduling` calls :func:`apply` last.
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu._facts import BlockFacts, facts, largest_divisor, step
from tvmopt.schedules.cpu._loops import block_facts, inline_spatial, spatial_nest, worth_threads
from tvmopt.targets import Machine

CHUNK = 4096


def schedule(func: Any, machine: Machine) -> tuple[Any, str]:
    """The scheduled function and a note: empty, or why (part of) it was left as it came.

    Never raises for a function it cannot improve, and never changes what it computes.
    """
    import tvm

    if facts(func) is None:
        return func, "left unscheduled: dynamic shape, opaque body or foreign loops"
    sch = tvm.s_tir.Schedule(func)
    notes: list[str] = []
    apply(sch, machine, notes)
    result = sch.mod["main"]
    if not tvm.s_tir.analysis.verify_well_formed(result, assert_mode=False):
        return func, "left unscheduled: the scheduled form was not well formed"
    return result, "; ".join(notes)


def apply(sch: Any, machine: Machine, notes: list[str] | None = None) -> None:
    """Schedule the function `main` of `sch` in place; what could not be done is appended to `notes`."""
    import tvm

    notes = notes if notes is not None else []
    for block in inline_spatial(sch):
        here = block_facts(sch, block)
        name = sch.get(block).name_hint
        if here is None or not here.trivial or "O" in here.kinds or here.store is None:
            notes.append(f"block {name} left as it came")
            continue
        parallel = worth_threads(here.nanoseconds(machine.lanes(), machine.ghz), machine)
        try:
            if here.spatial:
                spatial_nest(sch, block, parallel, CHUNK)
            else:
                _reduction(sch, block, here, machine, parallel)
        except tvm.s_tir.ScheduleError as error:
            notes.append(f"block {name}: {str(error).splitlines()[0][:120]}")


def _reduction(sch: Any, block: Any, here: BlockFacts, machine: Machine, parallel: bool) -> None:
    loops = sch.get_loops(block)
    if len(loops) != len(here.extents):
        return
    spatial = [i for i, kind in enumerate(here.kinds) if kind == "S"]
    reduce = [i for i, kind in enumerate(here.kinds) if kind == "R"]
    inner = _vector_axis(here, spatial)
    if inner is not None:
        outer = [i for i in spatial if i != inner]
        sch.reorder(*[loops[i] for i in (*outer, *reduce, inner)])
        block_outer, strip = sch.split(loops[inner], [None, largest_divisor(here.extents[inner], 512)])
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
