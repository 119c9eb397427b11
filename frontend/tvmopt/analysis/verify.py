"""Run a compiled model and onnxruntime on the same inputs and compare - in a child, because either can abort.

`tvmopt compile` does this by default and refuses an artifact that is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt import children
from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.comparator import Array, Comparison, OutputComparison
from tvmopt.analysis.judge import Judge, Run
from tvmopt.analysis.samples import longest_reduction, sample_inputs
from tvmopt.analysis.sensitivity import rounded
from tvmopt.errors import AccuracyError, InputError, TvmoptError
from tvmopt.runtime.artifact import Artifact, read
from tvmopt.runtime.model import Model

SEEDS = (0, 1)


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    Attributes:
        comparisons: one for each seed; empty when no reference could run the model.
        reference: what was compared against: "onnxruntime 1.31.1 (fp32)", ...
        reason: why there is none.
    """

    comparisons: tuple[Comparison, ...]
    reference: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.comparisons)

    def as_accuracy(self) -> dict[str, Any]:
        """What the artifact's manifest keeps."""
        if self.reason:
            return {"verified": False, "reason": self.reason}
        outputs = [o for c in self.comparisons for o in c.outputs]
        return {
            "verified": True,
            "reference": self.reference,
            "seeds": list(SEEDS[: len(self.comparisons)]),
            "max_error": max((o.max_error for o in outputs), default=0.0),
            "max_relative_error": max((c.max_error for c in self.comparisons), default=0.0),
            "tolerance": max((o.tolerance for o in outputs), default=0.0),
            "outputs": {
                name: max(o.max_error / (o.scale or 1.0) for o in outputs if o.name == name)
                for name in dict.fromkeys(o.name for o in outputs)
            },
            "degenerate": all(c.degenerate for c in self.comparisons),
        }


def verify(
    artifact: Artifact,
    model: str | Path,
    *,
    rtol: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Check an artifact against its ONNX file.

    Args:
        model: the ONNX file (shapes of its inputs may be dynamic: the artifact's are used).
        rtol: instead of the tolerance derived from dtype and reduction length.

    Raises:
        AccuracyError: the outputs differ, or the compiled code crashed.
    """
    with tempfile.TemporaryDirectory(prefix="tvmopt-verify-") as folder:
        path = artifact.save(Path(folder) / "candidate.tvmopt")
        request = {"artifact": str(path), "model": str(model), "rtol": rtol}
        try:
            raw = children.call("tvmopt.analysis.verify:in_child", request, progress=progress)
        except children.Crash as crash:
            raise AccuracyError(
                f"verification crashed ({crash.what}) while {crash.stage or 'starting'}.",
                where=artifact.manifest.model,
                fix="a generated kernel is wrong: please report it with the model (--no-verify skips this)",
            ) from crash
    comparisons = tuple(
        Comparison(tuple(OutputComparison(**{**o, "worst": tuple(o["worst"])}) for o in c)) for c in raw["comparisons"]
    )
    verdict = Verdict(comparisons, raw["reference"], raw["reason"])
    if not verdict.ok:
        wrong = [c for c in comparisons if not c.ok]
        raise AccuracyError(
            f"the compiled model's outputs differ from {verdict.reference}:\n    "
            + "\n    ".join(str(o) for o in wrong[0].outputs if not o.ok),
            where=artifact.manifest.model,
            fix="give --tolerance if the difference does no harm here; else please report it with the model",
        )
    return verdict


def in_child(artifact: str, model: str, rtol: float | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """The child's part: both runs, compared. Returns plain data."""
    import onnx

    loaded = read(artifact)
    manifest = loaded.manifest
    proto = _with_shapes(onnx.load(model, load_external_data=False))
    bounds = integer_bounds(proto)
    reduction, depth = longest_reduction(proto)
    feeds = [sample_inputs(manifest.inputs, seed=seed, bounds=bounds) for seed in SEEDS]
    progress("running the reference")
    try:
        reference, expected = run_reference(model, feeds)
    except TvmoptError as error:
        return {"comparisons": [], "reference": "", "reason": error.what}
    progress("running the compiled model")
    compiled = Model(loaded)
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="tvmopt-judge-") as folder:
        judge = Judge(model, Path(folder), manifest.precision, reduction, depth, rtol)
        for feed, outputs in zip(feeds, expected, strict=True):
            try:
                ours = compiled.run(feed)
            except InputError as error:  # these inputs divide by zero, say; the reference does not mind
                return {"comparisons": [], "reference": "", "reason": error.what}
            comparison = judge(outputs, ours, _again(feed, manifest.precision), progress)
            comparisons.append(comparison.as_dict()["outputs"])
    return {"comparisons": comparisons, "reference": reference, "reason": ""}


def _again(feed: dict[str, Array], precision: str) -> Run:
    """The reference on variants of the model, for a :class:`Judge`."""

    def run(path: Path, round_inputs: bool) -> dict[str, Array]:
        try:
            return run_reference(path, [rounded(feed, precision) if round_inputs else feed])[1][0]
        except TvmoptError:
            return {}

    return run


def run_reference(model: str | Path, feeds: list[dict[str, Array]]) -> tuple[str, list[dict[str, Array]]]:
    """Outputs of onnxruntime in fp32 with basic graph optimisations only, else of onnx's reference evaluator.

    Returns:
        The reference's name and version, and one dictionary of outputs for each of `feeds`.

    Raises:
        TvmoptError: neither can run the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    problems = []
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        wanted = {i.name for i in session.get_inputs()}
        runs = [session.run(names, {k: v for k, v in feed.items() if k in wanted}) for feed in feeds]
        return f"onnxruntime {onnxruntime.__version__}", [dict(zip(names, run, strict=True)) for run in runs]
    except Exception as error:  # onnxruntime raises a class of its own for each status code
        problems.append(f"onnxruntime: {str(error).splitlines()[0][:200]}")
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(model))
        runs = [[np.asarray(o) for o in evaluator.run(None, feed)] for feed in feeds]
        return f"onnx {onnx.__version__}", [dict(zip(evaluator.output_names, run, strict=True)) for run in runs]
    except Exception as error:  # pure-Python reference implementations raise anything
        problems.append(f"onnx's reference: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}")
    raise TvmoptError("no reference can run the model: " + "; ".join(problems))


def _with_shapes(model: Any) -> Any:
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # shapes only sharpen the bounds of integer inputs and the tolerance
        return model
