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
class GemmProblem:
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


def recognise(func: Any, machine: Machine) -> GemmProblem | None:
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
        return GemmProblem(
            m, n, whole, 1 if parts > 1 or not lead else lead[0], parts, k, operand_type(block),
            bool(int(notes["tvmopt.across"])), bool(int(notes["tvmopt.shared_a"])),
            bool(int(notes["tvmopt.shared_b"])), int(notes["tvmopt.pitch"]),
        )  # fmt: skip
    return None


def knobs(problem: GemmProblem, machine: Machine) -> Space:
    """`bm`, `bn`, `bk`: the block's tile; `stages` of the pipeline, as many as fit where fewer do."""
    return tile_space(problem.m, problem.n, problem.part, problem.batch * problem.parts, problem.dtype, machine)


def apply(sch: Any, problem: GemmProblem, knobs: Knobs) -> None:
    """Write the tile program in the place of the loops."""
    func = sch.mod["main"]
    name = "gemm" if annotated(func, "gemm") is not None else "batch_gemm"
    block, out = annotated(func, name), consumer(func, name)
    assert block is not None
    a, b = operands(block)
    tile = tile_of(knobs, problem.dtype, shared_limit())
    rows = (T.up(problem.m, tile.bm), T.up(problem.n, tile.bn))
    deep = T.up(problem.part, tile.bk) + (problem.parts - 1) * problem.part
    size = tile.itemsize
    operand_a = Rows(
        a, problem.m, problem.k, problem.k, gcd(problem.k, 16 // size), (rows[0], deep),
        0 if problem.shared_a or problem.parts > 1 else problem.m * problem.k,
    )  # fmt: skip
    chunk = gcd(problem.pitch, problem.n if problem.across else problem.pitch, 16 // size)
    operand_b = Rows(
        b, problem.n, problem.k if problem.across else problem.pitch, problem.pitch, chunk, (rows[1], deep),
        0 if problem.shared_b or problem.parts > 1 else problem.pitch * (problem.k if problem.across else problem.n),
        problem.across,
    )  # fmt: skip
    product = Product(problem.m, problem.n, problem.k, problem.batch, problem.dtype, problem.part, problem.parts)
    Program(product, tile, operand_a, operand_b, Epilogue(out, block.body.buffer, problem.n)).install(sch)
