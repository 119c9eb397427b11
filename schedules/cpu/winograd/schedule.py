"""Winograd convolution, CPU, NHWC: T*T register-tiled GEMMs (F(4x4, 3x3): T = 6; F(2x2, 3x3): T = 4), one more set of
them a part of the sum, between two transforms that stay in L2. Which form it is is read off the block.

task       `tile_rows` rows of output tiles (all columns, all channels), or a chunk of the panels of those
transform  V = B^T d B for the task's tiles, T*T * tiles * C * 4 bytes, kept in L2; 16 or 8 channels a vector, of which
           the last may overlap the one before (lowering/overlap.py), the TxT tile unrolled
gemm       for panel: for (i, j): mr tiles x nr channels in registers, the reduction over C; U, [P, T, T, C, nr], comes
           from L2, L3 or memory in one run (with the panels inside, in runs of C*nr*4 bytes, whole models took 1.02 to
           1.05 times as long)
ahead      while a block of U, C*nr numbers, is multiplied the next one is prefetched (lowering/prefetch.py)
open       pictures of open size: strips of one row of tiles, in blocks of 8, 4, 2 and single ones, each with all panels
phases     of a dilation: each is a picture of its own
output     Y = A^T M A per tile and panel, epilogue fused, from T*T * tiles * nr * 4 bytes of M
floor      T*T*C*O*2 FLOPs a tile at peak, or U's T*T*C*O*4 bytes at L3's or memory's bandwidth
Measured   see docs/explanation/how-a-model-flows.md and docs/performance.md
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx

from tvmopt.lowering.overlap import LAST, OVERLAP
from tvmopt.schedules.cpu._loops import prefetch_panels, vectorize_columns
from tvmopt.schedules.cpu._winograd import FORM
from tvmopt.scheduling.blocks import annotated, epilogue_of, extents
from tvmopt.scheduling.cost_model import choose_pixels, common_vector, fits, row_vector, step_cycles
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Knobs, PixelTiles, Space
from tvmopt.targets import Machine

UNEVEN = 1.25
"""Of the latency of a product, what a step takes whose accumulators just fill it: they are not ready in turn. A signal
of 192 to 32 channels takes 1980 us in tiles of 4 by 2 vectors and 1690 in tiles of 8 by 2 (Xeon)."""


@dataclass(frozen=True)
class WinogradProblem:
    """rows x cols tiles of high x wide outputs, in phases of n images; c input channels, o outputs in panels of nr."""

    n: int
    oh: int
    ow: int
    phases: tuple[int, int]
    signal: bool  # whether the rows are the columns of a picture of one row
    rows: int
    cols: int
    high: int
    wide: int
    tile: tuple[int, int]  # elements of a transformed tile
    parts: tuple[int, int]  # of a sum, along each axis
    c: int
    o: int
    panels: int
    nr: int
    lanes: int
    cores: int
    l2: int
    padded: bool  # whether the border is made here
    u_rate: float  # bytes of U a cycle and core: from L2, L3 or memory, by its size
    l3_rate: float  # likewise, of what a task makes and L2 does not hold
    vector: int  # channels of a pixel that are transformed at once

    @property
    def places(self) -> int:
        """Elements of a transformed tile: one GEMM each."""
        return prod(self.tile)

    @property
    def pictures(self) -> int:
        """Phases of all images."""
        return self.n * prod(self.phases)

    @property
    def more(self) -> int:
        """Axes of phases."""
        return sum(phases > 1 for phases in self.phases)

    @property
    def taps(self) -> int:
        """Elements of V that a sum reads in a row of it."""
        return self.c * prod(self.parts)


def recognise(func: tirx.PrimFunc, machine: Machine) -> WinogradProblem | None:
    """A block that the lowering marked `winograd`."""
    block, out = annotated(func, "winograd"), annotated(func, "picture") or annotated(func, "unpack")
    if block is None or out is None:
        return None
    n, oh, ow, o = extents(out)
    high, down, wide, across, *phases, signal = map(int, str(block.annotations[FORM]).split(","))
    tile_h, tile_w, *_, rows, cols, panels, nr = extents(block)[: -2 if down * across > 1 else -1]
    c = extents(block)[-1]
    u_bytes = tile_h * tile_w * down * across * c * panels * nr * 4
    if u_bytes > machine.l3 // 8:  # the other layers drive it out of L3 between two calls
        rate = machine.bandwidth / machine.cores / machine.ghz / 1e9
    else:
        rate = machine.l2_rate / 2 if u_bytes > machine.l2 // 2 else float(machine.l2_rate)
    return WinogradProblem(
        n, oh, ow, (phases[0], phases[1]), bool(signal), rows, cols, high, wide, (tile_h, tile_w), (down, across), c, o,
        panels, nr, machine.lanes(), machine.cores, machine.l2, annotated(func, "pad") is not None, rate,
        float(machine.l3_rate), row_vector(c, machine),
    )  # fmt: skip


def knobs(problem: WinogradProblem, machine: Machine) -> Space:
    """`tile_rows`, `panel_chunk`: what one task computes; `mr` columns by `rr` rows of tiles: the register tile."""
    rows, chunk = choose_task(problem, machine)
    rr, mr = register_tile(problem, rows, machine)
    return Space(
        {
            "tile_rows": (rows, *(d for d in divisors(problem.rows) if d != rows)),
            "panel_chunk": (chunk, *(d for d in divisors(problem.panels) if d != chunk)),
            "mr": (mr, *(d for d in divisors(problem.cols) if d != mr and d <= 14)),
            "rr": (rr, *(d for d in (1, 2, 4) if d != rr)),
        }
    )


def register_tile(problem: WinogradProblem, rows: int, machine: Machine) -> tuple[int, int]:
    """Rows and columns of tiles in registers, of a task of so many rows."""
    mr, nv = choose_pixels(problem.cols, problem.nr, machine), max(1, problem.nr // machine.lanes())
    return max(d for d in divisors(rows) if d == 1 or (mr == problem.cols and fits(d * mr, nv, machine))), mr


def open_pixels(problem: WinogradProblem, machine: Machine) -> PixelTiles:
    """Strips of one row of tiles, in blocks of 8, 4, 2 and single tiles, each with all panels. As at known sizes there
    are threads in any case: LLVM takes seconds for each form.

    A window along the columns alone has rows of single pixels, mostly long ones: blocks of 8 and 2 tiles do, and single
    pixels, of which there may be fewer than a tile computes. Cores share the panels of what has few rows.
    """
    flat = problem.high == 1
    chunk = problem.panels
    if flat:
        chunk = max(d for d in divisors(problem.panels) if d <= max(1, problem.panels // machine.cores))
    widths = tuple(problem.wide * tiles for tiles in ((8, 2) if flat else (8, 4, 2, 1)))
    return PixelTiles(
        (*widths, 1) if flat else widths,
        lambda tile: {
            "tile_rows": 1,
            "panel_chunk": chunk,
            "mr": choose_pixels(tile.cols, tile.nr, machine),
            "rr": 1,
        },
        bytes=machine.l2 // 4,
        threads_from=1,
        height=problem.high,
        parts=min(machine.cores, problem.panels // chunk) if flat else 1,
        parts_up_to=4 * machine.cores,
    )


def choose_task(problem: WinogradProblem, machine: Machine) -> tuple[int, int]:
    """(tile rows, panels) of a task: even over the cores, V within half of L2, U read as rarely as possible.

    The products and the reading of U add up: a block of U, C*nr*4 bytes, serves too few rows of tiles to hide the next
    one's way from L3. So cores share the panels rather than the rows, and transform the same tiles twice (28x28x128:
    0.60 of the time; whole models 0.94 and 0.98). Where L2 does not hold V beside the picture with its border, V comes
    from L3 (56x56x256 on two cores of a Zen 4 in rows rather than in panels: 0.80; VGG-19 0.94). Where tiles have one
    column, the rows of a task decide how many are in registers: 94 of a signal's 752 would have two.
    """
    best: tuple[tuple[float, int], tuple[int, int]] | None = None
    nv = max(1, problem.nr // machine.lanes())
    for rows in divisors(problem.rows):
        tiles, height = rows * problem.cols, prod(register_tile(problem, rows, machine))
        step = max(step_cycles(height, nv, machine), UNEVEN * machine.fma_latency)
        waits = step * machine.fma_ports / (height * nv)
        for panels in divisors(problem.panels):
            tasks = problem.pictures * (problem.rows // rows) * (problem.panels // panels)
            idle = -(-tasks // problem.cores) * problem.cores / tasks
            gemm = problem.places * tiles * problem.taps * panels * problem.nr / problem.lanes / 2
            transform = problem.places * tiles * 8 * (problem.c + panels * problem.nr) / problem.lanes
            stream = problem.places * problem.taps * panels * problem.nr * 4 / problem.u_rate
            made = problem.places * tiles * problem.c * 4
            border = (rows * problem.high + 2) * (problem.cols * problem.wide + 2) * problem.c * 4 * problem.padded
            spill = 1.0 + (0.15 if made > 0.75 * problem.l2 else 0.0)
            far = 2 * made / problem.l3_rate if made + border > 0.75 * problem.l2 else 0.0
            cost = idle * tasks * (gemm * waits * spill + stream + transform + far)
            if best is None or (cost, tasks) < best[0]:
                best = ((cost, tasks), (rows, panels))
    assert best is not None
    return best[1]


def apply(sch: tvm.s_tir.Schedule, problem: WinogradProblem, knobs: Knobs) -> None:
    """Tasks; input transform per task; GEMMs per panel; output transform per tile."""
    get = sch.get_sblock
    gemm, half_in, v, half_out, whole = (
        get(n) for n in ("winograd", "wino_half_in", "wino_in", "wino_half_out", "wino_out")
    )
    picture = (problem.n, problem.oh, problem.ow, problem.o)
    if problem.more:
        out = get("unpack")
        _gather(sch, epilogue_of(sch, out, picture), problem)
    else:
        out = epilogue_of(sch, whole, picture)
    n, *phases, h, w, o = sch.get_loops(out)
    if problem.signal and not problem.more:
        h, w = w, h
    h_task, h_tile, h_in = sch.split(h, [None, knobs["tile_rows"], problem.high])
    w_tile, w_in = sch.split(w, [None, problem.wide])
    p_task, panel, vec, o_in = sch.split(
        o, [None, knobs["panel_chunk"], -(-problem.nr // problem.lanes), problem.lanes]
    )
    sch.reorder(n, *phases, h_task, p_task, panel, h_tile, w_tile, vec, h_in, w_in, o_in)
    task = sch.fuse(n, *phases, h_task, p_task)
    sch.compute_at(whole, vec, preserve_unit_loops=True)
    sch.compute_at(half_out, vec, preserve_unit_loops=True)
    sch.compute_at(gemm, panel, preserve_unit_loops=True)
    sch.compute_at(v, task, preserve_unit_loops=True)
    _tile_gemm(sch, gemm, problem, knobs["mr"], knobs["rr"])
    _transform_in(sch, v, half_in, problem)
    if problem.padded:
        sch.compute_at(get("pad"), task, preserve_unit_loops=True)
        channels = sch.get_loops(get("pad"))[-1]
        if problem.c % problem.vector:
            sch.annotate(channels, OVERLAP, problem.vector)
        else:
            sch.vectorize(sch.split(channels, [None, problem.vector])[1])
    sch.parallel(task)
    for block in (whole, half_out):
        loops = sch.get_loops(block)[5:]
        sch.vectorize(loops[-1])
        for loop in loops[:2]:
            sch.unroll(loop)
    sch.unroll(h_in)
    sch.unroll(w_in)
    _vectorize_store(sch, o_in, problem)
    sch.decompose_reduction(gemm, sch.get_loops(gemm)[7 + problem.more])


def _gather(sch: tvm.s_tir.Schedule, out: Any, problem: WinogradProblem) -> None:
    """The pictures, of the results of their phases."""
    n, h, w, o = sch.get_loops(out)
    if problem.oh == 1:
        sch.parallel(sch.fuse(n, h, w))
    else:
        sch.parallel(sch.fuse(n, h))
    sch.vectorize(sch.split(o, [None, common_vector(problem.o, problem.lanes)])[1])


def _vectorize_store(sch: tvm.s_tir.Schedule, o_in: Any, problem: WinogradProblem) -> None:
    width = common_vector(problem.o if problem.o % problem.nr else problem.nr, problem.lanes)
    outer, inner = sch.split(o_in, [None, width])
    sch.unroll(outer)
    sch.vectorize(inner)


def _tile_gemm(sch: tvm.s_tir.Schedule, gemm: Any, problem: WinogradProblem, mr: int, rr: int) -> None:
    loops = sch.get_loops(gemm)[2:]
    places, steps = loops[: 3 + problem.more], loops[7 + problem.more :]
    rows, cols, one_p, chan = loops[3 + problem.more : 7 + problem.more]
    row, row_in = sch.split(rows, [None, rr])
    tile, tile_in = sch.split(cols, [None, mr])
    sch.reorder(*places, row, tile, *steps, one_p, row_in, tile_in, chan)
    sch.unroll(row_in)
    sch.unroll(tile_in)
    vectorize_columns(sch, chan, common_vector(problem.nr, problem.lanes))
    blocks, size = problem.panels * problem.places, problem.nr * problem.taps
    prefetch_panels(sch, [row, tile], steps, blocks, size, problem.nr, least=1)


def _transform_in(sch: tvm.s_tir.Schedule, v: Any, half: Any, problem: WinogradProblem) -> None:
    i, j, *pictures, rows, cols, c = sch.get_loops(v)[1:]
    c_out, c_in = sch.split(c, [None, problem.vector], disable_predication=True)
    sch.reorder(*pictures, rows, cols, c_out, i, j, c_in)
    sch.compute_at(half, c_out, preserve_unit_loops=True)
    loops = sch.get_loops(half)[5 + problem.more :]
    for loop in (i, j, *loops[:2]):
        sch.unroll(loop)
    sch.vectorize(c_in)
    sch.vectorize(loops[-1])
    if problem.c % problem.vector:
        sch.annotate(c_out, LAST, problem.c)
