"""GEMM and batched GEMM on tensor cores: fp16, bf16, or fp32 as three tf32 products, or one; fp32 accumulators,
fused epilogue.

tile       scheduling/cuda_tile.py chooses bm x bn x bk and the stages by a model of tensor cores, L2 and waves
shared     stages*(bm + bn)*bk*itemsize, at least the epilogue's bm*(bn + 8)*4    128x128x32, 4 stages: 68 KB, 2 blocks
registers  a 64x64 warp tile: 128 accumulators + 32 fragments + addresses         <= 255, no spill (tests)
banks      swizzled: ldmatrix and cp.async touch each bank once (_device.cuh, `at`)
edges      zeros are copied beyond M, N and K; nothing is padded in memory but K to a multiple of 8 in constant weights
small M*N  the lowering cuts K in parts (a batch of partial sums; the family `split_sum` adds them)
Measured   not yet on a GPU: numbers are checked in the emulator, registers and spills by ptxas (tests/cuda)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue, ends_in
from tvmopt.schedules.cuda._mainloop import Product, Program, Rows
from tvmopt.schedules.cuda._tiles import FEW_ROWS, operand_type, operands, shared_limit, tile_of, tile_space
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class Shape:
    """C[batch, m, n] = A[batch, m, k] * B; `parts` of length `part`: the batch is a split of K.

    Attributes:
        across: B lies [k, n], else [n, k].
        shared_a, shared_b: one matrix for the whole batch.
        pitch: elements between B's rows.
    """

    m: int
    n: int
    k: int
    batch: int
    parts: int
    part: int
    dtype: str
    across: bool
    shared_a: bool
    shared_b: bool
    pitch: int


def recognise(func: Any, machine: Machine) -> Shape | None:
    """A block that the lowering marked `gemm` or `batch_gemm`, and the epilogue behind it."""
    for kernel in ("gemm", "batch_gemm"):
        block, out = annotated(func, kernel), consumer(func, kernel)
        if block is None or out is None or "tvmopt.mma" not in block.annotations:
            continue
        if not ends_in(func, block, out):
            return None
        notes = block.annotations
        *lead, m, n, k = extents(block)
        parts = int(notes["tvmopt.parts"])
        whole = int(notes["tvmopt.k"])
        if len(lead) > 1:
            return None
        if kernel == "gemm" and m <= FEW_ROWS:
            return None  # gemv's
        return Shape(
            m, n, whole, 1 if parts > 1 or not lead else lead[0], parts, k, operand_type(block),
            bool(int(notes["tvmopt.across"])), bool(int(notes["tvmopt.shared_a"])),
            bool(int(notes["tvmopt.shared_b"])), int(notes["tvmopt.pitch"]),
        )  # fmt: skip
    return None


def knobs(shape: Shape, machine: Machine) -> Space:
    """`bm`, `bn`, `bk`: the block's tile; `stages` of the pipeline, as many as fit where fewer do."""
    return tile_space(shape.m, shape.n, shape.part, shape.batch * shape.parts, shape.dtype, machine)


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """Write the tile program in the place of the loops."""
    func = sch.mod["main"]
    name = "gemm" if annotated(func, "gemm") is not None else "batch_gemm"
    block, out = annotated(func, name), consumer(func, name)
    assert block is not None
    a, b = operands(block)
    tile = tile_of(knobs, shape.dtype, shared_limit())
    rows = (T.up(shape.m, tile.bm), T.up(shape.n, tile.bn))
    deep = T.up(shape.part, tile.bk) + (shape.parts - 1) * shape.part
    size = tile.itemsize
    operand_a = Rows(
        a, shape.m, shape.k, shape.k, gcd(shape.k, 16 // size), (rows[0], deep),
        0 if shape.shared_a or shape.parts > 1 else shape.m * shape.k,
    )  # fmt: skip
    chunk = gcd(shape.pitch, shape.n if shape.across else shape.pitch, 16 // size)
    operand_b = Rows(
        b, shape.n, shape.k if shape.across else shape.pitch, shape.pitch, chunk, (rows[1], deep),
        0 if shape.shared_b or shape.parts > 1 else shape.pitch * (shape.k if shape.across else shape.n),
        shape.across,
    )  # fmt: skip
    product = Product(shape.m, shape.n, shape.k, shape.batch, shape.dtype, shape.part, shape.parts)
    Program(product, tile, operand_a, operand_b, Epilogue(out, block.body.buffer, shape.n)).install(sch)
