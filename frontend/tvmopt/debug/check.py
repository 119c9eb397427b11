"""Does a piece of a model still fail? The checks that `surgeon reduce` and `compare` repeat many times.

A check runs in a forked child (a wrong kernel may kill it) and is plain data: the kind of failure, which a
reduction must keep - otherwise it would end at another bug - and its message.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from tvmopt.analysis.comparator import Array, Comparison
from tvmopt.errors import InputError, ModelError, TvmoptError
from tvmopt.files import save_arrays
from tvmopt.importer.isolate import isolated
from tvmopt.runtime.artifact import Artifact

SECONDS = 600.0


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        kind: ``""`` passed; ``"compile"`` with the error's class, ``"crash"``, ``"numbers"``, ``"command"``.
        text: the message, one line or more.
        error: the largest error over the tolerance's scale, where numbers were compared.
    """

    kind: str = ""
    text: str = ""
    error: float = 0.0

    @property
    def fails(self) -> bool:
        return bool(self.kind)


Check = Callable[[Path, onnx.ModelProto, Mapping[str, Array]], Finding]
"""A check of a model file, the same model parsed, and values for its inputs."""


@dataclass(frozen=True)
class Numbers:
    """Compile a model, run it and compare with the reference.

    Attributes:
        target, precision: as `tvmopt.compile` takes them.
        rtol, atol: in place of what follows from rounding: :class:`tvmopt.analysis.judge.Judge`.
        options: further fields of :class:`tvmopt.compiler.request.Request`: `exact`, `records`, `without`,
        `generic`.
        compare: whether to run and compare; else compiling is the check.
        seconds: a check that takes longer counts as a crash.
    """

    target: Any = "cpu"
    precision: str = "fp32"
    rtol: float | None = None
    atol: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    compare: bool = True
    seconds: float = SECONDS

    def __call__(self, path: Path, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Finding:
        try:
            return isolated(lambda: self._check(path, model, feeds), "check", str(path), self.seconds)
        except ModelError as error:  # the child died: `isolated` says how
            return Finding("crash", error.what)

    def _check(self, path: Path, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Finding:
        """In the child."""
        from tvmopt.compiler.driver import compile_model
        from tvmopt.compiler.request import Request
        from tvmopt.targets import Machine

        try:
            request = Request(path, Machine.load(self.target), self.precision, **dict(self.options))
            artifact, _ = compile_model(request)
        except TvmoptError as error:
            return Finding(f"compile: {type(error).__name__}", str(error))
        except Exception as error:  # TVM raises classes of its own; each is a failure to compile
            return Finding(f"compile: {type(error).__name__}", str(error)[-2000:])
        if not self.compare:
            return Finding()
        found = self.judged(path, feeds, artifact)
        return Finding() if found.ok else Finding("numbers", str(found), found.max_error)

    def judged(self, path: Path, feeds: Mapping[str, Array], artifact: Artifact) -> Comparison:
        """What an artifact computes, by the judge of `tvmopt compile`.

        Raises:
            TvmoptError: no reference can run the model.
        """
        from tvmopt.analysis.oracle.values import Unsupported
        from tvmopt.analysis.verify import examined, run_reference
        from tvmopt.importer import load, prepare

        try:
            _, (peer,) = run_reference(path, [dict(feeds)])
        except TvmoptError:
            peer = None
        try:
            return examined(artifact, prepare(load(path)), feeds, peer, self.rtol, self.atol).comparison
        except Unsupported as error:
            raise TvmoptError(f"no reference can run the model: {error}", where=str(path)) from None


@dataclass(frozen=True)
class Command:
    """A user's command: it fails where its exit code is not 0, or its output matches `fail_regex`.

    Attributes:
        text: with ``{model}`` for the file and, if wanted, ``{inputs}`` for an .npz of the inputs' values.
    """

    text: str
    fail_regex: str = ""
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        if "{model}" not in self.text:
            raise InputError(
                "the command does not say where the model goes.",
                where=f"--check {self.text!r}",
                fix="--check 'mytool {model}'",
            )
        try:
            re.compile(self.fail_regex)
        except re.error as error:
            raise InputError(
                f"the regular expression cannot be parsed: {error}.",
                where=f"--fail-regex {self.fail_regex!r}",
                fix=f"one of Python's; the text itself is {re.escape(self.fail_regex)}",
            ) from None
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise InputError(
                f"the command cannot be parsed: {error}.",
                where=f"--check {self.text!r}",
                fix="close the quotes, as a shell wants them",
            ) from None
        if shutil.which(words[0]) is None:
            raise InputError(
                "the command cannot be run: there is no such program.",
                where=f"--check {self.text!r}",
                fix="give a program on PATH",
            )

    @property
    def wants_inputs(self) -> bool:
        return "{inputs}" in self.text

    def __call__(self, path: Path, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Finding:
        inputs = path.with_suffix(".npz")
        if self.wants_inputs:
            save_arrays(inputs, feeds)
        words = [w.replace("{model}", str(path)).replace("{inputs}", str(inputs)) for w in shlex.split(self.text)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                timeout=self.seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Finding("command: timeout", f"the command takes longer than {self.seconds:.0f} s")
        except OSError as error:
            raise InputError(
                f"the command cannot be run: {error.strerror}",
                where=f"--check {self.text!r}",
                fix="give a program on PATH",
            ) from None
        output = done.stdout + done.stderr
        tail = "\n".join(output.strip().splitlines()[-5:])
        if self.fail_regex:
            return Finding("command", tail) if re.search(self.fail_regex, output) else Finding()
        if done.returncode == 127:
            raise InputError("the command was not found.", where=f"--check {self.text!r}")
        died = f"signal {-done.returncode}" if done.returncode < 0 else ""
        return (
            Finding(f"command: {died}".rstrip(": "), tail or f"exit code {done.returncode}")
            if done.returncode
            else Finding()
        )
