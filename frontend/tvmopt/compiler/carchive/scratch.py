"""How much memory kernels ask the runtime for while they run - for the workspace of a C archive.

A buffer that is too large for the stack is a call of `TVMBackendAllocWorkspace`, whose size stands in the loops behind
TVM's passes. Buffers of one kernel are added up, whether they are needed at once or not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from tvmopt.compiler.kernels import loops, named
from tvmopt.runtime.tensors import ALIGNMENT
from tvmopt.targets import Machine
from tvmopt.targets.detect import usable_cores

ALLOCATE = "TVMBackendAllocWorkspace"


def scratch_bytes(
    kernels: tvm.IRModule, objects: dict[str, bytes], machine: Machine, without: tuple[str, ...] = ()
) -> int:
    """The most that a thread needs at a time, a multiple of 64.

    Args:
        kernels: before TVM's own passes of loops. objects: their code.
    """
    asking = [func for name, func in named(kernels) if ALLOCATE.encode() in objects[name]]
    with ThreadPoolExecutor(max(1, usable_cores())) as threads:  # TVM works without Python's lock
        return max(
            threads.map(lambda func: _asked(loops(func, "kernel", kernels, machine, without)), asking), default=0
        )


def _asked(module: tvm.IRModule) -> int:
    sizes: list[int] = []

    def seen(call: Any) -> None:
        if str(getattr(call.op, "name", "")).endswith(ALLOCATE) or (
            call.args and getattr(call.args[0], "value", None) == ALLOCATE
        ):
            size = next(int(a) for a in call.args if isinstance(a, tirx.IntImm) and str(a.ty.dtype) == "uint64")
            sizes.append(-(-size // ALIGNMENT) * ALIGNMENT)

    for _, func in module.functions_items():
        structural_walk(func.body, ((tvm.ir.Call, seen),))
    return sum(sizes)
