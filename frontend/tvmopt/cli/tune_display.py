"""What `tvmopt tune` shows while it works: a table that renews itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tvmopt.cli.common import Terminal, escape
from tvmopt.errors import first_line
from tvmopt.texts import printable_line

if TYPE_CHECKING:
    from tvmopt.tuning.record import Candidate, Record, Verdict
    from tvmopt.tuning.search import State, Tuner

ROWS = 20


def observer(stream: Any = None) -> Lines | Board:
    """The display for where the output goes."""
    console = Terminal(file=stream or sys.stderr)
    return Board(console) if console.is_terminal else Lines(console)


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Lines:
    """A line for every win, and one every `every` seconds."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        self.console, self.every = console, every
        self._start = self._last = time.monotonic()

    def started(self, tuner: Tuner) -> None:
        if tuner.resumed:
            self._print(f"resumed: {tuner.resumed} trials known, {duration(tuner.seconds)} spent")
        self._print(f"{len(tuner.states)} kernels to tune, store {tuner.store.path}")

    def measured(self, tuner: Tuner, state: State, record: Record) -> None:
        if record.status in ("crash", "timeout", "wrong"):
            note = first_line(record.note)
            self._print(f"{state.task.name}: {record.candidate}: {record.status}: {note}")
        if time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            self._print(summary(tuner, self._start))

    def judged(self, tuner: Tuner, state: State, candidate: Candidate, verdict: Verdict | None) -> None:
        if verdict is not None and verdict.won:
            self._print(
                f"{state.task.name}: {candidate} takes {verdict.ratio:.3f} of the analytic time "
                f"[{verdict.low:.3f}, {verdict.high:.3f}]"
            )

    def finished(self, tuner: Tuner) -> None:
        self._print(summary(tuner, self._start))

    def stage(self, name: str) -> None:
        self._print(f"{name} ...")

    def note(self, text: str) -> None:
        self._print(text)

    def stop(self) -> None: ...

    def _print(self, text: str) -> None:
        self.console.print(printable_line(text), markup=False, highlight=False, soft_wrap=True)


def summary(tuner: Tuner, start: float) -> str:
    """Progress in one line: trials, time, rate, estimated latency, what is left."""
    base, best = tuner.latency
    new, elapsed = tuner.trials - tuner.resumed, max(1e-6, time.monotonic() - start)
    total = f"/{tuner.budget.trials}" if tuner.budget.trials else ""
    text = f"{tuner.trials}{total} trials, {new / elapsed:.1f}/s, {duration(tuner.seconds)}"
    text += f"; model about {1e3 * base:.2f} -> {1e3 * best:.2f} ms"
    text += f" (onnxruntime {1e3 * tuner.peer:.2f} ms)" if tuner.peer else ""
    left = remaining(tuner, new / elapsed)
    return text + (f"; {duration(left)} left" if left else "")


def remaining(tuner: Tuner, rate: float) -> float:
    """Seconds until the first limit of the budget, at this rate."""
    limits = []
    if tuner.budget.trials and rate > 0:
        limits.append((tuner.budget.trials - tuner.trials) / rate)
    if tuner.budget.seconds:
        limits.append(tuner.budget.seconds - tuner.seconds)
    return max(0.0, min(limits, default=0.0))


class Board:
    """The table: a row a kernel, the heaviest first."""

    def __init__(self, console: Console) -> None:
        self.console, self._start = console, time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._at: State | None = None
        self._failures: dict[str, int] = {}

    def started(self, tuner: Tuner) -> None:
        self._live.start()
        self._draw(tuner)

    def measured(self, tuner: Tuner, state: State, record: Record) -> None:
        self._at = state
        if record.status != "ok":
            self._failures[record.status] = self._failures.get(record.status, 0) + 1
        self._draw(tuner)

    def judged(self, tuner: Tuner, state: State, candidate: Candidate, verdict: Verdict | None) -> None:
        self._draw(tuner)

    def finished(self, tuner: Tuner) -> None:
        self.stop()

    def stage(self, name: str) -> None:
        self.console.print(f"[dim]{escape(name)} ...[/]")

    def note(self, text: str) -> None:
        self.console.print(escape(text))

    def stop(self) -> None:
        self._live.stop()

    def _draw(self, tuner: Tuner) -> None:
        table = Table(box=None, pad_edge=False)
        for name in ("", "kernel", "family", "calls", "trials", "analytic", "best", "won", "share"):
            table.add_column(name, justify="left" if name in ("", "kernel", "family") else "right", no_wrap=True)
        base, _ = tuner.latency
        states = sorted(tuner.states, key=lambda s: -s.task.weight * s.analytic_seconds)
        for state in states[:ROWS]:
            score = min((r.score for r in state.records.values()), default=float("inf"))
            table.add_row(
                ">" if state is self._at else "", escape(state.task.name[:44]), escape(state.task.key.family),
                f"{state.task.weight:.0f}", str(len(state.records)), f"{1e6 * state.analytic_seconds:.1f} us",
                f"{score:.3f}" if score < 9 else "", f"{state.ratio:.3f}" if state.winner else "",
                f"{100 * state.task.weight * state.analytic_seconds / (base or 1):.1f} %",
            )  # fmt: skip
        failed = ", ".join(f"{n} {status}" for status, n in sorted(self._failures.items()))
        done = ProgressBar(total=1.0, completed=1 - tuner.share_left, width=40)
        more = Text(f"and {len(states) - ROWS} more kernels") if len(states) > ROWS else Text("")
        head = Text(summary(tuner, self._start) + (f"; {failed}" if failed else ""))
        self._live.update(Group(head, done, table, more))
