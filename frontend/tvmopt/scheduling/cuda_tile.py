"""Tiles of a matrix product on tensor cores: candidates, what they cost, the best one, how often to split K.

A block of warps computes bm x bn of C in steps of bk; a step's operands come from L2 by cp.async, `stages`
steps ahead. Per block, in cycles of one SM (the terms overlap, so the longest counts):

    tensor   bm*bn*bk / rate                    rate: multiply-adds a cycle and SM of `mma`
    L2       (bm + bn)*bk*bytes / l2_rate       l2_rate: bytes a cycle and SM, all SMs reading
    latency  L2_LATENCY / (stages - 1)          a block waits for its own copies; blocks on an SM overlap

    blocks  = ceil(m/bm) * ceil(n/bn) * batch * splits;   waves = ceil(blocks / SMs)
    time    = the longer of waves * steps * max(tensor, L2) and rounds * steps * latency, a tenth of the shorter, edges

For the lowerings, which split K, and for the schedules of `schedules/cuda`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tvmopt.targets import Machine

L2_LATENCY = 600  # cycles; 200 to 270 on A100 and H100 when idle, some two to three times that under load
BARRIER = 40  # cycles of a step in which a block's warps wait for each other
EDGE = 2500  # cycles of a block before its first and after its last step: launch, first copies, epilogue
SPLIT = 3000  # cycles of the second kernel that adds the parts up, beside its traffic
L2_SHARE = 0.7  # of the L2 rate that a kernel sees

PLAIN, TF32 = 1, 2
"""What a lowering writes into a product's annotation "tvmopt.mma": how tensor cores may multiply it."""

_TENSOR = {"sm_70": 512, "sm_75": 512, "sm_80": 1024, "sm_86": 512, "sm_87": 1024, "sm_89": 512}
"""fp16 multiply-adds a cycle and SM: NVIDIA's architecture whitepapers. Newer ones: 1024, the half of their
peak that `mma.sync` can use (wgmma and tcgen05 reach the rest)."""


@dataclass(frozen=True)
class CudaTile:
    """bm x bn of C a block, bk of K a step, `stages` steps of operands in shared memory.

    Attributes:
        itemsize: bytes of an operand's element.
    """

    bm: int
    bn: int
    bk: int
    stages: int
    itemsize: int = 2

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along M and N: 64x64 a warp in the big tiles, never below 16 x 16.

        >>> [CudaTile(*t, 3).warps for t in ((128, 128, 32), (128, 256, 32), (64, 64, 64), (16, 64, 64))]
        [(2, 2), (2, 4), (2, 2), (1, 4)]
        """
        count = 8 if self.bm * self.bn >= 32768 else 4
        if self.bm < 32:
            return 1, min(count, self.bn // 16)
        across = 2 if self.bm < 256 else 4
        return across, max(1, min(count // across, self.bn // 16))

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of K in shared memory: 64 or 128, what the swizzle knows."""
        return self.bk * self.itemsize

    @property
    def stage_bytes(self) -> int:
        return (self.bm + self.bn) * self.row_bytes

    @property
    def stride(self) -> int:
        """Floats between rows of the epilogue's tile: eight beyond a multiple of 32, so that neighbours in a
        column lie in different banks."""
        return self.bn + 8

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the operands' stages, later the accumulators.

        >>> CudaTile(128, 128, 32, 4).shared, CudaTile(128, 256, 32, 4).shared
        (69632, 135168)
        """
        return max(self.stages * self.stage_bytes, self.bm * self.stride * 4)

    @property
    def registers(self) -> int:
        """Of a thread: accumulators, one step's fragments, and 56 for addresses and the epilogue.

        >>> CudaTile(128, 128, 32, 4).registers, CudaTile(256, 128, 32, 4).registers, CudaTile(64, 64, 64, 4).registers
        (216, 216, 104)
        """
        wm, wn = self.bm // self.warps[0], self.bn // self.warps[1]
        return wm * wn // 32 + wm // 4 + wn // 4 + 56

    def fits(self, machine: Machine) -> bool:
        """Whether a block can be launched: shared memory, and at most 255 registers a thread."""
        limit = int(machine.tvm.get("max_shared_memory_per_block", 49152))
        return self.shared <= limit and self.registers <= 255

    def resident(self, machine: Machine) -> int:
        """Blocks on an SM at once.

        >>> h = Machine.load("nvidia-h100")
        >>> CudaTile(128, 128, 32, 4).resident(h), CudaTile(64, 64, 64, 3).resident(h)
        (2, 4)
        """
        by_shared = int(machine.l1d) // (self.shared + 1024)
        by_registers = int(machine.tvm.get("registers_per_block", 65536)) // (self.threads * self.registers)
        return int(max(1, min(by_shared, by_registers, 2048 // self.threads)))


def tensor_rate(machine: Machine, dtype: str) -> float:
    """Multiply-adds a cycle and SM. tf32 runs at half the rate, fp32 operands as three tf32 products.

    >>> a = Machine.load("nvidia-a100")
    >>> tensor_rate(a, "float16"), tensor_rate(a, "tf32"), tensor_rate(a, "float32")
    (1024, 512.0, 170.66666666666666)
    """
    rate = _TENSOR.get(machine.mcpu, 1024)
    return rate / {"float32": 6, "tf32": 2}.get(dtype, 1) if bytes_of(dtype) == 4 else rate


def bytes_of(dtype: str) -> int:
    """Bytes of an operand's element in memory; "tf32" is fp32 that the tensor core reads the upper half of.

    >>> bytes_of("float16"), bytes_of("tf32")
    (2, 4)
    """
    return 4 if dtype in ("float32", "tf32") else 2


SIZES = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (64, 32), (32, 64),
         (32, 32), (16, 128), (16, 64), (128, 32))  # fmt: skip


def tiles(machine: Machine, dtype: str) -> list[CudaTile]:
    """Every tile the machine can launch."""
    size = bytes_of(dtype)
    made = [
        CudaTile(bm, bn, row // size, stages, size)
        for bm, bn in SIZES
        for row in (64, 128)
        for stages in (2, 3, 4, 5, 6)
    ]
    return [t for t in made if t.fits(machine)]


def cycles(tile: CudaTile, m: int, n: int, k: int, batch: int, splits: int, machine: Machine, dtype: str) -> float:
    """The module's formula."""
    steps = ceil(ceil(k / splits) / tile.bk)
    blocks = ceil(m / tile.bm) * ceil(n / tile.bn) * batch * splits
    active = min(blocks, machine.cores)
    l2 = min(64.0, L2_SHARE * float(machine.l2_rate) * machine.cores / active)
    tensor = tile.bm * tile.bn * tile.bk / tensor_rate(machine, dtype)
    # two warps a scheduler hide each other's latencies; a lone small block uses little of the tensor cores
    resident = min(tile.resident(machine), ceil(blocks / machine.cores))
    tensor /= min(1.0, 0.4 + 0.15 * resident * tile.threads / 32)
    step = max(tensor, tile.stage_bytes / l2) + BARRIER / resident
    waves: int = ceil(blocks / machine.cores)
    rounds = ceil(blocks / (machine.cores * tile.resident(machine)))
    busy = waves * steps * step
    waiting = rounds * steps * L2_LATENCY / (tile.stages - 1)
    once = EDGE + (waves - 1) * EDGE / (2 * tile.resident(machine))
    total: float = max(busy, waiting) + 0.1 * min(busy, waiting) + once
    if splits > 1:
        total += SPLIT + 2 * splits * batch * m * n * 4 / (L2_SHARE * machine.l2_rate * machine.cores)
    return float(total)


@lru_cache(maxsize=4096)
def plan(m: int, n: int, k: int, batch: int, dtype: str, machine: Machine, splits: int = 0) -> tuple[CudaTile, int]:
    """The cheapest tile, and into how many parts to cut K (1: whole); `splits` asks for a number.

    >>> h = Machine.load("nvidia-h100")
    >>> tile, splits = plan(4096, 4096, 4096, 1, "float16", h); (tile.bm, tile.bn, splits)
    (128, 256, 1)
    >>> tile, splits = plan(49, 512, 4608, 1, "float16", h); (tile.bm, tile.bn, splits)
    (64, 64, 8)
    """
    best: tuple[float, CudaTile, int] | None = None
    for tile in tiles(machine, dtype):
        steps = ceil(k / tile.bk)
        if tile.stages > max(2, steps + 1):
            continue  # a longer ring than there are steps
        asked = (splits,) if splits else [s for s in (1, 2, 3, 4, 6, 8, 12, 16) if steps // s >= 4 or s == 1]
        for parts in asked:
            cost = cycles(tile, m, n, k, batch, parts, machine, dtype)
            if best is None or cost < best[0] * 0.999:
                best = cost, tile, parts
    assert best is not None  # the smallest tile fits any GPU that has tensor cores
    return best[1], best[2]


def split_length(k: int, splits: int) -> int:
    """Length of one part of K: a multiple of 64, so that a part starts at a step.

    >>> split_length(2304, 4), split_length(4608, 16), split_length(100, 1)
    (576, 320, 100)
    """
    return k if splits == 1 else ceil(ceil(k / splits) / 64) * 64
