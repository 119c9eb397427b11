"""What differs between kinds of machines when a model is compiled - for `driver.py`, filled in by `llvm.py` and
`cuda.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tvmopt.compiler.request import Request
from tvmopt.errors import TvmoptError, last_line
from tvmopt.targets import Machine
from tvmopt.toolchain.linking import export


@dataclass(frozen=True)
class Code:
    """The generated code, and what the compilers said of each kernel; nothing where they say nothing.

    Attributes:
        executable: the `relax.VMExecutable`.
    """

    executable: Any

    def library(self, arch: str) -> bytes:
        """The shared library for an instruction set.

        Raises:
            MissingDependency: there is no compiler that links for it. TvmoptError: it failed.
        """
        return export(self.executable, arch)

    def unfit(self, kernel: str) -> list[str]:
        """Why a kernel must not run with a recorded schedule."""
        return []

    def check(self) -> None:
        """Every kernel could be compiled, and can be launched.

        Raises:
            ScheduleError: all those that cannot be launched. Exception: what the compiler said of one.
        """

    def launches(self, kernel: str) -> tuple[dict[str, Any], ...]:
        """What a kernel launches on a GPU: `tvmopt.toolchain.ptxas.Launch` as dictionaries."""
        return ()

    def warnings(self) -> tuple[str, ...]:
        """What a user must know of the code."""
        return ()


def why(error: Exception) -> str:
    """What an error says, in one line; TVM's checks say it in their last one.

    >>> why(ValueError("Traceback:\\n  a.cc\\nCheck failed: a < b")), why(TvmoptError("the tile\\nis too wide"))
    ('Check failed: a < b', 'the tile is too wide')
    """
    if isinstance(error, TvmoptError):
        return " ".join(error.what.split())[:200]
    return last_line(error)[:200]


class Backend(Protocol):
    """One kind of machine."""

    def environment(self, machine: Machine) -> Mapping[str, str] | None:
        """Environment variables of the child process that has to compile; None where this process can.

        Called before any work.

        Raises:
            MissingDependency: a compiler or a library is missing.
        """

    def check(self) -> None:
        """In the process that compiles, before TVM is asked for code.

        Raises:
            MissingDependency: TVM's part for this kind of machine cannot be loaded.
        """

    def arch(self, machine: Machine) -> str:
        """The instruction set that the library is linked for, by uname's name."""

    def generate(self, lowered: Any, request: Request) -> Code:
        """Code for a lowered module (`tvmopt.pipeline.Lowered`).

        Raises:
            Exception: a kernel cannot be compiled, if the code cannot tell which (`Code.unfit`).
        """

    def warnings(self, lowered: Any) -> tuple[str, ...]:
        """What a user must know of how kernels were scheduled."""
