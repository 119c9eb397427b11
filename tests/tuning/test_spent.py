"""A run that measures nothing says so, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.test_commands import tvmopt as command
from tests.runtime.small import small_model
from tvmopt.tuning import driver
from tvmopt.tuning.record import Verdict
from tvmopt.tuning.store import Store


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small model and a store with a session whose budget is spent."""
    folder = tmp_path_factory.mktemp("spent")
    onnx.save(small_model(), str(folder / "m.onnx"))
    found = driver.tune(folder / "m.onnx", trials=4, threads=1, store=folder / "s.db", generic=False, compare=False)
    assert found.trials == 4 and not found.spent
    return folder / "m.onnx", folder / "s.db"


def test_a_spent_budget_is_told(tuned: tuple[Path, Path]) -> None:
    model, store = tuned
    words = (model, "--trials", 4, "--threads", 1, "--store", store, "--no-generic")
    done = command("tune", *words, "--no-compare")
    assert done.returncode == 0, done.stderr
    assert "the budget is spent (4 of 4 trials" in done.stdout and "nothing was measured" in done.stdout
    assert json.loads(command("tune", *words, "--no-compare", "--json").stdout)["spent"]


class Impatient:
    """Somebody who presses Ctrl-C before the first measurement."""

    def started(self, *_: object) -> None:
        raise KeyboardInterrupt

    measured = judged = finished = started


def test_an_interrupted_run_is_not_called_spent(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = tuned
    found = driver.tune(
        model, trials=4, threads=1, store=tmp_path / "s.db", generic=False, compare=False, observer=Impatient()
    )
    assert found.interrupted and found.trials == 0 and found.spent == ""


def test_the_model_is_judged_once_for_the_same_measurements(
    tuned: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging equals again chooses by chance: three runs in a row had 3, 4 and 2 winners."""
    model, store = tuned
    verdicts = [Verdict(0.9, 0.88, 0.92, 0.0, 30, True), Verdict(1.1, 1.05, 1.2, 0.9, 30, False)]
    asked = []

    def judge(*_: object) -> Verdict | None:
        asked.append(1)
        return verdicts[len(asked) - 1]

    monkeypatch.setattr(driver, "model_verdict", judge)
    options = {"threads": 1, "store": store, "generic": False}
    runs = [driver.tune(model, trials=4, **options) for _ in range(3)]  # type: ignore[arg-type]
    assert len(asked) == 1 and [run.model for run in runs] == [verdicts[0]] * 3
    more = driver.tune(model, trials=5, **options)  # type: ignore[arg-type]
    assert len(asked) == 2 and more.model == verdicts[1] and not more.spent


def test_records_are_shown_by_the_name_of_a_kernel(tuned: tuple[Path, Path]) -> None:
    _, store = tuned
    with Store(store) as opened:
        (session,) = opened.sessions()
        names = [name for some in opened.facts(session.id)["names"].values() for name in some]
    name = next(n for n in names if "conv" in n)
    done = command("logs", "show", name, "--store", store)
    assert done.returncode == 0 and f"kernels: {name}" in done.stdout
    wrong = command("logs", "show", name[:-1] + "_", "--store", store)
    assert wrong.returncode == 2 and "did you mean" in wrong.stderr and name in wrong.stderr
