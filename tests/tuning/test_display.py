"""What a user sees: lines where nobody watches, a table on a terminal; neither stops the tuner."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tests.tuning.fakes import FakeRunner, Liar, task
from tvmopt.cli.tune_display import Board, Lines, observer
from tvmopt.tuning.search import Budget, Tuner
from tvmopt.tuning.store import Store


def run(tmp_path: Path, show: Lines | Board, runner: FakeRunner) -> Tuner:
    with Store(tmp_path / "s.db") as store:
        tasks = [task(f"kernel_{i}", weight=i + 1.0) for i in range(25)]
        tuner = Tuner(tasks, runner, store, Budget(80), observer=show, peer=0.001)
        tuner.run()
        show.stop()
    return tuner


def test_lines(tmp_path: Path) -> None:
    text = io.StringIO()
    run(tmp_path, Lines(Console(file=text, width=200), every=0.0), Liar())
    lines = text.getvalue()
    assert "25 kernels to tune" in lines and "80/80 trials" in lines and "onnxruntime 1.00 ms" in lines
    assert "of the analytic time" in lines and ": wrong:" in lines


def test_resumed_lines(tmp_path: Path) -> None:
    run(tmp_path, Lines(Console(file=io.StringIO())), FakeRunner())
    text = io.StringIO()
    run(tmp_path, Lines(Console(file=text, width=200)), FakeRunner())
    assert "resumed: 80 trials known" in text.getvalue()


def test_board(tmp_path: Path) -> None:
    text = io.StringIO()
    board = Board(Console(file=text, force_terminal=True, width=160, height=50))
    board.stage("importing")
    run(tmp_path, board, Liar())
    assert "kernel_24" in text.getvalue() and "and 5 more kernels" in text.getvalue()


def test_the_display_fits_the_stream() -> None:
    assert isinstance(observer(io.StringIO()), Lines)
