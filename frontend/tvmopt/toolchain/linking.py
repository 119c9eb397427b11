"""From a built module to the bytes of a shared library, the same bytes every time - for `compile`."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvmopt.cache import Kernels
from tvmopt.errors import MissingDependency, TvmoptError, limit_of, reason
from tvmopt.runtime.pool import SOURCE
from tvmopt.targets.detect import host_arch

BFLOAT16 = SOURCE.with_name("bfloat16.c")

_FLAGS = (
    "-shared", "-fPIC",
    "-s",  # the symbol table names temporary files
    "-pthread",
    "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--hash-style=gnu", "-Wl,-O1",
)  # fmt: skip


_COMPILE = ("-fPIC", "-O2", "-pthread")
"""For the sources that every library has: the pool of threads, and bfloat16 where it is used."""


_ROOM = 16 << 20  # bytes that a link may need for objects and library; models of the suite need up to 4 MB


def find_cc() -> tuple[str, ...]:
    """The command of the C compiler driver that links: $CC, else cc, gcc or clang on the path.

    Raises:
        MissingDependency: there is none, or not the one that CC names.
    """
    if named := _named_in("CC"):
        return named
    for name in ("cc", "gcc", "clang", "c++", "g++"):
        if found := shutil.which(name):
            return (found,)
    raise MissingDependency(
        "no C compiler to link with.",
        where="looked for $CC, cc, gcc, clang on PATH",
        fix="install one: apt install gcc, dnf install gcc, apk add gcc musl-dev",
    )


def _named_in(variable: str) -> tuple[str, ...]:
    """The command in an environment variable: a program, or one with words behind it ("ccache gcc"); () without one.

    Raises:
        MissingDependency: there is no such program. Another one in its place is not what was asked for.
    """
    asked = os.environ.get(variable, "").strip()
    if not asked:
        return ()
    if whole := shutil.which(asked):
        return (whole,)
    try:
        first, *rest = shlex.split(asked) or [""]
    except ValueError:  # a quotation mark that is not closed
        first, rest = "", []
    found = shutil.which(first) if first else None
    if found is None:
        what = f"{variable} names a compiler that is not there."
        raise MissingDependency(what, where=f"{variable}={asked}", fix=f"correct {variable}, or unset it")
    return (found, *rest)


def find_linker(arch: str) -> tuple[str, ...]:
    """The command that links for an instruction set: :func:`find_cc`'s for this machine's, for another one per cross
    compiler: $TVMOPT_CROSS_CC, `aarch64-linux-gnu-gcc`, or zig's from the package `ziglang`.

    Raises:
        MissingDependency: there is none, or not the one that is named.
    """
    if arch == host_arch():
        return find_cc()
    if named := _named_in("TVMOPT_CROSS_CC"):
        return named
    for name in (f"{arch}-linux-gnu-gcc", f"{arch}-unknown-linux-gnu-gcc"):
        if found := shutil.which(name):
            return (found,)
    if find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu")
    raise MissingDependency(
        f"no linker for {arch}; this machine is {host_arch()}.",
        where=f"looked for $TVMOPT_CROSS_CC, {arch}-linux-gnu-gcc on PATH, and the package ziglang",
        fix=f"pip install ziglang, or apt install gcc-{arch.replace('_', '-')}-linux-gnu",
    )


def export(executable: Any, arch: str, objects: Mapping[str, bytes] | None = None) -> bytes:
    """The shared library of a `relax.VMExecutable` for an instruction set.

    Args:
        objects: object files that are linked with it, in their order.

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
        executable.export_library(str(output), fcompile=Linker(linker, objects or {}), workspace_dir=folder)
        return output.read_bytes()


def helper(source: Path, command: tuple[str, ...]) -> bytes:
    """The object of a source of ours, compiled by a command, or as it was kept.

    Raises:
        TvmoptError: it cannot be compiled.
    """
    compiler = Path(command[0])
    status = compiler.stat()
    identity = (str(compiler.resolve()), status.st_size, status.st_mtime_ns, command[1:], _COMPILE)
    key = hashlib.sha256(repr((identity, source.read_text())).encode()).hexdigest()
    cache = Kernels.default()
    if key not in _made:
        kept = cache.get(key)
        if kept is None:
            with tempfile.TemporaryDirectory(prefix="tvmopt-helper-") as folder:
                shutil.copy(source, folder)
                name = f"{source.stem}.o"
                run([*command, *_COMPILE, "-c", source.name, "-o", name], folder, "linking")
                kept = Path(folder, name).read_bytes()
            cache.put(key, kept)
        _made[key] = kept
    return _made[key]


_made: dict[str, bytes] = {}
"""What :func:`helper` gave in this process."""


def prepare(arch: str) -> None:
    """Compile what every library for an instruction set has, beside other work; what fails then fails again."""
    with suppress(TvmoptError, OSError):
        helper(SOURCE, tuple(find_linker(arch)))


class Linker:
    """What TVM's `export_library` calls: links in the folder of the objects, with relative names only."""

    output_format = "so"
    object_format = "o"

    def __init__(self, command: Sequence[str], more: Mapping[str, bytes]) -> None:
        self.command, self.more = command, more

    def __call__(self, output: str, objects: Sequence[str], options: Any = None, **_: Any) -> None:
        folder = os.path.dirname(output)
        contents = {os.path.relpath(name, folder): Path(name).read_bytes() for name in objects}
        for number, data in enumerate(self.more.values()):
            contents[f"kernel{number}.o"] = data
            Path(folder, f"kernel{number}.o").write_bytes(data)
        sources = [SOURCE]
        if any(b"__truncsfbf2" in data for data in contents.values()):
            sources.append(BFLOAT16)
        helpers = [self._helper(source, Path(folder)) for source in sources]
        self._run([*_FLAGS, "-o", os.path.basename(output), *contents, *helpers, "-lm"], folder)

    def _helper(self, source: Path, folder: Path) -> str:
        """The object of a source of ours, in the folder. Names are relative, because the library must not depend on
        where tvmopt is installed."""
        if source.suffix != ".c":
            shutil.copy(source, folder)
            return source.name
        name = f"{source.stem}.o"
        (folder / name).write_bytes(helper(source, tuple(self.command)))
        return name

    def _run(self, arguments: Sequence[str], folder: str) -> None:
        run([*self.command, *arguments], folder, "linking")


def build(source: Path, made: Path, *words: str) -> None:
    """Compile a file of C for this machine, in the folder of what is made: a compiler that is killed leaves its
    temporary files there.

    Raises:
        MissingDependency: there is no compiler. OSError, subprocess.SubprocessError: it failed.
    """
    command = [*find_cc(), *words, "-w", "-o", str(made), str(source)]
    own = {**os.environ, "TMPDIR": str(made.parent)}
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=own)


def run(command: Sequence[str], folder: str | Path, doing: str) -> None:
    """Run a compiler or linker in a folder.

    Args:
        doing: what it is for, as an error calls it.

    Raises:
        TvmoptError: it cannot be run, or failed; its message is told, and how it ended.
    """
    where, fix = " ".join(command)[:2000], "`tvmopt doctor` checks the compiler"
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise limit_of(error, where) or TvmoptError(f"{doing} failed: {reason(error)}", where=where, fix=fix) from error
    if done.returncode:
        code = done.returncode
        ended = f"exit status {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        told = (done.stderr.strip() or done.stdout.strip() or "the command says nothing")[:500]
        raise TvmoptError(f"{doing} failed ({ended}): {told}", where=where, fix=fix)
