"""The curve of a tuning session - the model's best latency over trials and time - for `tvmopt logs curve`.

    latency(t) = sum over the session's tasks of  calls * seconds of the analytic schedule * ratio of the best so far

Everything is read from the store, so a run that was killed and resumed five times has one curve. `confirmed` counts
a candidate once its final against the analytic schedule was won; `screened` counts what the short first measurement
promised. The latter is biased: of many noisy figures the smallest is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tvmopt.errors import InputError, TuningError
from tvmopt.tuning.record import Key, Record
from tvmopt.tuning.store import Session, Store

if TYPE_CHECKING:
    from tvmopt.tuning.tasks import Task

PAUSE = 120.0
"""Seconds without a finished measurement after which the tuner is taken to have been stopped."""
Calls = Mapping[Key, float]


@dataclass(frozen=True)
class Point:
    """The curve after a trial.

    Attributes:
        trial: measurements of the session so far. seconds: of tuning so far, pauses left out.
        confirmed, screened: estimated seconds of one inference, see the module's text.
    """

    trial: int
    seconds: float
    confirmed: float
    screened: float


@dataclass(frozen=True)
class Curve:
    """The curve of one session.

    Attributes:
        untuned: seconds of one inference with the analytic schedules, the kernels' times added up.
        tuned: with the winners. kernels: how many there are; won: how many have a winner.
        points: where the curve bends, its first and its last point.
    """

    session: str
    model: str
    target: str
    started: str
    trials: int
    seconds: float
    untuned: float
    tuned: float
    kernels: int
    won: int
    points: tuple[Point, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def calls_text(tasks: Sequence[Task]) -> str:
    """What a session remembers of its tasks: keys, calls in one inference, and the kernels' names."""
    rows = [[t.key.workload, t.key.tvm, t.key.family, t.key.version, t.weight] for t in tasks]
    return json.dumps({"tasks": rows, "names": {t.key.workload: sorted(set(t.names)) for t in tasks}})


def calls_of(session: Session) -> dict[Key, float]:
    """Calls of each task in one inference, as the session remembers them; {} if it is of an earlier version."""
    try:
        rows = json.loads(session.info)["tasks"]
        return {Key(w, session.target, tvm, family, int(v)): float(calls) for w, tvm, family, v, calls in rows}
    except (ValueError, KeyError, TypeError):
        return {}


def find_session(store: Store, name: str = "") -> Session:
    """The last session whose identifier begins with `name`, or whose model contains it; the last one if it is "".

    Raises:
        TuningError: there is none.
    """
    sessions = store.sessions()
    found = [s for s in sessions if s.id.startswith(name) or name in s.model]
    if not found:
        known = ", ".join(f"{s.model} ({s.id})" for s in sessions) or "none"
        raise TuningError(f"no tuning session {name!r}", where=str(store.path), fix=f"its sessions: {known}")
    return found[-1]


def curve(store: Store, session: Session, calls: Calls | None = None) -> Curve:
    """The curve of a session.

    Args:
        calls: of each task in one inference, for a session that does not remember them.

    Raises:
        InputError: the session does not remember its tasks and `calls` has none of them.
        TuningError: an analytic schedule was not measured yet: there is no figure to begin with.
    """
    weights = calls_of(session) or _matched(store.records(session=session.id), calls or {})
    if not weights:
        raise InputError(
            "the session does not say how often its kernels are called" if not calls else
            "the session tuned none of this model's kernels",
            where=f"{session.model} ({session.id})",
            fix="give the ONNX file: tvmopt logs curve SESSION --model FILE.onnx",
        )  # fmt: skip
    drawing = _Drawing(weights)
    own = {(r.key, r.candidate.id) for r in store.records(session=session.id)}
    for record in store.records(target=session.target):
        if record.key in weights:
            drawing.add(record, (record.key, record.candidate.id) in own)
    if not drawing.points:
        raise TuningError(
            "not every kernel's analytic schedule was measured yet", where=f"{session.model} ({session.id})",
            fix="go on tuning",
        )  # fmt: skip
    first, last = drawing.points[0], drawing.points[-1]
    won = sum(ratio < 1 for ratio in drawing.confirmed.values())
    untuned = sum(n * drawing.analytic[k] for k, n in weights.items())
    return Curve(
        session.id, session.model, session.target, session.started, last.trial, round(session.seconds, 1),
        untuned, last.confirmed, len(weights), won, _bends(first, drawing.points[1:-1], last),
    )  # fmt: skip


class _Drawing:
    """Adds records, in the order they were finished, to the points of a curve."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.analytic: dict[Key, float] = {}
        self.confirmed: dict[Key, float] = dict.fromkeys(calls, 1.0)
        self.screened: dict[Key, float] = dict.fromkeys(calls, 1.0)
        self.points: list[Point] = []
        self._trial, self._seconds, self._last = 0, 0.0, ""

    def add(self, record: Record, own: bool) -> None:
        """`own`: of this session; others' count as known, not as trials."""
        key = record.key
        if own:
            self._trial += 1
            self._seconds += _between(self._last, record.date)
            self._last = record.date
        if record.status == "ok" and key not in self.analytic:  # a task's first measurement is the analytic point
            self.analytic[key] = record.baseline or record.seconds
        self.screened[key] = min(self.screened[key], record.score)
        if record.won and record.verdict is not None:
            self.confirmed[key] = min(self.confirmed[key], record.verdict.ratio)
        if len(self.analytic) == len(self.calls):
            self.points.append(
                Point(self._trial, self._seconds, self._latency(self.confirmed), self._latency(self.screened))
            )

    def _latency(self, ratios: Mapping[Key, float]) -> float:
        return sum(calls * self.analytic[key] * ratios[key] for key, calls in self.calls.items())


def _between(before: str, after: str) -> float:
    """Seconds from one date to the next; none across a pause."""
    if not before:
        return 0.0
    gap = (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
    return gap if 0 <= gap <= PAUSE else 0.0


def _bends(first: Point, middle: Iterable[Point], last: Point) -> tuple[Point, ...]:
    """Without the points between which nothing changed."""
    kept = [first]
    for point in middle:
        if (point.confirmed, point.screened) != (kept[-1].confirmed, kept[-1].screened):
            kept.append(point)
    return (*kept, last) if last.trial > kept[-1].trial else tuple(kept)


def _matched(records: Sequence[Record], calls: Calls) -> dict[Key, float]:
    """Calls by the keys that the session has: a family may have a later version than when it was tuned."""
    by_work = {(key.workload, key.family): number for key, number in calls.items()}
    keys = {r.key for r in records}
    return {k: by_work[k.workload, k.family] for k in sorted(keys) if (k.workload, k.family) in by_work}


def svg(drawn: Curve) -> str:
    """The curve as an SVG file: confirmed as a line, screened dashed, the untuned latency dotted."""
    from tvmopt.analysis.svg import COLOURS, Plot, standalone

    low = min(p.screened for p in drawn.points)
    axes = Plot(
        (0, max(drawn.trials, 1)), (1e3 * low * 0.98, 1e3 * drawn.untuned * 1.02),
        title=f"best latency of {drawn.model} over trials", ylabel="ms, kernels added up",
        xlabel=f"trials ({drawn.seconds / 60:.0f} minutes)",
    )  # fmt: skip
    axes.line([(0, 1e3 * drawn.untuned), (drawn.trials, 1e3 * drawn.untuned)], "", 1, "2 4")
    axes.line(_steps(drawn, "screened"), COLOURS[5], 1.5, "6 4")
    axes.line(_steps(drawn, "confirmed"), COLOURS[0], 2.5)
    share = drawn.tuned / drawn.untuned
    axes.text(0, 1e3 * drawn.untuned, f"untuned {1e3 * drawn.untuned:.2f} ms")
    axes.text(
        drawn.trials, 1e3 * drawn.tuned, f"confirmed {1e3 * drawn.tuned:.2f} ms ({share:.3f} of untuned)", "end", -6
    )
    axes.text(drawn.trials, 1e3 * low, "promised by screening", "end", -6, 14)
    return standalone(axes.render())


def _steps(drawn: Curve, what: str) -> list[tuple[float, float]]:
    """A best so far holds until the next: horizontal, then vertical."""
    places: list[tuple[float, float]] = []
    for point in drawn.points:
        value = 1e3 * getattr(point, what)
        if places:
            places.append((point.trial, places[-1][1]))
        places.append((point.trial, value))
    return places
