"""Depthwise convolution, CPU, NHWC: `wt` output pixels of a row by `cv` vectors of channels in registers.

registers  wt*cv accumulators + cv (weights) + 1 (input) <= vector_regs       14*1 + 1 + 1 = 16 <= 32
latency    wt*cv >= fma_latency * fma_ports, or the chain of K*K FMAs shows    14 >= 4 * 2
loads      per ky: wt + KW - 1 inputs and KW weights for wt*KW FMAs           (16 + 3) / 42 < 1
order      task(n, channel block, rows): row: tile. A channel block's K rows stay in L1: K*W*V*4 bytes
           (11 KB at W = 56), so each input comes from L2 once; with the rows outermost it came K times
           (38 -> 30 us)
padding    no copy: TVM's LoopPartition cuts first and last tile of a row off
           (`pragma_loop_partition_hint`), and their unrolled columns know at compile time what lies
           outside; the rows' test is one branch a ky
floor      max(2*K*K*outputs / peak, 4*(inputs + outputs) / L2 bandwidth)
Measured   Zen 5, 1 thread, us, beside onnxruntime 1.31 in the same process (FMA peak 267 GFLOP/s):
             56x56x96 3x3     26 (207 GFLOP/s, 92 GB/s)     onnxruntime 96
             14x14x384 3x3    5.7 (237)                     32
             112x112x96 3x3/2 54 (100 GFLOP/s, 112 GB/s)    167
             28x28x192 5x5    30 (252)                      74
             56x56x96 7x7     110 (267)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cpu._loops import worth_threads
from tvmopt.targets import Machine

from tvmopt.scheduling.blocks import annotated, epilogue_of, extents
from tvmopt.scheduling.family import Knobs, Space

NAME, VERSION = "depthwise", 1


@dataclass(frozen=True)
class Shape:
    """n, oh, ow: output; `blocks` of `vector` channels, `channels` of them real; k: taps; padded: "", "pad"
    or "copy"; row_bytes: of one copied input row; stride: of the rows."""

    n: int
    oh: int
    ow: int
    blocks: int
    vector: int
    channels: int
    k: tuple[int, int]
    padded: str
    row_bytes: int
    threads: bool

    @property
    def flops(self) -> float:
        """Multiply-adds count two."""
        return 2.0 * self.n * self.oh * self.ow * self.blocks * self.vector * self.k[0] * self.k[1]


def recognise(func: Any, machine: Machine) -> Shape | None:
    """The three blocks that the legalizer marked."""
    main, out = annotated(func, "depthwise"), annotated(func, "depthwise_out")
    if main is None or out is None:
        return None
    n, oh, ow, blocks, vector, kh, kw = extents(main)
    copy, pad = annotated(func, "depthwise_copy"), annotated(func, "depthwise_pad")
    row = extents(copy)[2] * blocks * vector * 4 if copy is not None else 0
    work = n * oh * ow * blocks * vector * kh * kw / (machine.peak_flops / machine.cores / 2) * 1e9
    return Shape(
        n, oh, ow, blocks, vector, extents(out)[-1], (kh, kw),
        "copy" if copy is not None else "pad" if pad is not None else "",
        row, worth_threads(1.5 * work, machine),
    )  # fmt: skip


def tile_width(ow: int, machine: Machine) -> int:
    """Pixels of a tile: what half the registers hold (the other half feeds them), with the shortest last
    tile.

    >>> z = Machine.load("znver5"); [tile_width(w, z) for w in (112, 56, 28, 14, 7, 17, 1)]
    [14, 14, 14, 14, 7, 9, 1]
    >>> avx2 = Machine("m", "llvm", "x", vector_bits=256, vector_registers=16); tile_width(56, avx2)
    6
    """
    limit = max(4, machine.vector_registers // 2 - 2)
    tiles = -(-ow // limit)
    return -(-ow // tiles)


def knobs(shape: Shape, machine: Machine) -> Space:
    """`wt` pixels by `cv` channel vectors; `rows` of one task; `unroll`: the loop over ky too."""
    wt = tile_width(shape.ow, machine)
    rows = task_rows(shape, machine)
    widths = [w for w in (4, 5, 6, 7, 8, 10, 12, 14) if w != wt and w <= shape.ow]
    return Space(
        {
            "wt": (wt, *widths),
            "cv": (1, *(c for c in (2, 4) if shape.blocks % c == 0)),
            "rows": (rows, *(d for d in range(1, shape.oh + 1) if shape.oh % d == 0 and d != rows)),
            "unroll": (0, 1),
        }
    )


def task_rows(shape: Shape, machine: Machine) -> int:
    """Rows of a task: as many as leave four tasks a core; a copied input must fit in a quarter of L2 besides.

    >>> s = Shape(1, 56, 56, 6, 16, 96, (3, 3), "pad", 0, True); z = Machine.load("znver5")
    >>> task_rows(s, z), task_rows(s, z.with_cores(8))
    (28, 8)
    """
    divisors = [d for d in range(shape.oh, 0, -1) if shape.oh % d == 0]
    for rows in divisors:
        tasks = shape.n * (shape.oh // rows) * (1 if shape.padded == "copy" else shape.blocks)
        small = (rows + shape.k[0]) * shape.row_bytes <= machine.l2 // 4
        if small and (tasks >= 4 * machine.cores or not shape.threads):
            return rows
    return 1


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """Tasks over channel blocks and rows; the register tile; borders resolved at compile time."""
    main = sch.get_sblock("depthwise")
    if shape.padded == "pad":
        sch.compute_inline(sch.get_sblock("pad"))
    out = epilogue_of(sch, main, (shape.n, shape.oh, shape.ow, shape.channels))
    n, h, w, c = sch.get_loops(out)
    h_task, h_in = sch.split(h, [None, knobs["rows"]])
    w_tile, w_in = sch.split(w, [None, knobs["wt"]])
    c_block, c_vec, c_in = sch.split(c, [None, knobs["cv"], shape.vector])
    copied = shape.padded == "copy"
    sch.reorder(n, h_task, c_block, h_in, w_tile, w_in, c_vec, c_in)
    sch.compute_at(main, w_tile, preserve_unit_loops=True)
    one_n, one_h, pixels, vectors, lanes, ky, kx = sch.get_loops(main)[5:]
    sch.reorder(ky, kx, one_n, one_h, pixels, vectors, lanes)
    for loop in (kx, pixels, vectors):
        sch.unroll(loop)
    sch.vectorize(lanes)
    if knobs["unroll"]:
        sch.unroll(ky)
    if copied:
        task = sch.fuse(n, h_task)
        _copy_at(sch, task)
    else:
        task = sch.fuse(n, h_task, c_block)
    if shape.ow > knobs["wt"] or shape.padded == "pad":
        sch.annotate(w_tile, "pragma_loop_partition_hint", 1)
    if copied and shape.channels % (shape.vector * knobs["cv"]):
        sch.annotate(c_block, "pragma_loop_partition_hint", 1)
    if shape.threads:
        sch.parallel(task)
    start = sch.decompose_reduction(main, ky)
    *outer, last = sch.get_loops(start)[-5:]
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(last)
    sch.unroll(w_in)
    sch.unroll(c_vec)
    if shape.channels % shape.vector == 0:
        sch.vectorize(c_in)


def _copy_at(sch: Any, task: Any) -> None:
    """The input of one task, padded to whole vectors and to the border; LLVM vectorises the channel loop."""
    sch.compute_at(sch.get_sblock("pad"), task, preserve_unit_loops=True)
