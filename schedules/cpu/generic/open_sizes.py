"""Kernels with open sizes that are no tiles of static rows, CPU: their own loops, in the order that a static kernel's
would have - for reshapes, transposes, masks of [length, length] and what else reads an open axis at other places.

    spatial      inlined into one pass; the contiguous last axis innermost, left to LLVM, which vectorises loops of any
                 length; the others one loop over threads, but for the one around a short row: finding its number again
                 in the number of the task takes two divisions by open sizes, as long as 50 elements
    short        a last axis of up to 8 elements (RGB) is unrolled: LLVM makes vectors along the axis before it
    transposes   tiles of a line (16 numbers of the axis of known size) by the other axis
    seams        a condition on a last axis of known length (a concatenation of channels) cuts its loop into pieces
                 without conditions
    reductions   the contiguous axis of the result innermost, the reduced axes around it, the first value before them
    threads      where the work, counted at run time, is worth them

What is contiguous is read off the function at some sizes; schedule primitives keep it right at all.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from tvmopt.schedules.cpu._loops import inline_cheap
from tvmopt.scheduling.blocks import extent, fused, give_first_value, root_blocks
from tvmopt.scheduling.chain import merge_chains
from tvmopt.scheduling.cost_model import LOOPS
from tvmopt.scheduling.facts import BlockFacts, block_facts
from tvmopt.scheduling.open_loops import shared_where
from tvmopt.scheduling.open_rows import at_sizes, with_size_variables
from tvmopt.scheduling.strides import transposed, vector_axis
from tvmopt.targets import Machine

SHORT = 8
"""LLVM interleaves at most eight streams."""
SHORT_ROW = 512
"""Elements of a row below which two divisions are a large part of its time."""
LINE = 16
"""Numbers of a line of the cache."""
SCATTERED = 4.0
"""How much longer an element of a transpose takes than one that is read behind the one before."""
SIZES = (37, 41, 43, 47, 53, 59, 61, 67)
"""Where open sizes are tried out: no two alike, none a multiple of a vector."""


def schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """The function with its loops in order, for one thread or for all, by the work of a call."""
    func, count, nanoseconds = _nests(merge_chains(func), machine)
    least = int(LOOPS * machine.thread_ns / max(nanoseconds, 1e-3)) + 1
    return func.with_body(shared_where(count >= least, func.body))


def _nests(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, Any, float]:
    """The scheduled function, the iterations of its largest block, and the nanoseconds that one takes."""
    sch, twin = Schedule(func), Schedule(_tried_out(func))
    kept = {twin.get(block).name_hint: block_facts(twin, block) for block in inline_cheap(twin)}
    for block in root_blocks(sch):
        if sch.get(block).name_hint not in kept:
            try:
                sch.compute_inline(block)
            except ScheduleError:
                continue  # it stays a stage of its own: slower, not wrong
    counts: list[tuple[int, Any, BlockFacts]] = []
    for block in root_blocks(sch):
        here, loops = kept.get(sch.get(block).name_hint), sch.get_loops(block)
        if here is None or not here.trivial or len(loops) != len(here.extents) or not loops:
            give_first_value(sch, block, loops)
            continue
        counts.append((here.elements, prod([sch.get(loop).extent.astype("int64") for loop in loops], start=_ONE), here))
        _nest(sch, block, here, loops, machine.cores > 1)
    if not counts:
        return sch.mod["main"], tirx.const(0, "int64"), 1.0
    elements, count, largest = max(counts, key=lambda c: c[0])
    scattered = SCATTERED if transposed(largest) else 1.0
    return sch.mod["main"], count, largest.nanoseconds(machine) / elements * scattered


_ONE = tirx.const(1, "int64")


def _tried_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function at some sizes."""
    axes, sizes = with_size_variables(func)
    handed = [p for p in axes.params if not hasattr(p.ty, "shape")]
    return at_sizes(axes, {v: SIZES[k % len(SIZES)] for k, v in enumerate([*sizes, *handed])})


def _nest(sch: Any, block: Any, here: BlockFacts, loops: list[Any], parallel: bool) -> None:
    spatial = [k for k, kind in enumerate(here.kinds) if kind == "S"]
    reduced = [k for k, kind in enumerate(here.kinds) if kind == "R"]
    if len(spatial) + len(reduced) != len(loops):
        give_first_value(sch, block, loops)
        return
    if not reduced:
        outer = _tiles(sch, here, loops) or _rows(sch, here, loops)
    else:
        inner = vector_axis(here, spatial)
        if inner is not None:
            spatial.remove(inner)
            sch.reorder(*[loops[k] for k in (*spatial, *reduced, inner)])
        outer = [loops[k] for k in spatial]
    if parallel and outer:
        sch.parallel(fused(sch, outer))
    give_first_value(sch, block, [loops[k] for k in reduced])


def _tiles(sch: Any, here: BlockFacts, loops: list[Any]) -> list[Any]:
    """Take a transpose in tiles of a line by one axis, so that each line that is read or written in parts stays in L1
    meanwhile; returns the loops over them. Empty for what is none, or has no known axis of whole lines among both."""
    axes = transposed(here)
    line = next((a for a in axes or () if extent(sch, loops[a]) and not extent(sch, loops[a]) % LINE), None)
    if axes is None or line is None or here.guarded:
        return []
    (along,) = (a for a in axes if a != line)
    pieces, inner = sch.split(loops[line], [None, LINE])
    outer = [loop for a, loop in enumerate(loops) if a not in axes] + [pieces]
    sch.reorder(*outer, loops[along], inner)
    sch.unroll(inner)
    return outer


def _rows(sch: Any, here: BlockFacts, loops: list[Any]) -> list[Any]:
    """Prepare the rows of a block without reductions; returns the loops over them, which threads may share."""
    known = [extent(sch, loop) for loop in loops]
    row = max((k for k, size in enumerate(known) if size != 1), default=0)
    if known[row] and here.variables[row] in here.guarded:
        sch.annotate(loops[row], "pragma_loop_partition_hint", 1)
    elif row and 1 < known[row] <= SHORT and known[row - 1] != 1:
        sch.unroll(loops[row])
        row -= 1
    outer = loops[:row] or loops[: row + 1]
    if len(outer) > 2 and 0 < known[row] < SHORT_ROW and known[row - 2] != 1:
        outer = outer[:-1]
    return outer
