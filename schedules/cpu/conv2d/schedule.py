"""Convolution, CPU, NHWC: an implicit GEMM - `mr` output pixels of a row by `nr` channels in registers.

registers  as GEMM's: mr*nv + nv + 1 <= vector_regs                 14*2 + 2 + 1 = 31 <= 32
inner      for ky, kx, c: nv vectors of Wp[p, ky, kx, c, :] and mr broadcasts of pad[y*s+ky, x*s+kx, c], whatever the
           number of input channels: the 3-channel first layer needs no case of its own.
task       `row_chunk` output rows by `panel_chunk` panels. Its padded input, (row_chunk*s + K - s) rows, is copied
           once into a buffer of the task, which stays in L2; the copy costs 1 vector move for K*K*O/lanes FMAs.
order      in a task: for panel: for row: for tile: so that the panel, KH*KW*C*nr*4 bytes, is read from L2.
Measured   Zen 5, one core, peak 267 GFLOP/s (layouts compared before NHWC was chosen; onnxruntime in the same run):
             56x56  64->64  3x3   NHWC 260   NCHW16c 219   onnxruntime 254
             28x28 128->128 3x3   NHWC 266   NCHW16c 221   onnxruntime 258
             14x14 256->256 3x3   NHWC 265   NCHW16c 220   onnxruntime 260
              7x7  512->512 3x3   NHWC 258   NCHW16c 256   onnxruntime 233
             28x28 256->256 3x3/2 NHWC 259   NCHW16c 216   onnxruntime 239
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import tirx

from tvmopt.schedules.cpu._inside import BESIDE, COLUMNS, INSIDE, MARKS
from tvmopt.schedules.cpu._loops import prefetch_panels, vectorize_columns, vectorize_epilogue
from tvmopt.schedules.cpu.conv2d.compute import APART, DILATION
from tvmopt.scheduling.blocks import annotated, consumer, epilogue_of, extents, root_blocks
from tvmopt.scheduling.cost_model import (
    choose_pixels,
    common_vector,
    fits,
    open_height,
    pixel_widths,
    product_worth_threads,
    products_from,
)
from tvmopt.scheduling.facts import divisors, itemsize
from tvmopt.scheduling.family import Knobs, PixelTiles, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class Conv2dProblem:
    """n: batch; oh, ow: output; panels of nr columns, each within one of the groups; o: output channels; k: length of
    the reduction; threads: whether the work pays for them."""

    n: int
    oh: int
    ow: int
    panels: int
    nr: int
    o: int
    groups: int
    k: tuple[int, int, int]
    padded: bool
    in_bytes_per_row: int
    lanes: int
    cores: int
    l2: int
    l3_rate: int
    fma_ports: int
    threads: bool
    pitch: float = 1.0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Rows from a window's first tap to its last, both counted."""
        return reach_of(self.k[0], self.dilation)

    @property
    def flops(self) -> float:
        """Multiply-adds count two."""
        return 2.0 * self.n * self.oh * self.ow * self.o * self.k[0] * self.k[1] * self.k[2]


def reach_of(taps: int, dilation: int) -> int:
    """Rows from a window's first tap to its last, both counted."""
    return 1 + (taps - 1) * dilation


def recognise(func: tirx.PrimFunc, machine: Machine) -> Conv2dProblem | None:
    """A block that the lowering marked `conv2d`."""
    block, out, pad = annotated(func, "conv2d"), consumer(func, "conv2d"), annotated(func, "pad")
    if block is None or out is None:
        return None
    n, oh, ow, panels, nr, ky, kx, c = extents(block)
    groups = int(block.annotations["tvmopt.groups"])
    o = prod(extents(out)[3:])
    dilation = int(block.annotations.get(DILATION, 1))
    reach = reach_of(ky, dilation)
    row_bytes = itemsize(pad.writes[0].source) * extents(pad)[2] * extents(pad)[3] if pad is not None else 4 * ow * c
    return Conv2dProblem(
        n,
        oh,
        ow,
        panels,
        nr,
        o,
        groups,
        (ky, kx, c),
        pad is not None,
        row_bytes,
        machine.lanes(),
        machine.cores,
        machine.l2,
        machine.l3_rate,
        machine.fma_ports,
        product_worth_threads(2.0 * n * oh * ow * o * ky * kx * c, machine),
        (extents(pad)[1] - reach) / (oh - 1) if pad is not None and oh > 1 else 1.0,
        dilation,
    )


def knobs(problem: Conv2dProblem, machine: Machine) -> Space:
    """`mr`: pixels of the tile; `row_chunk`, `panel_chunk`: what one task computes."""
    mr = choose_pixels(problem.ow, problem.nr, machine)
    row_chunk, panel_chunk = choose_task(problem)
    nv = max(1, problem.nr // machine.lanes())
    return Space(
        {
            "mr": (
                mr,
                *(r for r in (4, 6, 7, 8, 10, 12, 13, 14) if r != mr and r <= problem.ow and fits(r, nv, machine)),
            ),
            "row_chunk": (row_chunk, *(d for d in divisors(problem.oh) if d != row_chunk)),
            "panel_chunk": (panel_chunk, *(d for d in panel_chunks(problem) if d != panel_chunk)),
        }
    )


def open_pixels(problem: Conv2dProblem, machine: Machine) -> PixelTiles:
    """Tiles of a row of open length: as wide as those of open rows of a product, for each panel over all rows of a
    piece. Cores share the panels where they divide evenly and are too many for L2, else the rows, of which two pieces
    a core repeat at most half of what they copy; and the panels where a picture has fewer."""
    panel_bytes = 4 * problem.nr * prod(problem.k)
    even = problem.panels % machine.cores == 0
    large = problem.panels * panel_bytes > machine.l2 // 2
    return PixelTiles(
        pixel_widths(open_height(problem.nr, machine)),
        lambda tile: {"mr": tile.ow, "row_chunk": 1, "panel_chunk": 1},
        bytes=machine.l2 // 2,
        threads_from=products_from(problem.flops, machine),
        parts=machine.cores if even else 1,
        parts_up_to=0 if large else 4 * machine.cores * max(1, problem.k[0] - 1),
    )


def choose_task(problem: Conv2dProblem) -> tuple[int, int]:
    """(rows, panels) of one task: the split with the least copying whose tasks divide evenly over the cores.

    The time of a split is the slowest core's share, plus the copy of each task's padded input rows (one task repeats
    K - s rows at its border, and every panel chunk repeats the whole copy), plus reading the task's panels at
    `l3_rate` where all panels exceed half of L2, so that each task reads its own anew: two cores with half of the
    panels each read half as much as two with half of the rows (0.69 of the time for 28x28x512 -> 14x14x1024, 1x1/2),
    and 384 -> 384 of 7x7 by 2 in one task a panel takes half of the time of two. Copied rows beyond half of L2 cost a
    tenth (160x160x128 -> 80x80x128, 3x3/2 on a Xeon: 10 rows a task 177 GFLOP/s, 5 rows 200), beyond all of it half
    (52x52x512 -> 26x26x72, 5x5/2: all rows a task 56 GFLOP/s).
    """
    best: tuple[tuple[float, int], tuple[int, int]] | None = None
    kh, kw, c = problem.k
    panel_bytes = 4 * problem.nr * kh * kw * c
    cycles = problem.flops / 2 / problem.fma_ports / problem.lanes / problem.cores  # of one core
    total = problem.n * problem.oh * problem.panels
    for rows in divisors(problem.oh):
        for panels in panel_chunks(problem):
            tasks = problem.n * (problem.oh // rows) * (problem.panels // panels)
            waves = -(-tasks // problem.cores)
            compute = waves * rows * panels / (total / problem.cores)  # 1.0: perfectly even
            buffer = ((rows - 1) * problem.pitch + problem.reach) * problem.in_bytes_per_row if problem.padded else 0
            # one vector of input serves kh*kw*nr/lanes*panels FMAs a row; a move costs about one of them
            copy = (
                (rows + problem.reach - 1) / rows / (kh * kw * max(1, problem.nr // problem.lanes) * panels)
                if problem.padded
                else 0
            )
            spill = 0.5 if buffer > problem.l2 else 0.1 if buffer > problem.l2 // 2 else 0.0
            read = panels * panel_bytes if problem.panels * panel_bytes > problem.l2 // 2 else 0
            stream = waves * read / problem.l3_rate / cycles
            key = (round(compute * (1 + copy) + spill + stream, 4), tasks)
            if best is None or key < best[0]:
                best = (key, (rows, panels))
    assert best is not None
    return best[1]


def panel_chunks(problem: Conv2dProblem) -> list[int]:
    """Panels that one task may compute: parts of a group or whole groups. A task across the border of two groups would
    read a number of channels that differs from task to task, and could not be scheduled."""
    group = problem.panels // problem.groups
    return [d for d in divisors(problem.panels) if group % d == 0 or d % group == 0]


def apply(sch: tvm.s_tir.Schedule, problem: Conv2dProblem, knobs: Knobs) -> None:
    """Tasks over rows and panels; the padded rows of a task; the register tile."""
    conv = sch.get_sblock("conv2d")
    if problem.groups == 1:
        out = epilogue_of(sch, conv, (problem.n, problem.oh, problem.ow, problem.o))
    else:
        (out,) = sch.get_consumers(conv)  # normalized
    n, h, w, *group, o = sch.get_loops(out)
    h_chunk, h_in = sch.split(h, [None, knobs["row_chunk"]])
    w_tile, w_in = sch.split(w, [None, knobs["mr"]])
    per_group = problem.o // problem.groups
    panels, o_in = sch.split(o, [None, problem.nr])
    p_chunk, panel = sch.split(sch.fuse(*group, panels), [None, knobs["panel_chunk"]])
    sch.reorder(n, h_chunk, p_chunk, panel, h_in, w_tile, w_in, o_in)
    sch.compute_at(conv, w_tile, preserve_unit_loops=True)
    one_n, one_h, pixels, one_p, cols, ky, kx, c = sch.get_loops(conv)[6:]
    sch.reorder(ky, kx, c, one_n, one_h, one_p, pixels, cols)
    sch.unroll(pixels)
    vectorize_columns(sch, cols, common_vector(problem.nr, problem.lanes))
    prefetch_panels(sch, [h_in, w_tile], [ky, kx, c], problem.panels, problem.nr * prod(problem.k), problem.nr)
    if MARKS[0] in sch.get(conv).annotations:
        sch.annotate(ky, INSIDE, 1)
    if COLUMNS in sch.get(conv).annotations:
        sch.annotate(kx, BESIDE, 1)
    task = sch.fuse(n, h_chunk, p_chunk)
    if problem.padded:
        _pad_at(sch, task, problem.lanes, int(sch.get(conv).annotations.get(APART, 0)))
    if problem.ow % knobs["mr"]:
        sch.annotate(w_tile, "pragma_loop_partition_hint", 1)
    if problem.threads:
        sch.parallel(task)
    sch.decompose_reduction(conv, ky)
    sch.unroll(w_in)
    vectorize_epilogue(sch, o_in, per_group, problem.nr, problem.lanes)


def _pad_at(sch: tvm.s_tir.Schedule, task: tvm.s_tir.schedule.LoopRV, lanes: int, apart: int) -> None:
    """Copy the task's padded rows into a buffer of its own, with so many unused numbers behind each pixel."""
    pad = next(b for b in root_blocks(sch) if sch.get(b).name_hint == "pad")
    sch.compute_at(pad, task, preserve_unit_loops=True)
    channels = sch.get_loops(pad)[-1]
    if apart:
        sch.storage_align(pad, 0, -2, int(sch.get(channels).extent), apart)
    width = common_vector(int(sch.get(channels).extent), lanes)
    _, inner = sch.split(channels, [None, width])
    sch.vectorize(inner)
