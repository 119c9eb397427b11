"""Convolution, AMX, NHWC: all pixels of a task are the rows of one product of 2x2 tiles (see compute.py).

tiles      as GEMM's; for each row of the window kw*C terms that lie side by side, in steps of 32, of bytes 64
pixels     row y*pitch + x: tiles run across line ends, and the pitch - ow rows between two lines are computed and
           dropped. 7x7, 3x3: 61 rows for 49 pixels; line by line it would be tiles of 7 rows, which wait for their
           accumulators.
task       `lines` output rows by `panel_chunk` panels. Its padded input is copied once into a buffer of the task, its
           sums, lines * pitch * 128 bytes a panel, are stored once and read by the epilogue.
Measured   a Xeon with AMX, one core, a busy machine, least times in a whole ResNet-50 with its weights in L3, tasks of
           two lines and as chosen now: 56x56x64 of bytes 96 and 66 us, 28x28x128 (four lines) 72 and 60; 14x14x256 of
           bf16 222 and 199.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvmopt.schedules.cpu._amx.cost import SWITCH, choose_height, rows_cycles
from tvmopt.schedules.cpu._amx.lower import HEIGHT
from tvmopt.schedules.cpu._loops import vectorize_columns
from tvmopt.schedules.cpu.amx_conv2d.lower import LINES
from tvmopt.scheduling.blocks import annotated, consumer, epilogue_of, extents, root_blocks
from tvmopt.scheduling.cost_model import common_vector, product_worth_threads
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

COPIED = 4.0
"""Bytes of padded input a cycle: assumed, between a vector a cycle and what waiting for its stores costs."""


@dataclass(frozen=True)
class AmxConv2dProblem:
    """n: batch; oh, ow: output; o: channels of it, in `panels` of `width`; steps: of a sum, all rows of the window;
    pitch: rows of the product a line; row_bytes: of padded input a line; extra: lines of it beyond the output's."""

    n: int
    oh: int
    ow: int
    o: int
    panels: int
    width: int
    steps: int
    pitch: int
    row_bytes: int
    extra: int
    lanes: int
    cores: int
    threads: bool

    def rows(self, lines: int) -> int:
        """Rows of the product of so many lines."""
        return (lines - 1) * self.pitch + self.ow


def recognise(func: tirx.PrimFunc, machine: Machine) -> AmxConv2dProblem | None:
    """A block that the lowering marked `amx_conv2d`."""
    block, out, pad = annotated(func, "amx_conv2d"), consumer(func, "amx_conv2d"), annotated(func, "pad")
    if block is None or out is None or pad is None:
        return None
    n, oh, ow, panels, width, kh, count, _words = extents(block)
    _, phases, deep, columns, channels = extents(pad)
    byte_size = np.dtype(str(pad.writes[0].source.dtype)).itemsize
    return AmxConv2dProblem(
        n, oh, ow, extents(out)[-1], panels, width, kh * count, int(block.annotations["tvmopt.pitch"]),
        byte_size * phases * columns * channels, deep - oh, machine.lanes(), machine.cores,
        product_worth_threads(64.0 * n * oh * ow * extents(out)[-1] * kh * count, machine, tiles=True),
    )  # fmt: skip


def knobs(problem: AmxConv2dProblem, machine: Machine) -> Space:
    """`lines`, `panel_chunk`: what one task computes; `height`: rows of a block of tiles."""
    lines, panel_chunk = choose_task(problem, machine)
    height = choose_height(problem.rows(lines), problem.width, problem.steps, machine)
    return Space(
        {
            "lines": (lines, *(d for d in divisors(problem.oh) if d != lines)),
            "panel_chunk": (panel_chunk, *(d for d in divisors(problem.panels) if d != panel_chunk)),
            "height": (height, *(h for h in (32, 28, 26, 24, 16) if h != height)),
        }
    )


def choose_task(problem: AmxConv2dProblem, machine: Machine) -> tuple[int, int]:
    """(lines, panels) of one task: the fewest cycles of the busiest core.

    A task copies its padded input, at `COPIED` bytes a cycle, then computes each panel in blocks of tiles; its
    weights come from L2 where they are more than half of it from further out, at half the rate. Sums and copy beyond a
    quarter of L2 go to what is behind it and back; from L2 they come while tiles are multiplied.
    """
    best: tuple[tuple[float, int], tuple[int, int]] | None = None
    panel_bytes = problem.steps * problem.width * 64
    for lines in divisors(problem.oh):
        rows = problem.rows(lines)
        height = choose_height(rows, problem.width, problem.steps, machine)
        panel = rows_cycles(rows, height, problem.width, problem.steps, machine)
        sums, copied = rows * problem.width * 4, (lines + problem.extra) * problem.row_bytes
        copy = copied / COPIED
        if sums + copied > machine.l2 // 4:
            panel += 2 * (sums + copied) / machine.core_bandwidth * machine.ghz * 1e9
        for panels in divisors(problem.panels):
            tasks = problem.n * (problem.oh // lines) * (problem.panels // panels)
            weights = panels * panel_bytes
            stream = weights * 2 / machine.l2_rate if weights > machine.l2 // 2 else 0.0
            cycles = -(-tasks // problem.cores) * (copy + panels * panel + stream + SWITCH)
            key = (round(cycles, 1), tasks)
            if best is None or key < best[0]:
                best = (key, (lines, panels))
    assert best is not None
    return best[1]


def apply(sch: Any, problem: AmxConv2dProblem, knobs: Knobs) -> None:
    """Tasks over lines and panels; the padded lines of a task; the product's loops become instructions later."""
    conv = sch.get_sblock("amx_conv2d")
    out = epilogue_of(sch, conv, (problem.n, problem.oh, problem.ow, problem.o))
    n, h, w, o = sch.get_loops(out)
    h_chunk, h_in = sch.split(h, [None, knobs["lines"]])
    panels, o_in = sch.split(o, [None, problem.width])
    p_chunk, panel = sch.split(panels, [None, knobs["panel_chunk"]])
    sch.reorder(n, h_chunk, p_chunk, panel, h_in, w, o_in)
    sch.compute_at(conv, panel, preserve_unit_loops=True)
    sch.annotate(conv, HEIGHT, knobs["height"])
    sch.annotate(conv, LINES, knobs["lines"])
    task = sch.fuse(n, h_chunk, p_chunk)
    _pad_at(sch, task, problem.lanes)
    if problem.threads:
        sch.parallel(task)
    vectorize_columns(
        sch, o_in, common_vector(problem.o if problem.o % problem.width else problem.width, problem.lanes)
    )


def _pad_at(sch: Any, task: Any, lanes: int) -> None:
    """Copy the task's padded lines into a buffer of its own."""
    pad = next(b for b in root_blocks(sch) if sch.get(b).name_hint == "pad")
    sch.compute_at(pad, task, preserve_unit_loops=True)
    channels = sch.get_loops(pad)[-1]
    _, inner = sch.split(channels, [None, common_vector(int(sch.get(channels).extent), 2 * lanes)])
    sch.vectorize(inner)
