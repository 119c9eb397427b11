"""Is a result right? One judge for compile, compare, surgeon, bench and nightly.

An engine's outputs and onnxruntime's (all optimisations off) are both measured against the oracle: the same graph in
float64. What may differ follows from the precision, or from runs of the oracle that only round, whichever is more:

    a model that amplifies errors    runs that round move its outputs as much
    an index chosen differently      a score within the error of the oracle's choice
    integers, booleans, steps        only elements that such runs move too, and by no more
    a size that values decide        of the elements that are chosen only those that rounding decides
    rows in the order of a score     any order of rows whose scores are a rounding apart
    a cache that rounds its numbers  steps that rounding moves; what is behind goes on with the engine's own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, Comparison, OutputComparison
from tvmopt.analysis.deviation import decided, deviation, jumped, limits_of, misplaced, ranged, spread, spreading
from tvmopt.analysis.doubles import DOUBLE, SINGLE, Doubles
from tvmopt.analysis.kept import Kept, as_found, kept, stepped
from tvmopt.analysis.oracle.evaluate import Observe, Oracle
from tvmopt.analysis.oracle.overflow import Undecided
from tvmopt.analysis.oracle.rounding import (
    Moves,
    Recorder,
    Rounded,
    arithmetic_of,
    completed,
    nudges,
    roundings,
    scattered,
)
from tvmopt.analysis.oracle.values import UNLIMITED, Unfit, Unsupported, Value, limit
from tvmopt.analysis.ranked import ranked
from tvmopt.analysis.selections import Selection, chosen_by, doubtful, selections
from tvmopt.analysis.ties import choices, settle


@dataclass
class Truth:
    """What the oracle says about one set of inputs; the runs that round are made when they are first asked for.

    Attributes:
        selections: nodes that decide sizes. known: what the oracle is told of their results, and of caches.
        caches: outputs that are kept in caches, which round them.
        exact: outputs, scores that indices were chosen from, and what decides sizes. notes: what was not evaluated in
            double precision.
    """

    model: Any
    feeds: Mapping[str, Array]
    names: Sequence[str]
    scores: Sequence[str] = ()
    selections: Sequence[Selection] = ()
    known: Mapping[str, Value] = field(default_factory=dict)
    caches: Mapping[str, Kept] = field(default_factory=dict)
    exact: dict[str, Array] = field(default_factory=dict)
    notes: Sequence[str] = ()
    _edges: dict[str, list[Any]] = field(default_factory=dict)
    _hurt: set[str] = field(default_factory=set)
    _rounded: dict[str, list[dict[str, Array]]] = field(default_factory=dict)
    _more: dict[str, list[dict[str, Array]]] = field(default_factory=dict)
    _scattered: dict[str, list[dict[str, Array]]] = field(default_factory=dict)
    _unlimited: dict[str, Array] = field(default_factory=dict)
    _wider: dict[str, list[dict[str, Array]]] = field(default_factory=dict)
    _undecided: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recorder = Recorder(self.model)
        self.doubles = Doubles(recorder.graph)
        self.exact = self._run(recorder, self.doubles.see)
        self.notes, self._edges, self._hurt = recorder.notes, recorder.edges, recorder.hurt

    @property
    def _moves(self) -> Moves:
        """Only rounding moves what is quantised where all outputs are floats, whose errors have a size; an integer's
        neighbours are as far as any."""
        floats = all(self.exact[name].dtype.kind == "f" for name in self.names if name in self.exact)
        return "rounding" if floats and not self.scores else "everywhere"

    def naturals(self, precision: str) -> list[dict[str, Array]]:
        """Outputs of runs that only round."""
        if precision not in self._rounded:
            runs = roundings(self.model, arithmetic_of(precision), self._edges, _allowed(precision), self._moves)
            self._rounded[precision] = self._outputs(runs)
        return self._rounded[precision]

    def more(self, precision: str) -> list[dict[str, Array]]:
        """Those, and further ones that round otherwise: asked where the first do not explain a difference."""
        if precision not in self._more:
            runs = nudges(self.model, precision, self._edges, _allowed(precision), self._moves)
            self._more[precision] = self._outputs(runs)
        return [*self.naturals(precision), *self._more[precision]]

    def scattered(self, precision: str) -> list[dict[str, Array]]:
        """Outputs of runs that round in which each input of an edge jumps by itself: asked where a sum of integers is
        none of what it is where all of them do."""
        if precision not in self._scattered:
            runs = scattered(self.model, precision, self._edges, _allowed(precision), self._moves)
            self._scattered[precision] = self._outputs(runs)
        return self._scattered[precision]

    @cached_property
    def spreading(self) -> frozenset[str]:
        """Outputs in which a kernel may spread a NaN: asked where it has more of them."""
        return spreading(self.model, self._hurt)

    def unlimited(self) -> dict[str, Array]:
        """Outputs as if intermediate results had no largest number: asked where a NaN or an infinity is misplaced."""
        if not self._unlimited:
            self._unlimited = self._run(Oracle(self.model, UNLIMITED))
        return self._unlimited

    def undecided(self) -> dict[str, Array]:
        """Outputs with NaN where the order of a sum that leaves its type decides: likewise."""
        if not self._undecided:
            self._undecided = self._run(Undecided(self.model))
        return self._undecided

    def wider(self, precision: str) -> list[dict[str, Array]]:
        """Outputs of runs that only round, as if intermediate results had no largest number."""
        if precision not in self._wider:
            arithmetic = arithmetic_of(precision, wider=True)
            runs = roundings(self.model, arithmetic, self._edges, _allowed(precision), self._moves)
            self._wider[precision] = self._outputs(runs)
        return self._wider[precision]

    def _outputs(self, runs: Sequence[Rounded]) -> list[dict[str, Array]]:
        """What runs that round have; of caches the numbers that they would store."""

        def once(run: Rounded) -> dict[str, Array]:
            return self._run(run) | {name: run.unrounded[cache.tensor] for name, cache in self.caches.items()}

        return completed(runs, once)

    def _run(self, oracle: Oracle, observe: Observe | None = None) -> dict[str, Array]:
        wanted = [*self.names, *self.scores, *(s.decides for s in self.selections)]
        tensors = {cache.tensor for cache in self.caches.values()}
        made: dict[str, Array] = {}  # where caches are known, what the oracle itself makes of them

        def see(name: str, value: Value) -> None:
            if name in tensors:
                made[name] = value.array
            if observe is not None:
                observe(name, value)

        outputs = oracle.run(self.feeds, [*wanted, *tensors], see, self.known or None)
        return outputs | {name: made[cache.tensor] for name, cache in self.caches.items()}

    def before(self, name: str) -> Array:
        """The numbers that a cache stores."""
        found: Array = self._edges[self.caches[name].tensor][0]
        return found

    def as_chosen(self, found: Mapping[str, Array], precision: str) -> Truth:
        """The same where the elements that rounding decides about are chosen as in these outputs; itself, where there
        are none, or that cannot be told."""
        known: dict[str, Value] = {}
        for one in self.selections:
            decides = self.exact[one.decides]
            doubt = doubtful(decides, [n[one.decides] for n in self.more(precision)], precision)
            every = (decides != 0) | doubt
            if doubt.any():
                told = Oracle(self.model).run(self.feeds, one.outputs, known=one.known(every))
                left = chosen_by([(told[n], np.asarray(found[n])) for n in one.outputs], doubt[every])
                if left is not None:
                    every[every] = ~left
                    known |= one.known(every)
        if not known:
            return self
        known = {**self.known, **known}
        return Truth(self.model, self.feeds, self.names, self.scores, self.selections, known, self.caches)

    @property
    def chosen(self) -> bool:
        """Whether the oracle is told what decides sizes."""
        return any(name in self.known for one in self.selections for name in one.outputs)

    def limited(self, name: str) -> bool:
        """Whether an output is another one than it would be if intermediate results had no largest number, or sums
        another order."""
        others = (self.unlimited()[name], self.undecided()[name])
        return not all(np.array_equal(self.exact[name], other, equal_nan=True) for other in others)


def _allowed(precision: str) -> float:
    return limits_of(precision, np.dtype(np.float32)).rms


Tolerance = float | Mapping[str, float] | None
"""Of all outputs, or by an output's name, "" standing for the others."""

GENEROUS = 16.0
"""How many times the usual limits onnxruntime's outputs and ours may be apart where there is no oracle."""


def of_output(tolerance: Tolerance, name: str) -> float | None:
    """What a user allows in one output.

    >>> of_output({"": 1e-3, "y": 1e-2}, "y"), of_output({"y": 1e-2}, "z"), of_output(1e-4, "z")
    (0.01, None, 0.0001)
    """
    return tolerance.get(name, tolerance.get("")) if isinstance(tolerance, Mapping) else tolerance


class Judge:
    """Judges outputs of one model.

    Args:
        model: an ONNX model or its file.
        precision: the arithmetic asked for: "fp32", "bf16", "fp16", "tf32".
        rtol: in place of what follows from rounding, relative to an output's largest value.
        atol: a difference that is no error anywhere.
        names: of tensors to judge in place of the model's outputs.
    """

    def __init__(
        self, model: Any, precision: str = "fp32", rtol: Tolerance = None, atol: Tolerance = None,
        names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        import onnx

        self.model = onnx.load(str(model)) if isinstance(model, (str, Path)) else model
        self.precision, self.rtol, self.atol = precision or "fp32", rtol, atol
        self.names = list(names) or [o.name for o in self.model.graph.output]
        self.choices = choices(self.model)
        self.selections = selections(self.model, self.names)
        self.ranked = ranked(self.model, self.names)
        self._foreseen: tuple[Mapping[str, Array], Truth] | None = None

    def foresee(self, feeds: Mapping[str, Array]) -> None:
        """Evaluate these inputs now, before :meth:`truth` is asked for them: it is not where the compiled model refuses
        them, as they lead out of a tensor."""
        with suppress(Exception):  # then it says so
            self._foreseen = feeds, self.truth(feeds)

    def truth(self, feeds: Mapping[str, Array], found: Mapping[str, Array] | None = None) -> Truth:
        """The oracle's outputs for these inputs.

        Args:
            found: an engine's. What caches hold by them the oracle reads: an element that the engine rounds to the
                other one of two steps changes all that is behind it.

        Raises:
            Unsupported: it cannot evaluate the model.
        """
        if self._foreseen is not None and self._foreseen[0] is feeds:
            return self._foreseen[1]
        caches = {name: cache for name, cache in kept(self.model).items() if name in self.names}
        given = (self.model, feeds, self.names, [c.scores for c in self.choices.values()], self.selections)
        if caches and found is not None:
            with suppress(ValueError, IndexError, Unfit):  # caches of another shape
                return Truth(*given, as_found(caches, found), caches)
        return Truth(*given, caches=caches)

    @property
    def overruled(self) -> bool:
        """Whether the user gave tolerances."""
        return self.rtol not in (None, {}) or self.atol not in (None, {}, 0.0)

    def judged(
        self, feeds: Mapping[str, Array], found: Mapping[str, Array], peer: Mapping[str, Array] | None
    ) -> Comparison:
        """Outputs against the oracle's or, where it cannot evaluate the model, against onnxruntime's.

        Raises:
            Unsupported: neither can.
        """
        try:
            truth = self.truth(feeds, found)
        except Unsupported:
            if peer is None or kept(self.model):
                raise
            return self.without_oracle(found, peer)
        return self(truth, found, peer)

    def without_oracle(self, found: Mapping[str, Array], peer: Mapping[str, Array]) -> Comparison:
        """Outputs against onnxruntime's only, generously: its error is among them."""
        results = [self.alike(n, peer[n], found[n], GENEROUS) for n in self.names if n in peer and n in found]
        results += [OutputComparison(n, "missing from the result") for n in self.names if n not in found]
        return Comparison(tuple(results))

    def alike(
        self, name: str, theirs: Array, ours: Array, slack: float, naturals: Sequence[Array] = ()
    ) -> OutputComparison:
        """One output against onnxruntime's, within `slack` times the limits of the precision.

        Args:
            naturals: what onnxruntime makes of nudged inputs.
        """
        if theirs.shape != ours.shape:
            return OutputComparison(name, f"shape {ours.shape}, expected {theirs.shape}")
        if theirs.dtype != ours.dtype:
            return OutputComparison(name, f"dtype {ours.dtype}, expected {theirs.dtype}")
        # nothing is known here of how many digits a tensor of float64 has
        limits = limits_of(self.precision, SINGLE if ours.dtype == DOUBLE else ours.dtype)
        limits = replace(limits, rms=limits.rms * slack, cross=limits.cross * slack)
        return self._overruled(deviation(name, theirs, self._less(name, theirs, ours), limits, naturals))

    def plainly(
        self, truth: Truth, found: Mapping[str, Array], peer: Mapping[str, Array] | None = None, precision: str = ""
    ) -> Comparison:
        """The same as a call says without runs that only round: what differs here may yet be right."""
        precision, peer = precision or self.precision, None if truth.caches else peer
        plain = [self._one(n, truth, found, peer, precision, ()) for n in self.names]
        plain += [OutputComparison(n, "not an output of the reference") for n in found if n not in self.names]
        return Comparison(tuple(plain))

    def __call__(
        self, truth: Truth, found: Mapping[str, Array], peer: Mapping[str, Array] | None = None, precision: str = ""
    ) -> Comparison:
        """Outputs against the oracle's, onnxruntime's error beside them where `peer` is given, and rounds no caches."""
        precision, peer = precision or self.precision, None if truth.caches else peer
        plain = self.plainly(truth, found, peer, precision).outputs
        failed = {o.name for o in plain if not o.ok}
        if (
            not truth.chosen
            and any(failed & set(s.outputs) for s in truth.selections)
            and found.keys() >= {*self.names}
        ):
            other = truth.as_chosen(found, precision)
            if other is not truth:
                return self(other, found, peer, precision)
        if all(o.ok or of_output(self.rtol, o.name) is not None for o in plain):
            return Comparison(plain)
        naturals = truth.naturals(precision)
        rows = self._by_rows(truth, found, peer, precision, failed)
        results = []
        for one in (rows.get(o.name, o) for o in plain):
            own = of_output(self.rtol, one.name) is not None or one.name in rows
            if not one.ok and not own and one.name in found and one.name in truth.exact:
                one = self._one(one.name, truth, found, peer, precision, naturals)
                marked = (
                    one.name in self.choices and self.choices[one.name].marked
                )  # runs that round say little of ones
                if marked or (not one.ok and one.name in self.choices):
                    one = self._settled(one, truth, found, precision, naturals)
                if one.problem == "differs" or jumped(one):
                    one = self._one(one.name, truth, found, peer, precision, truth.more(precision))
                if jumped(one):
                    runs = [*truth.more(precision), *truth.scattered(precision)]
                    one = self._one(one.name, truth, found, peer, precision, runs)
                if misplaced(one) or ((one.problem == "differs" or jumped(one)) and truth.limited(one.name)):
                    runs = [*truth.more(precision), *truth.wider(precision)]
                    one = self._one(one.name, truth, found, peer, precision, runs, ranges=True)
            results.append(one)
        return Comparison(tuple(results))

    def _by_rows(
        self, truth: Truth, found: Mapping[str, Array], peer: Mapping[str, Array] | None, precision: str,
        failed: set[str],
    ) -> dict[str, OutputComparison]:  # fmt: skip
        """Outputs in the order of a score, one of which failed, row by row."""

        def one(name: str, exact: Array, mine: Array, runs: Sequence[Array], theirs: Array | None) -> OutputComparison:
            limits = limits_of(precision, truth.doubles.kind(name, mine.dtype))
            return self._overruled(deviation(name, exact, self._less(name, exact, mine), limits, runs, theirs))

        results: dict[str, OutputComparison] = {}
        for group in self.ranked:
            if failed & set(group.outputs):
                results |= group.judged(truth.exact, found, truth.more(precision), peer, one)
        return results

    def in_order(self, found: Mapping[str, Array], peer: Mapping[str, Array]) -> dict[str, Array]:
        """onnxruntime's outputs, rows that are in the order of a score in the order that ours have."""
        return dict(peer) | {n: a for group in self.ranked for n, a in group.reordered(found, peer).items()}

    def _one(
        self, name: str, truth: Truth, found: Mapping[str, Array], peer: Mapping[str, Array] | None, precision: str,
        naturals: Sequence[Mapping[str, Array]], ranges: bool = False,
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
        if exact.dtype.kind == "f" and np.isnan(mine).any() and name in truth.spreading:
            mine = spread(exact, mine)
        if ranges:
            exact = decided(exact, truth.undecided()[name], mine)
            exact = ranged(exact, limit(truth.unlimited()[name], mine.dtype), mine)
        if name in truth.caches:
            limits = limits_of(precision, SINGLE)
            exact, samples = stepped(truth.caches[name], exact, truth.before(name), mine, samples, limits)
        mine = self._less(name, exact, mine)
        limits = limits_of(precision, truth.doubles.kind(name, mine.dtype))
        return self._overruled(deviation(name, exact, mine, limits, samples, theirs))

    def _less(self, name: str, exact: Array, found: Array) -> Array:
        """`found`, nearer to `exact` by the absolute tolerance."""
        atol = of_output(self.atol, name)
        if not atol or exact.dtype.kind not in "fc":
            return found
        with np.errstate(all="ignore"):
            error = found.astype(exact.dtype) - exact
            nearer = exact + np.sign(error) * np.maximum(np.abs(error) - atol, 0)
        return np.where(np.isfinite(error), nearer, found)

    def _overruled(self, one: OutputComparison) -> OutputComparison:
        """By the user's relative tolerance, if there is one."""
        rtol = of_output(self.rtol, one.name)
        if rtol is None or one.problem not in ("", "differs") or not one.scale:
            return one
        needed = one.max_error / one.scale
        return replace(one, tolerance=rtol, needed=needed, problem="" if needed <= rtol else "differs")

    def _settled(
        self, one: OutputComparison, truth: Truth, found: Mapping[str, Array], precision: str,
        naturals: Sequence[Mapping[str, Array]],
    ) -> OutputComparison:  # fmt: skip
        """An index by the scores that it was chosen from: in the range of their type or, where it decides, without."""
        settled = self._by_scores(one, truth.exact, found, precision, naturals)
        if settled.ok or not truth.limited(self.choices[one.name].scores):
            return settled
        free = self._by_scores(one, truth.unlimited(), found, precision, truth.wider(precision))
        return free if free.ok else settled

    def _by_scores(
        self, one: OutputComparison, exact: Mapping[str, Array], found: Mapping[str, Array], precision: str,
        naturals: Sequence[Mapping[str, Array]],
    ) -> OutputComparison:  # fmt: skip
        choice = self.choices[one.name]
        scores = exact[choice.scores]
        if scores.dtype.kind != "f" or not scores.size:
            return one
        finite = scores[np.isfinite(scores)]
        limits = limits_of(precision, np.dtype(np.float32))
        scale = float(np.abs(finite).max(initial=0.0)) or 1.0
        with np.errstate(all="ignore"):
            alike = [n[choice.scores] for n in naturals if n[choice.scores].shape == scores.shape]
            errors = [np.nan_to_num(np.abs(n - scores), posinf=0.0) for n in alike]
        natural = max((float(e.max(initial=0.0)) for e in errors), default=0.0) / scale
        tolerance = max(limits.rms, limits.factor * natural)
        return settle(one, choice, exact[one.name], np.asarray(found[one.name]), scores, tolerance)
