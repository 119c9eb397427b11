"""Rows, CPU: softmax, norms and reductions of the last axes - rows to threads, a row's data in L1 for all its passes.

row        the program that `tvmopt.lowering.loops` wrote in vectors; its passes after the first read L1
           when 2*C*4 bytes <= L1d (C <= 6144 at 48 KiB)
epilogue   elementwise blocks behind the rows are computed per row, from L1
floor      8*C bytes a row / bandwidth; softmax's exp: 13 cycles a vector, 10 us for 128x768 on one core at 4.17 GHz
Measured   Zen 5, 1 thread, us, beside torch 2 (oneDNN): softmax 128x768 17 (67), 1536x128 37 (245);
           layer_norm 128x768 9.4 (24), 3136x96 36 (131); rms_norm 128x768 5.6; mean 2048x49 3.0 (11)
threads    from 15 us of work (Zen 5, whose pool wakes in 3 to 5 us; a Zen 4: 6 us)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx

from tvmopt.lowering.loops import NANOSECONDS
from tvmopt.schedules.cpu._attention_tasks import open_loops
from tvmopt.scheduling.blocks import annotated, extents, fused, loop_extents, root_blocks
from tvmopt.scheduling.cost_model import LOOPS, worth_threads
from tvmopt.scheduling.facts import nbytes
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.open_loops import shared_where
from tvmopt.targets import Machine

ELEMENT_NS = 0.5
"""Of softmax, an element: assumed, a vector's exponential and its loads."""


@dataclass(frozen=True)
class RowsProblem:
    """rows: extents of the row loops; block: the row block's name; nanoseconds: one core's time, roughly."""

    rows: tuple[int, ...]
    block: str
    nanoseconds: float


def recognise(func: Any, machine: Machine) -> RowsProblem | None:
    """A block that the lowering marked `rows`."""
    block = annotated(func, "rows")
    if block is None:
        return None
    traffic = sum(nbytes(region.source) for region in (*block.reads, *block.writes))
    nanoseconds = max(traffic / machine.core_bandwidth * 1e9, float(block.annotations.get(NANOSECONDS, 0)))
    return RowsProblem(tuple(extents(block)), str(block.name_hint), nanoseconds)


def open_sizes(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """Rows of an open length: a loop over them, parallel where the work is worth it; an epilogue in loops behind it."""
    block = annotated(func, "rows")
    if block is None:
        return None
    done = open_loops(func, str(block.name_hint), machine.cores > 1 and bool(block.iter_vars))
    if not block.iter_vars:
        return done
    elements = prod([r.extent.astype("int64") for r in block.writes[0].region], start=_rows(block))
    return done.with_body(shared_where(elements >= int(LOOPS * machine.thread_ns / ELEMENT_NS), done.body))


def _rows(block: Any) -> Any:
    return prod([iv.dom.extent.astype("int64") for iv in block.iter_vars[1:]], start=block.iter_vars[0].dom.extent)


def knobs(problem: RowsProblem, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(worth_threads(problem.nanoseconds, machine) and prod(problem.rows) > 1)
    return Space({"parallel": (parallel, 1 - parallel)})


def apply(sch: Any, problem: RowsProblem, knobs: Knobs) -> None:
    """Fuse the row loops, put the elementwise blocks that follow inside, give rows to threads."""
    main = sch.get_sblock(problem.block)
    blocks = root_blocks(sch)
    names = [sch.get(b).name_hint for b in blocks]
    after = blocks[names.index(problem.block) + 1 :]
    depth = len(problem.rows)
    for block in after[:-1]:
        try:
            sch.compute_inline(block)
        except tvm.s_tir.ScheduleError:
            continue
    loops = sch.get_loops(main)
    for block in root_blocks(sch)[1:]:
        if loops and loop_extents(sch, block)[:depth] == problem.rows:
            try:
                sch.reverse_compute_at(block, loops[-1], preserve_unit_loops=True)
            except tvm.s_tir.ScheduleError:
                continue
    if not loops:
        return
    task = fused(sch, loops)
    if knobs["parallel"]:
        sch.parallel(task)
