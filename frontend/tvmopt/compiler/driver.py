"""One compile, from the ONNX file to an `Artifact` - what `tvmopt.compile` calls, for CPUs and GPUs.

import -> lower (pipeline.py) -> generate code -> link -> manifest and report

What differs between kinds of machines stands in :data:`BACKENDS`. Where code has to be made in another process, the
request is written for it and this same driver runs there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt import children
from tvmopt.children import Progress
from tvmopt.compiler.accuracy import warnings_of
from tvmopt.compiler.backend import Backend, Code, why
from tvmopt.compiler.cuda import Cuda
from tvmopt.compiler.dump import Dumper
from tvmopt.compiler.keeping import check_kept
from tvmopt.compiler.llvm import Llvm
from tvmopt.compiler.request import Request, as_file, source_hash
from tvmopt.compiler.results import make_manifest, make_report, structure_hash, versions
from tvmopt.errors import ArtifactError, ModelError, ScheduleError, TvmoptError, collect
from tvmopt.report import IMPORTING, DecisionLog, Report
from tvmopt.runtime.artifact import Artifact, LaidOut, read
from tvmopt.runtime.draft import Draft
from tvmopt.runtime.manifest import Manifest
from tvmopt.toolchain.linking import prepare
from tvmopt.tuning.logs import RecordLookup

if TYPE_CHECKING:
    from tvmopt.importer import Imported

BACKENDS: dict[str, Backend] = {"llvm": Llvm(), "cuda": Cuda()}
"""By the kind of a machine, which is TVM's."""

PACKED = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
"""Types of several numbers a byte: the importer unpacks constants of them."""


@dataclass
class Stages:
    """Reports the stages of a compile, and times them."""

    report: Progress | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.report:
            self.report(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Lowered:
    """A model as scheduled kernels.

    Attributes:
        imported: the model as the importer read it.
        program: `tvmopt.pipeline.Lowered`; its module takes the weights as parameters.
        weights: their descriptions and values.
        structure: hash of the module, see :func:`tvmopt.compiler.results.structure_hash`.
    """

    imported: Imported
    program: Any
    weights: Any
    structure: str


def compile_model(
    request: Request,
    progress: Progress | None = None,
    told: Callable[[Imported], None] | None = None,
    made: Callable[[Lowered], None] | None = None,
    draft: Draft | None = None,
) -> tuple[Artifact, Report]:
    """Compile; nothing is verified yet.

    Args:
        told: is shown the model as soon as it is imported, where this process compiles it.
        made: is shown the kernels and `main` of which code was generated, likewise.
        draft: begins with the weights, likewise.

    Raises:
        ModelError, UnsupportedOp: the model cannot be imported.
        MissingDependency: no C compiler to link with; no CUDA compiler or libcudart.
        ScheduleError: the machine's compiler refused a kernel.
        Crash: the child that compiles died.
    """
    request.dumps.make_folders()
    environment = BACKENDS[request.machine.kind].environment(request.machine)
    if environment is None:
        return _compile(request, progress, told, made, draft)
    with as_file(request.source) as model, tempfile.TemporaryDirectory(prefix="tvmopt-compile-") as folder:
        output = str(Path(folder) / "out.tvmopt")
        arguments = {"request": replace(request, source=str(model)).to_dict(), "output": output}
        try:
            answer = children.call(
                "tvmopt.compiler.driver:in_child", arguments, progress=progress, environment=environment
            )
        except children.Crash as crash:
            raise crash.of_compile(request.title) from crash
        return read(output), Report.from_dict(answer)


def in_child(*, request: dict[str, Any], output: str, progress: Progress) -> dict[str, Any]:
    """The child's part of :func:`compile_model`: the artifact is written to `output`; its report."""
    artifact, report = _compile(Request.from_dict(request), progress)
    artifact.save(output)
    return report.as_dict()


def _compile(
    request: Request,
    progress: Progress | None,
    told: Callable[[Imported], None] | None = None,
    made: Callable[[Lowered], None] | None = None,
    draft: Draft | None = None,
) -> tuple[Artifact, Report]:
    """Compile in this process. Hashes are made, and weights written, without Python's lock, beside what needs it."""
    with ThreadPoolExecutor(1) as aside:
        return _compile_beside(aside, request, progress, told, made, draft)


def _compile_beside(
    aside: Executor,
    request: Request,
    progress: Progress | None,
    told: Callable[[Imported], None] | None,
    made: Callable[[Lowered], None] | None,
    draft: Draft | None,
) -> tuple[Artifact, Report]:
    stages, backend = Stages(progress), BACKENDS[request.machine.kind]
    model = aside.submit(source_hash, request.source)
    aside.submit(prepare, backend.arch(request.machine))
    imported = _imported(request, stages)
    if told is not None:
        told(imported)
    backend.check()
    dumper = Dumper(request.dumps, request.machine) if request.dumps else None
    if dumper:
        dumper.check()
    lookup = _record_lookup(request)
    lowered, weights, code = _with_records(request, backend, imported, stages, lookup, dumper, aside, draft)
    if dumper:
        dumper.finish()
    code.check()
    program = lowered.program
    program.kernels = tuple(replace(k, launches=code.launches(k.name)) for k in program.kernels)
    if made is not None:
        made(lowered)
    with stages.stage("linking"):
        library = code.library(backend.arch(request.machine))
    notes = lookup.tell(program.log) if lookup else ()
    from tvmopt.compiler.flow import plan

    report = make_report(
        request,
        imported,
        program,
        lowered.weights,
        stages.seconds,
        plan(program, request.machine, imported),
        (*notes, *backend.warnings(program), *code.warnings()),
    )
    records = lookup.used_lines() if lookup else ()
    manifest = make_manifest(request, imported, lowered.structure, report, model.result(), records, program.decoder)
    return Artifact.of(manifest, library, weights.result()), report


def refit(artifact: Artifact, request: Request, progress: Progress | None = None) -> Artifact:
    """The artifact's code with another model's weights: the model is lowered, no code is generated.

    Raises:
        ArtifactError: the model compiles to another program, or with other versions than the artifact's.
    """
    old = artifact.manifest
    lowered = lower(request, Stages(progress), RecordLookup.of_lines(request.machine, old.records))
    if lowered.structure != old.structure:
        told = [
            f"{package} was {old.versions.get(package)} then and is {now} now"
            for package, now in versions().items()
            if old.versions.get(package) != now
        ]
        raise ArtifactError(
            "the model does not have the structure that the artifact was compiled from"
            + (f" ({'; '.join(told)})." if told else "."),
            where=f"{artifact.where}: {old.structure[:12]}, model: {lowered.structure[:12]}",
            fix="refit needs the same graph, shapes and scalar constants; compile the model instead",
        )
    untrue = warnings_of(old.accuracy)
    kept = [text for text in old.report.get("warnings", ()) if text not in untrue]
    report = {**old.report, "model": request.title, "accuracy": {}, "warnings": kept}
    manifest = Manifest(
        **{
            **{name: getattr(old, name) for name in Manifest.__dataclass_fields__},
            "model": request.title,
            "model_sha256": source_hash(request.source),
            "accuracy": {},
            "report": report,
        }
    )
    return artifact.with_weights(lowered.weights, manifest)


def lower(request: Request, stages: Stages, lookup: RecordLookup | None = None) -> Lowered:
    """A model imported and lowered to scheduled kernels, its weights apart; `lookup`: the tuning records to use."""
    return _lowered(request, _imported(request, stages), stages, lookup)


def _imported(request: Request, stages: Stages) -> Imported:
    from tvmopt.importer import import_model

    with stages.stage(IMPORTING):
        imported = import_model(request.whole, dict(request.shapes), dict(request.values))
    _check_borders(imported)
    return imported


def _lowered(
    request: Request, imported: Imported, stages: Stages, lookup: RecordLookup | None, dumper: Dumper | None = None
) -> Lowered:
    from tvmopt import pipeline

    with stages.stage("optimizing"):
        program = pipeline.lower(
            imported.module, request.machine, DecisionLog(), lookup, exact=request.exact, precision=request.precision,
            int8=request.int8, kv_cache=request.kv_cache, without=request.without, generic=request.generic, lift=True,
            watch=dumper,
        )  # fmt: skip
        check_kept(request, program)
        structure = structure_hash(program.module, request.machine.tvm_target())
    return Lowered(imported, program, program.weights, structure)


def _record_lookup(request: Request) -> RecordLookup | None:
    """The tuning records a compile considers: the user's store, then those that ship for exactly this target."""
    if not request.records:
        return None
    return RecordLookup.default(request.machine, Path(request.store) if request.store else None)


def _with_records(
    request: Request,
    backend: Backend,
    imported: Imported,
    stages: Stages,
    lookup: RecordLookup | None,
    dumper: Dumper | None,
    aside: Executor,
    draft: Draft | None,
) -> tuple[Lowered, Future[LaidOut], Code]:
    """Lowered, its weights as they will lie in the file, which a draft begins with, and its code; a second time without
    those records whose kernels cannot be compiled or must not run."""

    def laid_out(lowered: Lowered) -> LaidOut:
        weights = LaidOut.of(lowered.weights)
        if draft is not None:
            draft.begin(weights.arrays)
        return weights

    def once() -> tuple[Lowered, Future[LaidOut], Code]:
        lowered = _lowered(request, imported, stages, lookup, dumper)
        weights = aside.submit(laid_out, lowered)
        with stages.stage("generating code"):
            return lowered, weights, backend.generate(lowered.program, request)

    try:
        lowered, weights, code = once()
    except Exception as error:  # a record may make loops that only TVM's own checks refuse
        ours = isinstance(error, TvmoptError) and not isinstance(error, ScheduleError)
        if lookup is None or not lookup.used or ours or isinstance(error, OSError | MemoryError):
            raise
        lookup.ignored |= {r.key: (r, why(error)) for r, _ in lookup.used}
    else:
        if lookup is None or not _refuse_records(lowered, code, request, lookup):
            return lowered, weights, code
    lookup.used.clear()
    return once()


def _refuse_records(lowered: Lowered, code: Code, request: Request, lookup: RecordLookup) -> bool:
    """Whether some records were turned down, because their kernels must not run."""
    from tvmopt.scheduling.discover import families
    from tvmopt.scheduling.normalize import normalize

    refused = False
    for kernel in lowered.program.kernels:
        problems = code.unfit(kernel.name) if kernel.source == "tuned" else []
        if problems:
            family = next(f for f in families(request.machine.kind) if kernel.family == f.NAME)
            func = normalize(lowered.program.unscheduled[kernel.name], request.machine)
            lookup.refused(func, family, "; ".join(problems))
            refused = True
    return refused


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
