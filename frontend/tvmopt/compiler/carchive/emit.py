"""A folder with a model as a static library, its header, and an example - what `--emit c-archive` writes."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tvmopt.children import Progress
from tvmopt.compiler.carchive import source
from tvmopt.compiler.carchive.asked import CArchive, refused
from tvmopt.compiler.carchive.check import check
from tvmopt.compiler.request import Request
from tvmopt.errors import InputError, reason
from tvmopt.files import make_folder
from tvmopt.runtime.artifact import Artifact, pieces
from tvmopt.runtime.pool import SOURCE as POOL
from tvmopt.runtime.tensors import ALIGNMENT
from tvmopt.toolchain.linking import BFLOAT16
from tvmopt.toolchain.static import Archiver

if TYPE_CHECKING:
    import tvm

    from tvmopt.compiler.driver import Lowered

MOST_LINKED = 1 << 30
"""Bytes of weights in a library: code reaches 2 GB around it."""

_CALLED = re.compile(rb"TVM(?:FFI|Backend)[A-Za-z0-9]+(?=\0)")
_PROVIDED = frozenset(
    f"TVM{name}".encode()
    for name in (
        "BackendAllocWorkspace", "BackendFreeWorkspace", "BackendParallelLaunch", "BackendParallelBarrier",
        "FFIErrorSetRaisedFromCStr", "FFIErrorSetRaisedFromCStrParts",
    )
)  # fmt: skip
"""What `support.h` has of TVM's runtime."""


class Emitter:
    """Makes the archive of one compile.

    Args:
        output: the folder; its name is that of the files and functions.
    """

    def __init__(self, request: Request, output: str | Path, strip_weights: bool) -> None:
        self.request, self.folder, self.stripped = request, Path(output), strip_weights
        self.name = source.identifier(self.folder.resolve().name)
        self.archiver = Archiver(request.machine.arch)

    def lowered(self, lowered: Lowered) -> None:
        """Take kernels and `main` of a model whose artifact is made, as long as they are there.

        Raises:
            InputError: `main` is no list of calls, or a kernel calls a function of TVM's runtime.
        """
        from tvmopt import pipeline
        from tvmopt.cache import Kernels
        from tvmopt.compiler.carchive.program import read
        from tvmopt.compiler.carchive.scratch import scratch_bytes
        from tvmopt.compiler.kernels import objects

        machine, without = self.request.machine, self.request.without
        self.main = pipeline.planned(lowered.program, machine)["main"]
        read(self.main, [0] * len(self.main.params))  # what it refuses, it refuses here
        kernels = _without_checks(pipeline.plan_memory(lowered.program, machine)[0].module)
        self.objects = objects(kernels, machine, Kernels.default(), without)
        for name, data in sorted(self.objects.items()):
            if others := calls_back(data):
                raise refused(f"of kernel {name}, which calls TVM's {others[0]}", "leave --emit out")
        self.scratch = scratch_bytes(kernels, self.objects, machine, without)

    def write(self, artifact: Artifact, verify: bool, progress: Progress | None) -> CArchive:
        """Write the folder.

        Raises:
            InputError: the weights are too large for a library; the folder cannot be written.
            AccuracyError: the archive gives other outputs than the artifact.
        """
        from tvmopt.compiler.carchive.program import read

        if progress:
            progress("making the archive")
        manifest = artifact.manifest
        if not self.stripped and manifest.weight_bytes > MOST_LINKED:
            fix = "--strip-weights puts them into a file beside the library"
            raise refused(f"with {manifest.weight_bytes >> 20} MB of weights in the library", fix)
        program = read(self.main, [weight.offset for weight in manifest.weights])
        parallel = any(b"TVMBackendParallelLaunch\0" in data for data in self.objects.values())
        linked = not self.stripped or not manifest.weight_bytes
        facts = source.Facts(self.name, manifest, program, self.scratch, parallel, linked)
        with self._place() as folder:
            try:
                self._files(folder, facts, artifact)
            except OSError as error:
                raise self._unwritten(error) from error
            verified = verify and bool(manifest.accuracy.get("verified"))
            if verified:
                if progress:
                    progress("verifying the archive")
                given = [] if facts.linked else [f"{self.name}.weights"]
                check(artifact, self.archiver, folder, self.name, given, parallel)
            self._moved(folder)
        size = (self.folder / f"lib{self.name}.a").stat().st_size
        weights = 0 if linked else manifest.weight_bytes
        return CArchive(self.name, size, program.workspace + ALIGNMENT, self.scratch, weights, verified)

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """A folder for the files until all are there, in that which they go to; this is left as it was by an error."""
        new = not self.folder.exists()
        make_folder(self.folder)
        try:
            with tempfile.TemporaryDirectory(prefix=f".{self.name}.", suffix=".part", dir=self.folder) as place:
                yield Path(place)
        except BaseException:
            if new:
                with suppress(OSError):  # somebody else wrote there meanwhile
                    self.folder.rmdir()
            raise

    def _unwritten(self, error: OSError) -> InputError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        told = f"cannot write into the folder: {reason(error)}"
        return InputError(told, where=str(self.folder), fix="free some space" if full else "give another path")

    def _files(self, folder: Path, facts: source.Facts, artifact: Artifact) -> None:
        header = source.header(facts)
        (folder / f"{self.name}.h").write_text(header)
        (folder / f"{self.name}_example.c").write_text(source.example(facts))
        sources = {
            f"{self.name}.h": header.encode(),
            "support.h": source.SUPPORT.read_bytes(),
            "program.c": source.program(facts).encode(),
            **({"pool.c": POOL.read_bytes()} if facts.parallel else {}),
        }
        if any(b"__truncsfbf2\0" in data for data in self.objects.values()):
            sources["bfloat16.c"] = BFLOAT16.read_bytes()
        apart: list[str] = []
        if facts.linked:
            apart = [f"{self.name}_weights.S"]
            sources[apart[0]] = _WEIGHTS.format(name=self.name).encode()
            sources["weights.bin"] = b"".join(map(bytes, pieces(artifact.weights)))
        else:
            with (folder / f"{self.name}.weights").open("wb") as file:
                file.writelines(pieces(artifact.weights))
        compiled = [name for name in sources if name.endswith(".c")]
        numbered = {f"kernel{i}.o": data for i, (_, data) in enumerate(sorted(self.objects.items()))}
        public = [f"{self.name}_run", f"{self.name}_message"]
        self.archiver.library(folder / f"lib{self.name}.a", sources, compiled, numbered, public, apart)

    def _moved(self, folder: Path) -> None:
        """Put the finished files in place of older ones; each is whole at any time."""
        try:
            for file in sorted(folder.iterdir()):
                os.replace(file, self.folder / file.name)
        except OSError as error:
            raise self._unwritten(error) from error


def calls_back(data: bytes) -> list[str]:
    """The functions of TVM's runtime that an object calls, those of `support.h` left out.

    >>> calls_back(b"\\0__TVMBackendAllocWorkspace\\0TVMFFIFunctionCall\\0")
    ['TVMFFIFunctionCall']
    """
    return sorted(name.decode() for name in set(_CALLED.findall(data)) - _PROVIDED)


def _without_checks(module: tvm.IRModule) -> tvm.IRModule:
    """The kernels marked as called by the program alone: it makes their tensors, those of inputs too."""
    import tvm
    from tvm import tirx

    from tvmopt.lowering.drop_argument_checks import OUTSIDE

    functions = {
        gvar: func.with_attr(OUTSIDE, []) if isinstance(func, tirx.PrimFunc) else func
        for gvar, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


_WEIGHTS = """\
        .section .rodata.{name}_weights, "a", %progbits
        .balign 64
        .globl {name}_weights
        .type {name}_weights, %object
{name}_weights:
        .incbin "weights.bin"
        .size {name}_weights, . - {name}_weights
        .section .note.GNU-stack, "", %progbits
"""
