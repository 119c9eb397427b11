"""The state of one `tvmopt compare` and its steps: this process imports and decides, its forks run what may crash."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.analysis.comparator import Array, Comparison, OutputComparison, compare
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.observe import Seen, observe
from tvmopt.analysis.samples import longest_reduction
from tvmopt.analysis.verify import examined
from tvmopt.children import Progress
from tvmopt.debug import watch
from tvmopt.debug.compare import Settings
from tvmopt.debug.engines import job_of, run_engine
from tvmopt.debug.forks import forked, warm
from tvmopt.debug.layers import Layers, sums
from tvmopt.debug.marked import trace_marked
from tvmopt.debug.records import NonFinite, Row, Trace
from tvmopt.debug.reduce import feeds_of
from tvmopt.errors import InputError, MissingDependency, ModelError, TvmoptError
from tvmopt.files import save_arrays
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import node_name, operator


class Session:
    """One comparison.

    Attributes:
        layers: the prepared model on its workbench, with the reference's values.
        tolerances: of every tensor.
        artifacts: the compiled file of each tvmopt row, and what its kernels wrote.
    """

    def __init__(self, settings: Settings, folder: Path, progress: Progress) -> None:
        self.settings, self.folder, self.progress = settings, folder, progress
        self.start = time.perf_counter()
        progress("reading")
        from tvmopt.importer import load, prepare

        self.model = prepare(load(settings.model), settings.shapes, settings.values)
        warm()
        self.feeds = feeds_of(self.model, settings.inputs, settings.seed)
        self.layers = Layers(self.model, self.feeds, _new(folder / "layers"))
        self.tolerances = sums(self.layers.model)
        self.outputs = [o.name for o in self.model.graph.output]
        self.artifacts: dict[str, str] = {}
        self.seen: dict[str, list[Seen]] = {}
        self.precision = "fp32"  # of the artifact, once it is known
        self.wrong: set[str] = set()  # rows whose difference can be led back

    def reference(self) -> dict[str, Array]:
        """The original file's outputs by the reference; by the prepared model where shapes or values are bound."""
        from tvmopt.analysis.verify import run_reference

        source = self.layers.path if self.settings.bound else Path(self.settings.model)
        name, (outputs,) = isolated(lambda: run_reference(source, [self.feeds]), "reference run", str(source))
        self.layers.reference = name
        return outputs

    def row(self, spec: str, precision: str, label: str, expected: Mapping[str, Array]) -> Row:
        """One engine run once and compared."""
        try:
            if not spec or spec.partition(":")[0] == "tvmopt":
                outputs, facts = self.tvmopt(spec, precision, label)
            else:
                source = self.layers.path if self.settings.bound else Path(self.settings.model).resolve()
                job = job_of(spec, str(source), precision, self.settings.threads, {})
                outputs, facts = run_engine(job, self.feeds, self.folder)
        except MissingDependency as error:
            return Row(label, "missing", f"{error.what} - {error.fix}")
        except TvmoptError as error:
            if isinstance(error, ModelError) or "crash" in error.what:
                self.wrong.add(label)
            return Row(label, "failed", " - ".join(filter(None, (error.what, error.where, error.fix))))
        if not spec:
            precision = self.precision = facts["precision"]
        compared = self.judged(label, expected, {n: a for n, a in outputs.items() if n in expected}, precision)
        status = "ok" if compared.ok else "wrong"
        if status == "wrong":
            self.wrong.add(label)
        return Row(label, status, "" if compared.ok else str(compared), facts, compared.outputs)

    def judged(
        self, label: str, expected: Mapping[str, Array], found: Mapping[str, Array], precision: str
    ) -> Comparison:
        """A row's outputs by the judge of `tvmopt compile`; by the comparator where the user gave tolerances."""
        if self.settings.rtol or self.settings.atol:
            return self.compared(expected, found, precision)
        path = self.artifacts.get(label)
        try:
            if path is not None:
                one: Comparison = forked(lambda: examined(path, self.model, self.feeds, expected), "comparison")
            else:
                one = forked(lambda: self._outside(expected, found, precision), "comparison")
            return one
        except ModelError:  # the oracle cannot evaluate the model
            return self.compared(expected, found, precision)

    def _outside(self, expected: Mapping[str, Array], found: Mapping[str, Array], precision: str) -> Comparison:
        """Another engine's outputs."""
        judge = Judge(self.model, precision or "fp32")
        return judge(judge.truth(self.feeds), found, expected)

    def compared(self, expected: Mapping[str, Array], found: Mapping[str, Array], precision: str) -> Comparison:
        """All outputs, each with its own tolerance."""
        reduction, depth = longest_reduction(self.layers.model)
        outputs: list[OutputComparison] = []
        for name in expected:
            outputs += compare(
                {name: expected[name]}, {name: found[name]} if name in found else {},
                reduction=reduction, depth=depth, precision=coarse(precision), **self.settings.limits(name),
            ).outputs  # fmt: skip
        return Comparison(tuple(outputs))

    def tvmopt(self, spec: str, precision: str, label: str) -> tuple[dict[str, Array], dict[str, str]]:
        """Compile (unless it is an artifact) and run in forks, every kernel observed."""
        from tvmopt.bench.runners import parse

        options = parse(spec)[1] if spec else {}
        path = self.settings.other if not spec else str(self.folder / f"{len(self.artifacts)}.tvmopt")
        if spec:
            target = options.pop("target", self.settings.target)
            flags = {k: v in ("on", "true", "1", "yes") for k, v in options.items()}
            unknown = sorted(flags.keys() - {"exact", "records"})
            if unknown:
                raise InputError(f"tvmopt has no option {unknown[0]}.", where=spec, fix="target, exact, records")
            self.progress(f"compiling {label}")
            forked(lambda: self._compile(path, target, precision, flags), "compile")
            self.progress(f"running {label}")
        folder = _new(self.folder / f"seen{len(self.artifacts)}")
        self.artifacts[label] = path
        facts, self.seen[label] = forked(lambda: self._observe(path, folder), "run")
        with np.load(folder / "outputs.npz") as file:
            return {n: file[n] for n in file.files}, facts

    def _compile(self, path: str, target: str, precision: str, flags: dict[str, Any]) -> None:
        from tvmopt.compiler.driver import compile_model
        from tvmopt.compiler.request import Request
        from tvmopt.targets import Machine

        machine = Machine.load(target).with_threads(self.settings.threads)
        request = Request(self.settings.model, machine, precision, self.settings.shapes, self.settings.values, **flags)
        compile_model(request)[0].save(path)

    def _observe(self, path: str, folder: Path) -> tuple[dict[str, str], list[Seen]]:
        from tvmopt.runtime.artifact import read
        from tvmopt.runtime.model import Model

        model = Model(read(path), threads=self.settings.threads)
        feeds = {n: a for n, a in self.feeds.items() if n in {i.name for i in model.inputs}}
        save_arrays(folder / "outputs.npz", model.run(feeds))
        seen = observe(model, feeds, folder)[1]
        manifest = model.manifest
        facts = {"target": manifest.target, "threads": str(model.threads), "precision": manifest.precision}
        return facts, seen

    # -- layers ------------------------------------------------------------------------------------------

    def trace(self, spec: str, precision: str, label: str) -> list[Trace]:
        """Inner tensors of one row: kernels where they can be observed, marked outputs elsewhere."""
        options = {**self.settings.limits(""), "precision": coarse(precision if spec else self.precision)}
        if label in self.seen:
            seen = self.seen[label]
            self.layers.compute(self.every_tensor(), self.progress)
            return [watch.trace(self.layers, seen, self.tolerances, label, **options)]
        job = job_of(spec, "", precision, self.settings.threads, {})
        self.layers.compute(self.every_tensor(), self.progress)
        try:
            return [trace_marked(self.layers, job, self.tolerances, label, self.folder, self.progress, **options)]
        except TvmoptError as error:
            return [Trace(label, f"marking inner tensors failed: {error.what}", ())]

    def every_tensor(self) -> list[str]:
        """Every tensor between nodes, in graph order."""
        return [o for n in self.layers.nodes for o in n.output if o]

    def nonfinite(self, known: bool) -> tuple[NonFinite, ...]:
        """Nodes of the reference that make NaN or Inf out of finite inputs; looked for where layers are known."""
        if not known:
            return ()
        return nonfinite(self.layers)


def nonfinite(layers: Layers) -> tuple[NonFinite, ...]:
    """The nodes that make NaN or Inf out of finite inputs, in graph order."""
    found = []
    weights = {t.name: t for t in layers.with_data(layers.model).graph.initializer}
    bad = {n for n, t in weights.items() if _count(onnx.numpy_helper.to_array(t)) != (0, 0)}
    bad |= {n for n, a in layers.feeds.items() if _count(a) != (0, 0)}
    for node in layers.nodes:
        for name in node.output:
            array = layers.value(name) if name else None
            nan, inf = _count(array) if array is not None else (0, 0)
            if nan or inf:
                assert array is not None
                if not bad.intersection(node.input):
                    found.append(NonFinite(node_name(node), operator(node), name, nan, inf, array.size))
                bad.add(name)
    return tuple(found)


def _count(array: Any) -> tuple[int, int]:
    if array.dtype.kind not in "fc":
        return 0, 0
    return int(np.isnan(array).sum()), int(np.isinf(array).sum())


def coarse(precision: str) -> str | None:
    """The comparator's precision: none for the model's own arithmetic."""
    return None if precision in ("fp32", "") else precision


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
