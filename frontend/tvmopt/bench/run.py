"""`tvmopt bench` as a function: models x batches x threads, each engine on each, outputs first."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.amounts import check_seed, check_tolerance
from tvmopt.analysis.comparator import Comparison
from tvmopt.analysis.feeds import completed
from tvmopt.analysis.judge import Judge, Truth
from tvmopt.analysis.metrics import ModelMetrics, metrics
from tvmopt.analysis.oracle.values import Unsupported
from tvmopt.analysis.peaks import Peaks, measure_peaks
from tvmopt.analysis.rounds import mark, may_round
from tvmopt.analysis.told import numberless
from tvmopt.bench.engine import Engine
from tvmopt.bench.machine import describe_machine
from tvmopt.bench.measure import Plan, Series, measure
from tvmopt.bench.records import BenchResult, Case, EngineResult, Job
from tvmopt.bench.reference import reference_outputs
from tvmopt.bench.runners import make, parse, runner_class
from tvmopt.bench.stats import Ratio, Rules, compare_rounds, is_open, latency
from tvmopt.children import Progress
from tvmopt.dims import Shapes
from tvmopt.errors import InputError, MissingDependency, TvmoptError
from tvmopt.files import save_arrays
from tvmopt.quantization.quantize import QUANTISED
from tvmopt.targets.precision import INT8

MiB = 1 << 20

INTEGERS = QUANTISED | {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
"""Operators of which a model that is timed as int8 has one at least."""


@dataclass(frozen=True)
class Settings:
    """What `tvmopt bench` was asked, beside the models.

    Attributes:
        engines: engine specs, the first is the one the others are compared with.
        batches: leading dimensions to try; empty: the model's own.
        threads, streams, precision, seed: as for :class:`Job`.
        tolerance: relative to the largest output value; None derives it.
        inputs: arrays by input; those missing are random with `seed`. They bind open shapes that `shapes` leaves open.
        save: folder that keeps prepared engine files; `reuse` takes them from there.
    """

    engines: tuple[str, ...] = ("tvmopt", "onnxruntime")
    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    streams: int = 1
    precision: str = "fp32"
    seed: int = 0
    tolerance: float | None = None
    shapes: Shapes = field(default_factory=dict)
    inputs: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    save: str = ""
    reuse: bool = False
    floor: bool = True

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_tolerance(self.tolerance)


def bench(
    models: str | Path | Sequence[str | Path],
    settings: Settings | None = None,
    *,
    plan: Plan | None = None,
    rules: Rules | None = None,
    source: str | Path | None = None,
    progress: Progress | None = None,
    finished: Callable[[Case], None] | None = None,
) -> BenchResult:
    """Time engines on models, interleaved, after comparing their outputs.

    Args:
        models: ONNX files, or tvmopt artifacts (then `source` is the ONNX file for the other engines); or one of them.
        finished: called with each case as soon as it is done.

    Returns:
        Every case, with the machine and the settings; an engine that cannot run is a row that says why.

    Raises:
        InputError: an unknown engine, a missing file, a batch for a model whose batch is fixed.
    """
    models = [models] if isinstance(models, str | Path) else models
    settings, plan, rules = settings or Settings(), plan or Plan(), rules or Rules()
    for spec in settings.engines:
        name, options = parse(spec)
        make(Job(name, "", options=options))  # refuses unknown options before anything runs
    _check_batches(models, source, settings)
    machine = describe_machine()
    cases, used = [], {}
    for model in models:
        for batch in settings.batches or (0,):
            for threads in settings.threads:
                peaks = measure_peaks(threads) if settings.floor else None
                if peaks:
                    used[str(threads)] = asdict(peaks)
                subject = Subject.of(model, source, batch, settings)
                case = run_case(subject, threads, settings, plan, rules, peaks, progress)
                cases.append(case)
                if finished:
                    finished(case)
    given = {name: list(array.shape) for name, array in settings.inputs.items()}
    asked = asdict(replace(settings, inputs={})) | {"inputs": given, "plan": asdict(plan), "rules": asdict(rules)}
    return BenchResult(machine, asked, tuple(cases), used)


def _check_batches(models: Sequence[str | Path], source: str | Path | None, settings: Settings) -> None:
    """Refuse a batch that a model cannot have before the first is timed."""
    from tvmopt.api import is_artifact
    from tvmopt.importer import load

    for model in models if settings.batches else ():
        file = Path(source or "") if is_artifact(model) else Path(model)
        if file.is_file():
            loaded = load(file)
            for batch in settings.batches:
                with_batch(loaded, batch, settings.shapes)


@dataclass(frozen=True)
class Subject:
    """A model with its shapes, inputs and reference tolerance.

    Attributes:
        name: for reports; `onnx` and `artifact` are absolute paths or empty.
        feeds: seeded inputs.
        phase: of a decoder, see :class:`tvmopt.bench.records.Job`.
    """

    name: str
    onnx: str
    artifact: str
    shapes: dict[str, tuple[int, ...]]
    feeds: dict[str, Any]
    cost: ModelMetrics
    phase: str = ""

    @property
    def reference_phase(self) -> str:
        """The phase in which the reference computes the outputs."""
        return self.phase

    @classmethod
    def of(cls, path: str | Path, source: str | Path | None, batch: int, settings: Settings) -> Subject:
        """Read a model, bind its shapes, draw its inputs."""
        from tvmopt.api import is_artifact
        from tvmopt.importer import load, prepare_named
        from tvmopt.importer.protos import input_shapes

        artifact = str(Path(path).resolve()) if is_artifact(path) else ""
        file = Path(source or "") if artifact else Path(path)
        if not file.is_file():
            raise InputError(
                f"{path} is an artifact; the other engines need its ONNX file" if artifact else f"no file {file}",
                where=str(path),
                fix="--model MODEL.onnx" if artifact else "check the path",
            )
        loaded = load(file)
        if settings.precision == "int8" and not any(n.op_type in INTEGERS for n in loaded.graph.node):
            raise InputError("The model is not quantised.", where=f"{path}, --precision int8", fix=INT8)
        shapes = {name: array.shape for name, array in settings.inputs.items()} | dict(settings.shapes)
        static = prepare_named(loaded, with_batch(loaded, batch, shapes) if batch else shapes)
        cost = metrics(static, Path(path).name)
        feeds = completed(static, settings.inputs, settings.seed)
        return cls(Path(path).name, str(file.resolve()), artifact, input_shapes(static), feeds, cost)

    @property
    def batch(self) -> int:
        """What one call counts for: the leading dimension of the first input."""
        return next((a.shape[0] for a in self.feeds.values() if a.ndim), 1)

    def judge(self, settings: Settings) -> Callable[..., Comparison]:
        """What says of every engine's outputs whether they are right: the oracle, asked once for all engines."""
        precision = "fp32" if settings.precision == "int8" else settings.precision
        judges = [Judge(self.onnx, precision, settings.tolerance)]
        if any(map(may_round, judges[0].model.graph.node)):  # an engine may round the rows of these to 8 bits, or not
            judges.append(Judge(self.onnx, precision, settings.tolerance))
            mark(judges[1].model)
        kept: dict[int, Truth] = {}

        def judged(reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> Comparison:
            for number, judge in enumerate(judges):
                try:
                    truth = kept.get(number) or kept.setdefault(number, judge.truth(self.feeds))
                except Unsupported:
                    return judge.without_oracle(outputs, reference)
                if (found := judge(truth, outputs, reference)).ok:
                    break
            return found

        return judged

    def reference(self, folder: Path) -> str:
        """The file that onnxruntime computes the reference from; `folder` is for one that has to be written."""
        return self.onnx

    def told(self, reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, str]:
        """What else is to be said of an engine's outputs, among its facts."""
        return {}

    def before_launch(self, threads: int) -> None:
        """Called before engines are started for a launch."""

    def floor(self, peaks: Peaks, precision: str) -> tuple[float, str, str]:
        """Seconds that nothing can beat, what they are bound by, and what they are made of."""
        floor = peaks.floor(self.cost.flops, self.cost.floor_bytes, precision)
        compute = self.cost.flops / peaks.compute(precision)
        return floor, "compute" if compute >= floor else "memory", ""


def with_batch(model: Any, batch: int, shapes: Shapes) -> dict[str, tuple[int | str, ...]]:
    """Shapes of all inputs with another leading dimension.

    Raises:
        InputError: an input's leading dimension is fixed to something else, or another one is open and
            unbound.
    """
    stored = {t.name for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        dims = list(value.type.tensor_type.shape.dim)
        given = shapes.get(value.name)
        sizes = list(given) if given else [d.dim_value for d in dims]
        if dims and dims[0].dim_value not in (0, batch) and not given:
            raise InputError(
                f"batch {batch}: input {value.name!r} has its batch fixed to {dims[0].dim_value}",
                where="--batch",
                fix="export the model with a dynamic batch, or one file a batch",
            )
        if sizes:
            sizes[0] = batch
        if 0 in sizes:
            raise InputError(
                f"input {value.name!r} has more open dimensions than its batch: {sizes}",
                where="--batch",
                fix=f"--shape {value.name}:{'x'.join(str(s or 'N') for s in sizes)}",
            )
        found[value.name] = tuple(sizes)
    return found


def run_case(
    subject: Subject,
    threads: int,
    settings: Settings,
    plan: Plan,
    rules: Rules,
    peaks: Peaks | None,
    progress: Progress | None = None,
) -> Case:
    """One model, one batch, one number of threads."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tvmopt-bench-") as folder:
        rows = _prepare(subject, threads, settings, Path(folder), progress)
        ready = [i for i, row in enumerate(rows) if row.status == "ok"]
        inputs = str(Path(folder) / "inputs.npz")

        def start() -> list[Engine]:
            subject.before_launch(threads)
            return _start([rows[i].job for i in ready], inputs)

        def decided(series: Sequence[Series]) -> bool:
            found = _ratios(rows, dict(zip(ready, series, strict=True)), rules)
            return not any(is_open(ratio, rules) for ratio in found.values())

        series, played = measure(start, len(ready), plan, progress, decided) if ready else ([], 0)
        for index, one in zip(ready, series, strict=True):
            rows[index] = _with_times(rows[index], one, subject.batch, settings.streams)
    ratios = _ratios(rows, dict(zip(ready, series, strict=True)), rules)
    floor, by, words = subject.floor(peaks, settings.precision) if peaks else (0.0, "", "")
    return Case(
        model=subject.name,
        batch=subject.batch,
        threads=threads,
        streams=settings.streams,
        precision=settings.precision,
        inputs={n: f"{a.dtype}{list(a.shape)}" for n, a in subject.feeds.items()},
        engines=tuple(rows),
        ratios=ratios,
        flops=subject.cost.flops,
        floor_bytes=subject.cost.floor_bytes,
        floor_ms=floor * 1e3,
        floor_by=by,
        rounds=(plan.rounds, played),
        seconds=time.perf_counter() - begin,
        phase=subject.phase,
        floor_words=words,
    )


def _prepare(
    subject: Subject, threads: int, settings: Settings, folder: Path, progress: Progress | None
) -> list[EngineResult]:
    """Build, load and check every engine once, each alone; rows without times."""
    inputs = folder / "inputs.npz"
    save_arrays(inputs, subject.feeds)
    reference = reference_outputs(
        Job("onnxruntime", subject.reference(folder), shapes=subject.shapes, options={"opt_level": "none"},
            phase=subject.reference_phase),
        inputs,
        folder / "reference.npz",
    )  # fmt: skip
    judge = subject.judge(settings)
    rows: list[EngineResult] = []
    for label, spec in zip(labels(settings.engines), settings.engines, strict=True):
        if progress:
            progress(f"{subject.name}: {label} {subject.phase}".rstrip())
        name, options = parse(spec, subject.phase)
        job = Job(
            name, subject.onnx, "", threads, settings.streams, settings.precision, subject.shapes, options,
            subject.phase,
        )  # fmt: skip
        if name == "tvmopt" and subject.artifact:
            job = replace(job, prepared=subject.artifact)
        row = EngineResult(label, job)
        try:
            row = _check(row, subject, inputs, reference, judge, folder, settings)
        except MissingDependency as error:
            row = replace(row, status="missing", message=f"{error.what} - {error.fix}")
        except TvmoptError as error:
            row = replace(row, status="failed", message=" - ".join(filter(None, (error.what, error.where, error.fix))))
        rows.append(row)
    return rows


def _check(
    row: EngineResult,
    subject: Subject,
    inputs: Path,
    reference: dict[str, Any],
    judge: Callable[..., Comparison],
    folder: Path,
    settings: Settings,
) -> EngineResult:
    """The row after one build, one load and one comparison; its status is "wrong" if the outputs differ."""
    job, build_s = row.job, 0.0
    if runner_class(job.engine, job.phase).builds and not job.prepared:
        job, build_s = _build(row.label, job, subject, folder, settings)
    with Engine(job) as engine:
        loaded = engine.ask("load", job)
        engine.ask("bind", str(inputs))
        engine.ask("check", str(folder / "outputs.npz"))
        transfers = engine.ask("transfers")
        peak = engine.ask("memory")
    with np.load(folder / "outputs.npz") as file:
        outputs = {n: file[n] for n in file.files if n in reference or len(file.files) <= len(reference)}
    comparison = judge(reference, outputs)
    empty = comparison.numberless if comparison.ok else ()
    return replace(
        row,
        job=job,
        facts={**loaded["facts"], **subject.told(reference, outputs)},
        accuracy=comparison.max_error,
        compared=not comparison.outputs or len(empty) < len(comparison.outputs),
        load_s=loaded["seconds"],
        build_s=build_s,
        base_mib=loaded["base"] / MiB,
        peak_mib=peak / MiB,
        transfers_ms=transfers,
        status="ok" if comparison.ok else "wrong",
        message=(numberless(empty) if empty else "") if comparison.ok else str(comparison),
    )


def _build(label: str, job: Job, subject: Subject, folder: Path, settings: Settings) -> tuple[Job, float]:
    """The job with its engine file built, in a process that ends before anything is timed."""
    home = Path(settings.save) if settings.save else folder
    home.mkdir(parents=True, exist_ok=True)
    words = [Path(subject.onnx).stem, label, f"{job.threads}t", job.precision]
    words += ["x".join(map(str, s)) for s in subject.shapes.values()]
    path = home / ("-".join("".join(c if c.isalnum() else "_" for c in w) for w in words) + ".engine")
    job = replace(job, prepared=str(path))
    if settings.reuse and path.exists():
        return job, 0.0
    with Engine(job) as engine:
        seconds: float = engine.ask("build", job, patience=3600)
    return job, seconds


def _start(jobs: Sequence[Job], inputs: str) -> list[Engine]:
    """All engines loaded and bound, side by side; none is left running if one fails."""
    engines: list[Engine] = []

    def load(engine: Engine) -> None:
        engine.ask("load", engine.job)
        engine.ask("bind", inputs)

    try:
        engines.extend(map(Engine, jobs))
        with ThreadPoolExecutor(len(engines)) as pool:
            try:
                list(pool.map(load, engines))
            except BaseException:  # Ctrl-C among them: the pool waits for its threads, and they for these processes
                for engine in engines:
                    engine.process.kill()
                raise
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return engines


def _with_times(row: EngineResult, series: Series, batch: int, streams: int) -> EngineResult:
    """The row with its times; those of disturbed turns, and so marked, where there are no others."""
    samples = series.samples or series.noisy
    thin = max(1, len(samples) // 4096)
    return replace(
        row,
        latency=latency(samples, batch, streams) if samples else None,
        quiet=bool(series.samples),
        rounds=tuple(map(tuple, series.launches)),
        samples=tuple(samples[::thin]),
        alone_ms=float(np.median(series.after_itself or [0.0])) * 1e3,
        rotation=series.rotation,
        disturbed=series.disturbed,
    )


def _ratios(rows: Sequence[EngineResult], series: Mapping[int, Series], rules: Rules) -> dict[str, Ratio]:
    """The first engine over each other one."""
    if 0 not in series:
        return {}
    return {rows[i].label: _ratio(series[0], one, rules) for i, one in series.items() if i}


def _ratio(first: Series, one: Series, rules: Rules) -> Ratio:
    """The verdict; where too few rounds were undisturbed, no verdict, and the interval over all rounds."""
    found = compare_rounds(
        first.launches, one.launches, rules, disturbed=one.disturbed, rotation=(first.rotation, one.rotation)
    )
    if found.rounds >= rules.clean or sum(map(len, one.every)) <= found.rounds:
        return found
    wide = compare_rounds(first.every, one.every, rules)
    reason = f"{found.reason}; the interval is over all rounds, the disturbed ones too"
    return replace(found, value=wide.value, low=wide.low, high=wide.high, reason=reason)


def labels(specs: Sequence[str]) -> list[str]:
    """Row names: the specs, numbered where one comes twice.

    >>> labels(["tvmopt", "onnxruntime", "onnxruntime"])
    ['tvmopt', 'onnxruntime', 'onnxruntime#2']
    """
    found: list[str] = []
    for index, spec in enumerate(specs):
        before = specs[:index].count(spec)
        found.append(f"{spec}#{before + 1}" if before else spec)
    return found
