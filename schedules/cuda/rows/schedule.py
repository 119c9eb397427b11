"""Rows on a GPU: softmax, LayerNorm, RMSNorm and reductions of the last axes - a warp or a block a row.

row        every pass of a row (maximum, sum, result) in one kernel: the first reads it from memory, the others
           find it in L1 (C * itemsize << 192 KiB)
loads      vectors of 16 bytes: lane l of T takes vectors l, l + T, ...; neighbouring lanes, neighbouring vectors
reduction  in registers over a lane's elements, then shuffles within a warp and one exchange through shared memory
           between warps; every lane has the result
threads    a warp a row up to 8 vectors a lane; longer rows, or fewer rows than multiprocessors, get more
floor      bytes of inputs and outputs once / bandwidth
"""

from __future__ import annotations

import math
from typing import Any

from tvmopt.schedules.cuda._reductions import RowsProblem, find_rows, prefix_of
from tvmopt.schedules.cuda._threads import WORD, power_of_two, staged, vectors
from tvmopt.scheduling.blocks import fused, inline_spatial
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> RowsProblem | None:
    """Reductions over the same contiguous trailing axes, and spatial blocks over rows or rows x length."""
    return find_rows(func)


def threads_of(problem: RowsProblem, machine: Machine) -> int:
    """Threads a row: see the module's text.

    >>> h100 = Machine.load("nvidia-h100")
    >>> [threads_of(RowsProblem(r, c, 8), h100) for r, c in ((4096, 768), (4096, 8192), (1, 1000), (4096, 32))]
    [32, 128, 128, 32]
    """
    vectors = -(-problem.length // problem.width)
    a_lane = 8 if problem.rows >= machine.cores else 1
    return min(1024, max(32, power_of_two(-(-vectors // a_lane))))


def knobs(problem: RowsProblem, machine: Machine) -> Space:
    """`threads` a row, `vector`: elements of an access."""
    threads = threads_of(problem, machine)
    return Space(
        {
            "threads": (threads, *(t for t in (32, 64, 128, 256, 512, 1024) if t != threads)),
            "vector": vectors(problem.width, problem.width),
        }
    )


def apply(sch: Any, problem: RowsProblem, knobs: Knobs) -> None:
    """One nest over the rows; every reduction and the result inside it."""
    blocks = inline_spatial(sch)
    schedule_rows(sch, blocks, problem.rows, knobs)


def schedule_rows(sch: Any, blocks: list[Any], count: int, knobs: Knobs) -> None:
    """Rows to blocks; a row's elements to threadIdx.x."""
    *before, last = blocks
    loops = sch.get_loops(last)
    if not _is_reduction(sch, last):
        extents = tuple(int(sch.get(loop).extent) for loop in loops)
        # a result a row, of one row: its loops are all of rows, though none of their extents is needed to count it
        depth = len(extents) if math.prod(extents) == count else prefix_of(extents, count) or 0
        row = fused(sch, loops[:depth]) if depth else sch.add_unit_loop(loops[0] if loops else last)
        columns = sch.get_loops(last)[1:]
    else:
        spatial = sum(int(v.iter_type) == 0 for v in sch.get(last).iter_vars)
        row = fused(sch, loops[:spatial]) if spatial else sch.add_unit_loop(loops[0])
        columns = []
    sch.bind(row, "blockIdx.x")
    for block in reversed(before):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, row, preserve_unit_loops=False)
    copies = _held(sch, blocks)
    for copy in copies:
        sch.compute_at(copy, row, preserve_unit_loops=True)
        _columns(sch, copy, sch.get_loops(copy)[1:], knobs, vectorize=False)
        sch.vectorize(sch.get_loops(copy)[-1])
    for block in before:
        _columns(sch, block, sch.get_loops(block)[1:], knobs, vectorize=False)
    if _is_reduction(sch, last):
        _columns(sch, last, sch.get_loops(last)[1:], knobs, vectorize=False)
    elif columns:
        _columns(sch, last, columns, knobs, vectorize=True)


def _is_reduction(sch: Any, block: Any) -> bool:
    return any(int(v.iter_type) == 2 for v in sch.get(block).iter_vars)


def _columns(sch: Any, block: Any, loops: list[Any], knobs: Knobs, vectorize: bool) -> None:
    """A row's elements: `rest x threadIdx.x x vector`, the same for every stage, so that registers are a thread's."""
    outer, lanes = sch.split(fused(sch, loops), [None, knobs["vector"]])
    _, thread = sch.split(outer, [None, knobs["threads"]])
    sch.bind(thread, "threadIdx.x")
    if vectorize and knobs["vector"] > WORD:
        staged(sch, block, thread, lanes, knobs["vector"])
    elif vectorize:
        sch.vectorize(lanes)


def _held(sch: Any, blocks: list[Any]) -> list[Any]:
    """Copies in registers of the inputs that reductions read, element by element: what is read several times over, such
    as a scale for each channel, would lie in another thread's registers."""
    copies = []
    for block in blocks:
        if not _is_reduction(sch, block):
            continue
        elements = math.prod(int(v.dom.extent) for v in sch.get(block).iter_vars)
        for k, region in enumerate(sch.get(block).reads):
            shape = [int(d) for d in region.source.shape]
            if str(region.source.scope()) == "global" and math.prod(shape) == elements:
                copies.append(sch.cache_read(block, k, "local"))
    return copies
