"""The kernels of the emulator's tests on a real GPU. Where there is one, its numbers are judged, not the emulator's.

A GPU has one order of threads, which changes from run to run: results whose bits differ between runs are a race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmopt.runtime.library import cuda_available
from tvmopt.targets import Machine
from tvmopt.toolchain.cuda import compiling_here

RUNS = 5
UNWRITTEN = 0x7F


def is_here(machine: Machine) -> bool:
    """Whether this machine has a GPU that runs code for `machine`."""
    return cuda_available() and f"sm_{tvm.cuda(0).compute_version.replace('.', '')}" == machine.mcpu


def run(func: Any, machine: Machine, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """One scheduled PrimFunc; `outputs` are written in place, after bytes that no kernel writes by chance."""
    target = machine.tvm_target()
    with target, compiling_here(machine):
        built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target=target)

    def once() -> list[np.ndarray]:
        made = [np.frombuffer(bytes([UNWRITTEN]) * out.nbytes, out.dtype).reshape(out.shape) for out in outputs]
        given = [tvm.runtime.tensor(np.ascontiguousarray(a), tvm.cuda(0)) for a in (*inputs, *made)]
        built["main"](*given)
        tvm.cuda(0).sync()
        return [tensor.numpy() for tensor in given[len(inputs) :]]

    for out, result in zip(outputs, _same(once), strict=True):
        out[...] = result


def repeated(executable: Any, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The output of an executable of Relax's virtual machine, the same in every run."""
    vm = relax.VirtualMachine(executable, tvm.cuda(0))

    def once() -> list[np.ndarray]:
        return [vm["main"](*(tvm.runtime.tensor(x, tvm.cuda(0)) for x in inputs)).numpy()]

    return _same(once)[0]


def _same(once: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    """The results, the same in every run."""
    first = once()
    for _ in range(RUNS - 1):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, once(), strict=True)), "a race on the GPU"
    return first
