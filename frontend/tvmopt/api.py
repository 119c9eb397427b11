"""The words people type, as Python functions: compile, load, run, inspect, explain, refit.

import tvmopt

compiled = tvmopt.compile("resnet50.onnx", output="resnet50.tvmopt")
print(compiled.report)                     # one line; its fields have the rest
y = compiled(x)

model = tvmopt.load("resnet50.tvmopt")     # needs TVM's runtime library only
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from tvmopt.amounts import check_seconds, check_tolerance
from tvmopt.children import Progress
from tvmopt.dims import Shapes
from tvmopt.errors import ArtifactError, InputError, TvmoptError
from tvmopt.files import array_format, atomic_write, check_writable, save_arrays, write_text
from tvmopt.garbage import seldom_collected
from tvmopt.report import Report
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime.artifact import Artifact, is_artifact
from tvmopt.runtime.cores import parse
from tvmopt.runtime.fleet import Fleet
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.model import Model, load
from tvmopt.runtime.tensors import Array
from tvmopt.runtime.timing import Timing
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.emulation import EmulatedModel, opened

if TYPE_CHECKING:
    import onnx

    from tvmopt.compiler.carchive.asked import CArchive
    from tvmopt.compiler.whole import CompiledFile
    from tvmopt.preprocessing.asked import Stages

T = TypeVar("T")

__all__ = ["Compiled", "Model", "RunResult", "compile", "explain", "inspect", "is_artifact", "load", "refit", "run"]


@dataclass(frozen=True, repr=False)
class Compiled:
    """A compiled model; called with inputs, it runs.

    Attributes:
        artifact: manifest, library and weights; of a fleet, for the target that this machine runs (where it can run
            none, for the one that needs most).
        report: what was done and why not; of a fleet, for that target.
        path: where it was written, if `output` was given.
        fleet: the artifacts of all targets, if there are several; `reports`: theirs, in the same order.
        archive: what the folder `path` holds, if a C archive was asked for.
    """

    artifact: Artifact
    report: Report
    path: Path | None = None
    archive: CArchive | None = None
    fleet: Fleet | None = None
    reports: tuple[Report, ...] = ()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run on positional or named inputs: see :meth:`Model.__call__`."""
        return self.model(*args, **named)

    def __repr__(self) -> str:
        checked = self.report.accuracy.get("verified", False)
        where = f" in {self.path}" if self.path else ""
        return f"<tvmopt.Compiled {self.report.summary()}, {'verified' if checked else 'not verified'}{where}>"

    @cached_property
    def model(self) -> Model:
        """Ready to call. Made on first use."""
        return Model(self.artifact)

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    def save(self, path: str | Path, *, strip_weights: bool = False) -> Path:
        """Write the artifact; all or nothing."""
        if self.fleet is not None:
            return self.fleet.save(path, strip_weights=strip_weights)
        return (self.artifact.stripped() if strip_weights else self.artifact).save(path)


@seldom_collected()
def compile(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    shape: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    preprocess: Stages = None,
    postprocess: Stages = None,
    verify: bool = True,
    tolerance: float | None = None,
    output: str | Path | None = None,
    emit: str = "artifact",
    threads: int | Sequence[int] | None = None,
    exact: bool = False,
    int8: str = "auto",
    kv_cache: str = "fp32",
    strip_weights: bool = False,
    records: bool = True,
    cuda_graph: bool = True,
    store: str | Path | None = None,
    without: Sequence[str] | None = None,
    dump_after: Mapping[str, str | Path] | None = None,
    dump_all: str | Path | None = None,
    dump_code: Mapping[str, str | Path] | None = None,
    cache: bool = True,
    first: str | Path | bytes | onnx.ModelProto | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compile an ONNX model.

    Args:
        model: a path, the bytes of a model, or a ModelProto.
        target: "cpu" (this machine), "cuda", a name of `tvmopt targets list`, a TOML file, or a Machine. Several CPUs
            with a + between them make one artifact for a fleet: "x86-64-v3+x86-64-v4".
        precision: "fp32"; "bf16" or "fp16": 16-bit operands, sums in fp32 (fp16 on CPUs: weights only); on
            GPUs "tf32": operands of products rounded to 11 bits (docs/explanation/precision.md).
        shape: shapes of inputs whose dimensions the model leaves open: ``{"x": (1, 3, 224, 224)}``.
        values: inputs known at compile time, by name, as arrays, numbers or lists of them; they become constants.
        preprocess: what becomes of pictures of bytes before the model reads them, as a part of the artifact:
            ``"image:resize=256,crop=224,from=480x640"``, a mapping of its keys, or either by the name of an input
            (docs/how-to/preprocess.md).
        postprocess: what becomes of scores behind the model: ``"scores:softmax,top-k=5,labels=FILE"``, a mapping of its
            words, or either by the name of an output. With top-k, an output `y` is the largest scores, and one
            `y_classes` behind it their numbers. Or which of a detector's boxes are kept,
            ``"boxes:head=yolov8,score=0.25,iou=0.45,most=300"`` (docs/how-to/preprocess.md).
        verify: run module and onnxruntime on the same seeded inputs and refuse a wrong result.
        tolerance: of the verification, relative to each output's largest value; default: what
            rounding explains.
        output: write the artifact there.
        emit: "artifact"; or "c-archive": `output` is a folder for a static library, a header and an example, which
            programs in C use without TVM and Python (docs/how-to/c-archive.md). The folder's name is the library's.
        threads: threads to compile for; default: the target's cores. Several numbers, (1, 2, 8),
            make code for each: on loading that for as many threads as are used is taken, or for the next more.
        exact: only algorithms that round as the operators' definitions do (no Winograd convolution, no rows
            rounded to 8 bits).
        int8: "auto": each product of a quantised model is one of integers where this machine is predicted to compute it
            faster so than in floats; "all": wherever there is such a kernel; "off": nowhere, it is evaluated in floats.
            So are those of MatMulNBits where the file allows rows of 8 bits (`accuracy_level` 4).
        kv_cache: how a decoder stores the keys and values that it keeps: "fp32"; "bf16": rounded, in half the memory;
            "int8": bytes with a step for each row of a head, in a quarter (docs/how-to/generate-text.md).
        strip_weights: write the artifact without its weights (`refit` puts weights in); of a C archive, write them into
            a file beside the library.
        records: use what tuning recorded for exactly this target: the user's store, then what ships here.
        cuda_graph: on a GPU, capture runs of kernels once as CUDA graphs and replay them.
        store: the tuning store to use in place of the user's.
        without: names of stages of the pipeline to leave out (docs/reference/passes.md lists them).
        dump_after: names of stages, and the folders to write the module behind each into.
        dump_all: a folder for the modules behind all stages.
        dump_code: names of kernels, and the folders for each one's loops, LLVM IR and assembly, or CUDA C++ and PTX.
        cache: take the artifact of the same compile, made and verified earlier, where it is kept, and keep this one
            (`tvmopt cache`). False compiles in any case.
        first: of a decoder beside an encoder whose `model` is the file of its steps (`decoder_with_past_model.onnx`),
            the file of its first call (`decoder_model.onnx`): what that computes of the encoder's output becomes a part
            of the artifact. One file with both (`decoder_model_merged.onnx`) needs none.
        progress: called with the name of each stage.

    Raises:
        ModelError, UnsupportedOp, TargetError, InputError: every problem of a kind at once.
        AccuracyError: the compiled module is wrong.
        MissingDependency: a tool is missing (C compiler; nvcc or NVRTC for CUDA).
    """
    from tvmopt.compiler.asked import check_output, requests_of
    from tvmopt.compiler.whole import Order, compiled

    requests = requests_of(
        model, target=target, precision=precision, shape=shape, values=values, preprocess=preprocess,
        postprocess=postprocess, threads=threads,
        exact=exact, int8=int8, kv_cache=kv_cache, records=records, cuda_graph=cuda_graph, store=store, without=without,
        dump_after=dump_after, dump_all=dump_all, dump_code=dump_code, first=first,
    )  # fmt: skip
    check_output(emit, requests, output)
    if len(requests) == 1:
        (request,) = requests.values()
        made = compiled(request, Order(verify, tolerance, output, strip_weights, cache, emit), progress)
        return Compiled(*made)
    order = Order(verify, tolerance, None, False, cache)
    each = [_of_target(name, progress, partial(compiled, request, order)) for name, request in requests.items()]
    return _joined([artifact for artifact, *_ in each], [report for _, report, *_ in each], output, strip_weights)


def _of_target(name: str, progress: Progress | None, work: Callable[[Progress | None], T]) -> T:
    """What is done for one target of a fleet; progress and errors tell which it is."""
    try:
        return work((lambda stage: progress(f"{name}: {stage}")) if progress else None)
    except TvmoptError as error:
        error.where = f"{error.where}, target {name}" if error.where else f"target {name}"
        raise


def _joined(
    artifacts: Sequence[Artifact], reports: Sequence[Report], output: str | Path | None, strip_weights: bool
) -> Compiled:
    """One compile out of those for each target of a fleet."""
    fleet = Fleet(tuple(artifacts))
    here = fleet.here
    path = fleet.save(output, strip_weights=strip_weights) if output is not None else None
    return Compiled(fleet.members[here], reports[here], path, fleet=fleet, reports=tuple(reports))


def compile_isolated(
    model: str | Path,
    *,
    verify: bool = True,
    tolerance: float | None = None,
    output: str | Path | None = None,
    emit: str = "artifact",
    strip_weights: bool = False,
    cache: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> CompiledFile:
    """:func:`compile` in a child process: a crash in TVM's C++ or LLVM is an error here, nothing worse. What is taken
    from the cache needs no child.

    Raises:
        Crash: the compiler died; and whatever :func:`compile` raises.
    """
    from tvmopt.compiler.asked import check_output, requests_of
    from tvmopt.compiler.whole import CompiledFile, Order, isolated

    requests = requests_of(model, **options)
    check_output(emit, requests, output)
    if len(requests) == 1:
        (request,) = requests.values()
        return isolated(request, Order(verify, tolerance, output, strip_weights, cache, emit), progress)
    with TemporaryDirectory(prefix="tvmopt-fleet-") as folder:
        members, reports = [], []
        for name, request in requests.items():
            file = Path(folder) / f"{name}.tvmopt"
            order = Order(verify, tolerance, file, False, cache)
            reports.append(_of_target(name, progress, partial(isolated, request, order)).report)
            members.append(artifacts.read(file, mapped=True, verify=False))
        joined = _joined(members, reports, output, strip_weights)
    return CompiledFile(joined.report, joined.path, joined.reports)


@dataclass(frozen=True)
class RunResult:
    """What :func:`run` gives: `outputs` by name, `timing` if it was asked for, the threads used, what else to know, the
    target whose code ran, and all those of the file, if it is for a fleet; the names of classes by the output that has
    their numbers."""

    outputs: dict[str, Array]
    timing: Timing | None
    threads: int
    notes: tuple[str, ...] = ()
    target: str = ""
    fleet: tuple[str, ...] = ()
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)


def run(
    model: str | Path | Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    shape: Shapes | None = None,
    precision: str = "fp32",
    fill: str = "random",
    seed: int = 0,
    output: str | Path | None = None,
    print_time: bool = False,
    iterations: int | None = None,
    warmup: int | None = None,
    duration: float | None = None,
    threads: int | None = None,
    cores: str | None = None,
    target: str | None = None,
    nvtx: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run a compiled model once, and time it if asked.

    Args:
        model: the artifact's path, a loaded model, or an ONNX file, which is compiled for this run only.
        inputs: arrays by name; those that are missing are filled.
        shape: of an ONNX file: as for :func:`compile`. Of a compiled one: open sizes of the inputs that are filled, by
            their name or the input's.
        precision: of an ONNX file: as for :func:`compile`.
        fill: "random" (seeded; integers are 0 or 1), "zeros" or "ones".
        output: write the outputs there: .npz, or .npy if there is one.
        print_time: measure the latency of `iterations` (100) calls after `warmup` (10), and more until `duration`
            seconds passed; each of the three asks for it too.
        cores: the processors to run on, as for :func:`load`: "0-3", "node0".
        target: the name of the one to run of an artifact for a fleet; default: the best that this machine can. Of an
            ONNX file: as for :func:`compile`.
        nvtx: open an NVTX range with its ONNX nodes around each kernel, for Nsight Systems.

    Raises:
        ArtifactError, InputError: see :func:`load` and :class:`Model`.
        MissingDependency: `nvtx` without the package nvtx.
    """
    from contextlib import nullcontext

    from tvmopt.analysis.samples import sample_inputs

    if fill not in ("random", "zeros", "ones"):
        raise InputError(f"there is no fill {fill!r}.", fix="random, zeros or ones")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InputError(f"inputs is a {type(inputs).__name__}.", fix="give arrays by name: {'x': array}")
    if duration is not None:
        check_seconds(duration)
    if output is not None:
        from tvmopt.compiler.request import model_files

        check_writable(output, reads=model_files(model))
    form = array_format(output) if output is not None else ""
    notes = []
    sizes = shape
    loaded: Model | EmulatedModel
    if not isinstance(model, Model) and str(model).endswith(".onnx"):
        loaded = _compiled_for_now(model, shape, precision, threads, cores, target or "cpu", progress)
        notes.append(f"{model} was compiled for this run only; tvmopt compile {model} keeps it.")
        sizes = None  # compiled in
    elif isinstance(model, Model):
        loaded = model
        if target not in (None, model.manifest.target):
            fix = f"load it with target={target!r}"
            raise InputError(f"the model was loaded for {model.manifest.target}, not {target}.", fix=fix)
        if cores is not None:
            raise InputError("the model is loaded, and runs where it was told to.", fix=f"load it with cores={cores!r}")
    else:
        loaded = _opened(model, target or "", threads, cores)
    if precision not in ("fp32", loaded.manifest.precision):
        what = f"the model was compiled in {loaded.manifest.precision}, not {precision}."
        raise InputError(what, where=loaded.manifest.model, fix=f"compile it with precision {precision}")
    fleet = tuple(member.title for member in loaded.manifest.fleet)
    if fleet:
        notes.append(f"{model} is for {', '.join(fleet)}; the code for {loaded.manifest.title} was run.")
    timed = print_time or not (iterations is warmup is duration is None)
    if isinstance(loaded, EmulatedModel):
        if timed or nvtx:
            fix = "run it without --print-time and the like, or on a machine that it is for"
            raise InputError("an emulator's times say nothing about the model's.", where=str(model), fix=fix)
        notes.append(f"{model} was run by {loaded.emulator.told}.")
    if form == "npy" and len(loaded.outputs) > 1:
        names = ", ".join(info.name for info in loaded.outputs)
        raise InputError(f"the model has several outputs: {names}.", where=str(output), fix="give a name in .npz")
    given = dict(inputs or {})
    missing = [info for info in loaded.inputs_beside(given, sizes) if info.name not in given]
    bounds = loaded.manifest.options.get("bounds", {})
    feeds = {**sample_inputs(missing, seed=seed, fill=fill, bounds=bounds), **given}
    marked: AbstractContextManager[None] = nullcontext()
    if nvtx:
        from tvmopt.runtime.nvtx import ranges

        assert isinstance(loaded, Model)
        marked = ranges(loaded)
    with marked:
        outputs = loaded.run(feeds)
        timing = None
        if timed and isinstance(loaded, Model):
            calls, before = 100 if iterations is None else iterations, 10 if warmup is None else warmup
            timing = loaded.time(feeds, iterations=calls, warmup=before, duration=duration or 0.0)
    if output is not None:
        _write(output, form, outputs)
    labels = loaded.manifest.options.get("labels", {})
    return RunResult(outputs, timing, loaded.threads, tuple(notes), loaded.manifest.target, fleet, labels)


def _opened(path: str | Path, target: str, threads: int | None, cores: str | None) -> Model | EmulatedModel:
    """An artifact ready to run: by this machine, or by an emulator where its target has other instructions."""
    if artifacts.read_manifest(path, target=target).arch in ("", host_arch()):
        return load(path, threads=threads, target=target, cores=cores)
    if cores is not None:
        raise InputError("an emulator takes no cores.", where=str(path), fix="start tvmopt with `taskset -c`")
    return opened(artifacts.read(path, target=target, threads=threads or 0), threads=threads)


def _compiled_for_now(
    model: str | Path,
    shape: Shapes | None,
    precision: str,
    threads: int | None,
    cores: str | None,
    target: str,
    progress: Progress | None,
) -> Model:
    """An ONNX file, compiled in a child process and loaded; nothing is left on the disk."""
    with TemporaryDirectory(prefix="tvmopt-") as folder:
        path = Path(folder) / "model.tvmopt"
        compile_isolated(
            model, target=Machine.load(target), shape=shape, precision=precision, verify=False,
            threads=threads or (parse(cores).count if cores is not None else None), output=path, progress=progress,
        )  # fmt: skip
        return load(path, threads=threads, cores=cores)


def _write(output: str | Path, form: str, outputs: Mapping[str, Array]) -> None:
    import numpy as np

    with atomic_write(output) as file:
        if form == "npy":
            np.lib.format.write_array(file, np.asanyarray(next(iter(outputs.values()))))
        else:
            save_arrays(file, outputs)


def refit(
    artifact: str | Path | Artifact,
    model: str | Path | bytes | onnx.ModelProto,
    *,
    output: str | Path | None = None,
    verify: bool = True,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Put the weights of a model into an artifact compiled from the same graph; no code is generated.

    Args:
        artifact: stripped or not.
        model: an ONNX model with the same graph; only its weights may differ.
        output: write the result there; the artifact's own path is fine.

    Raises:
        ArtifactError: the model's structure is not the artifact's, or versions or the machine's
            description have changed.
        AccuracyError, InputError: see :func:`compile`.
    """
    from tvmopt.compiler.request import model_files

    check_tolerance(tolerance)
    check_writable(output, reads=model_files(model))
    fleet = None if isinstance(artifact, Artifact) else Fleet.read(artifact)
    if fleet is None:
        old = artifact if isinstance(artifact, Artifact) else artifacts.read(artifact)
        fitted, report = _refitted(old, model, verify, tolerance, progress)
        return Compiled(fitted, report, fitted.save(output) if output is not None else None)
    made = [_refitted(old, model, verify, tolerance, progress) for old in fleet.members]
    return _joined([one for one, _ in made], [report for _, report in made], output, False)


def _refitted(
    old: Artifact, model: Any, verify: bool, tolerance: float | None, progress: Progress | None
) -> tuple[Artifact, Report]:
    """One target of an artifact with another model's weights."""
    from tvmopt.compiler.accuracy import verified
    from tvmopt.compiler.driver import refit as refit_weights
    from tvmopt.compiler.request import as_file, request_of

    if old.beginning is not None:
        raise ArtifactError(
            "the artifact of a decoder beside an encoder holds two programs, and takes no other weights.",
            where=old.where,
            fix="compile the model instead",
        )
    request = request_of(old.manifest, model)
    fitted = refit_weights(old, request, progress)
    report = Report.from_dict(fitted.manifest.report)
    if not verify:
        return fitted, report
    with as_file(request.whole) as path:
        return verified(fitted, report, path, tolerance, progress)


def inspect(
    source: str | Path,
    *,
    shape: Shapes | None = None,
    html: str | Path | None = None,
    timed: bool = False,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    progress: Progress | None = None,
) -> Any:
    """What a file is: of an ONNX file :func:`tvmopt.analysis.metrics.inspect`'s summary, of an artifact its
    :class:`~tvmopt.runtime.manifest.Manifest`.

    Args:
        html: write the compiled graph there, as one page with nothing to load: what fused into what, and
            what did not. An ONNX file is compiled for it.
        timed: with `html`: run the artifact here and show each kernel's share of the time; else of the FLOPs.
        target, precision: with `html`, for an ONNX file: as for :func:`compile`. Of an artifact for a fleet `target` is
            the name of the one to look at; default: that which this machine runs.

    Raises:
        InputError: `timed` without `html`; an artifact of an older tvmopt, which does not know its graph.
    """
    if timed and not html:
        raise InputError("timing shows on the page only.", fix="tvmopt inspect MODEL --html graph.html --timed")
    if html:
        from tvmopt.compiler.request import model_files

        check_writable(html, reads=model_files(source))
        write_text(html, _graph_page(source, shape, timed, target, precision, progress))
    if is_artifact(source):
        return artifacts.read_manifest(source, target=_asked(target))
    from tvmopt.analysis import metrics

    return metrics.inspect(source, shape)


def _asked(target: str | Path | Machine) -> str:
    """The target that is asked for of an artifact: empty for the default."""
    return "" if target == "cpu" else target.name if isinstance(target, Machine) else str(target)


def _graph_page(
    source: str | Path,
    shape: Shapes | None,
    timed: bool,
    target: str | Path | Machine,
    precision: str,
    progress: Progress | None,
) -> str:
    from tvmopt.analysis import graph_html

    with TemporaryDirectory(prefix="tvmopt-graph-") as folder:
        file = Path(source)
        if not is_artifact(source):
            target = Machine.load(target)  # one, not a fleet
            file = Path(folder) / "model.tvmopt"
            compile_isolated(
                source, target=target, precision=precision, shape=shape, verify=False, output=file, progress=progress
            )
        found = None
        if timed:
            from tvmopt.analysis.profile import profile

            if progress:
                progress("timing kernels")
            found = profile(file)
        chosen = _asked(target) if file == Path(source) else ""
        return graph_html.html(Report.from_dict(artifacts.read_manifest(file, target=chosen).report), found)


def explain(
    source: str | Path,
    node: str | None = None,
    *,
    kernel: str | None = None,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    shape: Shapes | None = None,
    int8: str = "auto",
    progress: Progress | None = None,
) -> Report:
    """What was done to a model and why not: the report of an artifact, or of a compile that writes nothing.

    Args:
        source: an artifact or an ONNX file.
        node: only decisions and kernels that concern the ONNX node of this name, or, if there is none, those whose name
            contains it.
        kernel: likewise, of a kernel.
        target, precision, shape, int8: for an ONNX file: as for :func:`compile`. Of an artifact for a fleet `target` is
            the name of the one to explain; default: that which this machine runs.

    Raises:
        InputError: there is no such node or kernel.
    """
    from tvmopt.analysis.about import about

    if not is_artifact(source):
        target = Machine.load(target)  # one, not a fleet
    report = (
        Report.from_dict(artifacts.read_manifest(source, target=_asked(target)).report)
        if is_artifact(source)
        else compile_isolated(
            source, target=target, precision=precision, shape=shape, int8=int8, verify=False, progress=progress
        ).report
    )
    return about(report, node, kernel)
