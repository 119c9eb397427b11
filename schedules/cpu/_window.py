"""The register tile of a sliding window over NHWC - what depthwise convolution and pooling share.

    task(n, channel block, rows): row: tile of `wt` pixels: ky, kx unrolled over `wt` x `cv` accumulators of V channels

A channel block's rows stay in L1 (K*W*V*4 bytes), so each input comes from L2 once. The padded source is no buffer:
TVM's LoopPartition cuts the first and last tile of a row off (`pragma_loop_partition_hint`), and their unrolled columns
know at compile time what lies outside; the rows' test is one branch a ky. Only where channels do not fill vectors is
the input copied, per task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvmopt.lowering.hoist_borders import BORDER
from tvmopt.scheduling.blocks import annotated, epilogue_of, extents
from tvmopt.scheduling.cost_model import HIGHEST_OPEN, LOOPS, MANY_ROWS, pixel_widths, worth_threads
from tvmopt.scheduling.facts import divisors, itemsize
from tvmopt.scheduling.family import Knobs, PixelTiles, Space
from tvmopt.scheduling.open_borders import NOTHING
from tvmopt.targets import Machine

LOW = 4
"""Rows of the result a core up to which a picture is low: its rows do not divide evenly over the cores."""


@dataclass(frozen=True)
class WindowProblem:
    """n, oh, ow: output; `blocks` of `vector` channels, `channels` of them real; k: taps; padded: "", "pad" or "copy";
    row_bytes: of one copied input row; threads: whether the work pays for them; reads, writes: bytes of a row of the
    input, of which there are `ih`, and of the output."""

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
    ih: int = 0
    reads: int = 0
    writes: int = 0

    @property
    def flops(self) -> float:
        """Operations: two a tap and output."""
        return 2.0 * self.n * self.oh * self.ow * self.blocks * self.vector * self.k[0] * self.k[1]


def recognise(func: Any, machine: Machine, kernel: str) -> WindowProblem | None:
    """The blocks that a lowering marked `kernel`, `<kernel>_out` and perhaps `<kernel>_pad` or `<kernel>_copy`."""
    main, out = annotated(func, kernel), annotated(func, f"{kernel}_out")
    if main is None or out is None:
        return None
    n, oh, ow, blocks, vector, kh, kw = extents(main)
    copy, pad = annotated(func, f"{kernel}_copy"), annotated(func, f"{kernel}_pad")
    row = extents(copy)[2] * blocks * vector * 4 if copy is not None else 0
    padded = "copy" if copy is not None else "pad" if pad is not None else ""
    threads = worth_threads(_nanoseconds(n * oh * ow, blocks * vector, kh * kw, machine), machine)
    channels, source, stored = extents(out)[-1], (copy or pad or main).reads[0].source, out.writes[0].source
    ih, iw, depth = (int(d) if isinstance(d, tirx.IntImm) else 0 for d in list(source.shape)[-3:])
    reads, writes = iw * depth * itemsize(source), ow * channels * itemsize(stored)
    return WindowProblem(n, oh, ow, blocks, vector, channels, (kh, kw), padded, row, threads, ih, reads, writes)


def _nanoseconds(pixels: int, channels: int, taps: int, machine: Machine) -> float:
    """One core's time, roughly: the taps, or what is read and written."""
    work = 2.0 * pixels * channels * taps / (machine.peak_flops / machine.cores) * 1e9
    traffic = 4.0 * pixels * channels * 3 / machine.core_bandwidth * 1e9
    return float(max(1.5 * work, traffic))


def open_pixels(problem: WindowProblem, machine: Machine) -> PixelTiles:
    """Tiles of a row of open length: what half the registers hold, up to eight pixels. The picture is read where it
    lies, but where channels do not fill vectors: there the rows of a task are copied with their border. Threads share
    the blocks of low pictures and of those with few pixels, where there are four a core, and the rows of others."""
    whole = problem.channels == problem.blocks * problem.vector
    each = _nanoseconds(1, problem.blocks * problem.vector, problem.k[0] * problem.k[1], machine)
    return PixelTiles(
        pixel_widths(tile_width(HIGHEST_OPEN, machine)),
        lambda tile: {"wt": tile.ow, "cv": 1, "rows": 1, "unroll": 0},
        bytes=machine.l2 // 2 if whole else machine.l2 // 4,
        threads_from=int(LOOPS * machine.thread_ns / each) + 1,
        parts=1 if problem.blocks < 4 * machine.cores else machine.cores,
        parts_up_to=few_rows(problem, machine),
        parts_uneven=LOW * machine.cores,
        parts_below=MANY_ROWS * problem.channels,
        by_channels=whole,
    )


def tile_width(ow: int, machine: Machine) -> int:
    """Pixels of a tile: what half the registers hold (the other half feeds them), with the shortest last tile.

    >>> z = Machine.load("znver5"); [tile_width(w, z) for w in (112, 56, 28, 14, 7, 17, 1)]
    [14, 14, 14, 14, 7, 9, 1]
    >>> avx2 = Machine("m", "llvm", "x", vector_bits=256, vector_registers=16); tile_width(56, avx2)
    6
    """
    limit = max(4, machine.vector_registers // 2 - 2)
    tiles = -(-ow // limit)
    return -(-ow // tiles)


def knobs(problem: WindowProblem, machine: Machine) -> Space:
    """`wt` pixels by `cv` channel vectors; `rows` of one task; `unroll`: the loop over ky too."""
    wt = tile_width(problem.ow, machine)
    rows = task_rows(problem, machine)
    widths = [w for w in (4, 5, 6, 7, 8, 10, 12, 14) if w != wt and w <= problem.ow]
    return Space(
        {
            "wt": (wt, *widths),
            "cv": (1, *(c for c in (2, 4) if problem.blocks % c == 0)),
            "rows": (rows, *(d for d in range(1, problem.oh + 1) if problem.oh % d == 0 and d != rows)),
            "unroll": (0, 1),
        }
    )


def task_rows(problem: WindowProblem, machine: Machine) -> int:
    """Rows of a task: as many as leave four tasks a core; a copied input must fit in a quarter of L2 besides.

    Where L2 does not hold the pictures, tasks of some rows follow each other over all channels, and the rows of all
    their channels must fit in half of it: a core fetches the lines beside those that it reads, which are other
    channels of the same pixel.

    >>> from dataclasses import replace
    >>> s = WindowProblem(1, 56, 56, 6, 16, 96, (3, 3), "pad", 0, True); z = Machine.load("znver5")
    >>> task_rows(s, z), task_rows(s, z.with_cores(8))
    (28, 8)
    >>> task_rows(replace(s, ih=112, reads=112 * 384, writes=56 * 384), z)
    2
    >>> from tvmopt.targets import Machine
    >>> low = WindowProblem(1, 12, 32, 8, 16, 128, (3, 3), "pad", 0, True, 12, 32 * 512, 32 * 512)
    >>> task_rows(low, z), task_rows(replace(low, ih=6, oh=6, blocks=30, channels=480, reads=32 * 1920), z)
    (6, 6)
    """
    whole = problem.ih * problem.reads + problem.oh * problem.writes
    by_rows = even_rows(problem, machine)
    for rows in reversed(divisors(problem.oh)):
        tasks = problem.n * (problem.oh // rows) * (1 if problem.padded == "copy" else problem.blocks)
        small = (rows + problem.k[0]) * problem.row_bytes <= machine.l2 // 4
        used = (problem.ih * rows // problem.oh + problem.k[0]) * problem.reads + rows * problem.writes
        near = problem.blocks == 1 or whole <= machine.l2 or used <= machine.l2 // 2
        if by_rows and problem.oh // rows % machine.cores:
            continue
        if small and near and (tasks >= 4 * machine.cores or not problem.threads):
            return rows
    return 1


def even_rows(problem: WindowProblem, machine: Machine) -> bool:
    """Whether tasks are cut so that each core has an even part of one picture's rows, as the product before it has (see
    `cost_model.near_rows`): where it reads many more pixels than there are channels, and few rows of the other part."""
    pixels = problem.ih * problem.reads // (4 * problem.blocks * problem.vector)
    shared = problem.threads and machine.cores > 1 and problem.n == 1 and problem.padded != "copy"
    even = problem.oh % machine.cores == 0 and problem.oh > few_rows(problem, machine)
    return shared and even and pixels > MANY_ROWS * problem.channels


def few_rows(problem: WindowProblem, machine: Machine) -> int:
    """Rows up to which half of what a core reads for its part of them belongs to another core's part."""
    return max(1, (problem.k[0] - 1) * machine.cores - 1)


def apply(sch: Any, problem: WindowProblem, knobs: Knobs, kernel: str) -> None:
    """Tasks over channel blocks and rows; the register tile; borders resolved at compile time."""
    main, nothing = sch.get_sblock(kernel), False
    if problem.padded == "pad":
        pad = sch.get_sblock("pad")
        nothing = NOTHING in sch.get(pad).annotations
        sch.compute_inline(pad)
    out = epilogue_of(sch, main, (problem.n, problem.oh, problem.ow, problem.channels))
    n, h, w, c = sch.get_loops(out)
    h_task, h_in = sch.split(h, [None, knobs["rows"]])
    w_tile, w_in = sch.split(w, [None, knobs["wt"]])
    c_block, c_vec, c_in = sch.split(c, [None, knobs["cv"], problem.vector])
    copied = problem.padded == "copy"
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
        # LLVM vectorises the channel loop of the copy
        sch.compute_at(sch.get_sblock("pad"), task, preserve_unit_loops=True)
    else:
        task = sch.fuse(n, h_task, c_block)
    if problem.ow > knobs["wt"] or problem.padded == "pad":
        sch.annotate(w_tile, "pragma_loop_partition_hint", 1)
    if copied and problem.channels % (problem.vector * knobs["cv"]):
        sch.annotate(c_block, "pragma_loop_partition_hint", 1)
    if problem.threads:
        sch.parallel(task)
    if nothing:
        sch.annotate(ky, BORDER, 1)
    _accumulators(sch, main, ky)
    sch.unroll(w_in)
    sch.unroll(c_vec)
    if problem.channels % problem.vector == 0:
        sch.vectorize(c_in)


def _accumulators(sch: Any, main: Any, reduction: Any) -> None:
    """Start values apart from the taps, unrolled alike: the tile then lives in registers."""
    start = sch.decompose_reduction(main, reduction)
    *outer, last = sch.get_loops(start)[-5:]
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(last)
