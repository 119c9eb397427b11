"""From object files and C sources to a static library whose only names are those that were asked for - for `--emit
c-archive`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tvmopt.errors import MissingDependency
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.linking import find_linker, run

COMPILE = ("-O2", "-fPIC", "-ffunction-sections", "-fdata-sections", "-pthread", "-std=gnu11")

_run = partial(run, doing="making the static library")


class Archiver:
    """The programs that make a static library for an instruction set.

    Raises:
        MissingDependency: there is no compiler for it, or it comes without `objcopy` and `ar`.
    """

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.compiler = find_linker(arch)
        self.objcopy, self.ar = self._beside("objcopy"), self._beside("ar")

    def _beside(self, name: str) -> str:
        """A program of the binutils for the instruction set: the compiler's own, or LLVM's, which knows all of them."""
        known = [f"{self.arch}-linux-gnu-{name}", *([name] if self.arch == host_arch() else []), f"llvm-{name}"]
        found = next(filter(None, map(shutil.which, known)), None)
        if found:
            return found
        package = "binutils" if self.arch == host_arch() else f"binutils-{self.arch.replace('_', '-')}-linux-gnu"
        raise MissingDependency(
            f"no {name} for {self.arch}, which makes static libraries.",
            where=f"looked for {', '.join(known)} on PATH", fix=f"apt install {package}, or apt install llvm",
        )  # fmt: skip

    def library(
        self,
        output: Path,
        sources: Mapping[str, bytes],
        compiled: Sequence[str],
        objects: Mapping[str, bytes],
        public: Iterable[str],
        apart: Sequence[str] = (),
    ) -> None:
        """Write a static library. Names of files in it are relative, so that the same input gives the same bytes.

        Args:
            sources: contents of files, by name; `compiled`: those of them to compile. objects: what is linked with
                them.
            public: the names that a program sees; all others are the library's own.
            apart: sources that become a member of their own, with all their names.

        Raises:
            TvmoptError: a program failed; its message is told.
        """
        with tempfile.TemporaryDirectory(prefix="tvmopt-archive-") as place:
            folder = Path(place)
            for name, data in {**sources, **objects}.items():
                (folder / name).write_bytes(data)
            for name in (*compiled, *apart):
                _run([*self.compiler, *COMPILE, "-c", name, "-o", f"{name}.o"], folder)
            inside = [*(f"{name}.o" for name in compiled), *objects]
            _run([*self.compiler, "-r", "-nostdlib", "-Wl,--build-id=none", *inside, "-o", "whole.o"], folder)
            names = [f"--keep-global-symbol={name}" for name in public]
            member = f"{output.stem.removeprefix('lib')}.o"
            _run([self.objcopy, *names, "--strip-unneeded", "whole.o", member], folder)
            _run([self.ar, "rcsD", "library.a", member, *(f"{name}.o" for name in apart)], folder)
            shutil.copyfile(folder / "library.a", output)

    def program(self, folder: Path, source: str, library: str, output: Path) -> None:
        """Write a program of one source and a static library that lie in a folder; for another instruction set it needs
        no shared libraries.

        Raises:
            TvmoptError: the compiler failed.
        """
        static = [] if self.arch == host_arch() else ["-static"]
        words = ["-O2", *static, source, library, "-lm", "-pthread", "-o", str(output.resolve())]
        _run([*self.compiler, *words], folder)
