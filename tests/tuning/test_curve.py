"""The curve of best latency over trials: what the store holds, whoever measured it, in order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tuning.fakes import FakeRunner, task
from tvmopt.cli.logs import app
from tvmopt.errors import InputError, TuningError
from tvmopt.tuning.curve import calls_of, calls_text, curve, find_session, svg
from tvmopt.tuning.record import Candidate, Key, Record, Verdict
from tvmopt.tuning.search import Budget, Tuner
from tvmopt.tuning.store import Store

HEAVY, LIGHT = (Key(name, "llvm znver5 2c -", "0.27", "fake", 1) for name in ("heavy", "light"))
TASKS = [replace(task("heavy", weight=3.0), key=HEAVY), replace(task("light"), key=LIGHT)]


def measured(key: Key, a: int, seconds: float, minute: int, won: float = 0.0) -> Record:
    """A candidate of an analytic time of 10 us, finished at 12:`minute`."""
    verdict = Verdict(won, won, won, 0.0, 30, True) if won else None
    return Record(key, Candidate({"a": a}), "ok", (seconds * 1e-6,) * 3, date=f"2026-01-01T12:{minute:02d}:00Z",
                  verdict=verdict, baseline=1e-5)  # fmt: skip


RECORDS = [
    measured(HEAVY, 0, 10, 0), measured(LIGHT, 0, 10, 1), measured(HEAVY, 1, 5, 2), measured(LIGHT, 1, 12, 3),
    measured(HEAVY, 2, 6, 40, won=0.7), measured(LIGHT, 2, 8, 41), measured(LIGHT, 3, 9, 42, won=0.9),
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store(tmp_path / "s.db") as opened:
        opened.begin("abc123", "m.onnx", HEAVY.target, calls_text(TASKS))
        for record in RECORDS:
            opened.add(record, "abc123", 1.0)
    return tmp_path / "s.db"


def test_every_trial_counts_with_the_calls_of_its_kernel(store: Path) -> None:
    with Store(store) as opened:
        drawn = curve(opened, find_session(opened, "m.onnx"))
    assert drawn.untuned == pytest.approx(40e-6) and drawn.tuned == pytest.approx((21 + 9) * 1e-6)
    assert (drawn.trials, drawn.kernels, drawn.won) == (7, 2, 2)
    assert [(p.trial, round(1e6 * p.confirmed), round(1e6 * p.screened)) for p in drawn.points] == [
        (2, 40, 40), (3, 40, 25), (5, 31, 25), (6, 31, 23), (7, 30, 23),
    ]  # fmt: skip
    assert [p.seconds for p in drawn.points] == [60, 120, 180, 240, 300], "the pause of 37 minutes does not count"


def test_what_another_session_measured_is_known_and_no_trial(store: Path) -> None:
    with Store(store) as opened:
        opened.begin("def456", "other.onnx", HEAVY.target, calls_text(TASKS[:1]))
        opened.add(measured(HEAVY, 7, 4, 50, won=0.5), "def456")
        first, other = (curve(opened, find_session(opened, name)) for name in ("abc", "other"))
    assert first.trials == 7 and first.points[-1].confirmed == pytest.approx(30e-6)
    assert other.trials == 1 and other.tuned == pytest.approx(15e-6)


def test_the_tuner_writes_down_its_calls(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as opened:
        tasks = [task("one", weight=3.0), task("two")]
        tuner = Tuner(tasks, FakeRunner(), opened, Budget(40), model="m.onnx")
        tuner.run()
        session = find_session(opened)
        assert calls_of(session) == {t.key: t.weight for t in tasks}
        drawn = curve(opened, session)
    assert (drawn.untuned, drawn.tuned) == pytest.approx(tuner.latency)
    assert drawn.trials == 40 and drawn.points[0].confirmed >= drawn.points[-1].confirmed


def test_a_session_without_calls_needs_the_model(store: Path) -> None:
    with Store(store) as opened:
        old = replace(find_session(opened), info="")
        with pytest.raises(InputError, match="how often"):
            curve(opened, old)
        later = {replace(HEAVY, version=2): 3.0, replace(LIGHT, version=2): 1.0}  # the families went on
        assert curve(opened, old, later).tuned == pytest.approx(30e-6)
        with pytest.raises(InputError, match="none of this model's"):
            curve(opened, old, {replace(HEAVY, workload="else"): 1.0})


def test_without_every_analytic_schedule_there_is_no_curve(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as opened:
        opened.begin("s", "m.onnx", HEAVY.target, calls_text(TASKS))
        opened.add(RECORDS[0], "s")
        with pytest.raises(TuningError, match="not every kernel"):
            curve(opened, find_session(opened))
        with pytest.raises(TuningError, match=r"no tuning session 'zz'(.|\n)*m\.onnx \(s\)"):
            find_session(opened, "zz")


def test_the_command_writes_json_and_svg(store: Path, tmp_path: Path) -> None:
    words = ["curve", "m.onnx", "--store", str(store), "-o", str(tmp_path / "m.json")]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0 and "0.040 -> 0.030 ms" in result.output and "2 of 2 kernels" in result.output
    assert json.loads((tmp_path / "m.json").read_text())["points"][-1]["trial"] == 7
    text = (tmp_path / "m.svg").read_text()
    with Store(store) as opened:
        assert text == svg(curve(opened, find_session(opened))) and text.count("<polyline") == 3
