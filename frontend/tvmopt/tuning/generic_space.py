"""MetaSchedule's generic space beside the families' knobs - the tuner's side of `generic.py`.

The search runs in a worker: a crash of it costs the search of one task. This side asks for candidates and sends back
what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tvmopt.tuning.measure import Worker, WorkerDied, WorkerHung
from tvmopt.tuning.record import Candidate, Record
from tvmopt.tuning.tasks import Task


class Forks(Protocol):
    """A runner that has a warm process for whoever needs one."""

    def fork(self) -> Worker: ...


class MetaScheduleSpace:
    """The tuner's side: a `search.Generic`.

    Args:
        runner: forks the worker.
        seed: of MetaSchedule's random state.
        timeout: seconds for one batch of candidates; a task whose search takes longer is searched no more.
    """

    def __init__(self, runner: Forks, seed: int, timeout: float = 120.0) -> None:
        self._runner, self._seed, self._timeout = runner, seed, timeout
        self._worker: Worker | None = None
        self._lost: set[Any] = set()

    def propose(self, task: Task, count: int, known: Sequence[Record]) -> list[Candidate]:
        if task.key in self._lost or not task.kernel.module:
            return []
        told = [(r.candidate.trace, r.seconds) for r in known if r.candidate.trace]
        try:
            self._worker = self._worker or self._runner.fork()
            state, traces = self._worker.call("generic", task.kernel, self._seed, count, told, timeout=self._timeout)
        except (WorkerDied, WorkerHung):
            state, traces, self._worker = "failed", [], None
        if state != "ok":
            self._lost.add(task.key)
            return []
        measured = {r.candidate.id for r in known}
        found = {c.id: c for c in (Candidate(trace=t) for t in traces) if c.id not in measured}
        return list(found.values())

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
