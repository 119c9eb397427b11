"""Implicit-GEMM convolution on tensor cores, NHWC: GEMM's tile program, whose A is gathered from the image.

    C[m, o] = sum_k A[m, k] * W[o, k]        m = (n, y, x);  k = (ky, kx, c);  A[m, k] = in[n, y*s - top + ky*d, ..., c]

copies     a chunk of 16 bytes is 8 channels of one tap (8 bytes where channels are only a multiple of 4): its
           address and whether it is inside the image are computed a step, from m's and k's parts, by constant
           divisions; where bk divides the channels, the tap is the same for the whole step
borders    cp.async writes zeros for what lies outside; no padded copy of the image exists
groups     a group is an entry of the batch: it reads its channels and writes its columns
the rest   GEMM's: tile, stages, swizzle, split K, epilogue
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue, ends_in
from tvmopt.schedules.cuda._mainloop import Product, Program, Rows
from tvmopt.schedules.cuda._tiles import operand_type, operands, shared_limit, tile_of, tile_space
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

Expr = Any


@dataclass(frozen=True)
class Window:
    """The image as the matrix A[m, k].

    Attributes:
        sizes: height, width, channels, out_h, out_w, kh, kw, stride y and x, dilation y and x, top, left.
        rows, k: its extents; padded: what its indices run up to; groups: the batch is a group of channels.
    """

    buffer: Any
    sizes: tuple[int, ...]
    rows: int
    k: int
    chunk: int
    padded: tuple[int, int]
    groups: int = 1

    def at(self, row: Expr, k: Expr, batch: Expr) -> tuple[Expr, Expr | None]:
        height, width, channels, out_h, out_w, kh, kw, sy, sx, dy, dx, top, left = self.sizes
        image, oy, ox = row // (out_h * out_w), row // out_w % out_h, row % out_w
        each = channels // self.groups
        ky, kx, c = k // (each * kw), k // each % kw, k % each
        if self.groups > 1:
            c = batch * each + c
        y, x = oy * sy + ky * dy - top, ox * sx + kx * dx - left
        inside = T.both(
            T.below(row, self.rows, 1, self.padded[0]),
            T.below(k, self.k, 1, self.padded[1]),
            None if top == 0 else y >= 0,
            None if (out_h - 1) * sy + (kh - 1) * dy - top < height else y < height,
            None if left == 0 else x >= 0,
            None if (out_w - 1) * sx + (kw - 1) * dx - left < width else x < width,
        )
        return T.pointer(self.buffer, ((image * height + y) * width + x) * channels + c), inside


@dataclass(frozen=True)
class Conv2dProblem:
    """The product (of one group), and the window its A is read through (see Window.sizes)."""

    m: int
    n: int
    k: int
    parts: int
    part: int
    dtype: str
    pitch: int
    window: tuple[int, ...]
    groups: int


def recognise(func: Any, machine: Machine) -> Conv2dProblem | None:
    """A block that the lowering marked `conv2d`, and the epilogue behind it."""
    block, out = annotated(func, "conv2d"), consumer(func, "conv2d")
    if block is None or out is None or "tvmopt.window" not in block.annotations:
        return None
    if not ends_in(func, block, out):
        return None
    marks = block.annotations
    window = tuple(int(v) for v in marks["tvmopt.window"])
    parts, k = int(marks["tvmopt.parts"]), int(marks["tvmopt.k"])
    dtype = operand_type(block)
    dims, groups = extents(block), int(marks["tvmopt.pieces"])
    if parts > 1:
        _, m, n, part = dims
    else:
        m, n, part = dims[0] * dims[1] * dims[2], dims[3] // groups, k
    return Conv2dProblem(m, n, k, parts, part, dtype, int(marks["tvmopt.pitch"]), window, groups)


def knobs(problem: Conv2dProblem, machine: Machine) -> Space:
    """As for a GEMM."""
    return tile_space(problem.m, problem.n, problem.part, problem.parts * problem.groups, problem.dtype, machine)


def apply(sch: Any, problem: Conv2dProblem, knobs: Knobs) -> None:
    """Write the tile program in the place of the loops."""
    func = sch.mod["main"]
    block, out = annotated(func, "conv2d"), consumer(func, "conv2d")
    assert block is not None
    image, weight = operands(block)
    tile = tile_of(knobs, problem.dtype, shared_limit())
    deep = T.up(problem.part, tile.bk) + (problem.parts - 1) * problem.part
    most = 16 // tile.itemsize
    a = Window(
        image, problem.window, problem.m, problem.k, gcd(problem.window[2] // problem.groups, most),
        (T.up(problem.m, tile.bm), deep), problem.groups,
    )  # fmt: skip
    b = Rows(
        weight,
        problem.n,
        problem.pitch,
        problem.pitch,
        gcd(problem.pitch, most),
        (T.up(problem.n, tile.bn), deep),
        problem.n * problem.pitch if problem.groups > 1 else 0,
    )
    product = Product(
        problem.m,
        problem.n,
        problem.k,
        problem.groups,
        problem.dtype,
        problem.part,
        problem.parts,
        groups=problem.groups > 1,
    )
    Program(product, tile, a, b, Epilogue(out, block.body.buffer, problem.n)).install(sch)
