"""Real workers: what a bad candidate costs, what is measured, and that a wrong kernel is seen."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import FOREVER, until
from tvmopt.errors import TuningError
from tvmopt.targets import Machine
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.measure import LocalRunner
from tvmopt.tuning.record import Candidate
from tvmopt.tuning.search import Budget, Tuner
from tvmopt.tuning.statistics import verdict
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import Task

MODES = {"right": 0, "wrong": 1, "refuses": 2, "dies building": 3, "hangs building": 4, "dies running": 5,
         "hangs running": 6, "slow": 7, "nan": 8}  # fmt: skip
EXPECTED = {"right": "ok", "wrong": "wrong", "refuses": "failed", "dies building": "crash",
            "hangs building": "timeout", "dies running": "crash", "hangs running": "timeout", "slow": "ok",
            "nan": "wrong"}  # fmt: skip
MACHINE = Machine.load("cpu").with_cores(1)


class Impatient(LocalRunner):
    """Waits a second for what hangs, and as long as it takes for everything else: a busy machine is no hang."""

    def _call(self, slot: int, task: Task, verb: str, *arguments: Any, timeout: float) -> tuple[str, Any]:
        trap = {"build": "hangs building", "measure": "hangs running"}.get(verb)
        ident = getattr(arguments[0], "id", arguments[0]) if arguments else ""
        hangs = trap is not None and ident == Candidate({"mode": MODES[trap]}).id
        return super()._call(slot, task, verb, *arguments, timeout=1.0 if hangs else FOREVER)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    effort = Effort(seconds=0.02, rounds=20, flush="no")
    with Impatient(MACHINE, 2, effort, build_timeout=FOREVER, preload="tests.tuning.planted_local") as made:
        yield made


@pytest.fixture(scope="module")
def task():
    from tests.tuning import planted

    return planted.task(MACHINE)


def test_a_bad_candidate_costs_itself_only(runner: LocalRunner, task) -> None:
    runner.prepare(task)
    points = {name: Candidate({"mode": mode}) for name, mode in MODES.items()}
    found = {m.candidate.id: m for m in runner.measure(task, list(points.values()), 1.0)}
    assert {name: found[c.id].status for name, c in points.items()} == EXPECTED
    right = found[points["right"].id]
    assert len(right.samples) >= 7 and right.baseline > 0 and right.digest.endswith("0.0e+00")
    assert "max error" in found[points["wrong"].id].note
    again = next(runner.measure(task, [points["right"]], 1.0))
    assert again.status == "ok", "the workers were replaced"


def test_duels_tell_slow_from_equal(runner: LocalRunner, task) -> None:
    runner.prepare(task)
    right, slow, wrong = (Candidate({"mode": MODES[n]}) for n in ("right", "slow", "wrong"))
    pairs = runner.compare(task, slow, right)
    assert pairs is not None and verdict(pairs).won
    pairs = runner.compare(task, right, slow)
    assert pairs is not None and not verdict(pairs).won
    assert runner.compare(task, right, wrong) is None
    assert runner.compare(task, right, Candidate({"mode": MODES["dies building"]})) is None


def test_the_tuner_survives_all_of_it(runner: LocalRunner, task, tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        tuner = Tuner([task], runner, store, Budget(0))
        tuner.run()
        statuses = sorted(r.status for r in store.records())
        assert statuses == sorted(EXPECTED.values())
        assert store.best(task.key) is None  # nothing right is faster than the analytic point
        assert store.workload(task.key.workload)


def test_a_reference_that_does_not_run_is_an_error(runner: LocalRunner, task) -> None:
    kernel = replace(task.kernel, id="0" * 16, module="{}")
    broken = replace(task, key=replace(task.key, workload="0" * 16), kernel=kernel)
    with pytest.raises(TuningError, match="cannot be run"):
        runner.prepare(broken)


def test_workers_end_with_their_runner(task) -> None:
    with LocalRunner(MACHINE, 1, preload="tests.tuning.planted_local") as made:
        worker = made.fork()
        folder = made._folder
        assert worker.runs()
    assert not folder.exists()
    until(lambda: not worker.runs(), "the worker ends")


def test_nothing_is_left_where_nobody_reaps_orphans(task) -> None:
    """As in a container whose first process does not: here orphans become children of this process."""
    become_reaper, libc = 36, ctypes.CDLL(None)
    assert libc.prctl(become_reaper, 1, 0, 0, 0) == 0
    try:
        with LocalRunner(MACHINE, 1, preload="tests.tuning.planted_local") as made:
            workers = [made.fork().pid for _ in range(3)]
        assert not [pid for pid in workers if psutil.pid_exists(pid)]
    finally:
        libc.prctl(become_reaper, 0, 0, 0, 0)
