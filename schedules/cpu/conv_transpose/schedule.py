"""Transposed convolution, CPU, NCHW in and out: `mr` output channels by `nv` vectors of pixels of each column's phase.

task       some rows of the result, all channels of a group, or a part of its blocks of output channels. Its input is
           copied once, with a border, into a buffer that stays in L2
order      in a task: for a block of mr output channels: for a phase of the rows, whose weights stay in L1: for a tile
           of pixels; then the block's epilogue, row by row
floor      the products / FMA rate, and 4 bytes a result, which go to memory where L2 does not hold them
Measured   Zen 4, one core, us, in brackets as convolutions in NHWC, and the better of onnxruntime and OpenVINO:
             150x80x80 to 8, 3x3/2     1590 (3007, 1924), of which 1200 are the products at the full rate
             24x160x160 to 64, 3x3/2   8658 (16165, 13260), products 6070, 26 MB of results
             256x28x28 to 16, 3x3/2    648 (734, 647), products 525
             3x160x160 to 64, 4x4/2    3683 (9956, 7848), products 1350, 26 MB of results
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvmopt.lowering.overlap import OVERLAP, vector_for
from tvmopt.lowering.stream_stores import STREAM, streamed
from tvmopt.scheduling.blocks import annotated, epilogue_of, extents
from tvmopt.scheduling.cost import kernel_cost
from tvmopt.scheduling.cost_model import panels_of_task, product_worth_threads
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

KERNEL = "conv_transpose"


@dataclass(frozen=True)
class TransposeProblem:
    """The result's shape; `rows` of it a task, `chunks` pieces of a picture; panels of `mr` channels in each of the
    groups; threads: whether the work pays for them; streamed: whether the result goes past the caches."""

    shape: tuple[int, int, int, int]
    rows: int
    chunks: int
    groups: int
    panels: int
    mr: int
    lanes: int
    cores: int
    threads: bool
    streamed: bool = False


def recognise(func: tirx.PrimFunc, machine: Machine) -> TransposeProblem | None:
    """A block that the lowering marked `conv_transpose`."""
    block, out = annotated(func, KERNEL), annotated(func, "unpack")
    if block is None or out is None:
        return None
    _, chunks, panels = extents(block)
    n, o, height, width = extents(out)
    rows, mine, mr = (int(block.annotations[f"tvmopt.{name}"]) for name in ("rows", "panels", "mr"))
    threads = product_worth_threads(kernel_cost(func).flops, machine)
    return TransposeProblem(
        (n, o, height, width), rows, chunks, panels // mine, mine, mr, machine.lanes(), machine.cores, threads,
        streamed(n * o * height * width, width, machine),
    )  # fmt: skip


def knobs(problem: TransposeProblem, machine: Machine) -> Space:
    """`panels`: blocks of output channels of a task."""
    tasks = problem.shape[0] * problem.chunks * problem.groups
    most = panels_of_task(tasks, problem.panels, problem.cores if problem.threads else 1)
    return Space({"panels": (most, *(d for d in divisors(problem.panels) if d != most))})


def apply(sch: tvm.s_tir.Schedule, problem: TransposeProblem, knobs: Knobs) -> None:
    """Tasks over pieces of pictures and blocks of channels; the copy of a task; a block's products and epilogue."""
    main: Any = sch.get_sblock(KERNEL)
    out = epilogue_of(sch, main, problem.shape)
    n, o, y, x = sch.get_loops(out)
    y_task, row = sch.split(y, [None, problem.rows])
    panel, channel = sch.split(o, [None, problem.mr])
    part, panel = sch.split(panel, [None, knobs["panels"]])
    sch.reorder(n, y_task, part, panel, channel, row, x)
    sch.compute_at(main, panel, preserve_unit_loops=True)
    task = sch.fuse(n, y_task, part)
    sch.compute_at(sch.get_sblock("rows"), task, preserve_unit_loops=True)
    if problem.threads:
        sch.parallel(task)
    if problem.shape[3] >= 4:
        sch.annotate(x, OVERLAP, vector_for(problem.shape[3], problem.lanes))
    if problem.streamed:
        sch.annotate(out, STREAM, problem.lanes)
