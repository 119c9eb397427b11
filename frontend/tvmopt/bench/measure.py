"""The rotation: engines take turns, round after round, launch after launch, until there are enough quiet
rounds.

    launch 1:  start A B C - warm up each - each alone for a few turns - A B C | C B A | A B C | ...
    launch 2:  new processes, the same again

Between turns the bench waits until the engine that has just run is quiet: onnxruntime's threads go on
spinning after a run, and would take the next engine's cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvmopt.bench.engine import Engine
from tvmopt.bench.records import Turn

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        rounds: undisturbed rounds wanted, over all launches.
        launches: fresh processes of each engine.
        turn: seconds of a turn.
        calls: the least calls of a turn.
        pause: least seconds between turns.
        warmup: seconds after which an engine counts as warm even if its turns still differ.
        patience: rounds are played until `rounds` were undisturbed, at most this many times as many.
    """

    rounds: int = 18
    launches: int = 3
    turn: float = 0.2
    calls: int = 3
    pause: float = 0.02
    warmup: float = 3.0
    patience: float = 4.0

    def of_launch(self, launch: int) -> int:
        """Undisturbed rounds wanted of one launch: an even share."""
        return self.rounds * (launch + 1) // self.launches - self.rounds * launch // self.launches


@dataclass
class Series:
    """What one engine has delivered.

    Attributes:
        launches: median seconds of each undisturbed turn, for each launch; index-paired between engines.
        samples: single-call seconds of the undisturbed turns; `noisy` those of the disturbed ones.
        alone: median seconds when no other engine took turns, for each launch; NaN where that was disturbed.
        disturbed: turns thrown away.
    """

    launches: list[list[float]] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    noisy: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    disturbed: int = 0

    @property
    def rotation(self) -> float:
        """Time in rotation over time alone: 1 when the engines leave each other in peace.

        The median over launches of each launch's own ratio.
        """
        pairs = [np.median(r) / a for r, a in zip(self.launches, self.alone, strict=False) if r and a == a]
        return float(np.median(pairs)) if pairs else 1.0


def warm_up(engine: Engine, plan: Plan) -> None:
    """Turns until three in a row agree within 5 %, or the time is up."""
    medians: list[float] = []
    spent = 0.0
    while spent < plan.warmup:
        turn = engine.turn(plan.turn / 2, 1)
        spent += max(turn.wall, 1e-3)
        medians.append(float(np.median(turn.seconds)))
        last = medians[-3:]
        if len(last) == 3 and max(last) < 1.05 * min(last):
            return


def alone(engine: Engine, plan: Plan, turns: int = 3) -> float:
    """Median seconds of an engine that takes turn after turn, settling in between as it will in rotation.

    NaN when no turn was undisturbed: then there is nothing to compare the rotation with.
    """
    quiet: list[float] = []
    for _ in range(round(turns * plan.patience)):
        engine.settle(plan.pause)
        turn = engine.turn(plan.turn, plan.calls)
        if not turn.disturbed:
            quiet.append(float(np.median(turn.seconds)))
        if len(quiet) == turns:
            break
    return float(np.median(quiet)) if quiet else float("nan")


def rotate(engines: Sequence[Engine], series: Sequence[Series], plan: Plan, wanted: int) -> int:
    """Play rounds of one launch until `wanted` were undisturbed; the rounds played.

    The order turns round every time, so that no engine always follows the same one. A round counts only
    whole: one disturbed turn throws away all turns of its round, and the pairs stay pairs.
    """
    for one in series:
        one.launches.append([])
    played = kept = 0
    while kept < wanted and played < wanted * plan.patience:
        turns: dict[int, Turn] = {}
        order = range(len(engines)) if played % 2 == 0 else range(len(engines) - 1, -1, -1)
        for index in order:
            turns[index] = engines[index].turn(plan.turn, plan.calls)
            engines[index].settle(plan.pause)
        played += 1
        if any(turn.disturbed for turn in turns.values()):
            for index, turn in turns.items():
                series[index].disturbed += 1
                series[index].noisy.extend(turn.seconds)
            continue
        kept += 1
        for index, turn in turns.items():
            series[index].launches[-1].append(float(np.median(turn.seconds)))
            series[index].samples.extend(turn.seconds)
    return played


def measure(
    start: Callable[[], list[Engine]], count: int, plan: Plan, progress: Progress | None = None
) -> tuple[list[Series], int]:
    """All launches of one case.

    Args:
        start: starts, loads and binds every engine anew.
        count: how many engines it starts.

    Returns:
        One series an engine, and the rounds played.
    """
    series = [Series() for _ in range(count)]
    played = 0
    for launch in range(plan.launches):
        if progress:
            progress(f"launch {launch + 1} of {plan.launches}")
        engines = start()
        try:
            for engine, one in zip(engines, series, strict=True):
                warm_up(engine, plan)
                one.alone.append(alone(engine, plan))
                engine.settle(plan.pause)
            played += rotate(engines, series, plan, plan.of_launch(launch))
        finally:
            for engine in engines:
                engine.close()
    return series, played
