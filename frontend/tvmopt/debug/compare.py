"""`tvmopt compare`: engines, precisions, artifacts and models on the same inputs - and where a difference begins.

outputs     every row, by the judge of `tvmopt compile`
layers      where an output differs, or on request: inner tensors, in graph order
blame       the first layer that leaves its tolerance is cut out, and the piece compiled in other ways
repro       the smallest piece that is wrong, as a file
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.amounts import check_seed, check_tolerance
from tvmopt.analysis.judge import of_output
from tvmopt.children import Progress
from tvmopt.compiler.request import model_files
from tvmopt.debug.records import CompareResult, result_from
from tvmopt.dims import Shapes
from tvmopt.errors import InputError
from tvmopt.files import check_path, check_writable, save_arrays


@dataclass(frozen=True)
class Settings:
    """What a comparison was asked; plain data.

    Attributes:
        model: the ONNX file; `other` a second one, or an artifact, or empty.
        engines: engine specs as `tvmopt bench` takes them; `precisions` to try with each.
        values: of inputs that become constants.
        rtol: in place of what follows from rounding, for all outputs (key ``""``) or by name; a difference of `atol` is
            no error.
        layers: look at inner tensors also where the outputs agree.
        bisect: on a difference, find who is to blame and write the reproducing model to `repro`.
        inputs: an .npz with arrays for the model's inputs; the others are random with `seed`.
    """

    model: str
    other: str = ""
    engines: tuple[str, ...] = ("tvmopt",)
    precisions: tuple[str, ...] = ("fp32",)
    target: str = "cpu"
    threads: int = 1
    shapes: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    inputs: str = ""
    seed: int = 0
    rtol: dict[str, float] = field(default_factory=dict)
    atol: dict[str, float] = field(default_factory=dict)
    layers: bool = False
    bisect: bool = True
    repro: str = ""

    @property
    def bound(self) -> bool:
        """Whether the model that is compared is not the file as it is."""
        return bool(self.shapes or self.values)

    @property
    def flags(self) -> str:
        """The tolerances of all outputs as the user typed them, for a command that repeats the comparison."""
        words = [("--rtol", self.rtol.get("")), ("--atol", self.atol.get(""))]
        return "".join(f" {flag} {value:g}" for flag, value in words if value is not None)

    def limits(self, name: str) -> dict[str, Any]:
        """The judge's `rtol` and `atol` of one output."""
        return {"rtol": of_output(self.rtol, name), "atol": of_output(self.atol, name)}


def compare(
    model: str | Path,
    other: str | Path | None = None,
    *,
    engines: Sequence[str] = (),
    precision: Sequence[str] = ("fp32",),
    target: str = "cpu",
    threads: int | None = None,
    shape: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    layers: bool = False,
    bisect: bool = True,
    repro: str | Path | None = None,
    progress: Progress | None = None,
) -> CompareResult:
    """Compare engines, precisions, an artifact or a second model with the reference, on the same inputs.

    The reference is onnxruntime in the model's own types without optimisations, else ONNX's own evaluator.

    Args:
        model: the ONNX file.
        other: a second ONNX file with the same inputs, or an artifact compiled from `model`.
        engines: as for `tvmopt bench`; default: tvmopt, or none when `other` is given.
        precision: each is tried with each engine that can be asked.
        target, threads: of tvmopt.
        shape: shapes of open inputs.
        values: inputs that become constants, by name: numbers or lists of them.
        inputs: arrays by name; those missing are random with `seed`.
        rtol, atol: relative to an output's largest value, and absolute; one number, or by output name.
        layers: compare inner tensors also where the outputs agree.
        bisect: on a difference, find the pass, kernel, constant or precision, and write a reproducing model.
        repro: where to; default: ``<model>.repro.onnx`` in the working directory.

    Raises:
        InputError, ModelError: wrong arguments or a model that cannot be read.
    """
    from tvmopt import children
    from tvmopt.bench.runners import parse
    from tvmopt.runtime.artifact import is_artifact, read
    from tvmopt.targets.detect import usable_cores

    check_seed(seed)
    check_tolerance(rtol, "--rtol")
    check_tolerance(atol, "--atol")
    chosen = tuple(engines) or (() if other else ("tvmopt",))
    for spec in chosen:
        parse(spec)
    for path in (model, *([other] if other else [])):
        check_path(path, "a model")
        if not Path(path).is_file():
            raise InputError("there is no such file.", where=str(path), fix="check the path")
    if is_artifact(model):
        raise InputError(
            "an artifact is compared with the ONNX file it was compiled from.",
            where=str(model),
            fix=f"tvmopt compare MODEL.onnx {model}",
        )
    if other and is_artifact(other):
        read(other, mapped=True)  # a damaged file is no engine that fails
    target_file = Path(repro) if repro else Path(f"{Path(model).stem}.repro.onnx")
    if bisect:
        check_writable(target_file, reads=model_files(model, other))
    settings = Settings(
        str(model), str(other or ""), chosen, tuple(precision), str(target), threads or usable_cores(),
        {k: list(map(int, v)) for k, v in (shape or {}).items()}, dict(values or {}), "", seed,
        _numbers(rtol), _numbers(atol), layers, bisect, str(target_file),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tvmopt-compare-") as folder:
        file = ""
        if inputs:
            file = str(Path(folder) / "given.npz")
            save_arrays(file, inputs)
        request = {"settings": {**settings.__dict__, "inputs": file}, "folder": folder}
        answer = children.call("tvmopt.debug.run:in_child", request, progress=progress)
    return result_from(answer)


def _numbers(value: float | Mapping[str, float] | None) -> dict[str, float]:
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {"": float(value)}
