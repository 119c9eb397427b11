"""Data movement, CPU: transposes, concatenations, splits, pads, gathers and resizes, with what is fused to them.

transpose      two axes matter: the one contiguous in the store and the one contiguous in the load.
               One of them short (<= 8: RGB, channel shuffle): it goes innermost, unrolled; LLVM makes
               vectors along the other and interleaves them.
               A channel shuffle with its reshapes inlined is the same: c is split into (c / g, c mod g).
               Both long: squares that registers transpose (lower.py). With arithmetic beside it: tiles of
               16 x 16, so that a line is used whole while it is in L1 (untiled, every element of a
               power-of-two matrix misses: 277 us for 512 x 512, tiled 60, in registers 32)
seams          a condition on the last axis (concatenation, padding) cuts its loop into pieces without
               conditions (`pragma_loop_partition_hint`); on another axis it is one branch a row. Short rows
               behind it are one loop with it where loads and stores go on alike, as in a concatenation
otherwise      as `elementwise`: contiguous suffix innermost, outer loop to threads
floor          bytes read and written once / bandwidth
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_walk

from tvmopt.schedules.cpu._loops import inline_cheap, spatial_nest
from tvmopt.schedules.cpu.layout.lower import SQUARES, THREADS, ranges_of, transpose_of
from tvmopt.schedules.cpu.layout.tile import side_of
from tvmopt.scheduling.blocks import fused, named_arguments
from tvmopt.scheduling.cost_model import worth_threads
from tvmopt.scheduling.facts import BlockFacts, block_facts, moving_blocks
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import one_pass_blocks, reader, transposed
from tvmopt.targets import Machine

SHORT = 8
"""LLVM interleaves at most eight streams."""
MOVES = 1.7
"""Work that is shared between cores, in times of waking a thread: less than other loops need, for what one core alone
has moved must come to the others afterwards. Transposes round a convolution, of 3.6 to 5.5 us on one core of a Zen 4:
layers of 20 to 512 channels take 0.80 to 0.93 of their time on two cores near each other, 0.65 to 0.82 on two that
share no L3; of 2.8 us, 1.07 and 1.20."""


@dataclass(frozen=True)
class LayoutProblem:
    """Iterations of the outputs, one core's time for them, and the floats of a register."""

    elements: int
    nanoseconds: float
    lanes: int


def recognise(func: Any, machine: Machine) -> LayoutProblem | None:
    """All blocks spatial and unclaimed, and some access that `elementwise` would not take."""
    blocks = moving_blocks(func)
    if blocks is None or one_pass_blocks(func) is not None:
        return None
    return LayoutProblem(blocks[-1].elements, 2 * sum(b.nanoseconds(machine) for b in blocks), machine.lanes())


def knobs(problem: LayoutProblem, machine: Machine) -> Space:
    """Threads or not; the edge of a tile of a transpose: a cache line of floats, or two."""
    line = machine.line // 4
    parallel = int(worth_threads(problem.nanoseconds, machine, MOVES))
    return Space({"parallel": (parallel, 1 - parallel), "tile": (line, 2 * line, line // 2), "chunk": (4096, 1024)})


def apply(sch: Any, problem: LayoutProblem, knobs: Knobs) -> None:
    for block in inline_cheap(sch):
        here = block_facts(sch, block)
        axes = transposed(here) if here is not None and here.trivial else None
        ways = interleaved(here) if here is not None and here.trivial else None
        if axes is not None and _in_registers(sch, block, problem, knobs):
            continue
        if here is not None and here.trivial and _in_turns(sch, block, problem, knobs):
            continue
        if here is not None and axes is not None and len(sch.get_loops(block)) == len(here.extents):
            _transpose(sch, block, here, axes, knobs)
        elif ways is not None:
            _shuffle(sch, block, ways, knobs)
        else:
            seam = _seam(here) if here is not None and len(sch.get_loops(block)) == len(here.extents) else 0
            if seam > 1 and here is not None and not _runs_on(here, len(here.extents) - seam):
                _rows_again(sch, block, seam, knobs)
                continue
            if seam > 1:
                sch.fuse(*sch.get_loops(block)[-seam:])
            spatial_nest(sch, block, bool(knobs["parallel"]), knobs["chunk"], 0 if seam else problem.lanes)
            if seam:
                sch.annotate(sch.get_loops(block)[-1], "pragma_loop_partition_hint", 1)


def _seam(here: BlockFacts) -> int:
    """How many of the last axes are one loop in which a condition changes: the last, or one with short ones behind it.

    0 where no condition depends on them.
    """
    for first in reversed(range(len(here.extents))):
        if here.extents[first] > 1 and here.variables[first] in here.guarded:
            axes, behind = len(here.extents) - first, math.prod(here.extents[first + 1 :])
            return axes if axes == 1 or (behind <= SHORT and here.trivial) else 0
    return 0


def _places(here: BlockFacts, load: Any) -> Callable[[list[int]], int | None]:
    """Where a load reads its buffer at a point of the loops: the number of an element, None where that is not known."""
    readers = [reader(index, here.variables) for index in load.indices]
    shape = [int(d) for d in load.buffer.shape]
    strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]

    def place(point: list[int]) -> int | None:
        index = [read(point) for read in readers]
        if any(i is None for i in index):
            return None
        return sum(int(i or 0) * stride for i, stride in zip(index, strides, strict=True))

    return place


def _runs_on(here: BlockFacts, first: int) -> bool:
    """Whether every load goes on where it is, as the store does, along the axes from `first` on."""
    origin = [0] * len(here.extents)
    for load in here.loads:
        place = _places(here, load)
        start = place(origin)
        for axis in range(first, len(here.extents)):
            if here.extents[axis] > 1:
                end = place([*origin[:axis], 1, *origin[axis + 1 :]])
                if start is None or end is None or end - start != math.prod(here.extents[axis + 1 :]):
                    return False
    return True


def _rows_again(sch: Any, block: Any, seam: int, knobs: Knobs) -> None:
    """Short rows that are stored again and again (an edge, a gather of few rows), each a loop of its own.

    As one loop the place in a row is `i mod 8`, which TVM writes as `i & 7`: inside another loop LLVM takes that for
    consecutive places, and vectors of 32 read the rows behind.
    """
    loops = sch.get_loops(block)
    outer, first = loops[:-seam], loops[-seam]
    sch.annotate(first, "pragma_loop_partition_hint", 1)
    if outer and knobs["parallel"]:
        sch.parallel(fused(sch, outer))


def interleaved(here: BlockFacts) -> int | None:
    """The number g <= 8 of streams that the last axis takes in turn: steps of g move the load by one element.

    This is a channel shuffle, `y[c] = x[c mod g * C/g + c / g]`, after its reshapes are inlined.
    """
    if here.store is None or not here.extents or len(here.loads) != 1 or here.variables[-1] in here.guarded:
        return None
    last, load = here.extents[-1], here.loads[0]
    place = _places(here, load)
    for ways in range(2, SHORT + 1):
        if last % ways or last < 4 * ways:
            continue
        point = [0] * len(here.variables)
        places = []
        for point[-1] in range(0, min(last, 64 * ways), ways):
            at = place(point)
            if at is None:
                return None
            places.append(at)
        if all(b - a == 1 for a, b in pairwise(places)):
            return ways
    return None


def _shuffle(sch: Any, block: Any, ways: int, knobs: Knobs) -> None:
    *outer, last = sch.get_loops(block)
    _, turn = sch.split(last, [None, ways])
    sch.unroll(turn)
    if outer and knobs["parallel"]:
        sch.parallel(fused(sch, outer))


def _in_registers(sch: Any, block: Any, problem: LayoutProblem, knobs: Knobs) -> bool:
    """Mark a block that only transposes for :func:`lower.finish`; whether it is one."""
    found = transpose_of(sch.get(block))
    if found is None:
        return False
    side = side_of(found.bits, problem.lanes)
    least = SHORT if found.turn is not None else SHORT + 1
    if found.bits == 32 and least <= found.shorter < side:
        side = SHORT  # the second square of a side of 9 to 15 overlaps the first
    if found.shorter < side:
        return False
    sch.annotate(block, SQUARES, side)
    sch.annotate(block, THREADS, knobs["parallel"])
    return True


def _in_turns(sch: Any, block: Any, problem: LayoutProblem, knobs: Knobs) -> bool:
    """Split axes whose places are read as quotient and remainder, where registers do the transpose that it is then;
    whether they do. The pixels of a transposed convolution's result are such: its phases lie next to each other."""
    parts = _quotients(sch.get(block))
    if not parts:
        return False

    def split(*axes: Any) -> list[Any]:
        pairs = [(axis // by, axis % by) if by > 1 else (axis,) for axis, by in zip(axes, parts, strict=True)]
        return [part for pair in pairs for part in pair]

    places = named_arguments(split, len(parts))
    trial = sch.copy()
    here = trial.get_sblock(sch.get(block).name_hint)
    trial.transform_block_layout(here, places)
    if not _in_registers(trial, here, problem, knobs):
        return False
    sch.transform_block_layout(block, places)
    return _in_registers(sch, block, problem, knobs)


def _quotients(block: Any) -> list[int]:
    """By which number each axis of a block is divided in the places that it reads, 1: by none; empty where no axis is,
    or one by several."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, TensorLoad):
        return []
    variables = [iv.var for iv in block.iter_vars]
    known = ranges_of(block)
    found: list[set[int]] = [set() for _ in variables]

    def look(node: Any) -> None:
        for i, var in enumerate(variables):
            if var.same_as(node.a) and isinstance(node.b, tirx.IntImm):
                found[i].add(int(node.b))

    for index in store.value.indices:
        structural_walk(known.simplify(index), ((tirx.FloorDiv, look), (tirx.FloorMod, look)))
    fits = all(int(iv.dom.extent) % by == 0 for iv, each in zip(block.iter_vars, found, strict=True) for by in each)
    return [min(each, default=1) for each in found] if fits and max(map(len, found)) == 1 else []


def _transpose(sch: Any, block: Any, here: BlockFacts, axes: tuple[int, int], knobs: Knobs) -> None:
    loops = sch.get_loops(block)
    stored, loaded = axes
    outer = [loop for i, loop in enumerate(loops) if i not in axes]
    short = min(axes, key=lambda i: here.extents[i])
    if here.extents[short] <= SHORT:
        long = loaded if short == stored else stored
        sch.reorder(*outer, loops[long], loops[short])
        sch.unroll(loops[short])
        _threads(sch, outer, loops[long], here.extents[long], knobs)
        return
    rows, row = sch.split(loops[stored], [None, knobs["tile"]])
    columns, column = sch.split(loops[loaded], [None, knobs["tile"]])
    sch.reorder(*outer, columns, rows, column, row)
    for loop, extent in ((rows, here.extents[stored]), (columns, here.extents[loaded])):
        if extent % knobs["tile"]:
            sch.annotate(loop, "pragma_loop_partition_hint", 1)
    if outer and knobs["parallel"] and math.prod(int(sch.get(o).extent) for o in outer) >= 2:
        sch.parallel(fused(sch, outer))
    elif knobs["parallel"]:
        sch.parallel(columns)


def _threads(sch: Any, outer: list[Any], long: Any, extent: int, knobs: Knobs) -> None:
    if not knobs["parallel"]:
        return
    if outer and math.prod(int(sch.get(o).extent) for o in outer) >= 2:
        sch.parallel(fused(sch, outer))
    elif extent % 64 == 0 and extent > 64:
        sch.parallel(sch.split(long, [None, 64])[0])
