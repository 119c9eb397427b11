"""Is a result right? One judge for compile, compare, surgeon, bench and nightly.

An engine's outputs and onnxruntime's (all optimisations off) are both measured against the oracle: the same graph in
float64. What may differ follows from the precision, or from runs of the oracle that only round, whichever is more:

    a model that amplifies errors    runs that round move its outputs as much
    an index chosen differently      a score within the error of the oracle's choice
    integers, booleans, steps        only elements that such runs move too, and by no more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, Comparison, OutputComparison
from tvmopt.analysis.deviation import deviation, limits_of
from tvmopt.analysis.oracle.rounding import Recorder, Rounded, arithmetic_of, signs
from tvmopt.analysis.ties import choices, settle


@dataclass
class Truth:
    """What the oracle says about one set of inputs; the runs that round are made when they are first asked for.

    Attributes:
        exact: outputs, and scores that indices were chosen from. notes: what was not evaluated in double precision.
    """

    model: Any
    feeds: Mapping[str, Array]
    names: Sequence[str]
    scores: Sequence[str] = ()
    exact: dict[str, Array] = field(default_factory=dict)
    notes: Sequence[str] = ()
    _edges: dict[str, list[Any]] = field(default_factory=dict)
    _rounded: dict[str, list[dict[str, Array]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recorder = Recorder(self.model)
        self.exact = recorder.run(self.feeds, [*self.names, *self.scores])
        self.notes, self._edges = recorder.notes, recorder.edges

    def naturals(self, precision: str) -> list[dict[str, Array]]:
        """Outputs of runs that only round."""
        if precision not in self._rounded:
            allowed = limits_of(precision, np.dtype(np.float32)).rms
            self._rounded[precision] = [
                Rounded(self.model, arithmetic_of(precision), self._edges, sign, allowed).run(
                    self.feeds, [*self.names, *self.scores]
                )
                for sign in signs(self._edges)
            ]
        return self._rounded[precision]


class Judge:
    """Judges outputs of one model.

    Args:
        model: an ONNX model or its file.
        precision: the arithmetic asked for: "fp32", "bf16", "fp16", "tf32".
        rtol, atol: in place of what follows from rounding: relative to an output's largest value; added.
    """

    def __init__(
        self, model: Any, precision: str = "fp32", rtol: float | None = None, atol: float = 0.0
    ) -> None:  # fmt: skip
        import onnx

        self.model = onnx.load(str(model)) if isinstance(model, (str, Path)) else model
        self.precision, self.rtol, self.atol = precision or "fp32", rtol, atol
        self.names = [o.name for o in self.model.graph.output]
        self.choices = choices(self.model)

    def truth(self, feeds: Mapping[str, Array]) -> Truth:
        """The oracle's outputs for these inputs.

        Raises:
            Unsupported: it cannot evaluate the model.
        """
        return Truth(self.model, feeds, self.names, [c.scores for c in self.choices.values()])

    def __call__(
        self, truth: Truth, found: Mapping[str, Array], peer: Mapping[str, Array] | None = None, precision: str = ""
    ) -> Comparison:
        """Outputs against the oracle's, onnxruntime's error beside them where `peer` is given."""
        precision = precision or self.precision
        plain = [self._one(n, truth, found, peer, precision, ()) for n in self.names]
        plain += [OutputComparison(n, "not an output of the reference") for n in found if n not in self.names]
        if self.rtol is not None or all(o.ok for o in plain):
            return Comparison(tuple(plain))
        naturals = truth.naturals(precision)
        results = []
        for one in plain:
            if not one.ok and one.name in found and one.name in truth.exact:
                one = self._one(one.name, truth, found, peer, precision, naturals)
                if not one.ok and one.name in self.choices:
                    one = self._settled(one, truth, found, precision, naturals)
            results.append(one)
        return Comparison(tuple(results))

    def _one(
        self, name: str, truth: Truth, found: Mapping[str, Array], peer: Mapping[str, Array] | None, precision: str,
        naturals: Sequence[Mapping[str, Array]],
    ) -> OutputComparison:  # fmt: skip
        if name not in found:
            return OutputComparison(name, "missing from the result")
        exact, mine = truth.exact[name], np.asarray(found[name])
        if exact.shape != mine.shape:
            return OutputComparison(name, f"shape {mine.shape}, expected {exact.shape}")
        theirs = None if peer is None or name not in peer else np.asarray(peer[name])
        samples = [n[name] for n in naturals]
        if naturals and theirs is not None:
            samples.append(theirs)
        one = deviation(name, exact, mine, limits_of(precision, mine.dtype), samples, theirs)
        if self.rtol is None or one.problem not in ("", "differs") or not one.scale:
            return one
        needed = max(0.0, one.max_error - self.atol) / one.scale
        return replace(one, tolerance=self.rtol, needed=needed, problem="" if needed <= self.rtol else "differs")

    def _settled(
        self, one: OutputComparison, truth: Truth, found: Mapping[str, Array], precision: str,
        naturals: Sequence[Mapping[str, Array]],
    ) -> OutputComparison:  # fmt: skip
        """An index by the scores that it was chosen from."""
        choice = self.choices[one.name]
        scores = truth.exact[choice.scores]
        if scores.dtype.kind != "f" or not scores.size:
            return one
        finite = scores[np.isfinite(scores)]
        limits = limits_of(precision, np.dtype(np.float32))
        scale = float(np.abs(finite).max(initial=0.0)) or 1.0
        with np.errstate(all="ignore"):
            errors = [np.nan_to_num(np.abs(n[choice.scores] - scores), posinf=0.0) for n in naturals]
        natural = max((float(e.max(initial=0.0)) for e in errors), default=0.0) / scale
        tolerance = max(limits.rms, limits.factor * natural)
        return settle(one, choice, truth.exact[one.name], np.asarray(found[one.name]), scores, tolerance)
