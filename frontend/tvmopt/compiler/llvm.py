"""Code for CPUs, by LLVM in this process; the C compiler links it."""

from __future__ import annotations

from typing import Any

from tvmopt.compiler.backend import Code
from tvmopt.compiler.request import Request
from tvmopt.targets import Machine
from tvmopt.toolchain.linking import find_linker


class Llvm:
    """CPUs: a `tvmopt.compiler.backend.Backend`."""

    def environment(self, machine: Machine) -> None:
        find_linker(machine.arch)

    def check(self) -> None: ...

    def arch(self, machine: Machine) -> str:
        return machine.arch

    def generate(self, lowered: Any, request: Request) -> Code:
        from tvmopt import pipeline

        return Code(pipeline.build(lowered, request.machine))

    def warnings(self, lowered: Any) -> tuple[str, ...]:
        return ()
