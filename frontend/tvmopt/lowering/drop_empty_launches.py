"""A grid of no blocks is not launched - for GPUs, before TVM's passes of loops.

    Before                                              After
    for b in T.thread_binding(0, "blockIdx.x"):         0
        for t in T.thread_binding(32, "threadIdx.x"):
            y[b * 32 + t] = T.max(x[b * 32 + t], 0)

TVM 0.27 launches a grid of no blocks as one block, and proves that no thread of it needs a guard: 32 elements were
written behind a tensor that has none.

Applies when   a tensor that a kernel writes has no elements.
Gain           none; such kernels touched foreign memory.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import gpu_pass


def _launched(loop: Any) -> Any:
    none = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 0
    return tirx.Evaluate(0) if none and loop.kind == tirx.ForKind.THREAD_BINDING else loop


DropEmptyLaunches = gpu_pass("tvmopt.DropEmptyLaunches", tirx.For, _launched)
