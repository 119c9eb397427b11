"""The state of one `tvmopt compare` and its steps: this process imports and decides, its forks run what may crash."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.analysis.comparator import Array, Comparison, OutputComparison
from tvmopt.analysis.examine import Examined
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.kernels import Written
from tvmopt.analysis.verify import examined
from tvmopt.children import Progress
from tvmopt.debug import watch
from tvmopt.debug.compare import Settings
from tvmopt.debug.engines import job_of, run_engine
from tvmopt.debug.forks import forked, warm
from tvmopt.debug.layers import Layers
from tvmopt.debug.marked import trace_marked
from tvmopt.debug.records import NonFinite, Row, Trace
from tvmopt.debug.reduce import feeds_of
from tvmopt.errors import InputError, MissingDependency, ModelError, TvmoptError
from tvmopt.files import save_arrays
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import input_shapes, node_name, operator


class Session:
    """One comparison.

    Attributes:
        layers: the prepared model on its workbench, with the reference's values.
        artifacts: the compiled file of each tvmopt row; `examined` what the judge says of it.
    """

    def __init__(self, settings: Settings, folder: Path, progress: Progress) -> None:
        self.settings, self.folder, self.progress = settings, folder, progress
        self.start = time.perf_counter()
        progress("reading")
        from tvmopt.importer import load, prepare_named

        self.model = prepare_named(load(settings.model), settings.shapes, settings.values)
        warm()
        self.feeds = feeds_of(self.model, settings.inputs, settings.seed)
        self.layers = Layers(self.model, self.feeds, _new(folder / "layers"))
        self.outputs = [o.name for o in self.model.graph.output]
        self.artifacts: dict[str, str] = {}
        self.examined: dict[str, Examined] = {}
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
        """A row's outputs by the judge of `tvmopt compile`, which looks at the kernels of a compiled model, too."""
        path, rtol, atol = self.artifacts.get(label), self.settings.rtol, self.settings.atol
        if path is None:
            judge = Judge(self.model, precision, rtol, atol)
            one: Comparison = forked(lambda: judge.judged(self.feeds, found, expected), "comparison")
            return one
        self.examined[label] = forked(
            lambda: examined(path, self.model, self.feeds, expected, rtol, atol), "comparison"
        )
        return self.examined[label].comparison

    def kernels(self, label: str) -> tuple[Written, ...]:
        """What the kernels of a compiled row wrote."""
        return self.examined[label].kernels if label in self.examined else ()

    def tensors(self, found: Mapping[str, Array], precision: str = "fp32") -> dict[str, OutputComparison]:
        """Inner tensors that were computed elsewhere, by the same judge."""
        known = {n: a for n in found if (a := self.layers.value(n)) is not None}
        judge = Judge(self.model, precision, **self.settings.limits(""), names=list(known))
        one = forked(lambda: judge.judged(self.feeds, {n: found[n] for n in known}, known), "comparison")
        return {o.name: o for o in one.outputs}

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
        file = self.folder / f"outputs{len(self.artifacts)}.npz"
        self.artifacts[label] = path
        facts = forked(lambda: self._run(path, file), "run")
        with np.load(file) as arrays:
            return dict(arrays), facts

    def _compile(self, path: str, target: str, precision: str, flags: dict[str, Any]) -> None:
        from tvmopt.compiler.driver import compile_model
        from tvmopt.compiler.request import Request
        from tvmopt.targets import Machine

        machine = Machine.load(target).with_threads(self.settings.threads)
        request = Request(
            self.settings.model, machine, precision, input_shapes(self.model), self.settings.values, **flags
        )
        compile_model(request)[0].save(path)

    def _run(self, path: str, file: Path) -> dict[str, str]:
        from tvmopt.runtime.artifact import read
        from tvmopt.runtime.model import Model

        model = Model(read(path), threads=self.settings.threads)
        feeds = {n: a for n, a in self.feeds.items() if n in {i.name for i in model.inputs}}
        save_arrays(file, model.run(feeds))
        manifest = model.manifest
        return {"target": manifest.target, "threads": str(model.threads), "precision": manifest.precision}

    # -- layers ------------------------------------------------------------------------------------------

    def trace(self, spec: str, precision: str, label: str) -> list[Trace]:
        """Inner tensors of one row: kernels where they can be observed, marked outputs elsewhere."""
        self.layers.compute(self.every_tensor(), self.progress)
        if label in self.examined:
            return [watch.trace(self.layers, self.examined[label], label)]
        job = job_of(spec, "", precision, self.settings.threads, {})
        try:
            return [trace_marked(self.layers, job, label, self.folder, self.tensors, self.progress)]
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


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder
