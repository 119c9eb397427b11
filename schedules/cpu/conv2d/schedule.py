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

from tvmopt.schedules.cpu._loops import prefetch_panels, vectorize_columns, vectorize_epilogue
from tvmopt.scheduling.blocks import annotated, consumer, epilogue_of, extents, root_blocks
from tvmopt.scheduling.facts import divisors, itemsize
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.tile import choose_pixels, common_vector, fits
from tvmopt.targets import Machine


@dataclass(frozen=True)
class Shape:
    """n: batch; oh, ow: output; panels of nr columns, each within one of the groups; o: output channels; k: length of
    the reduction."""

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

    @property
    def flops(self) -> float:
        """Multiply-adds count two."""
        return 2.0 * self.n * self.oh * self.ow * self.o * self.k[0] * self.k[1] * self.k[2]


def recognise(func: tirx.PrimFunc, machine: Machine) -> Shape | None:
    """A block that the lowering marked `conv2d`."""
    block, out, pad = annotated(func, "conv2d"), consumer(func, "conv2d"), annotated(func, "pad")
    if block is None or out is None:
        return None
    n, oh, ow, panels, nr, ky, kx, c = extents(block)
    groups = int(block.annotations["tvmopt.groups"])
    o = prod(extents(out)[3:])
    row_bytes = itemsize(pad.writes[0].source) * extents(pad)[2] * extents(pad)[3] if pad is not None else 4 * ow * c
    return Shape(
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
    )


def knobs(shape: Shape, machine: Machine) -> Space:
    """`mr`: pixels of the tile; `row_chunk`, `panel_chunk`: what one task computes."""
    mr = choose_pixels(shape.ow, shape.nr, machine)
    row_chunk, panel_chunk = choose_task(shape)
    nv = max(1, shape.nr // machine.lanes())
    return Space(
        {
            "mr": (
                mr,
                *(r for r in (4, 6, 7, 8, 10, 12, 13, 14) if r != mr and r <= shape.ow and fits(r, nv, machine)),
            ),
            "row_chunk": (row_chunk, *(d for d in divisors(shape.oh) if d != row_chunk)),
            "panel_chunk": (panel_chunk, *(d for d in panel_chunks(shape) if d != panel_chunk)),
        }
    )


def choose_task(shape: Shape) -> tuple[int, int]:
    """(rows, panels) of one task: the split with the least copying whose tasks divide evenly over the cores.

    The time of a split is the slowest core's share, plus the copy of each task's padded input rows (one task repeats
    K - s rows at its border, and every panel chunk repeats the whole copy), plus reading the task's panels at 16 bytes
    a cycle where they exceed half of L2: two cores with half of the panels each read half as much as two with half of
    the rows (0.69 of the time for 28x28x512 -> 14x14x1024, 1x1/2).
    """
    best: tuple[tuple[float, int], tuple[int, int]] | None = None
    kh, kw, c = shape.k
    panel_bytes = 4 * shape.nr * kh * kw * c
    cycles = shape.flops / 4 / shape.lanes / shape.cores  # of one core, two FMAs a cycle
    total = shape.n * shape.oh * shape.panels
    for rows in divisors(shape.oh):
        for panels in panel_chunks(shape):
            tasks = shape.n * (shape.oh // rows) * (shape.panels // panels)
            waves = -(-tasks // shape.cores)
            compute = waves * rows * panels / (total / shape.cores)  # 1.0: perfectly even
            buffer = (rows + kh - 1) * shape.in_bytes_per_row if shape.padded else 0
            # one vector of input serves kh*kw*nr/lanes*panels FMAs a row; a move costs about one of them
            copy = (rows + kh - 1) / rows / (kh * kw * max(1, shape.nr // shape.lanes) * panels) if shape.padded else 0
            spill = 0.05 if buffer > shape.l2 // 2 else 0.0
            read = panels * panel_bytes if panels * panel_bytes > shape.l2 // 2 else 0
            stream = waves * read / 16 / cycles
            key = (round(compute * (1 + copy) + spill + stream, 4), tasks)
            if best is None or key < best[0]:
                best = (key, (rows, panels))
    assert best is not None
    return best[1]


def panel_chunks(shape: Shape) -> list[int]:
    """Panels that one task may compute: parts of a group or whole groups. A task across the border of two groups would
    read a number of channels that differs from task to task, and could not be scheduled."""
    group = shape.panels // shape.groups
    return [d for d in divisors(shape.panels) if group % d == 0 or d % group == 0]


def apply(sch: tvm.s_tir.Schedule, shape: Shape, knobs: Knobs) -> None:
    """Tasks over rows and panels; the padded rows of a task; the register tile."""
    conv = sch.get_sblock("conv2d")
    if shape.groups == 1:
        out = epilogue_of(sch, conv, (shape.n, shape.oh, shape.ow, shape.o))
    else:
        (out,) = sch.get_consumers(conv)  # normalized
    n, h, w, *group, o = sch.get_loops(out)
    h_chunk, h_in = sch.split(h, [None, knobs["row_chunk"]])
    w_tile, w_in = sch.split(w, [None, knobs["mr"]])
    per_group = shape.o // shape.groups
    panels, o_in = sch.split(o, [None, shape.nr])
    p_chunk, panel = sch.split(sch.fuse(*group, panels), [None, knobs["panel_chunk"]])
    sch.reorder(n, h_chunk, p_chunk, panel, h_in, w_tile, w_in, o_in)
    sch.compute_at(conv, w_tile, preserve_unit_loops=True)
    one_n, one_h, pixels, one_p, cols, ky, kx, c = sch.get_loops(conv)[6:]
    sch.reorder(ky, kx, c, one_n, one_h, one_p, pixels, cols)
    sch.unroll(pixels)
    vectorize_columns(sch, cols, common_vector(shape.nr, shape.lanes))
    prefetch_panels(sch, [h_in, w_tile], [ky, kx, c], shape.panels, shape.nr * prod(shape.k), shape.nr)
    task = sch.fuse(n, h_chunk, p_chunk)
    if shape.padded:
        _pad_at(sch, task, shape.lanes)
    if shape.ow % knobs["mr"]:
        sch.annotate(w_tile, "pragma_loop_partition_hint", 1)
    if shape.flops > 500_000:
        sch.parallel(task)
    sch.decompose_reduction(conv, ky)
    sch.unroll(w_in)
    vectorize_epilogue(sch, o_in, per_group, shape.nr, shape.lanes)


def _pad_at(sch: tvm.s_tir.Schedule, task: tvm.s_tir.schedule.LoopRV, lanes: int) -> None:
    """Copy the task's padded rows into a buffer of its own."""
    pad = next(b for b in root_blocks(sch) if sch.get(b).name_hint == "pad")
    sch.compute_at(pad, task, preserve_unit_loops=True)
    channels = sch.get_loops(pad)[-1]
    width = common_vector(int(sch.get(channels).extent), lanes)
    _, inner = sch.split(channels, [None, width])
    sch.vectorize(inner)
