"""Threads, vectors and blocks shared by the GPU families that use no tensor cores.

vector     16 bytes a thread and access, the widest a thread moves at once; no wider than divides the contiguous
           run of every access, and narrower where the work would not fill the GPU
threads    256 a block (8 warps: 8 blocks fill a multiprocessor's 2048 threads); fewer where blocks would be
           fewer than multiprocessors
"""

from __future__ import annotations

import math
from typing import Any

from tvmopt.scheduling.blocks import fused
from tvmopt.scheduling.facts import BlockFacts, itemsize
from tvmopt.scheduling.strides import contiguous_suffix
from tvmopt.targets import Machine

WORD = 4
"""Lanes beyond which a block computes element by element: TVM has no CUDA type for 8 floats."""
LINE = 16
"""Bytes that one thread loads or stores at most with one instruction."""


def vector_width(block: BlockFacts) -> int:
    """Elements of the widest access that no contiguous run of the block cuts: a power of two, at most 16 bytes."""
    accesses = [*block.loads, *([block.store] if block.store else [])]
    if not accesses or not block.extents:
        return 1
    first = contiguous_suffix(block)
    if first >= len(block.extents):
        return 1
    run = math.prod(block.extents[first:])
    width = LINE // max(itemsize(a.buffer) for a in accesses)
    return math.gcd(run, max(1, width))


def fill(elements: int, width: int, machine: Machine) -> tuple[int, int]:
    """(vector, threads): the widest vector, then the largest block, with a block for every multiprocessor.

    >>> h100 = Machine.load("nvidia-h100")
    >>> fill(1 << 24, 8, h100), fill(100_000, 8, h100), fill(20_000, 8, h100), fill(100, 4, h100)
    ((8, 256), (4, 128), (2, 64), (1, 32))
    """
    while width > 1 and elements // (width * 128) < machine.cores:
        width //= 2
        if elements // (width * 64) >= machine.cores:
            break
    threads = 256
    while threads > 32 and elements // (width * threads) < machine.cores:
        threads //= 2
    return width, threads


def vectors(width: int, chosen: int) -> tuple[int, ...]:
    """The chosen vector, then the others up to `width` for which a schedule has as many loops: see :func:`staged`.

    >>> vectors(8, 2), vectors(8, 8)
    ((2, 1, 4), (8,))
    """
    others = (v for v in (1, 2, 4, 8, 16) if v <= width and v != chosen)
    return (chosen, *(v for v in others if (v > WORD) == (chosen > WORD)))


def one_pass(sch: Any, block: Any, vector: int, threads: int) -> None:
    """`blockIdx x threadIdx x vector` over all iterations of a spatial block."""
    loops = sch.get_loops(block) or [sch.add_unit_loop(block)]
    *outer, last = loops
    if int(sch.get(last).extent) % vector == 0:  # before fusing: regions stay a vector wide
        rest, lanes = sch.split(last, [None, vector])
        grid, thread = sch.split(fused(sch, [*outer, rest]), [None, threads])
    else:
        vector = min(vector, WORD)  # a vector across rows is no region that can be staged
        rest, lanes = sch.split(fused(sch, loops), [None, vector])
        grid, thread = sch.split(rest, [None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if vector > WORD:
        staged(sch, block, thread, lanes, vector)
    elif vector > 1:
        sch.vectorize(lanes)


def staged(sch: Any, block: Any, thread: Any, lanes: Any, vector: int) -> None:
    """Whole vectors between memory and registers, the computation between them element by element."""
    block_reads = [str(region.source.scope()) for region in sch.get(block).reads]
    copies = [sch.cache_read(block, k, "local") for k, scope in enumerate(block_reads) if scope == "global"]
    out = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(out, thread, preserve_unit_loops=True)
    for copy in copies:
        sch.compute_at(copy, thread, preserve_unit_loops=True)
    for copy in (*copies, out):
        innermost = sch.get_loops(copy)[-1]
        if int(sch.get(innermost).extent) == vector:
            sch.vectorize(innermost)
    sch.unroll(lanes)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n.

    >>> power_of_two(1), power_of_two(33), power_of_two(64)
    (1, 64, 64)
    """
    return 1 << max(0, n - 1).bit_length()
