"""One kernel on a GPU, here or behind an RPC tracker - inside a worker process, in place of `kernel.Bench`.

build      by nvcc; what exceeds the GPU's threads, registers or shared memory, or spills, is refused before it runs
reference  the kernel without any schedule, on this machine's CPU: loops that no GPU could run
time       CUDA events around single launches, L2 swept between them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from tvmopt.errors import ScheduleError
from tvmopt.pipeline import compile_kernels
from tvmopt.scheduling.blocks import blocks_of
from tvmopt.scheduling.cuda_tile import TF32
from tvmopt.targets import Machine
from tvmopt.targets.detect import usable_cores
from tvmopt.toolchain.cuda import compiler
from tvmopt.toolchain.ptxas import recording, unfit
from tvmopt.tuning.kernel import Bench, Sample, compiled_module
from tvmopt.tuning.record import Candidate
from tvmopt.tuning.remote import RemoteBench, timed_there


def machine_code(func: tirx.PrimFunc, machine: Machine, spills: bool = False) -> Any:
    """A scheduled function compiled for the GPU as `compile` does it.

    Args:
        spills: take it even if registers spill.

    Raises:
        ScheduleError: nvcc refuses it, it exceeds the GPU's limits, or it spills.
    """
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with recording(machine, compiler()) as recorder:
        made = compile_kernels(module, machine)
    if not recorder.binaries:
        raise ScheduleError("TVM made no machine code for the GPU", where=machine.name)
    problems = unfit(recorder.launches(), machine, spills=not spills)
    if problems:
        raise ScheduleError("; ".join(problems), where=machine.name)
    return made


class OnGpu(Bench):
    """What the two benches share."""

    _analytic = False

    def build(self, candidate: Candidate) -> None:
        self._analytic = candidate.knobs == self.kernel.analytic and not candidate.trace
        super().build(candidate)

    def _module_of(self, func: tirx.PrimFunc) -> Any:
        return machine_code(func, self.kernel.machine, self._analytic)  # what is compared with must be there

    def _run_once(self, func: tirx.PrimFunc, inputs: Sequence[Any]) -> list[Any]:
        host = Machine.load("cpu").with_cores(usable_cores())
        outputs = [tvm.runtime.tensor(a) for a in self._poisoned()]
        compiled_module(func, host)["main"](*map(tvm.runtime.tensor, inputs), *outputs)
        return outputs

    @property
    def precision(self) -> str | None:
        marks = (int(b.annotations.get("tvmopt.mma", 0)) for b in blocks_of(self.func))
        return "tf32" if TF32 in marks else None

    @property
    def host(self) -> str:
        """The GPU's name and highest clock."""
        device = self.device
        return f"{device.device_name}, up to {device.max_clock_rate / 1e3:.0f} MHz"


@dataclass
class GpuBench(OnGpu):
    """On this machine's GPU."""

    modules: dict[str, Any] = field(default_factory=dict)

    def build(self, candidate: Candidate) -> None:
        super().build(candidate)
        self.modules[candidate.id] = self._last

    def _compiled(self, func: tirx.PrimFunc) -> Any:
        self._last = self._module_of(func).jit()
        return self._last["main"]

    def _timed(self, ident: str, flush: str) -> Sample:
        self._load()
        arguments = (*self._inputs, *self._empty_outputs())
        return timed_there(self.modules[ident], self.device, self.kernel.machine, flush, arguments)

    @property
    def device(self) -> Any:
        return tvm.cuda(0)


class RemoteGpuBench(OnGpu, RemoteBench):
    """On the GPU of a board. Its reference is made here: a host without a GPU can tune."""

    @property
    def device(self) -> Any:
        return self._session.cuda(0)

    @property
    def host(self) -> str:
        with self._board():
            return super().host
