"""One compile, from the ONNX file to an `Artifact` - what `tvmopt.compile` calls, for CPUs and GPUs.

import -> lower (pipeline.py) -> weights apart -> generate code -> link -> artifact -> verify
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.children import Progress
from tvmopt.errors import ArtifactError, ModelError, collect
from tvmopt.linking import export, find_linker, structure_hash, versions
from tvmopt.outcome import make_manifest, make_report
from tvmopt.report import DecisionLog, Report
from tvmopt.request import Progressed, Request, record_lookup, source_hash
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.manifest import Manifest
from tvmopt.tuning.logs import RecordLookup

if TYPE_CHECKING:
    from tvmopt.importer import Imported


PACKED = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
"""Types of several numbers a byte: the importer unpacks constants of them."""


def compile_model(request: Request, progress: Progress | None = None) -> tuple[Artifact, Report]:
    """Compile; nothing is verified or written yet.

    Raises:
        ModelError, UnsupportedOp: the model cannot be imported.
        MissingDependency: no C compiler to link with.
    """
    stages = Progressed(progress)
    if request.machine.kind == "cuda":
        from tvmopt.cuda import compile_cuda

        return compile_cuda(request, progress)
    find_linker(request.machine.arch)  # before the work, not after it
    lookup = record_lookup(request)
    imported, lowered, weights = lower(request, stages, lookup)
    from tvmopt import pipeline
    from tvmopt.flow import plan

    with stages.stage("generating code"):
        structure = structure_hash(lowered.module, request.machine.tvm_target())
        executable = pipeline.build(lowered, request.machine)
    with stages.stage("linking"):
        library = export(executable, request.machine.arch)
    notes = lookup.tell(lowered.log) if lookup else ()
    report = make_report(
        request,
        imported,
        lowered,
        weights,
        stages.seconds,
        plan(lowered, request.machine, imported),
        notes,
    )
    manifest = make_manifest(request, imported, structure, report, lookup.used_lines() if lookup else ())
    return Artifact.build(manifest, library, weights), report


def refit(artifact: Artifact, request: Request, progress: Progress | None = None) -> Artifact:
    """The artifact's code with another model's weights: the pipeline runs, code generation does not.

    Raises:
        ArtifactError: the model compiles to another program, or with other versions than the artifact's.
    """
    old = artifact.manifest
    stages = Progressed(progress)
    lookup = RecordLookup.of_lines(request.machine, old.records)  # the same schedules, whatever was tuned since
    imported, lowered, weights = lower(request, stages, lookup)
    structure = structure_hash(lowered.module, request.machine.tvm_target())
    if structure != old.structure:
        told = [
            f"{package} was {old.versions.get(package)} then and is {now} now"
            for package, now in versions().items()
            if old.versions.get(package) != now
        ]
        raise ArtifactError(
            "the model does not have the structure that the artifact was compiled from"
            + (f" ({'; '.join(told)})." if told else "."),
            where=f"{artifact.where}: {old.structure[:12]}, model: {structure[:12]}",
            fix="refit needs the same graph, shapes and scalar constants; compile the model instead",
        )
    report = {**old.report, "model": request.title}
    manifest = Manifest(
        **{
            **{name: getattr(old, name) for name in Manifest.__dataclass_fields__},
            "model": request.title,
            "model_sha256": source_hash(request.source),
            "accuracy": {},
            "report": report,
        }
    )
    del imported
    return artifact.with_weights(weights, manifest)


def lower(request: Request, stages: Progressed, lookup: RecordLookup | None = None) -> tuple[Imported, Any, Any]:
    """The model as imported, lowered to scheduled kernels, and its weights apart."""
    from tvmopt.importer import import_model  # a bad file is refused before TVM's compiler is loaded

    log = DecisionLog()
    with stages.stage("importing"):
        imported = import_model(request.source, dict(request.shapes), dict(request.values))
    _check_borders(imported)
    from tvmopt import pipeline
    from tvmopt.passes.lift_constants import lift_constants

    with stages.stage("optimizing"):
        lowered = pipeline.lower(
            imported.module, request.machine, log, lookup, exact=request.exact, precision=request.precision,
            without=request.without, generic=request.generic,
        )  # fmt: skip
        lowered.module, weights = lift_constants(lowered.module)
    return imported, lowered, weights


def _check_borders(imported: Imported) -> None:
    """Refuse inputs and outputs of types that no array of a caller has: several numbers a byte."""
    borders = [("Input", i) for i in imported.inputs] + [("Output", o) for o in imported.outputs]
    problems = [
        ModelError(
            f"{role} '{info.name}' is {info.dtype}, of which NumPy and DLPack have no arrays.",
            where=str(info),
            fix="cast it inside the model: take and give int8, uint8 or float32",
        )
        for role, info in borders
        if info.dtype in PACKED
    ]
    if problems:
        raise collect(problems)


def verified(
    artifact: Artifact,
    report: Report,
    model: Path,
    tolerance: float | None,
    progress: Progress | None,
    bound: bool,
) -> tuple[Artifact, Report]:
    """The artifact and report with the accuracy found in them; `bound`: inputs were bound at compile time.

    Raises:
        AccuracyError: the compiled module is wrong.
    """
    reason = ""
    if bound:
        reason = "inputs were bound at compile time"
    elif artifact.manifest.kind == "cuda":
        from tvmopt.runtime.library import cuda_available

        reason = "" if cuda_available() else "there is no GPU here"
    else:
        reason = artifact.unfit()
    if reason:
        accuracy: dict[str, Any] = {"verified": False, "reason": reason}
    else:
        from tvmopt.analysis.verify import verify

        if progress:
            progress("verifying")
        accuracy = verify(artifact, model, rtol=tolerance, progress=progress).as_accuracy()
    warnings = report.warnings
    if not accuracy["verified"]:
        warnings += (f"not verified: {accuracy['reason']}",)
    elif accuracy["degenerate"]:
        warnings += ("the outputs hardly vary (untrained weights?): that they agree proves little",)
    report = replace(report, accuracy=accuracy, warnings=warnings)
    kept = {**artifact.manifest.report, "accuracy": accuracy, "warnings": list(warnings)}
    return replace(artifact, manifest=replace(artifact.manifest, accuracy=accuracy, report=kept)), report
