"""Two compiles for one artifact: a decoder's step, and what it computes once of what it looks at - for
:mod:`tvmopt.compiler.whole`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmopt.compiler.request import Request
from tvmopt.dims import Dim
from tvmopt.errors import InputError
from tvmopt.fields import has_flag
from tvmopt.report import Report
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.manifest import Manifest

if TYPE_CHECKING:
    from tvmopt.importer.pairs import Pair


def two_models(request: Request, strip_weights: bool = False) -> Pair | None:
    """The two models that a request is about; None where it is one.

    Raises:
        InputError: a file of a first call that fits no step; what is not there for two models.
    """
    source = request.source
    if request.first is None and isinstance(source, str | os.PathLike) and not has_flag(source):
        return None  # as nearly always, and known without what reads models
    from tvmopt.importer.pairs import pair

    found = pair(request.source, request.first, request.values)
    if found is None:
        return None
    if request.preprocess or request.postprocess:
        raise InputError(
            "stages before and behind the model are for one that is called once.",
            where=request.title,
            fix="leave --preprocess and --postprocess out for a decoder",
        )
    if found.beginning is not None and strip_weights:
        raise InputError(
            "the weights of a decoder beside an encoder stay in its file.", where=request.title,
            fix="leave --strip-weights out",
        )  # fmt: skip
    if found.beginning is not None and request.machine.kind != "llvm":
        raise InputError(
            "a decoder beside an encoder is compiled for CPUs.", where=request.title,
            fix="compile both its files by themselves for a GPU: decoder_model.onnx, decoder_with_past_model.onnx",
        )  # fmt: skip
    return found


def of_step(request: Request, models: Pair) -> Request:
    """What is asked for of the step."""
    return replace(request, source=models.step, first=None, name=request.title)


def of_beginning(request: Request, models: Pair, step: Manifest) -> Request:
    """What is asked for of the beginning: the sizes that it shares with the step have the same range; its tokens are
    one, as nothing of it depends on them."""
    assert models.beginning is not None
    model = models.beginning
    names = {v.name for v in model.graph.input}
    shapes: dict[str, Any] = {name: shape for name, shape in request.shapes.items() if name in names}
    shared = {str(size) for size in _open(step)}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_param or value.name in shapes or value.name == models.ids:
                continue
            if dim.dim_param in shared:
                known = step.symbols[dim.dim_param]
                shapes[dim.dim_param] = (f"{known.min}..{known.max}@{known.opt}",)
            elif axis == 0:
                shapes[dim.dim_param] = (1,)
    values = {models.ids: [[0]]} if models.ids in names else {}
    return replace(
        request,
        source=model,
        first=None,
        shapes=shapes,
        values=values,
        kv_cache="fp32",
        name=f"{request.title} (what it looks at)",
    )


def joined(step: Artifact, report: Report, beginning: Artifact) -> tuple[Artifact, Report]:
    """One artifact of both, and the step's report, which tells of the other."""
    found = beginning.manifest.accuracy
    checked = "verified, too" if found.get("verified") else f"not verified: {found.get('reason', 'not asked for')}"
    takes = ", ".join(info.name for info in beginning.manifest.inputs)
    told = f"what the decoder reads of {takes} is computed once, by a program of its own in the file ({checked})"
    report = replace(report, warnings=(*report.warnings, told))
    kept = step.manifest.report | {"warnings": [*step.manifest.report.get("warnings", ()), told]}
    step = replace(step, manifest=replace(step.manifest, report=kept))
    return step.begun_by(beginning), report


def _open(manifest: Manifest) -> Iterator[Dim]:
    for info in manifest.inputs:
        yield from (size for size in info.shape if isinstance(size, Dim) and size.is_symbol)
