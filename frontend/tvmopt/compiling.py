"""One compile, from the ONNX file to an `Artifact` - what `tvmopt.compile` calls, for CPUs and GPUs.

import -> lower (pipeline.py) -> weights apart -> generate code -> link -> artifact -> verify
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.analysis.samples import integer_bounds
from tvmopt.errors import ArtifactError
from tvmopt.extensions import extensions
from tvmopt.linking import export, find_cc, structure_hash, versions, without_timings
from tvmopt.precision import check as check_precision
from tvmopt.precision import notes as precision_notes
from tvmopt.report import DecisionLog, Flow, Report
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.library import use_threads
from tvmopt.runtime.manifest import FORMAT, Manifest
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.runtime.tiles import FEATURES as TILE_FEATURES
from tvmopt.targets import Machine

if TYPE_CHECKING:
    from tvmopt.importer import Imported
    from tvmopt.tuning.logs import RecordLookup

Source = "str | Path | bytes | onnx.ModelProto"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What one compile is asked for; see :func:`tvmopt.compile`."""

    source: Any
    machine: Machine
    precision: str = "fp32"
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    name: str = ""
    records: bool = True
    cuda_graph: bool = True
    store: str | os.PathLike[str] | None = None
    without: tuple[str, ...] = ()
    generic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_precision(self.precision, self.machine)


@dataclass
class Progressed:
    """Reports stages and times them."""

    report: Progress | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.report:
            self.report(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


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
    find_cc()  # before the work, not after it
    lookup = record_lookup(request)
    imported, lowered, weights = _lower(request, stages, lookup)
    from tvmopt import pipeline
    from tvmopt.flow import plan

    with stages.stage("generating code"):
        structure = structure_hash(lowered.module, request.machine.tvm_target())
        executable = pipeline.build(lowered, request.machine)
    with stages.stage("linking"):
        library = export(executable)
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


def record_lookup(request: Request) -> RecordLookup | None:
    """The tuning records a compile considers: the user's store, then those that ship for exactly this target."""
    if not request.records:
        return None
    from tvmopt.tuning.logs import RecordLookup

    return RecordLookup.default(request.machine, Path(request.store) if request.store else None)


def refit(artifact: Artifact, request: Request, progress: Progress | None = None) -> Artifact:
    """The artifact's code with another model's weights: the pipeline runs, code generation does not.

    Raises:
        ArtifactError: the model compiles to another program, or with other versions than the artifact's.
    """
    old = artifact.manifest
    stages = Progressed(progress)
    from tvmopt.tuning.logs import RecordLookup

    lookup = RecordLookup.of_lines(request.machine, old.records)  # the same schedules, whatever was tuned since
    imported, lowered, weights = _lower(request, stages, lookup)
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
    report = {**old.report, "model": _name(request)}
    manifest = Manifest(
        **{
            **{name: getattr(old, name) for name in Manifest.__dataclass_fields__},
            "model": _name(request),
            "model_sha256": source_hash(request.source),
            "accuracy": {},
            "report": report,
        }
    )
    del imported
    return artifact.with_weights(weights, manifest)


def _lower(
    request: Request, stages: Progressed, lookup: RecordLookup | None = None
) -> tuple[Imported, Any, Any]:
    from tvmopt.importer import import_model  # a bad file is refused before TVM's compiler is loaded

    use_threads(
        request.machine.cores
    )  # before TVM folds its first constant: a pool's size is fixed when it is made
    log = DecisionLog()
    with stages.stage("importing"):
        imported = import_model(request.source, dict(request.shapes), dict(request.values))
    from tvmopt import pipeline
    from tvmopt.passes.lift_constants import lift_constants

    with stages.stage("optimizing"):
        lowered = pipeline.lower(
            imported.module, request.machine, log, lookup, exact=request.exact, precision=request.precision,
            without=request.without, generic=request.generic,
        )  # fmt: skip
        lowered.module, weights = lift_constants(lowered.module)
    return imported, lowered, weights


def make_manifest(
    request: Request, imported: Imported, structure: str, report: Report, records: tuple[str, ...] = ()
) -> Manifest:
    machine = request.machine
    return Manifest(
        format=FORMAT,
        versions=versions(),
        model=_name(request),
        model_sha256=source_hash(request.source),
        structure=structure,
        inputs=tuple(TensorInfo(t.name, tuple(t.shape), t.dtype) for t in imported.inputs),
        outputs=tuple(TensorInfo(t.name, tuple(t.shape), t.dtype) for t in imported.outputs),
        weights=(),
        target=machine.name,
        kind=machine.kind,
        mcpu=machine.mcpu,
        features=used_features(machine, report) if machine.kind == "llvm" else (),
        threads=machine.cores if machine.kind == "llvm" else 1,
        precision=request.precision,
        records=records,
        options={
            "shapes": {name: list(shape) for name, shape in sorted(request.shapes.items())},
            "exact": request.exact,
            **({"extensions": names} if (names := sorted(map(str, extensions()))) else {}),
            "bounds": integer_bounds(imported.model),  # for `tvmopt run --fill random`
        },
        report=without_timings(report.as_dict()),
    )


def used_features(machine: Machine, report: Report) -> tuple[str, ...]:
    """What the code may use: all the machine has, but AMX only where a kernel was written for it (LLVM never uses it
    by itself), so that other code runs where a hypervisor hides AMX."""
    amx = TILE_FEATURES if any(k.family.startswith("amx_") for k in report.kernels) else ()
    return tuple(sorted(f for f in machine.features if not f.startswith("amx-") or f in amx))


def make_report(
    request: Request,
    imported: Imported,
    lowered: Any,
    weights: Sequence[tuple[TensorInfo, Any]],
    seconds: dict[str, float],
    flow: Flow,
    warnings: tuple[str, ...] = (),
) -> Report:
    return Report(
        model=_name(request),
        target=request.machine.name,
        precision=request.precision,
        kernels=lowered.kernels,
        decisions=tuple(lowered.log),
        seconds=seconds,
        flops=float(sum(k.flops * k.calls for k in lowered.kernels)),
        parameters=parameter_count(imported.model),
        weight_bytes=sum(info.nbytes for info, _ in weights),
        activation_bytes=sum(flow.storages),
        warnings=(
            *warnings,
            *precision_notes(request.precision, lowered.log),
            *(f"the extension {e} took part" for e in extensions()),
        ),
        flow=flow,
    )


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


def parameter_count(model: Any) -> int:
    """Elements of the floating-point initializers of an ONNX model."""
    import numpy as np

    floats = {1, 10, 11, 16}  # FLOAT, FLOAT16, DOUBLE, BFLOAT16 (TensorProto.DataType)
    return int(sum(np.prod(i.dims, dtype=np.int64) for i in model.graph.initializer if i.data_type in floats))


def source_hash(source: Any) -> str:
    """SHA-256 of a model: of its file and its external data, in the order of their names, or of its bytes."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if not isinstance(source, str | os.PathLike):
        return hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()
    import onnx

    path = Path(source)
    digest = hashlib.sha256()
    names = {path.name}
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        names |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    for name in (path.name, *sorted(names - {path.name})):
        with (path.parent / name).open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def as_file(source: Any, imported_values: bool = False) -> Iterator[Path]:
    """The model as a file, for a child process; temporary when it came as bytes or as a ModelProto."""
    if isinstance(source, str | os.PathLike):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="tvmopt-model-") as folder:
        path = Path(folder) / "model.onnx"
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            import onnx

            copy = onnx.ModelProto()
            copy.CopyFrom(source)
            large = source.ByteSize() > 1 << 30
            onnx.save(copy, str(path), save_as_external_data=large)
        yield path


def _name(request: Request) -> str:
    if request.name:
        return request.name
    return Path(request.source).name if isinstance(request.source, str | os.PathLike) else "model.onnx"
