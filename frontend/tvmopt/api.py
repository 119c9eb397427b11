"""The words people type, as Python functions: compile, load, run, inspect, explain, refit.

import tvmopt

compiled = tvmopt.compile("resnet50.onnx", output="resnet50.tvmopt")
print(compiled.report)                     # one line; its fields have the rest
y = compiled(x)

model = tvmopt.load("resnet50.tvmopt")     # needs TVM's runtime library only
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.children import Progress
from tvmopt.dims import Shapes
from tvmopt.errors import InputError
from tvmopt.files import array_format, atomic_write, check_writable, save_arrays, write_text
from tvmopt.report import Report
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime.artifact import Artifact, is_artifact
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.model import Model, load
from tvmopt.runtime.pool import check_threads
from tvmopt.runtime.tensors import Array
from tvmopt.runtime.timing import Timing
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.emulation import EmulatedModel, opened

if TYPE_CHECKING:
    import onnx

    from tvmopt.compiler.kept import Kept
    from tvmopt.compiler.request import Request

Preprocess = str | Mapping[str, Any] | None
"""A stage, or stages by the names of inputs: see :func:`compile`."""

__all__ = ["Compiled", "Model", "RunResult", "compile", "explain", "inspect", "is_artifact", "load", "refit", "run"]


@dataclass(frozen=True, repr=False)
class Compiled:
    """A compiled model; called with inputs, it runs.

    Attributes:
        artifact: manifest, library and weights.
        report: what was done and why not.
        path: where it was written, if `output` was given.
    """

    artifact: Artifact
    report: Report
    path: Path | None = None

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
        return (self.artifact.stripped() if strip_weights else self.artifact).save(path)


def compile(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    shape: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    preprocess: Preprocess = None,
    verify: bool = True,
    tolerance: float | None = None,
    output: str | Path | None = None,
    threads: int | None = None,
    exact: bool = False,
    int8: str = "auto",
    strip_weights: bool = False,
    records: bool = True,
    cuda_graph: bool = True,
    store: str | Path | None = None,
    without: Sequence[str] | None = None,
    dump_after: Mapping[str, str | Path] | None = None,
    dump_all: str | Path | None = None,
    dump_code: Mapping[str, str | Path] | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> Compiled:
    """Compile an ONNX model.

    Args:
        model: a path, the bytes of a model, or a ModelProto.
        target: "cpu" (this machine), "cuda", a name of `tvmopt targets list`, a TOML file, or a Machine.
        precision: "fp32"; "bf16" or "fp16": 16-bit operands, sums in fp32; on GPUs "tf32": operands of products
            rounded to 11 bits (docs/explanation/precision.md).
        shape: shapes of inputs whose dimensions the model leaves open: ``{"x": (1, 3, 224, 224)}``.
        values: inputs known at compile time, by name, as arrays, numbers or lists of them; they become constants.
        preprocess: what becomes of pictures of bytes before the model reads them, as a part of the artifact:
            ``"image:resize=256,crop=224,from=480x640"``, a mapping of its keys, or either by the name of an input
            (docs/how-to/preprocess.md).
        verify: run module and onnxruntime on the same seeded inputs and refuse a wrong result.
        tolerance: of the verification, relative to each output's largest value; default: what
            rounding explains.
        output: write the artifact there.
        threads: threads to compile for; default: the target's cores.
        exact: only algorithms that round as the operators' definitions do (no Winograd convolution, no rows
            rounded to 8 bits).
        int8: "auto": the products of a quantised model are integer products where this machine multiplies bytes faster
            than floats; "all": wherever there is such a kernel; "off": nowhere, the model is evaluated in floats.
            So are those of MatMulNBits where the file allows rows of 8 bits (`accuracy_level` 4).
        strip_weights: write the artifact without its weights (`refit` puts weights in).
        records: use what tuning recorded for exactly this target: the user's store, then what ships here.
        cuda_graph: on a GPU, capture runs of kernels once as CUDA graphs and replay them.
        store: the tuning store to use in place of the user's.
        without: names of stages of the pipeline to leave out (docs/reference/passes.md lists them).
        dump_after: names of stages, and the folders to write the module behind each into.
        dump_all: a folder for the modules behind all stages.
        dump_code: names of kernels, and the folders for each one's loops, LLVM IR and assembly, or CUDA C++ and PTX.
        cache: take the artifact of the same compile, made and verified earlier, where it is kept, and keep this one
            (`tvmopt cache`). False compiles in any case.
        progress: called with the name of each stage.

    Raises:
        ModelError, UnsupportedOp, TargetError, InputError: every problem of a kind at once.
        AccuracyError: the compiled module is wrong.
        MissingDependency: a tool is missing (C compiler; nvcc or NVRTC for CUDA).
    """
    from tvmopt.compiler.kept import Kept

    request = _request(
        model, target=target, precision=precision, shape=shape, values=values, preprocess=preprocess, threads=threads,
        exact=exact,
        int8=int8, records=records, cuda_graph=cuda_graph, store=store, without=without,
        dump_after=dump_after, dump_all=dump_all, dump_code=dump_code,
    )  # fmt: skip
    check_writable(output)
    kept = Kept.of(request, verify, tolerance) if cache else None
    found = kept.find() if kept is not None else None
    if found is not None:
        return Compiled(*found, _written(found[0], output, strip_weights))
    return _compiled(request, verify, tolerance, output, strip_weights, kept, progress)


def _request(
    model: Any,
    *,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    shape: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    preprocess: Preprocess = None,
    threads: int | None = None,
    without: Sequence[str] | None = None,
    dump_after: Mapping[str, str | Path] | None = None,
    dump_all: str | Path | None = None,
    dump_code: Mapping[str, str | Path] | None = None,
    **options: Any,
) -> Request:
    """What :func:`compile` is asked for; `options` are further fields of a request."""
    from tvmopt.compiler.dump import Dumps
    from tvmopt.compiler.request import Request
    from tvmopt.preprocessing.asked import stages

    machine = Machine.load(target)
    if threads is not None:
        machine = machine.with_threads(check_threads(threads, "threads"))
    after, code = (tuple((n, str(f)) for n, f in (wanted or {}).items()) for wanted in (dump_after, dump_code))
    dumps = Dumps(after, str(dump_all or ""), code)
    return Request(
        model, machine, precision, shape or {}, values or {}, without=tuple(without or ()), dumps=dumps,
        preprocess=stages(preprocess), **options,
    )  # fmt: skip


def _compiled(
    request: Request,
    verify: bool,
    tolerance: float | None,
    output: str | Path | None,
    strip_weights: bool,
    kept: Kept | None,
    progress: Progress | None,
) -> Compiled:
    """Compiled, verified, kept and written in this process."""
    from tvmopt.compiler.accuracy import begin, early, verified
    from tvmopt.compiler.driver import compile_model
    from tvmopt.compiler.request import as_file

    if not verify:
        artifact, report = compile_model(request, progress)
    else:
        from tvmopt.analysis.verify import Verification

        with as_file(request.whole) as path, ExitStack() as stack:
            started = stack.enter_context(Verification(path, tolerance)) if early(request.machine) else None
            told = partial(begin, started, request=request) if started else None
            artifact, report = compile_model(request, progress, told)
            artifact, report = verified(artifact, report, path, tolerance, progress, started)
    file = kept.keep(artifact, verify) if kept is not None else None
    return Compiled(artifact, report, _written(artifact, output, strip_weights, file))


def _written(
    artifact: Artifact, output: str | Path | None, strip_weights: bool, kept: Path | None = None
) -> Path | None:
    """The path of an artifact that was asked for as a file; `kept`: the same as a file in the cache."""
    from tvmopt.compiler.kept import copied

    if output is None:
        return None
    if kept is not None and not strip_weights and copied(kept, output):
        return Path(output)
    return (artifact.stripped() if strip_weights else artifact).save(output)


def compile_isolated(
    model: str | Path,
    *,
    verify: bool = True,
    tolerance: float | None = None,
    output: str | Path | None = None,
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
    from tvmopt import children
    from tvmopt.compiler.kept import Kept

    request = _request(model, **options)
    check_writable(output)
    kept = Kept.of(request, verify, tolerance) if cache else None
    if kept is not None and (found := _found(kept, output, strip_weights)) is not None:
        return found
    arguments = {
        "request": request.to_dict(),
        "verify": verify,
        "tolerance": tolerance,
        "output": None if output is None else str(output),
        "strip_weights": strip_weights,
        "kept": kept.start if kept is not None else "",
    }
    try:
        answer = children.call("tvmopt.api:_in_child", arguments, progress=progress)
    except children.Crash as crash:
        raise children.Crash(
            f"the compiler crashed ({crash.what}) while {crash.stage or 'starting'}.",
            crash.stage,
            where=str(model),
            fix=children.scarce_memory() or "this is a bug: please report it with the model",
        ) from crash
    return CompiledFile(Report.from_dict(answer["report"]), Path(answer["path"]) if answer["path"] else None)


@dataclass(frozen=True)
class CompiledFile:
    """A compile that was written: its report and its path."""

    report: Report
    path: Path | None


def _found(kept: Kept, output: str | Path | None, strip_weights: bool) -> CompiledFile | None:
    """What is kept of a compile, written; None where nothing is."""
    if output is None:  # only what was done is asked for
        report = kept.report()
        return None if report is None else CompiledFile(report, None)
    if not strip_weights:
        report = kept.copy(output)
        return None if report is None else CompiledFile(report, Path(output))
    found = kept.find()
    return None if found is None else CompiledFile(found[1], _written(found[0], output, strip_weights))


def _in_child(*, request: dict[str, Any], kept: str, progress: Progress, **options: Any) -> dict[str, Any]:
    from tvmopt.cache import Artifacts
    from tvmopt.compiler.kept import Kept
    from tvmopt.compiler.request import Request

    asked = Request.from_dict(request)
    place = Kept(Artifacts.default(), kept, asked.source) if kept else None
    compiled = _compiled(asked, kept=place, progress=progress, **options)
    return {"report": compiled.report.as_dict(), "path": str(compiled.path) if compiled.path else None}


@dataclass(frozen=True)
class RunResult:
    """What :func:`run` gives: `outputs` by name, `timing` if it was asked for, the threads used, what else to know."""

    outputs: dict[str, Array]
    timing: Timing | None
    threads: int
    notes: tuple[str, ...] = ()


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
    nvtx: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run a compiled model once, and time it if asked.

    Args:
        model: the artifact's path, a loaded model, or an ONNX file, which is compiled for this run only.
        inputs: arrays by name; those that are missing are filled.
        shape, precision: for an ONNX file: as for :func:`compile`.
        fill: "random" (seeded; integers are 0 or 1), "zeros" or "ones".
        output: write the outputs there: .npz, or .npy if there is one.
        print_time: measure the latency of `iterations` (100) calls after `warmup` (10), and more until `duration`
            seconds passed; each of the three asks for it too.
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
    check_writable(output)
    form = array_format(output) if output is not None else ""
    notes = []
    loaded: Model | EmulatedModel
    if not isinstance(model, Model) and str(model).endswith(".onnx"):
        loaded = _compiled_for_now(model, shape, precision, threads, progress)
        notes.append(f"{model} was compiled for this run only; tvmopt compile {model} keeps it.")
    elif isinstance(model, Model):
        loaded = model
    else:
        foreign = artifacts.read_manifest(model).arch not in ("", host_arch())
        loaded = opened(artifacts.read(model), threads=threads) if foreign else load(model, threads=threads)
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
    missing = [info for info in loaded.inputs_beside(given) if info.name not in given]
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
    return RunResult(outputs, timing, loaded.threads, tuple(notes))


def _compiled_for_now(
    model: str | Path,
    shape: Shapes | None,
    precision: str,
    threads: int | None,
    progress: Progress | None,
) -> Model:
    """An ONNX file, compiled in a child process and loaded; nothing is left on the disk."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tvmopt"
        compile_isolated(
            model, shape=shape, precision=precision, threads=threads, verify=False, output=path, progress=progress
        )
        return load(path, threads=threads)


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
        AccuracyError: see :func:`compile`.
    """
    from tvmopt.compiler.accuracy import verified
    from tvmopt.compiler.driver import refit as refit_weights
    from tvmopt.compiler.request import as_file, request_of

    check_writable(output)
    old = artifact if isinstance(artifact, Artifact) else artifacts.read(artifact)
    request = request_of(old.manifest, model)
    fitted = refit_weights(old, request, progress)
    report = Report.from_dict(fitted.manifest.report)
    if verify:
        with as_file(request.whole) as path:
            fitted, report = verified(fitted, report, path, tolerance, progress)
    return Compiled(fitted, report, fitted.save(output) if output is not None else None)


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
        target, precision: with `html`, for an ONNX file: as for :func:`compile`.

    Raises:
        InputError: `timed` without `html`; an artifact of an older tvmopt, which does not know its graph.
    """
    if timed and not html:
        raise InputError("timing shows on the page only.", fix="tvmopt inspect MODEL --html graph.html --timed")
    if html:
        check_writable(html)
        write_text(html, _graph_page(source, shape, timed, target, precision, progress))
    if is_artifact(source):
        return artifacts.read_manifest(source)
    from tvmopt.analysis import metrics

    return metrics.inspect(source, shape)


def _graph_page(
    source: str | Path,
    shape: Shapes | None,
    timed: bool,
    target: str | Path | Machine,
    precision: str,
    progress: Progress | None,
) -> str:
    import tempfile

    from tvmopt.analysis import graph_html

    with tempfile.TemporaryDirectory(prefix="tvmopt-graph-") as folder:
        file = Path(source)
        if not is_artifact(source):
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
        return graph_html.html(Report.from_dict(artifacts.read_manifest(file).report), found)


def explain(
    source: str | Path,
    node: str | None = None,
    *,
    kernel: str | None = None,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    shape: Shapes | None = None,
    progress: Progress | None = None,
) -> Report:
    """What was done to a model and why not: the report of an artifact, or of a compile that writes nothing.

    Args:
        source: an artifact or an ONNX file.
        node: only decisions and kernels that concern the ONNX node of this name, or, if there is none, those whose name
            contains it.
        kernel: likewise, of a kernel.

    Raises:
        InputError: there is no such node or kernel.
    """
    from tvmopt.analysis.about import about

    report = (
        Report.from_dict(artifacts.read_manifest(source).report)
        if is_artifact(source)
        else compile_isolated(
            source, target=target, precision=precision, shape=shape, verify=False, progress=progress
        ).report
    )
    return about(report, node, kernel)
