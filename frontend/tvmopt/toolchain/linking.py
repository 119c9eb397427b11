"""From a built module to the bytes of a shared library, the same bytes every time - for `compile`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvmopt.errors import MissingDependency, TvmoptError
from tvmopt.runtime.pool import SOURCE
from tvmopt.targets.detect import host_arch

BFLOAT16 = SOURCE.with_name("bfloat16.c")

_FLAGS = (
    "-shared", "-fPIC",
    "-s",  # the symbol table names temporary files
    "-O2", "-pthread",  # for the pool's source; the rest is objects
    "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--hash-style=gnu", "-Wl,-O1",
)  # fmt: skip


_ROOM = 16 << 20  # bytes that a link may need for objects and library; models of the suite need up to 4 MB


def find_cc() -> str:
    """The C compiler driver that links: $CC, else cc, gcc or clang on the path.

    Raises:
        MissingDependency: there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang", "c++", "g++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise MissingDependency(
        "no C compiler to link with.",
        where="looked for $CC, cc, gcc, clang on PATH",
        fix="install one: apt install gcc, dnf install gcc, apk add gcc musl-dev",
    )


def find_linker(arch: str) -> tuple[str, ...]:
    """The command that links for an instruction set: :func:`find_cc`'s for this machine's, for another one a cross
    compiler: $TVMOPT_CROSS_CC, `aarch64-linux-gnu-gcc`, or zig's from the package `ziglang`.

    Raises:
        MissingDependency: there is none.
    """
    if arch == host_arch():
        return (find_cc(),)
    names = (os.environ.get("TVMOPT_CROSS_CC", ""), f"{arch}-linux-gnu-gcc", f"{arch}-unknown-linux-gnu-gcc")
    for name in names:
        found = shutil.which(name) if name else None
        if found:
            return (found,)
    if find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu")
    raise MissingDependency(
        f"no linker for {arch}; this machine is {host_arch()}.",
        where=f"looked for $TVMOPT_CROSS_CC, {arch}-linux-gnu-gcc on PATH, and the package ziglang",
        fix=f"pip install ziglang, or apt install gcc-{arch.replace('_', '-')}-linux-gnu",
    )


def export(executable: Any, arch: str) -> bytes:
    """The shared library of a `relax.VMExecutable` for an instruction set.

    Raises:
        MissingDependency: no C compiler, or none that links for `arch`.
        TvmoptError: the linker failed; its message is told.
    """
    linker = find_linker(arch)
    with tempfile.TemporaryDirectory(prefix="tvmopt-link-") as folder:
        free = shutil.disk_usage(folder).free
        if free < _ROOM:  # LLVM would abort the process
            fix = "free some space, or name another folder in TMPDIR"
            raise TvmoptError(f"the folder for temporary files has only {free >> 10} KB left.", where=folder, fix=fix)
        output = Path(folder) / "library.so"
        executable.export_library(str(output), fcompile=Linker(linker), workspace_dir=folder)
        return output.read_bytes()


class Linker:
    """What TVM's `export_library` calls: links in the folder of the objects, with relative names only."""

    output_format = "so"
    object_format = "o"

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command

    def __call__(self, output: str, objects: Sequence[str], options: Any = None, **_: Any) -> None:
        folder = os.path.dirname(output)
        names = [os.path.relpath(name, folder) for name in objects]
        shutil.copy(SOURCE, folder)  # relative names only: the library must not depend on where tvmopt is installed
        sources = [SOURCE.name]
        if any(b"__truncsfbf2" in Path(name).read_bytes() for name in objects):
            shutil.copy(BFLOAT16, folder)
            sources.append(BFLOAT16.name)
        command = [*self.command, *_FLAGS, "-o", os.path.basename(output), *names, *sources, "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TvmoptError(
                f"linking failed: {done.stderr.strip()[:500]}",
                where=" ".join(command),
                fix="`tvmopt doctor` checks the compiler",
            )
