"""The rotation: engines take turns, round after round, launch after launch, until there is an answer.

    launch 1:  start A B C - warm up each - AA BB CC | CC BB AA | AA BB CC | ...
    launch 2:  new processes, the same again
    ...        more launches while the verdict is open, until patience ends

Every engine has two turns a round, one right after the other: the first follows another engine, the second follows
itself. Where they differ, the engines disturb each other. Between turns the bench waits until the engine that has just
run is quiet: onnxruntime's threads go on spinning after a run, and would take the next engine's cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvmopt.amounts import check_seconds
from tvmopt.bench.engine import Engine
from tvmopt.bench.records import Turn
from tvmopt.children import Progress


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        rounds: undisturbed rounds wanted, over all launches.
        launches: fresh processes of each engine for so many rounds.
        turn: seconds an engine has in a round, both turns together.
        calls: the least calls of a round.
        pause: least seconds between turns.
        warmup: seconds after which an engine counts as warm even if its turns still differ.
        patience: while rounds are missing or the verdict is open, new launches are made until this many times
            `rounds` were played.
    """

    rounds: int = 36
    launches: int = 6
    turn: float = 0.1
    calls: int = 2
    pause: float = 0.02
    warmup: float = 3.0
    patience: float = 4.0

    def __post_init__(self) -> None:
        check_seconds(self.turn * self.rounds)
        check_seconds(self.warmup, "--warmup")
        check_seconds(self.pause, "--pause")

    @property
    def of_launch(self) -> int:
        """Undisturbed rounds wanted of one launch."""
        return -(-self.rounds // self.launches)

    @property
    def most(self) -> int:
        """Rounds after which it ends, decided or not."""
        return max(self.rounds, round(self.rounds * self.patience))


@dataclass
class Series:
    """What one engine has delivered.

    Attributes:
        launches: median seconds of each undisturbed round, for each launch; index-paired between engines.
        every: the same of all rounds, the disturbed ones too.
        samples: single-call seconds of the undisturbed rounds; `noisy` those of the disturbed ones.
        after_others: median seconds of the first turn of each undisturbed round; `after_itself` of the second.
        disturbed: rounds thrown away.
    """

    launches: list[list[float]] = field(default_factory=list)
    every: list[list[float]] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    noisy: list[float] = field(default_factory=list)
    after_others: list[float] = field(default_factory=list)
    after_itself: list[float] = field(default_factory=list)
    disturbed: int = 0

    @property
    def clean(self) -> int:
        """Undisturbed rounds so far."""
        return len(self.after_itself)

    @property
    def rotation(self) -> float:
        """Time after another engine's turn over time after its own: 1 when the engines leave each other in
        peace. The median of the rounds' own ratios: both turns of a round saw the same machine."""
        if not self.clean:
            return 1.0
        return float(np.median(np.asarray(self.after_others) / np.asarray(self.after_itself)))


def warm_up(engine: Engine, plan: Plan) -> None:
    """Turns until three in a row bring nothing below the best before them, or the time is up.

    Falling times tell that an engine is not warm; a slow turn among quick ones tells of the machine.
    """
    medians: list[float] = []
    spent = 0.0
    while spent < plan.warmup:
        turn = engine.turn(plan.turn / 2, 1)
        spent += max(turn.wall, 1e-3)
        medians.append(float(np.median(turn.seconds)))
        if len(medians) > 3 and min(medians[-3:]) > 0.98 * min(medians[:-3]):
            return


def rotate(engines: Sequence[Engine], series: Sequence[Series], plan: Plan, most: int) -> int:
    """Play the rounds of one launch until enough were undisturbed, `most` at the most; the rounds played.

    The order turns round every time, so that no engine always follows the same one. A round counts only
    whole: one disturbed turn throws away all turns of its round, and the pairs stay pairs.
    """
    for one in series:
        one.launches.append([])
        one.every.append([])
    played = kept = 0
    while kept < plan.of_launch and played < min(most, 2 * plan.of_launch):
        turns: dict[int, tuple[Turn, Turn]] = {}
        order = range(len(engines)) if played % 2 == 0 else range(len(engines) - 1, -1, -1)
        for index in order:
            first, second = (_turn(engines[index], plan) for _ in range(2))
            turns[index] = first, second
        played += 1
        disturbed = any(turn.disturbed for pair in turns.values() for turn in pair)
        kept += not disturbed
        for index, (first, second) in turns.items():
            one, both = series[index], first.seconds + second.seconds
            one.every[-1].append(float(np.median(both)))
            if disturbed:
                one.disturbed += 1
                one.noisy.extend(both)
                continue
            one.launches[-1].append(float(np.median(both)))
            one.samples.extend(both)
            one.after_others.append(float(np.median(first.seconds)))
            one.after_itself.append(float(np.median(second.seconds)))
    return played


def _turn(engine: Engine, plan: Plan) -> Turn:
    """One of the two turns of a round, and the quiet after it."""
    turn = engine.turn(plan.turn / 2, -(-plan.calls // 2))
    engine.settle(plan.pause)
    return turn


def measure(
    start: Callable[[], list[Engine]],
    count: int,
    plan: Plan,
    progress: Progress | None = None,
    decided: Callable[[Sequence[Series]], bool] = lambda _: True,
) -> tuple[list[Series], int]:
    """All launches of one case.

    Args:
        start: starts, loads and binds every engine anew.
        count: how many engines it starts.
        decided: whether what was measured so far gives an answer.

    Returns:
        One series an engine, and the rounds played.
    """
    series = [Series() for _ in range(count)]
    played = launches = 0
    while played < plan.most:
        enough = launches >= plan.launches and series[0].clean >= plan.rounds
        if enough and decided(series):
            break
        launches += 1
        if progress:
            words = f"of {plan.launches}" if launches <= plan.launches else "- no answer yet, going on"
            progress(f"launch {launches} {words}")
        engines = start()
        try:
            for engine in engines:
                warm_up(engine, plan)
                engine.settle(plan.pause)
            played += rotate(engines, series, plan, plan.most - played)
        finally:
            for engine in engines:
                engine.close()
    return series, played
