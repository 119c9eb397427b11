"""Code for NVIDIA GPUs, with or without one in the machine - for `--target cuda`.

It is made in a child process to which `toolchain/cuda.py` gives a CUDA compiler and, without a GPU, a stand-in for the
driver: a kernel that nvcc refuses is an error now. Kernels that no family in `schedules/cuda` takes get TVM's dlight,
and the report says so.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmopt.compiler.backend import Code
from tvmopt.compiler.request import Request
from tvmopt.errors import MissingDependency, ScheduleError
from tvmopt.targets import Machine, devices
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.cuda import compiler, environment, find_toolkit
from tvmopt.toolchain.ptxas import Recorder, recording, unfit


@dataclass(frozen=True)
class CudaCode(Code):
    """Code with what ptxas said of it."""

    recorder: Recorder

    def unfit(self, kernel: str) -> list[str]:
        return unfit(self.recorder.of(kernel), self.recorder.machine)

    def check(self) -> None:
        self.recorder.check()

    def launches(self, kernel: str) -> tuple[dict[str, Any], ...]:
        return tuple(launch.as_dict() for launch in self.recorder.of(kernel))

    def warnings(self) -> tuple[str, ...]:
        return self.recorder.warnings()


class Cuda:
    """NVIDIA's GPUs: a `tvmopt.compiler.backend.Backend`."""

    def environment(self, machine: Machine) -> Mapping[str, str]:
        return environment(find_toolkit())

    def check(self) -> None:
        import tvm

        devices.load()
        if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
            raise MissingDependency(
                "TVM's CUDA part cannot be loaded.",
                where=f"libtvm_runtime_cuda.so, with {os.environ['LD_LIBRARY_PATH']}",
                fix="it needs libcudart.so.13: install NVIDIA's CUDA 13 toolkit",
            )

    def arch(self, machine: Machine) -> str:
        return host_arch()

    def generate(self, lowered: Any, request: Request) -> Code:
        from tvmopt import pipeline

        with recording(request.machine, compiler()) as recorder:
            executable = pipeline.build(lowered, request.machine, request.cuda_graph)
        if any(kernel.bytes for kernel in lowered.kernels) and not recorder.binaries:
            raise ScheduleError(
                "TVM made no machine code for the GPU.",
                where=str(request.source),
                fix="please report it with the model",
            )
        return CudaCode(executable, recorder)

    def warnings(self, lowered: Any) -> tuple[str, ...]:
        """Kernels that no family of ours scheduled, by rule and number."""
        rules = Counter(k.family for k in lowered.kernels if k.family.startswith("dlight."))
        if not rules:
            return ()
        told = ", ".join(f"{number} by {rule}" for rule, number in sorted(rules.items()))
        return (f"no family of tvmopt scheduled {rules.total()} of {len(lowered.kernels)} kernels: {told}",)
