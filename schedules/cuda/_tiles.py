"""What the schedules of products on tensor cores share: operands and their type, the tiles to choose from."""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cuda._epilogue import loads
from tvmopt.scheduling.cuda_tile import TF32, CudaTile, bytes_of, plan, tiles
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

FEW_ROWS = 8
"""Products of up to so many rows with constant weights stream the weights once, without tensor cores."""


def operands(block: Any) -> list[Any]:
    """A's and B's buffers, from `acc = acc + cast(A) * cast(B)`."""
    acc = block.body.buffer
    found = [load.source for load in loads(block.body.value) if not load.source.same_as(acc)]
    return found[:2]


def operand_type(block: Any) -> str:
    """The operands' type, or "tf32": fp32 in memory, of which the lowering allowed one tf32 product."""
    return "tf32" if int(block.annotations["tvmopt.mma"]) == TF32 else str(operands(block)[0].dtype)


def tile_space(m: int, n: int, k: int, batch: int, dtype: str, machine: Machine) -> Space:
    """The tiles of a product, the cheapest by the model first."""
    best, _ = plan(m, n, k, batch, dtype, machine, 1)
    others = tiles(machine, dtype)

    def choices(name: str) -> tuple[int, ...]:
        first = getattr(best, name)
        return (first, *sorted({getattr(t, name) for t in others} - {first}))

    return Space({name: choices(name) for name in ("bm", "bn", "bk", "stages")})


def tile_of(knobs: Knobs, dtype: str, limit: int) -> CudaTile:
    """The tile of a point, with fewer stages where the asked number does not fit in `limit` bytes."""
    size = bytes_of(dtype)
    stages = knobs["stages"]
    while stages > 2 and CudaTile(knobs["bm"], knobs["bn"], knobs["bk"], stages, size).shared > limit:
        stages -= 1
    return CudaTile(knobs["bm"], knobs["bn"], knobs["bk"], stages, size)


def shared_limit() -> int:
    """Bytes of shared memory of a block on the target in scope."""
    import tvm

    target = tvm.target.Target.current(allow_none=True)
    return int(target.attrs.get("max_shared_memory_per_block", 49152)) if target is not None else 49152
