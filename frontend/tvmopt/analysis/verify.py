"""Run a compiled model and onnxruntime on the same inputs and compare - in a child, because either can abort.

`tvmopt compile` does this by default and refuses an artifact that is wrong.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tvmopt import children
from tvmopt.analysis.comparator import Array, Comparison, OutputComparison
from tvmopt.analysis.oracle.values import is_real
from tvmopt.analysis.samples import described, is_hostile
from tvmopt.analysis.told import OTHER_INPUTS
from tvmopt.dims import is_open, told
from tvmopt.errors import AccuracyError, TvmoptError, first_line
from tvmopt.runtime.artifact import Artifact, read
from tvmopt.runtime.draft import Draft
from tvmopt.runtime.model import Model
from tvmopt.runtime.sizes import info_at
from tvmopt.runtime.tensors import TensorInfo, to_plain
from tvmopt.targets.detect import usable_cores

if TYPE_CHECKING:
    from tvmopt.analysis.examine import Examined
    from tvmopt.analysis.judge import Tolerance

REFERENCE = "running the reference"
"""The stage in which onnxruntime is at work."""

BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables in which NumPy's libraries of matrix products look for their number of threads."""


def reference_threads() -> int:
    """Threads of the oracle's products and of onnxruntime: half the cores. Threads of theirs that wait for the next
    layer spin: on two cores, two threads took 1.6 times the processor time of one, and hardly less time."""
    return max(1, usable_cores() // 2)


def _environment() -> dict[str, str]:
    """Variables of the child's environment that are not this process's."""
    return {name: os.environ.get(name) or str(reference_threads()) for name in BLAS}


def prepare() -> None:
    """Start the child that the next :class:`Verification` takes: it imports what it needs meanwhile."""
    children.prepare("tvmopt.analysis.trials:warm", _environment())


@dataclass(frozen=True)
class Trial:
    """One set of inputs.

    Attributes:
        seed: of the inputs (`tvmopt.analysis.samples.KINDS`).
        kernel: the first kernel that is wrong. compared: how many kernels' results were compared one by one.
        reference: what the outputs were compared with.
        sizes: the open sizes of the inputs.
    """

    seed: int
    comparison: Comparison
    kernel: str = ""
    compared: int = 0
    reference: str = ""
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The inputs in words."""
        return described(self.seed) + (f" at {told(self.sizes)}" if self.sizes else "")


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    Attributes:
        trials: one for each set of inputs; empty when no reference could run the model.
        reference: what was compared against: "float64 and onnxruntime 1.31.1", ...
        reason: why there is none.
        emulator: what ran the compiled model, where this machine cannot.
    """

    trials: tuple[Trial, ...]
    reference: str
    reason: str = ""
    emulator: str = ""

    @property
    def ok(self) -> bool:
        return all(t.comparison.ok for t in self.trials)

    @property
    def numberless(self) -> tuple[str, ...]:
        """The outputs that had no number with any of the finite inputs."""
        tried = [t for t in self.trials if not is_hostile(t.seed)] or list(self.trials)
        had = {o.name for t in tried for o in t.comparison.outputs if o.numbers}
        return tuple(dict.fromkeys(n for t in tried for n in t.comparison.numberless if n not in had))

    def as_accuracy(self) -> dict[str, Any]:
        """What the artifact's manifest keeps."""
        if self.reason:
            return {"verified": False, "reason": self.reason}
        numberless = self.numberless
        if numberless and len(numberless) == len({o.name for t in self.trials for o in t.comparison.outputs}):
            return {"verified": False, "reason": f"every value of every output was NaN or infinite; {OTHER_INPUTS}"}
        exact = [t for t in self.trials if t.reference == "float64"] or list(self.trials)
        comparisons = [t.comparison for t in exact if t.seed < 2] or [t.comparison for t in exact]
        outputs = [o for c in comparisons for o in c.outputs]
        peers = [o.peer_error / (o.scale or 1.0) for o in outputs if o.peer_error >= 0]
        worst = max(outputs, key=lambda o: o.max_error / (o.scale or 1.0), default=None)
        return {
            "verified": True,
            "reference": self.reference,
            **({"emulator": self.emulator} if self.emulator else {}),
            "seeds": list(dict.fromkeys(t.seed for t in self.trials)),
            **({"sizes": sizes} if (sizes := [s for s in distinct(t.sizes for t in self.trials) if s]) else {}),
            "max_error": max((o.max_error for o in outputs), default=0.0),
            "max_relative_error": max((c.max_error for c in comparisons), default=0.0),
            "peer_relative_error": max(peers, default=None),
            "tolerance": worst.tolerance if worst else 0.0,
            "outputs": {
                name: max(o.max_error / (o.scale or 1.0) for o in outputs if o.name == name)
                for name in dict.fromkeys(o.name for o in outputs)
            },
            "kernels": max((t.compared for t in self.trials), default=0),
            "degenerate": all(c.degenerate for c in comparisons),
            **({"numberless": list(numberless)} if numberless else {}),
        }


def distinct(sizes: Iterable[dict[str, int]]) -> list[dict[str, int]]:
    """Open sizes, each once."""
    return [dict(one) for one in dict.fromkeys(tuple(s.items()) for s in sizes)]


class Verification:
    """Checks an artifact against its ONNX file, in a child process that does what it can before there is an artifact:
    loads the model, runs onnxruntime and the oracle.

    Args:
        model: the ONNX file (shapes of its inputs may be dynamic: the artifact's are used).
        rtol: instead of the tolerance that follows from rounding.
        apart: onnxruntime has a process of its own for each set of inputs, as it has ended the child. Otherwise it has
            none: starting it and handing over outputs would cost every model time and memory.
        shapes: of the inputs that were asked for; then onnxruntime begins at once, if these and the file tell all that
            it needs. None: it waits for :meth:`begin`.
    """

    def __init__(
        self, model: str | Path, rtol: float | None = None, *, apart: bool = False,
        shapes: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.model, self._rtol, self._apart = model, rtol, apart
        arguments = {"model": str(model), "rtol": rtol, "apart": apart, "shapes": shapes}
        self._child = children.Child("tvmopt.analysis.trials:in_child", arguments, environment=_environment())
        self._told = False

    def begin(self, inputs: Sequence[TensorInfo], values: Mapping[str, Any], precision: str) -> None:
        """Let the references run on inputs of static shapes; without inputs, or where a size is open, the model is
        only loaded. TVM's compiler is loaded.

        Args:
            values: of the inputs that were bound. precision: of the compile.
        """
        from tvmopt.importer.relax import operators

        static = [] if any(is_open(info.shape) for info in inputs) else inputs
        told = {"inputs": [asdict(info) for info in static], "values": {n: to_plain(v) for n, v in values.items()}}
        self._child.send(told | {"precision": precision, "operators": operators()})
        self._told = True

    def verdict(
        self, artifact: Artifact, progress: Callable[[str], None] | None = None, draft: Draft | None = None
    ) -> Verdict:
        """What the child finds out about an artifact.

        Args:
            draft: its file, as far as it is written.

        Raises:
            AccuracyError: the outputs differ, or the compiled code crashed.
        """
        if not self._told:
            self.begin((), {}, artifact.manifest.precision)
        with ExitStack() as stack:
            if draft is None or not draft.begun:
                artifact, draft = artifact.alone(), stack.enter_context(Draft())
                draft.begin(artifact.weights)
            self._child.send(draft.candidate(artifact))
            try:
                raw = self._child.result(progress)
            except children.Crash as crash:
                if crash.stage == REFERENCE and not self._apart and not children.starved(crash.what):
                    with Verification(self.model, self._rtol, apart=True) as again:
                        return again.verdict(artifact, progress)
                raise AccuracyError(
                    f"verification crashed ({crash.what}) while {crash.stage or 'starting'}.",
                    where=artifact.manifest.model,
                    fix=children.starved(crash.what)
                    or "a generated kernel is wrong: please report it with the model (--no-verify skips this)",
                ) from crash
        return _accepted(raw, artifact, self.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._child.__exit__(*raised)


def verify(
    artifact: Artifact,
    model: str | Path,
    *,
    rtol: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Check an artifact against its ONNX file: see :class:`Verification`.

    Raises:
        AccuracyError: the outputs differ, or the compiled code crashed.
    """
    with Verification(model, rtol) as started:
        return started.verdict(artifact, progress)


def _accepted(raw: Mapping[str, Any], artifact: Artifact, model: str | Path) -> Verdict:
    """What the child found, as a verdict.

    Raises:
        AccuracyError: the outputs differ.
    """
    verdict = Verdict(tuple(map(_trial, raw["trials"])), raw["reference"], raw["reason"], raw.get("emulator", ""))
    if not verdict.ok:
        wrong = next(t for t in verdict.trials if not t.comparison.ok)
        outputs = wrong.comparison.outputs
        lines = [str(o) for o in (*(o for o in outputs if not o.ok), *(o for o in outputs if o.ok))]
        raise AccuracyError(
            f"the compiled model's outputs differ from {verdict.reference} with {wrong.told}:\n    "
            + "\n    ".join([*lines, *([f"the first wrong kernel is {wrong.kernel}"] if wrong.kernel else [])]),
            where=artifact.manifest.model,
            fix=f"{_command(artifact, model, wrong)}; give --tolerance if the difference does no "
            "harm here, else please report it with the model",
        )
    return verdict


def _command(artifact: Artifact, model: str | Path, wrong: Trial) -> str:
    """What shows a failure; of open sizes a compile for those alone, whose kernels may be others."""
    manifest = artifact.manifest
    if manifest.options.get("preprocess") or manifest.options.get("postprocess"):
        return "compile without --preprocess and --postprocess, which tells whether the model or a stage is wrong"
    words = ["tvmopt", "compare", str(model), "--seed", str(wrong.seed)]
    words += ["--precision", manifest.precision] if manifest.precision != "fp32" else []
    static = [info_at(info, wrong.sizes) for info in manifest.inputs if is_open(info.shape)]
    shapes = manifest.options.get("shapes", {}) if not static else {info.name: info.shape for info in static}
    for name, shape in shapes.items():
        words += ["--shape", f"{name}:{'x'.join(map(str, shape))}"]
    for name, value in manifest.values.items():
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        words += ["--value", f"{name}={json.dumps(plain, default=float)}"]
    return f"see it: {shlex.join(words)}"


def _trial(data: dict[str, Any]) -> Trial:
    outputs = data["comparison"]["outputs"]
    found = tuple(OutputComparison(**{**o, "worst": tuple(o["worst"])}) for o in outputs)
    return Trial(**{**data, "comparison": Comparison(found)})


def examined(
    artifact: str | Path | Artifact, prepared: Any, feeds: Mapping[str, Array], peer: Mapping[str, Array] | None,
    rtol: Tolerance = None, atol: Tolerance = None,
) -> Examined:  # fmt: skip
    """One compiled model with these inputs, as verification judges it, in this process.

    Args:
        prepared: the model as the importer prepares it. peer: onnxruntime's outputs, if it has any.

    Raises:
        Unsupported: the oracle cannot evaluate the model, and there is no peer.
    """
    from tvmopt.analysis.examine import Examiner  # the process that compiles needs no oracle

    model = Model(artifact if isinstance(artifact, Artifact) else read(artifact))
    examiner = Examiner(model, "", prepared, rtol, atol)
    mine = {i.name: feeds[i.name] for i in model.inputs}
    return (examiner.hostile if broken(mine) else examiner.fully)(mine, peer)


def broken(feeds: Mapping[str, Array]) -> bool:
    """Whether an input has a value that is no number."""
    return any(is_real(a.dtype) and not np.isfinite(a).all() for a in feeds.values())


def peers_of(
    model: str | Path, feeds: Mapping[int, dict[str, Array]], values: Mapping[str, Array], apart: bool = False
) -> tuple[str, dict[int, dict[str, Array]]]:
    """onnxruntime's outputs by seed: those left out that it refuses, none for those that end its process (an LSTM or
    GRU of no sequences).

    Args:
        values: of the inputs that every seed shares.
        apart: each seed in a process of its own; where there are no forks, onnxruntime is not asked.
    """
    if not apart:
        return _peers(model, feeds, values)
    if sys.platform != "linux":
        return "", {seed: {} for seed in feeds}
    from tvmopt.importer.isolate import isolated

    name, found = "", dict[int, dict[str, Array]]()
    for seed, one in feeds.items():
        try:
            own, outputs = isolated(partial(_peers, model, {seed: one}, values), "reference run", str(model))
        except TvmoptError:
            own, outputs = "", {seed: {}}
        name, found = name or own, found | outputs
    return name, found


def _peers(
    model: str | Path, feeds: Mapping[int, dict[str, Array]], values: Mapping[str, Array]
) -> tuple[str, dict[int, dict[str, Array]]]:
    found = {}
    name = ""
    try:
        session = Reference(model)
    except TvmoptError:
        return "", {}
    for seed, one in feeds.items():
        try:
            found[seed] = session.run({**one, **values})
            name = session.name
        except TvmoptError:
            continue
    return name, found


class Reference:
    """onnxruntime with all optimisations off: they fold what the standard does not say.

    Raises:
        TvmoptError: it cannot load the model.
    """

    def __init__(self, model: str | Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = reference_threads()
        options.add_session_config_entry("session.disable_prepacking", "1")  # a second copy of all weights
        self.name = f"onnxruntime {onnxruntime.__version__}"
        try:
            self.session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a class of its own for each status code
            raise TvmoptError(f"onnxruntime: {first_line(error, 200)}") from None
        self.names = [o.name for o in self.session.get_outputs()]
        self.inputs = {i.name for i in self.session.get_inputs()}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name.

        Raises:
            TvmoptError: it refuses the inputs.
        """
        try:
            outputs = self.session.run(self.names, {k: v for k, v in feeds.items() if k in self.inputs})
        except Exception as error:  # as above
            raise TvmoptError(f"onnxruntime: {first_line(error, 200)}") from None
        return dict(zip(self.names, outputs, strict=True))


def run_reference(model: str | Path, feeds: list[dict[str, Array]]) -> tuple[str, list[dict[str, Array]]]:
    """Outputs of onnxruntime with all optimisations off or, where it refuses the model or dies of these inputs, of
    onnx's reference evaluator.

    Returns:
        The reference's name and version, and one dictionary of outputs for each of `feeds`.

    Raises:
        TvmoptError: neither can run the model.
    """
    from tvmopt.importer.isolate import isolated

    problems = []
    try:
        return isolated(partial(_by_onnxruntime, model, feeds), "run by onnxruntime", str(model))
    except TvmoptError as error:
        problems.append(error.what)
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(model))
        runs = [[np.asarray(o) for o in evaluator.run(None, feed)] for feed in feeds]
        return f"onnx {onnx.__version__}", [dict(zip(evaluator.output_names, run, strict=True)) for run in runs]
    except Exception as error:  # pure-Python reference implementations raise anything
        problems.append(f"onnx's reference: {first_line(error, 200)}")
    raise TvmoptError("no reference can run the model: " + "; ".join(problems))


def _by_onnxruntime(model: str | Path, feeds: list[dict[str, Array]]) -> tuple[str, list[dict[str, Array]]]:
    session = Reference(model)
    return session.name, [session.run(feed) for feed in feeds]
