"""Loop shapes shared by the CPU families: the one-pass spatial nest and the threshold for threads.

LLVM's own loop vectoriser handles the innermost loop (measured on Zen 5, a scale-and-shift over 64 x 997
floats: plain loop 2.4 us, TVM's vectorize(16) with a separate tail 3.8 us, with a predicate 28 us): it knows
tails, interleaving and masks. What it needs is a long innermost loop over contiguous memory without
division: that is what we build.
"""

from __future__ import annotations

import math
from typing import Any

from tvmopt.lowering.overlap import OVERLAP, vector_for
from tvmopt.lowering.prefetch import AHEAD, PREFETCH, panel_stride
from tvmopt.scheduling.blocks import compared, fused, inline_spatial
from tvmopt.scheduling.cost_model import common_vector
from tvmopt.scheduling.facts import BlockFacts, block_facts, largest_divisor
from tvmopt.scheduling.open_loops import STEP
from tvmopt.scheduling.strides import along, contiguous_suffix, vector_axis
from tvmopt.targets import Machine

STRIPS = (512, 64, 128, 256)
"""Elements of a strip of a reduction whose results lie next to each other: what is usual, and what else is tried."""
LONG_ROW = 4096
"""Numbers of a row up to which it is one strip where no divisor is about as long as a strip should be."""
SHORT_ROW = 256
"""Numbers of a row below which the start and the end of its loop count."""


def spatial_nest(sch: Any, block: Any, parallel: bool, chunk: int = 4096, lanes: int = 0) -> None:
    """One pass over memory: `parallel(outer) x serial(contiguous inner)`; the inner loop is left to LLVM.

    A nest that is contiguous throughout is cut into chunks of at most `chunk` elements, a divisor of its length; rows
    that are short and lie behind each other become longer ones, whole ones at a time. With `lanes`, of a vector, rows
    that stay short, and those with transcendental functions, become whole vectors (lowering/overlap.py): the block must
    have no condition along them. LLVM would take half a register of the widest kind, and wait for each chain of a
    polynomial's steps.
    """
    loops = sch.get_loops(block)
    if not loops:
        return
    here = block_facts(sch, block)
    first, extents = len(loops) - 1, [int(sch.get(loop).extent) for loop in loops]
    below = 1  # numbers of a row without the outermost of the axes that it is made of
    if here is not None and here.trivial and len(loops) == len(here.extents):
        lowest = contiguous_suffix(here)
        # Fuse only whole axes into the inner loop: a split of a fused loop leaves divisions that TVM cannot
        # simplify (measured: 5 times slower).
        while first > lowest and (
            math.prod(extents[first - 1 :]) <= chunk or extents[first] == 1 or math.prod(extents[first:]) < SHORT_ROW
        ):
            below = math.prod(extents[first:])
            first -= 1
    inner = fused(sch, loops[first:])
    outer = fused(sch, loops[:first]) if first else loops[0]
    length = math.prod(extents[first:])
    if first == 0 or math.prod(extents[:first]) == 1:
        outer, inner = sch.split(inner, [None, below * _chunk(extents[first], max(1, chunk // below))])
    elif length > chunk and below > 1:  # whole rows of what is below, whose quotients TVM can simplify
        part, inner = sch.split(inner, [None, below * _chunk(extents[first], chunk // below)])
        outer = sch.fuse(outer, part)
    row = int(sch.get(inner).extent)
    if lanes and here is not None and row >= 4 and (row < SHORT_ROW or here.transcendental):
        sch.annotate(inner, OVERLAP, vector_for(row, lanes))
    if parallel and int(sch.get(outer).extent) > 1:
        sch.parallel(outer)


def _chunk(extent: int, limit: int) -> int:
    """A divisor of `extent` of about `limit`; `limit` itself where there is none (the last chunk is then short).

    >>> _chunk(100352, 2048), _chunk(1009 * 2, 2048), _chunk(100003, 2048)
    (2048, 2018, 2048)
    """
    width = largest_divisor(extent, limit)
    return width if width * 8 >= min(extent, limit) else limit


def inline_cheap(sch: Any) -> list[Any]:
    """Inline every spatial block into its consumers, except where they would evaluate its transcendental functions
    more often than it does, or compare products that each rounds otherwise; returns the blocks that remain."""

    def stays(block: Any, mine: BlockFacts, known: dict[str, BlockFacts]) -> bool:
        return (mine.transcendental > 0 and _repeats(sch, block, mine, known)) or compared(sch, block)

    return inline_spatial(sch, stays)


def _repeats(sch: Any, block: Any, mine: BlockFacts, known: dict[str, BlockFacts]) -> bool:
    reads = 0
    for consumer in sch.get_consumers(block):
        other = known.get(sch.get(consumer).name_hint)
        if other is None or mine.store is None:
            return True
        reads += other.elements * sum(a.buffer.same_as(mine.store.buffer) for a in other.loads)
    return reads > mine.elements


def prefetch_panels(
    sch: Any, tiles: list[Any], steps: list[Any], panels: int, size: int, columns: int, least: int = 2, ahead: int = 0
) -> None:
    """Ask for the next one of `panels` panels of weights, `size` numbers in rows of `columns`, while this one is
    multiplied; `tiles`, `steps`: the loops over its row tiles and over the reduction, outermost first.

    Also where L2 does not hold two panels: what it drops goes to L3, which is nearer than memory.

    Args:
        ahead: where there is but one pass, how many numbers of the same panel to skip; 0: nothing is prefetched then.
    """
    passes, each = (math.prod(int(sch.get(loop).extent) for loop in loops) for loops in (tiles, steps))
    stride = panel_stride(size, columns, passes, each, least) if panels > 1 else 0
    if ahead and passes == 1:
        stride = size // each
        sch.annotate(steps[-1], AHEAD, ahead)
    if stride:
        for loop in (*tiles, *steps):
            sch.annotate(loop, STEP, 1)
        sch.annotate(steps[-1], PREFETCH, stride)


def vectorize_columns(sch: Any, loop: Any, lanes: int) -> None:
    """Split a loop over columns into unrolled vectors."""
    outer, inner = sch.split(loop, [None, lanes])
    sch.vectorize(inner)
    sch.unroll(outer)


def vectorize_epilogue(sch: Any, loop: Any, columns: int, nr: int, lanes: int) -> None:
    """The loop over the columns of a panel of `nr`, of which the last panel of a row of `columns` may have fewer.

    Vectors of 8 or 16 where no vector divides the row (1041, 6625), with the numbers that are left apart, take 1.00 to
    1.05 of the time on a Zen 4: most of them cross a line, and LLVM makes vectors of what it can.
    """
    width = common_vector(columns if columns % nr else nr, lanes)
    rest = width < lanes < columns < nr  # one panel: bounds without its number, which TVM can split
    outer, inner = sch.split(loop, [None, lanes if rest else width])
    if rest:
        sch.annotate(outer, "pragma_loop_partition_hint", 1)
    sch.vectorize(inner)
    sch.unroll(outer)


def reduction_nest(sch: Any, block: Any, here: BlockFacts, machine: Machine, parallel: bool, limit: int) -> None:
    """Schedule one reduction block: contiguous spatial strip innermost, else partial sums in lanes."""
    loops = sch.get_loops(block)
    if len(loops) != len(here.extents):
        return
    spatial = [i for i, kind in enumerate(here.kinds) if kind == "S"]
    reduce = [i for i, kind in enumerate(here.kinds) if kind == "R"]
    inner = vector_axis(here, spatial)
    if inner is not None:
        group = lying_together(here, spatial, inner)
        outer = [i for i in spatial if i not in group]
        sch.reorder(*[loops[i] for i in (*outer, *reduce, *group)])
        row = fused(sch, [loops[i] for i in group])
        length = math.prod(here.extents[i] for i in group)
        width = strip_of(length, limit, machine.lanes())
        block_outer, strip = sch.split(row, [None, width])
        # of a window of 7 by 7 in two loops LLVM writes out all 49 terms, which takes it 0.12 s
        terms = lying_together(here, reduce, reduce[-1])
        apart = [i for i in reduce if i not in terms]
        sch.reorder(*[loops[i] for i in outer], block_outer, *[loops[i] for i in (*apart, *terms)], strip)
        if len(terms) > 1:
            sch.fuse(*[loops[i] for i in terms])
        if length % width and not outer:  # the last strip is a loop of its own
            sch.annotate(block_outer, "pragma_loop_partition_hint", 1)
            _threads(sch, [block_outer], parallel)
            return
        _threads(sch, [*[loops[i] for i in outer], block_outer], parallel)
        return
    _threads(sch, [loops[i] for i in spatial], parallel)
    _partial_sums(sch, block, here, machine)


def lying_together(here: BlockFacts, axes: list[int], inner: int) -> list[int]:
    """One of these axes, and those before it that lie together with it wherever the block reads and writes."""
    group = [inner]
    accesses = [*here.loads, *([here.store] if here.store is not None else [])]
    for axis in reversed(axes[: axes.index(inner)]):
        steps = [(along(here, access, axis), along(here, access, group[0])) for access in accesses]
        if not all(step is not None and step == here.extents[group[0]] * (other or 0) for step, other in steps):
            break
        group.insert(0, axis)
    return group


def strip_of(extent: int, limit: int, lanes: int) -> int:
    """A divisor of `extent` of about `limit`, in whole vectors where it has one: twice as long rather than short, for
    the sums of a strip of few vectors wait for each other. Where there is none, all of it, or `limit` of a long row.

    >>> strip_of(784, 512, 16), strip_of(768, 512, 16), strip_of(1089, 512, 16), strip_of(3136, 512, 16)
    (784, 384, 363, 448)
    >>> strip_of(197, 98, 16), strip_of(100003, 512, 16)
    (197, 512)
    """
    if extent % lanes or limit < lanes:
        found = largest_divisor(extent, limit)
        return found if 8 * found >= min(extent, limit) else extent if extent <= LONG_ROW else limit
    found, longer = (lanes * largest_divisor(extent // lanes, most // lanes) for most in (limit, 2 * limit))
    return found if 2 * found >= limit else longer


def _threads(sch: Any, loops: list[Any], parallel: bool) -> None:
    if parallel and loops:
        sch.parallel(fused(sch, loops))


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
    own = rest[len(spatial_loops) - 1 :]
    at = next((i for i, one in enumerate(own) if int(sch.get(one).extent) == lanes), len(own) - 1)
    if at < len(own) - 1:
        sch.reorder(*own[at + 1 :], own[at])
