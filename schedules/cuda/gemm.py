"""GEMM and batched GEMM on tensor cores: fp16, bf16, or fp32 as three tf32 products, or one; fp32 accumulators,
fused epilogue.

tile       scheduling/cuda_tile.py chooses bm x bn x bk and the stages by a model of tensor cores, L2 and waves
shared     stages*(bm + bn)*bk*itemsize, at least the epilogue's bm*(bn + 8)*4    128x128x32, 4 stages: 68 KB, 2 blocks
registers  a 64x64 warp tile: 128 accumulators + 32 fragments + addresses         <= 255, no spill (tests)
banks      swizzled: ldmatrix and cp.async touch each bank once (_device.cuh, `at`)
edges      zeros are copied beyond M, N and K; nothing is padded in memory but K to a multiple of 8 in constant weights
small M*N  the legalizer cuts K in parts (a batch of partial sums; split_sum.py adds them)
Measured   not yet on a GPU: numbers are checked in the emulator, registers and spills by ptxas (tests/cuda)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue, ends_in, loads
from tvmopt.schedules.cuda._mainloop import Product, Program, Rows
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.cuda_tile import TF32, Tile, bytes_of, plan, tiles
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

NAME, VERSION = "gemm", 1
FEW_ROWS = 8
"""Products of up to so many rows with constant weights stream the weights once, without tensor cores."""


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
    """A block that the legalizer marked `gemm` or `batch_gemm`, and the epilogue behind it."""
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
            return None  # gemv.py's
        return Shape(
            m, n, whole, 1 if parts > 1 or not lead else lead[0], parts, k, product_type(block),
            bool(int(notes["tvmopt.across"])), bool(int(notes["tvmopt.shared_a"])),
            bool(int(notes["tvmopt.shared_b"])), int(notes["tvmopt.pitch"]),
        )  # fmt: skip
    return None


def operands(block: Any) -> list[Any]:
    """A's and B's buffers, from `acc = acc + cast(A) * cast(B)`."""
    acc = block.body.buffer
    found = [load.source for load in loads(block.body.value) if not load.source.same_as(acc)]
    return found[:2]


def product_type(block: Any) -> str:
    """The operands' type, or "tf32": fp32 in memory, of which the legalizer allowed one tf32 product."""
    return "tf32" if int(block.annotations["tvmopt.mma"]) == TF32 else str(operands(block)[0].dtype)


def knobs(shape: Shape, machine: Machine) -> Space:
    """`bm`, `bn`, `bk`: the block's tile; `stages` of the pipeline, as many as fit where fewer do."""
    return tile_space(shape.m, shape.n, shape.part, shape.batch * shape.parts, shape.dtype, machine)


def tile_space(m: int, n: int, k: int, batch: int, dtype: str, machine: Machine) -> Space:
    """The tiles of a product, the cheapest by the model first."""
    best, _ = plan(m, n, k, batch, dtype, machine, 1)
    others = tiles(machine, dtype)

    def choices(name: str) -> tuple[int, ...]:
        first = getattr(best, name)
        return (first, *sorted({getattr(t, name) for t in others} - {first}))

    return Space({name: choices(name) for name in ("bm", "bn", "bk", "stages")})


def tile_of(knobs: Knobs, dtype: str, limit: int) -> Tile:
    """The tile of a point, with fewer stages where the asked number does not fit in `limit` bytes."""
    size = bytes_of(dtype)
    stages = knobs["stages"]
    while stages > 2 and Tile(knobs["bm"], knobs["bn"], knobs["bk"], stages, size).shared > limit:
        stages -= 1
    return Tile(knobs["bm"], knobs["bn"], knobs["bk"], stages, size)


def shared_limit() -> int:
    """Bytes of shared memory of a block on the target in scope."""
    import tvm

    target = tvm.target.Target.current(allow_none=True)
    return int(target.attrs.get("max_shared_memory_per_block", 49152)) if target is not None else 49152


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
