"""Artifacts for other processors, run by QEMU's user-mode emulator - for verification and `tvmopt run`.

    with opened(artifact) as model:  # natively where this machine can
        outputs = model.run(feeds)

An emulator executes each instruction of the artifact as its processor would, so that numbers, missing instructions and
crashes are real; times say nothing. Code for another instruction set also needs Python and TVM's runtime for it:
`scripts/emulator aarch64` makes such a folder once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np

import tvmopt
from tvmopt.children import Crash, thaw
from tvmopt.dims import Range, Shapes
from tvmopt.errors import ArtifactError, MissingDependency
from tvmopt.files import private_cache
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.model import Model
from tvmopt.runtime.sizes import OpenSizes, info_at
from tvmopt.runtime.tensors import Array, TensorInfo
from tvmopt.targets.detect import host_arch

FOLDER = "TVMOPT_{}"
"""The variable that names the folder with Python and TVM's runtime for an instruction set: `TVMOPT_AARCH64`."""

BASELINE = {"generic": "cortex-a57", "x86-64-v2": "Nehalem", "x86-64-v3": "Haswell"}
"""LLVM's name of processors that are none in particular -> the one to emulate, which has no other instructions."""


@dataclass(frozen=True)
class Emulator:
    """How to start a Python of another processor.

    Attributes:
        command: the emulator with its options, and the Python that it runs.
        environment: variables that this Python needs besides.
        told: name, version and processor, for people.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    told: str = ""


def opened(artifact: Artifact, *, threads: int | None = None) -> Model | EmulatedModel:
    """The artifact ready to run: by this machine, else by an emulator if it is for another instruction set.

    Raises:
        ArtifactError: see :class:`Model`; or neither can run it.
    """
    if artifact.manifest.arch in ("", host_arch()):
        return Model(artifact, threads=threads)
    try:
        emulator = find_emulator(artifact.manifest)
    except MissingDependency as error:
        raise ArtifactError(f"{artifact.unfit()}; {error.what}", where=artifact.where, fix=error.fix) from None
    return EmulatedModel(artifact, emulator, threads=threads or 0)


def find_emulator(manifest: Manifest) -> Emulator:
    """The emulator for an artifact, of the processor that it is for where QEMU knows it.

    Raises:
        MissingDependency: QEMU, or the folder with Python for that instruction set, is not here.
    """
    arch = manifest.arch or host_arch()
    qemu = shutil.which(f"qemu-{arch}-static") or shutil.which(f"qemu-{arch}")
    if qemu is None:
        raise MissingDependency(
            f"no emulator for {arch}.", where=f"looked for qemu-{arch}-static and qemu-{arch} on PATH",
            fix="apt install qemu-user-static, or dnf install qemu-user-static",
        )  # fmt: skip
    processor = _processor(qemu, manifest.mcpu)
    version = _said(qemu, "--version").split("\n")[0].partition("version ")[2].partition(" ")[0]
    command: tuple[str, ...] = (qemu, "-cpu", processor)
    environment = {"PYTHONPATH": _own_folder()}
    if arch == host_arch():
        command += (sys.executable,)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_own_folder(), *sys.path)))
    else:
        folder = user_land(arch)
        command += ("-L", str(folder / "root"), str(_python(folder)))
        environment["PYTHONPATH"] = os.pathsep.join((str(folder / "site"), _own_folder()))
    return Emulator(command, environment, f"QEMU {version} as {processor}")


def user_land(arch: str) -> Path:
    """The folder that `scripts/emulator` made.

    Raises:
        MissingDependency: there is none.
    """
    variable = FOLDER.format(arch.upper())
    named = os.environ.get(variable)
    folder = Path(named) if named else private_cache(arch)
    try:
        _python(folder)
    except StopIteration:
        raise MissingDependency(
            f"no Python and TVM runtime for {arch}.", where=str(folder),
            fix=f"scripts/emulator {arch} makes them; {variable} names another folder",
        ) from None  # fmt: skip
    return folder


def _python(folder: Path) -> Path:
    return next(folder.glob("root/usr/bin/python3.[0-9]*[0-9]"))


def _own_folder() -> str:
    return str(Path(tvmopt.__file__).parent.parent)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _processor(qemu: str, mcpu: str) -> str:
    """The processor to emulate: the one named where QEMU knows it, the first of its instruction set where none is, else
    one that has every instruction."""
    known = {word.lower(): word for line in _said(qemu, "-cpu", "help").splitlines() for word in line.split()}
    return known.get(mcpu.lower(), BASELINE.get(mcpu, "max"))


class EmulatedModel:
    """An artifact that an emulator runs, with what `tvmopt.runtime.model.Model` has to show and to run it.

    Args:
        threads: of a call; default: as compiled.

    Raises:
        ArtifactError: the artifact is damaged, or its code needs what the emulated processor has not.
        Crash: the emulator ended.
    """

    def __init__(self, artifact: Artifact, emulator: Emulator, *, threads: int = 0) -> None:
        self.manifest: Manifest = artifact.manifest
        self.emulator = emulator
        self.threads = threads or artifact.manifest.threads
        self._open = OpenSizes(artifact.manifest)
        self._folder = tempfile.TemporaryDirectory(prefix="tvmopt-emulated-")
        path = artifact.save(Path(self._folder.name) / "model.tvmopt")
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            [*emulator.command, "-m", "tvmopt.analysis.guest", str(path), str(threads), str(requests), str(answers)],
            env={**os.environ, **emulator.environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"},
            pass_fds=[requests, answers],
            stdin=subprocess.DEVNULL,
        )
        os.close(requests)
        os.close(answers)
        self._writer, self._reader = (
            Connection(self._requests, readable=False),
            Connection(self._answers, writable=False),
        )
        self._answer("loading")

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self.manifest.outputs

    @property
    def symbols(self) -> dict[str, Range]:
        return self._open.ranges

    def inputs_beside(self, given: Mapping[str, Any], shape: Shapes | None = None) -> tuple[TensorInfo, ...]:
        """The inputs at the sizes that some arrays have, which are given by name, and at those that are asked for."""
        sizes = self._open.completed({name: np.shape(value) for name, value in given.items()}, shape)
        return tuple(info_at(info, sizes) for info in self.inputs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run on inputs by name; returns outputs by name.

        Raises:
            InputError: what the model refuses.
            Crash: the emulator ended: the code is wrong, or has an instruction that the processor has not.
        """
        outputs: dict[str, Array] = self._asked("run", feeds)
        return outputs

    def observe(self, feeds: Mapping[str, Any]) -> Any:
        """What `tvmopt.analysis.observe.observe` gives: outputs in order, and what each kernel wrote.

        Raises:
            InputError, Crash: as :meth:`run`.
        """
        return self._asked("observe", feeds)

    def _asked(self, command: str, feeds: Mapping[str, Any]) -> Any:
        self._writer.send((command, {name: np.asarray(value) for name, value in feeds.items()}))
        return self._answer("running")

    def _answer(self, stage: str) -> Any:
        try:
            kind, value = self._reader.recv()
        except EOFError:
            code = self._process.wait()
            what = f"the emulator ended with {f'signal {-code}' if code < 0 else f'exit code {code}'} while {stage}"
            self.close()
            raise Crash(what, stage, where=self.emulator.told) from None
        if kind == "error":
            raise thaw(value)
        return value

    def close(self) -> None:
        """End the emulator."""
        self._writer.close()
        self._reader.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
