"""A sliding window over NHWC on a GPU - what depthwise convolution and pooling share.

threads    one per vector of channels and output pixel; a warp's lanes are neighbouring channels, then neighbouring
           pixels: loads of a tap are contiguous, and the taps that neighbouring pixels share come from L1
registers  `vector` accumulators a thread; taps unrolled
padding    no buffer: a tap outside is a predicate, the same for a whole vector
floor      bytes of inputs and outputs once / bandwidth
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda._threads import LINE, WORD, fill
from tvmopt.scheduling.blocks import fused, inline_spatial
from tvmopt.scheduling.facts import BlockFacts, facts, itemsize, largest_divisor
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import along
from tvmopt.targets import Machine

WARP = 32
TAPS = 225
"""The largest window that is unrolled: 15 x 15."""


@dataclass(frozen=True)
class WindowProblem:
    """elements: outputs; taps: of the window; width: of the widest vector; vector, threads: the analytic point."""

    elements: int
    taps: int
    width: int
    vector: int
    threads: int


def recognise(func: Any, machine: Machine, tensors: int) -> WindowProblem | None:
    """One reduction over a small window whose last spatial axis is contiguous, reading `tensors` tensors."""
    blocks = facts(func)
    if blocks is None or any(b.kernel or b.store is None or not b.trivial or "O" in b.kinds for b in blocks):
        return None
    windows = [b for b in blocks if "R" in b.kinds]
    if len(windows) != 1:
        return None
    main = windows[0]
    store = main.store
    if store is None:
        return None
    inputs = [a for a in main.loads if not a.buffer.same_as(store.buffer)]
    spatial = [k for k, kind in enumerate(main.kinds) if kind == "S"]
    taps = math.prod(e for e, kind in zip(main.extents, main.kinds, strict=True) if kind == "R")
    if (
        len(inputs) != tensors
        or not spatial
        or not 1 < taps <= TAPS
        or main.kinds != "S" * len(spatial) + "R" * (len(main.kinds) - len(spatial))
    ):
        return None
    outputs = math.prod(main.extents[k] for k in spatial)
    if blocks[-1] is not main and blocks[-1].elements != outputs:
        return None
    channel = spatial[-1]
    if any(along(main, a, channel) not in (0, 1) for a in (*inputs[:1], store)):
        return None
    if not _is_window(main, inputs[0], taps) or (tensors == 1 and outputs < 64 * machine.cores):
        return None
    width = LINE // max(itemsize(a.buffer) for a in (*inputs, store))
    width = math.gcd(main.extents[channel], min(width, WORD))
    return WindowProblem(outputs, taps, width, *fill(outputs, width, machine))


def _is_window(main: BlockFacts, source: Any, taps: int) -> bool:
    """Whether the source is walked in a window: each of its elements is read at most once a tap (no channel sum)."""
    size = math.prod(int(d) for d in source.buffer.shape)
    outputs = main.elements // taps
    reduced = [k for k, kind in enumerate(main.kinds) if kind == "R" and main.extents[k] > 1]
    return len(reduced) <= 3 and outputs <= 4 * size and all(along(main, source, k) != 1 for k in reduced)


def knobs(problem: WindowProblem, machine: Machine) -> Space:
    """`vector`: channels a thread; `threads` a block."""
    vectors = [v for v in (1, 2, 4, 8) if v <= problem.width and v != problem.vector]
    return Space(
        {
            "vector": (problem.vector, *vectors),
            "threads": (problem.threads, *(t for t in (64, 128, 256, 512) if t != problem.threads)),
        }
    )


def apply(sch: Any, problem: WindowProblem, knobs: Knobs) -> None:
    """Window and epilogue in one thread's registers."""
    blocks = inline_spatial(sch)
    main = next(b for b in blocks if any(int(v.iter_type) == 2 for v in sch.get(b).iter_vars))
    serial_reduction(sch, main, blocks[-1], knobs["vector"], knobs["threads"], unroll=True)


def whole_threads(extents: list[int], limit: int) -> int:
    """The most threads that cut the iterations along whole axes: the last axes, and a divisor of the one before.

    >>> whole_threads([1, 15, 15, 10], 64), whole_threads([1, 28, 28, 10], 256), whole_threads([1, 17, 17, 7], 64)
    (50, 140, 7)
    """
    best, inner = 1, 1
    for extent in reversed(extents):
        best = max(best, inner * largest_divisor(extent, max(1, limit // inner)))
        inner *= extent
        if inner > limit:
            break
    return best


def serial_reduction(sch: Any, main: Any, last: Any, vector: int, threads: int, unroll: bool) -> None:
    """A thread `vector` outputs, each reduced in registers; `last` is `main` or the epilogue behind it."""
    if sch.get(last).name_hint == sch.get(main).name_hint:
        main, last = _written_back(sch, main)
    else:
        sch.set_scope(main, 0, "local")
    *loops, channels = sch.get_loops(last)
    extents = [int(sch.get(loop).extent) for loop in (*loops, channels)]
    extents[-1] //= vector
    exact = whole_threads(extents, threads)
    if exact < WARP:  # a guard in every thread: TVM then neither vectorises nor decomposes a reduction
        extents[-1], vector, exact = extents[-1] * vector, 1, threads
    outer, lanes = sch.split(channels, [None, vector])  # before fusing: bindings stay affine
    grid, thread = sch.split(fused(sch, [*loops, outer]), [None, exact])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.compute_at(main, thread, preserve_unit_loops=True)
    if vector > 1:
        sch.vectorize(lanes)
    kinds = [int(v.iter_type) for v in sch.get(main).iter_vars]
    inner = sch.get_loops(main)[2:]
    spatial, reduced = inner[: kinds.count(0)], inner[kinds.count(0) :]
    sch.reorder(*reduced, *spatial)
    wide = vector > 1 and int(sch.get(spatial[-1]).extent) == vector
    if wide:  # before decomposing: TVM refuses it on an update block
        sch.vectorize(spatial[-1])
    if unroll:
        for loop in reduced:
            sch.unroll(loop)
    if whole_threads(extents, exact) == exact:
        sch.decompose_reduction(main, reduced[0])


def _written_back(sch: Any, main: Any) -> tuple[Any, Any]:
    """The reduction into registers, and a block that writes it out."""
    name = sch.get(main).name_hint
    out = sch.cache_write(main, 0, "local")
    return sch.get_sblock(name), out
