"""Code for CPUs, by LLVM in this process; the C compiler links it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmopt.cache import Kernels
from tvmopt.compiler.backend import Code, why
from tvmopt.compiler.request import Request
from tvmopt.targets import Machine
from tvmopt.toolchain.linking import export, find_linker


@dataclass(frozen=True)
class LlvmCode(Code):
    """The virtual machine's code, the object file of each kernel by its name, and why the others have none."""

    objects: Mapping[str, bytes]
    failed: Mapping[str, Exception]

    def library(self, arch: str) -> bytes:
        return export(self.executable, arch, self.objects)

    def unfit(self, kernel: str) -> list[str]:
        return [f"its kernel cannot be compiled: {why(self.failed[kernel])}"] if kernel in self.failed else []

    def check(self) -> None:
        for error in self.failed.values():
            raise error


class Llvm:
    """CPUs: a `tvmopt.compiler.backend.Backend`."""

    def environment(self, machine: Machine) -> None:
        find_linker(machine.arch)

    def check(self) -> None: ...

    def arch(self, machine: Machine) -> str:
        return machine.arch

    def generate(self, lowered: Any, request: Request) -> Code:
        from tvm import IRModule

        from tvmopt import pipeline
        from tvmopt.compiler.kernels import objects

        machine = request.machine
        run, link = pipeline.plan_memory(lowered, machine)
        kernels = run.module
        if run.watch is not None:  # it wants to see all of them together
            pipeline.lower_loops(run, lowered.job)
        failed: dict[str, Exception] = {}
        made = objects(kernels, machine, Kernels.default(), request.without, failed)
        return LlvmCode(link(pipeline.generate(IRModule(), machine)), made, failed)

    def warnings(self, lowered: Any) -> tuple[str, ...]:
        return ()
