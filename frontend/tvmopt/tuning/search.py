"""The tuner: which task next, which candidates, what is kept, who wins - resumable at every instruction.

All state that matters is in the store; what is in memory is rebuilt from it. So a killed run, a second tuner on the
same store and tomorrow's run are the same case: read the records, go on.

    budget     trials are records of this session, seconds are added with each of them
    task       the one whose next batch is expected to save most: calls * (what is left above the floor, or
               what its last batches brought), as the gradient scheduler of Ansor (Zheng et al., OSDI 2020, section 6)
    final      a candidate that screened faster meets the analytic schedule at once, in turns; only that
               verdict lets `compile` use it
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from tvmopt import ending
from tvmopt.errors import TuningError
from tvmopt.tuning.curve import calls_text
from tvmopt.tuning.measure import Measurement, Runner
from tvmopt.tuning.propose import KnobSpace, Model
from tvmopt.tuning.record import Candidate, Key, Record, Verdict, host_name, now
from tvmopt.tuning.statistics import verdict
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import Task

PROMISING = 0.985
"""Screened at less than this share of the analytic time, a candidate goes to a final."""
WAIT = 0.2
"""Seconds after which a task that another tuner works on is looked at again."""
FINALISTS = 3
"""Candidates of a task that go to finals without a win, per batch: screening under noise makes many promises."""


BATCH = 8
"""Candidates between two decisions."""

PAIRS = 15
"""Undisturbed pairs without which a final decides nothing."""
Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class Budget:
    """What a session may use; 0: no limit."""

    trials: int = 0
    seconds: float = 0.0

    def left(self, trials: int, seconds: float) -> float:
        """The share that is left, 0 to 1."""
        shares = [1 - trials / self.trials] if self.trials else []
        shares += [1 - seconds / self.seconds] if self.seconds else []
        return max(0.0, min(shares, default=1.0))


class Generic(Protocol):
    """A second space of a task, searched beside the family's: MetaSchedule's (see generic.py)."""

    def propose(self, task: Task, count: int, known: Sequence[Record]) -> list[Candidate]:
        """Up to `count` candidates that are not among the known records; [] when it has none."""

    def close(self) -> None: ...


class Observer(Protocol):
    """Whoever watches: a display, a test."""

    def started(self, tuner: Tuner) -> None: ...
    def measured(self, tuner: Tuner, state: State, record: Record) -> None: ...
    def judged(self, tuner: Tuner, state: State, candidate: Candidate, verdict: Verdict | None) -> None: ...
    def finished(self, tuner: Tuner) -> None: ...


@dataclass
class State:
    """What is known of one task.

    Attributes:
        checked: candidates whose outputs were right in this run; of the others, only their records say so.
        refused: candidates that turned out, in this run, not to be what their records say.
    """

    task: Task
    knobs: KnobSpace
    records: dict[str, Record] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)
    generic_trials: int = 0
    generic_done: bool = False
    done: bool = False
    broken: str = ""
    waits_until: float = 0.0
    checked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def note(self, record: Record) -> None:
        self.records[record.candidate.id] = record
        self.knobs.note(record)
        self.history.append(min([record.score, *self.history[-1:]]))
        self.generic_trials += record.candidate.space == "metaschedule"

    @property
    def analytic_seconds(self) -> float:
        """Measured time of the analytic schedule; until then twice the floor."""
        record = self.records.get(self.task.analytic.id)
        return record.baseline or record.seconds if record and record.status == "ok" else 2 * self.task.floor

    @property
    def winner(self) -> Record | None:
        won = [r for r in self.records.values() if r.won]
        return min(won, key=lambda r: (r.verdict.ratio if r.verdict else 1.0, r.candidate.id), default=None)

    @property
    def ratio(self) -> float:
        """Of the winner to the analytic schedule; 1 without a winner."""
        winner = self.winner
        return winner.verdict.ratio if winner and winner.verdict else 1.0

    @property
    def seconds(self) -> float:
        """Estimated time of one call with what is known."""
        return self.analytic_seconds * self.ratio

    @property
    def exhausted(self) -> bool:
        return self.done or bool(self.broken) or (self.knobs.left <= 0 and self.generic_done)

    def generic_share(self) -> float:
        """Share of a batch for the generic space: a quarter to begin with, then by how near it came."""
        if self.generic_trials < 8:
            return 0.25
        best = min(r.score for r in self.records.values() if r.candidate.space == "metaschedule")
        return 0.6 if best < min(1.0, self.ratio) else 0.25 if best < 1.3 * self.ratio else 0.03

    def gain(self) -> float:
        """Seconds of one inference that the next batch may save.

        A kernel that is faster than its floor shows that the machine is described as slower than it is (a generic
        target). The floor then says nothing, and half of the time counts as room, as for a kernel not yet measured.
        """
        if self.exhausted:
            return 0.0
        seconds = max(self.seconds, 1e-12)
        room = 1 - self.task.floor / seconds if self.task.floor < seconds else 0.5
        trials = len(self.records)
        recent = self.history[-17] - self.history[-1] if trials > 17 and self.history[-17] < 2 else room
        return self.task.weight * self.seconds * (0.7 * max(recent, 0.0) + 0.3 * room / (1 + trials / 16))


class Tuner:
    """One run over the tasks of a model.

    Args:
        tasks: from `tasks.extract`.
        runner: measures; closed by whoever made it.
        store: where records go.
        budget: of the session, all its runs together.
        session: resumed if the store knows it; default: the same tasks are the same session.
        batch: candidates between two decisions.
        seed: of every random choice.
        peer: onnxruntime's seconds for the model, for the display; 0: unknown.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Runner,
        store: Store,
        budget: Budget,
        *,
        session: str = "",
        model: str = "",
        seed: int = 0,
        batch: int = BATCH,
        generic: Generic | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
        peer: float = 0.0,
    ) -> None:
        self.peer = peer
        self.curve: list[tuple[int, float, float]] = []
        self.runner, self.store, self.budget, self.batch = runner, store, budget, batch
        self.session = session or session_id(tasks)
        self.generic, self.observer, self.clock = generic, observer, clock
        self.states = [State(t, KnobSpace(t.space, t.features), generic_done=generic is None) for t in tasks]
        self.models = {t.key.family: Model(seed) for t in tasks}
        self._draw = random.Random(seed)
        target = tasks[0].key.target if tasks else ""
        self.trials, self.seconds = store.begin(self.session, model, target, calls_text(tasks))
        for state in self.states:
            for record in store.records(state.task.key):
                state.note(record)
        self.resumed = self.trials
        self._stamp = clock()

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the budget is spent or nothing is left to measure. Ctrl-C, too, leaves everything in the store."""
        if self.observer:
            self.observer.started(self)
        try:
            while self.share_left > 0:
                if ending.interrupted():  # and what came of it was taken for a failure of a schedule
                    raise KeyboardInterrupt
                worth = [s for s in self.states if s.gain() > 0 or self._unseen(s)]
                free = [s for s in worth if s.waits_until <= time.monotonic()]
                if not worth:
                    break
                if free:
                    self._batch(max(free, key=lambda s: (self._unseen(s), s.gain())))
                else:
                    time.sleep(WAIT / 4)
        except BaseException:
            with suppress(TuningError):  # a store that could not be written cannot be now: that error is told
                self._spend()
            with suppress(TuningError):  # without it claims end with the process
                self.store.release()
            raise
        self._spend()
        self.store.release()
        if self.observer:
            self.observer.finished(self)

    @property
    def share_left(self) -> float:
        return self.budget.left(self.trials, self.seconds)

    @property
    def latency(self) -> tuple[float, float]:
        """Estimated seconds of one inference: with the analytic schedules, with the winners."""
        base = sum(s.task.weight * s.analytic_seconds for s in self.states)
        return base, sum(s.task.weight * s.seconds for s in self.states)

    def _unseen(self, state: State) -> bool:
        """The analytic points are measured first, all of them: shares of time come from them."""
        return not state.broken and state.task.analytic.id not in state.records

    def _batch(self, state: State) -> None:
        count = 1 if self._unseen(state) else self.batch
        if self.budget.trials:
            count = min(count, self.budget.trials - self.trials)
        proposed = self._propose(state, count)
        mine = self.store.claim(state.task.key, proposed, time.time())
        if not proposed:
            state.done = state.generic_done
            return
        if not mine:  # another tuner has them; take what it found out, and look again later
            self._refresh(state)
            state.waits_until = time.monotonic() + WAIT
            return
        try:
            self.runner.prepare(state.task)
        except TuningError as error:
            state.broken = error.what
            return
        if state.task.kernel.module:
            self.store.put_workload(state.task.key.workload, state.task.kernel.module)
        best = min([r.score for r in state.records.values()], default=1.0)
        for outcome in self.runner.measure(state.task, mine, best):
            self._keep(state, outcome)
            if self.share_left <= 0:
                break
        self._finals(state)
        self._spend()
        self.curve.append((self.trials, round(self.seconds, 2), self.latency[1]))

    def _propose(self, state: State, count: int) -> list[Candidate]:
        """From the family's knobs, and a share from the generic space."""
        model = self.models[state.task.key.family]
        rows, targets = [], list[float]()
        for other in self.states:
            if other.task.key.family == state.task.key.family:
                more, scores = other.knobs.rows()
                rows += more
                targets += scores
        model.fit(rows, targets)
        wanted = 0
        if self.generic is not None and not state.generic_done and not self._unseen(state):
            wanted = sum(self._draw.random() < state.generic_share() for _ in range(count))
            wanted = count if state.knobs.left <= 0 else wanted
        found = state.knobs.propose(count - wanted, model, self._draw) if count > wanted else []
        if wanted and self.generic is not None:
            more_found = self.generic.propose(state.task, wanted, list(state.records.values()))
            state.generic_done = not more_found
            found += more_found
        return found

    def _keep(self, state: State, outcome: Measurement) -> None:
        record = Record(
            state.task.key, outcome.candidate, outcome.status, outcome.samples, outcome.digest, outcome.note,
            state.task.shape, getattr(self.runner, "host", "") or host_name(), now(), None, outcome.baseline,
        )  # fmt: skip
        self.store.add(record, self.session, self._lap())
        state.note(record)
        if record.status == "ok":
            state.checked.add(record.candidate.id)
        self.trials, self.seconds = self.store.used(self.session)
        if self.observer:
            self.observer.measured(self, state, record)

    def _finals(self, state: State) -> None:
        """The most promising candidates without a verdict meet the analytic schedule, until one does not win."""
        for _ in range(FINALISTS):
            open_ = [
                r for r in state.records.values()
                if r.verdict is None and r.score < min(PROMISING, state.ratio)
                and r.candidate.id not in state.refused and r.candidate.id != state.task.analytic.id
            ]  # fmt: skip
            if not open_:
                return
            record = min(open_, key=lambda r: (r.score, r.candidate.id))
            pairs = self.runner.compare(state.task, state.task.analytic, record.candidate)
            if pairs is not None and len(pairs) < PAIRS:
                return  # the machine is too busy to tell: at the next batch again
            outcome = self._final(state, record, pairs)
            if outcome is not None and outcome.won:
                return

    def _final(self, state: State, record: Record, pairs: Pairs | None) -> Verdict | None:
        found = verdict(pairs) if pairs else None
        if found is None:
            self.recheck(state, record)
            state.refused.add(record.candidate.id)
        else:
            self.store.judge(state.task.key, record.candidate, found)
            self._refresh(state)
        if self.observer:
            self.observer.judged(self, state, record.candidate, found)
        return found

    def recheck(self, state: State, record: Record) -> None:
        """Run a candidate again, isolated, and compare its outputs. If they are wrong or it does not run, its record,
        which may come from elsewhere, says so from now on."""
        try:
            self.runner.prepare(state.task)
        except TuningError:
            state.refused.add(record.candidate.id)
            return
        for outcome in self.runner.measure(state.task, [record.candidate], 1.0):
            if outcome.status == "ok":
                state.checked.add(record.candidate.id)
                return
            self.store.restate(state.task.key, record.candidate, outcome.status, outcome.note)
        state.refused.add(record.candidate.id)
        self._refresh(state)

    def refresh(self) -> None:
        """Read all records again."""
        for state in self.states:
            self._refresh(state)

    def _refresh(self, state: State) -> None:
        """Read the task's records again: verdicts, and what other tuners measured."""
        for record in self.store.records(state.task.key):
            if record.candidate.id not in state.records:
                state.note(record)
            state.records[record.candidate.id] = record

    def _lap(self) -> float:
        stamp, self._stamp = self._stamp, self.clock()
        return max(0.0, self._stamp - stamp)

    def _spend(self) -> None:
        self.store.spend(self.session, self._lap())
        self.trials, self.seconds = self.store.used(self.session)


def session_id(tasks: Sequence[Task]) -> str:
    """The same tasks for the same target are the same session, whatever the model's file is called."""
    keys: list[Key] = sorted(t.key for t in tasks)
    return hashlib.sha256(repr(keys).encode()).hexdigest()[:16]
