"""Convolution, CPU, NCHW in and out: `mr` output channels by `nv` vectors of pixels in registers.

registers  mr*nv accumulators + nv (pixels) + 1 (weight) <= vector_regs               14*2 + 2 + 1 = 31 <= 32
inner      for c, ky, kx: nv vectors of the copy, anywhere in a line, and mr broadcasts of Wp[p, c, ky, kx, :]
task       some rows of the result (plan.py), all channels of a group, or a part of its blocks of output channels. Its
           input is copied once, with a border, into a buffer that stays in L2
order      in a task: for a block of mr output channels: for a tile of pixels; then the block's epilogue, row by row
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import tirx

from tvmopt.lowering.overlap import OVERLAP, vector_for
from tvmopt.lowering.stream_stores import STREAM, streamed
from tvmopt.schedules.cpu._ahead import channels_ahead
from tvmopt.schedules.cpu._loops import vectorize_columns
from tvmopt.schedules.cpu.planes.ahead import AHEAD, PHASES, SPAN
from tvmopt.schedules.cpu.planes.copy import FIRST, LAST, VECTOR
from tvmopt.scheduling.blocks import annotated, epilogue_of, extents
from tvmopt.scheduling.cost_model import panels_of_task, product_worth_threads
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

UNROLLED = 320
"""Products of a step up to which the taps of a row are written out."""


@dataclass(frozen=True)
class PlanesProblem:
    """n pictures of `o` channels of oh x ow; tasks of rows x columns; panels of `mr` channels in each of the groups;
    `tile` pixels in registers, of `high` strips; pitch: from row to row of a task's pixels; k: channels and taps of a
    sum; streamed: whether the result goes past the caches; copied: bytes of a task's copy; phases: of columns;
    reach: columns of a plane from the first tap to the last."""

    n: int
    o: int
    oh: int
    ow: int
    rows: int
    columns: int
    groups: int
    panels: int
    mr: int
    tile: int
    high: int
    pitch: int
    k: tuple[int, int, int]
    lanes: int
    cores: int
    threads: bool
    streamed: bool
    copied: int
    phases: int
    reach: int
    fma_ports: int
    l2: int

    @property
    def tasks(self) -> int:
        """Pieces of the pictures, group by group."""
        return self.n * (self.oh // self.rows) * (self.ow // self.columns) * self.groups


def recognise(func: tirx.PrimFunc, machine: Machine) -> PlanesProblem | None:
    """A block that the lowering marked `planes`."""
    block, out = annotated(func, "planes"), annotated(func, "unpack")
    if block is None or out is None:
        return None
    n, _, _, panels, mr, _, high, _, c, ky, kx = extents(block)
    _, o, oh, ow = extents(out)
    rows, columns, groups, tile, pitch, phases, reach = (
        int(block.annotations[f"tvmopt.{name}"])
        for name in ("rows", "columns", "groups", "tile", "pitch", "phases", "reach")
    )
    copied = 4 * c * prod(extents(annotated(func, "rows_copy"))[4:])
    threads = product_worth_threads(2.0 * n * o * oh * ow * c * ky * kx, machine)
    return PlanesProblem(
        n, o, oh, ow, rows, columns, groups, panels // groups, mr, tile, high, pitch, (c, ky, kx), machine.lanes(),
        machine.cores, threads, columns % machine.lanes() == 0 and streamed(n * o * oh * ow, ow, machine),
        copied, phases, reach, machine.fma_ports, machine.l2,
    )  # fmt: skip


def knobs(problem: PlanesProblem, machine: Machine) -> Space:
    """`panels`: blocks of output channels of a task; `unroll`: whether the taps of a row are written out; `ahead`: how
    many channels ahead rows are fetched."""
    most = panels_of_task(problem.tasks, problem.panels, problem.cores if problem.threads else 1)
    written = int(problem.high > 1 or problem.k[2] * problem.mr * problem.tile // problem.lanes <= UNROLLED)
    ahead = rows_ahead(problem)
    return Space(
        {
            "panels": (most, *(d for d in divisors(problem.panels) if d != most)),
            "unroll": (written, 1 - written),
            "ahead": (ahead, *(n for n in (0, 1, 2, 4, 8) if n != ahead and n < problem.k[0])),
        }
    )


def rows_ahead(problem: PlanesProblem) -> int:
    """How many channels ahead a tile fetches its rows; 0: none."""
    channels, *taps = problem.k
    vectors = problem.tile // problem.lanes
    cycles = prod(taps) * problem.mr * vectors / problem.fma_ports
    return channels_ahead(channels, cycles, vectors, problem.copied, problem.l2) if problem.high == 1 else 0


def apply(sch: tvm.s_tir.Schedule, problem: PlanesProblem, knobs: Knobs) -> None:
    """Tasks over pieces of pictures and blocks of channels; the copy of a task; the register tile; the epilogue."""
    main, flat = sch.get_sblock("planes"), sch.get_sblock("flat")
    out = epilogue_of(sch, flat, (problem.n, problem.o, problem.oh, problem.ow))
    n, o, y, x = sch.get_loops(out)
    y_task, y_in = sch.split(y, [None, problem.rows])
    x_task, x_in = sch.split(x, [None, problem.columns])
    panel, channel = sch.split(o, [None, problem.mr])
    part, panel = sch.split(panel, [None, knobs["panels"]])
    sch.reorder(n, y_task, x_task, part, panel, channel, y_in, x_in)
    sch.compute_at(flat, panel, preserve_unit_loops=True)
    *_, columns, block, high, pixels = sch.get_loops(flat)
    pixel, lane = sch.split(pixels, [None, problem.tile], disable_predication=True)
    sch.reorder(block, pixel, columns, high, lane)
    sch.compute_at(main, pixel, preserve_unit_loops=True)
    task = sch.fuse(n, y_task, x_task, part)
    _copy(sch, task)
    *_, one, cols, one_block, strips, lanes, c, ky, kx = sch.get_loops(main)
    sch.reorder(c, *((kx, ky) if problem.high > 1 else (ky, kx)), one, one_block, cols, strips, lanes)
    sch.unroll(cols)
    sch.unroll(strips)
    vectorize_columns(sch, lanes, problem.lanes)
    if knobs["unroll"]:
        sch.unroll(kx)
        if problem.high > 1:
            sch.unroll(ky)
    sch.unroll(columns)
    sch.unroll(high)
    vectorize_columns(sch, lane, problem.lanes)
    if knobs["ahead"]:
        for name, value in ((AHEAD, knobs["ahead"]), (SPAN, problem.tile + problem.reach), (PHASES, problem.phases)):
            sch.annotate(c, name, value)
    if problem.threads:
        sch.parallel(task)
    sch.decompose_reduction(main, c)
    row, length = x_in, problem.columns
    if problem.pitch == problem.columns == problem.ow and not problem.streamed:
        row, length = sch.fuse(y_in, x_in), problem.rows * problem.columns
    if length >= 4:
        sch.annotate(row, OVERLAP, vector_for(length, problem.lanes))
    if problem.streamed:
        sch.annotate(out, STREAM, problem.lanes)


def _copy(sch: tvm.s_tir.Schedule, task: tvm.s_tir.schedule.LoopRV) -> None:
    """The copy of a task's planes, row by row: :func:`tvmopt.schedules.cpu.planes.copy.cut` cuts the row's loop."""
    rows = sch.get_sblock("rows")
    sch.compute_at(rows, task, preserve_unit_loops=True)
    notes = sch.get(rows).annotations
    *_, phase, row, column = sch.get_loops(rows)
    sch.reorder(row, column, phase)
    sch.unroll(phase)
    for name in (FIRST, LAST, VECTOR):
        if name in notes:
            sch.annotate(column, name, int(notes[name]))
