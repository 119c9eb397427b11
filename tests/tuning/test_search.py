"""The tuner: finds what there is, resumes, never measures twice, and is not fooled."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuning.fakes import FakeRunner, Liar, model_seconds, task
from tests.waiting import FOREVER, until
from tvmopt.errors import TuningError
from tvmopt.scheduling.family import Space
from tvmopt.tuning.record import Candidate
from tvmopt.tuning.search import Budget, Tuner, session_id
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import Task


def tune(path: Path, runner: FakeRunner, trials: int, tasks: list[Task] | None = None, seed: int = 1) -> Tuner:
    with Store(path) as store:
        tuner = Tuner(tasks or [task("one")], runner, store, Budget(trials), seed=seed)
        tuner.run()
    return tuner


def test_finds_a_nearly_best_point_in_a_tenth_of_the_space(tmp_path: Path) -> None:
    tuner = tune(tmp_path / "s.db", FakeRunner(), 100)
    winner = tuner.states[0].winner
    assert tuner.trials == 100 and winner is not None
    assert model_seconds(winner.candidate) < 2.3e-6
    base, best = tuner.latency
    assert best < 0.5 * base


def test_analytic_points_are_measured_first(tmp_path: Path) -> None:
    runner, tasks = FakeRunner(), [task(n) for n in ("x", "y", "z")]
    tune(tmp_path / "s.db", runner, 3, tasks)
    assert sorted(runner.measured) == [f"{t.name} {t.analytic.id}" for t in tasks]


def test_the_same_seed_measures_the_same_candidates(tmp_path: Path) -> None:
    runs = []
    for name in ("a.db", "b.db"):
        runner = FakeRunner(noise=0.0)
        tune(tmp_path / name, runner, 60)
        runs.append(runner.measured)
    assert runs[0] == runs[1]


def test_resume_measures_nothing_again_and_budget_goes_on(tmp_path: Path) -> None:
    runner = FakeRunner()
    assert tune(tmp_path / "s.db", runner, 30).trials == 30
    second = tune(tmp_path / "s.db", runner, 50, seed=2)
    assert (second.resumed, second.trials) == (30, 50)
    assert len(set(runner.measured)) == len(runner.measured) == 50
    assert tune(tmp_path / "s.db", runner, 50, seed=3).trials == 50
    assert len(runner.measured) == 50


def test_a_resumed_run_knows_as_much_as_an_unbroken_one(tmp_path: Path) -> None:
    for trials in range(10, 101, 10):
        tuner = tune(tmp_path / "s.db", FakeRunner(), trials, seed=trials)
    winner = tuner.states[0].winner
    assert winner is not None and model_seconds(winner.candidate) < 2.4e-6


def test_a_small_space_ends_by_itself(tmp_path: Path) -> None:
    space = Space({"a": (1, 2, 3), "b": (1, 2), "c": (1,)})
    tuner = tune(tmp_path / "s.db", FakeRunner(), 0, [task("one", space), task("two", space)])
    assert tuner.trials == 12


def test_a_floor_that_is_none_does_not_end_the_search(tmp_path: Path) -> None:
    """A machine that is described as slower than it is: its kernels take less time than their floor."""
    tuner = tune(tmp_path / "s.db", FakeRunner(), 30, [replace(task("one"), floor=1.0)])
    assert tuner.trials == 30


def test_heavier_tasks_get_more(tmp_path: Path) -> None:
    runner = FakeRunner()
    tune(tmp_path / "s.db", runner, 120, [task("heavy", weight=20.0), task("light", weight=1.0)])
    counts = Counter(line.split()[0] for line in runner.measured)
    assert counts["heavy"] > 2 * counts["light"]


def test_time_budget(tmp_path: Path) -> None:
    """Each look at this clock takes a tenth of a second, and a record is one look."""
    ticks = itertools.count()
    with Store(tmp_path / "s.db") as store:
        tuner = Tuner([task("one")], FakeRunner(), store, Budget(seconds=3.0), clock=lambda: next(ticks) / 10)
        tuner.run()
        assert 20 < tuner.trials <= 30 and 3 <= tuner.seconds < 4


def test_a_wrong_kernel_never_wins(tmp_path: Path) -> None:
    tune(tmp_path / "s.db", Liar(), 150)
    with Store(tmp_path / "s.db") as store:
        records = store.records()
        best = store.best(task("one").key)
    statuses = Counter(r.status for r in records)
    assert statuses["wrong"] and statuses["crash"] + statuses["timeout"]
    assert best is not None and best.status == "ok" and best.candidate.knobs["a"] % 2
    assert all(r.status == "ok" for r in records if r.verdict)


class Noisy(FakeRunner):
    """Every candidate is slower than the analytic point or equal to it; bursts make single samples three times longer,
    for a while at a time - also while the analytic point is measured."""

    burst = 0

    def seconds(self, task: Task, candidate: Candidate) -> float:
        return 1e-6 * (1.0 if candidate.id == task.analytic.id else 1.0 + 0.02 * (candidate.knobs["a"] % 4))

    def sample(self, task: Task, candidate: Candidate) -> float:
        self.burst = self.burst - 1 if self.burst else self.draw.choice((0, 0, 0, 0, 0, 0, 0, 9))
        slow = 1 + (2 * self.draw.random() if self.burst else 0)
        return self.seconds(task, candidate) * slow * (1 + abs(self.draw.gauss(0, 0.03)))


@pytest.mark.parametrize("seed", range(5))
def test_noise_makes_no_worse_schedule_win(tmp_path: Path, seed: int) -> None:
    runner = Noisy(seed=seed)
    tuner = tune(tmp_path / "s.db", runner, 120)
    assert runner.comparisons > 0  # the screening was fooled, the finals were not
    assert tuner.states[0].winner is None


def test_a_task_whose_reference_fails_is_left_out(tmp_path: Path) -> None:
    class Broken(FakeRunner):
        def prepare(self, task: Task) -> None:
            if task.name == "bad":
                raise TuningError("it does not build")

    tuner = tune(tmp_path / "s.db", Broken(), 20, [task("bad", weight=9.0), task("good")])
    assert tuner.trials == 20 and tuner.states[0].broken


def test_session_depends_on_tasks_only() -> None:
    one, two = task("one"), task("two")
    assert session_id([one, two]) == session_id([two, one]) != session_id([one])


def start(store: Path, log: Path, trials: int, seed: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.tuning.fakes", str(store), str(log), str(trials), str(seed)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def written(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def test_fifty_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    store, log, draw = tmp_path / "s.db", tmp_path / "log", random.Random(0)
    seen = 0
    for kill in range(50):
        child = start(store, log, 1000, kill)
        size = written(log)
        until(lambda size=size, child=child: written(log) > size or child.poll() is not None, "it is at work")
        time.sleep(draw.random() * 0.05)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        told = log.read_text().splitlines()
        with Store(store) as opened:
            kept = [f"{r.key.workload} {r.candidate.id}" for r in opened.records()]
        assert set(told) <= set(kept), "a finished measurement was lost"
        assert len(kept) == len(set(kept)) and len(kept) > seen
        seen = len(kept)
    child = start(store, log, seen + 20, 99)
    assert int(child.communicate(timeout=FOREVER)[0]) == seen + 20
    told = log.read_text().splitlines()
    assert len(told) == len(set(told)), "a candidate was measured twice"


def test_two_tuners_share_one_store(tmp_path: Path) -> None:
    store, logs = tmp_path / "s.db", [tmp_path / "a", tmp_path / "b"]
    children = [start(store, log, 200, 7) for log in logs]  # the same seed: they want the same candidates
    for child in children:
        assert int(child.communicate(timeout=FOREVER)[0]) >= 200
    told = [line for log in logs for line in log.read_text().splitlines()]
    with Store(store) as opened:
        kept = opened.records()
    assert len(told) == len(set(told)) == len(kept) and 200 <= len(kept) <= 216
    assert all(log.read_text() for log in logs)


def test_a_store_that_cannot_be_written_is_told_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    """A full disk. What is tidied up behind the error could not be written either, and hid it behind SQLite's own."""

    class Full(FakeRunner):
        def measure(self, *args: object, **options: object) -> object:
            if self.left == 0:
                store._db.execute("PRAGMA query_only=ON")
                store.spend = lambda *_: None  # there is room for this much in the journal
            self.left -= 1
            return super().measure(*args, **options)

    with Store(tmp_path / "s.db") as store:
        runner = Full()
        runner.left = 3
        with pytest.raises(TuningError, match="cannot write the tuning store"):
            Tuner([task("one")], runner, store, Budget(1000), seed=1).run()
        before = len(store.records())
    tuner = tune(tmp_path / "s.db", FakeRunner(), before + 5)
    assert before > 0 and tuner.resumed == before and tuner.trials == before + 5
