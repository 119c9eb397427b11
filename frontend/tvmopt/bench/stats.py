"""From rounds of times to a verdict that can be believed - the statistics of `tvmopt bench`, nothing else.

A *round* gives every engine one turn. Calls within a turn share whatever happened to the machine meanwhile,
so the unit of all statistics is the turn's median, and engines are compared within a round, where
conditions were alike. Processes differ too (where their pages lie), so each engine is launched several
times and the bootstrap resamples launches first, then rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Word = Literal["faster", "slower", "no difference measured", "unstable"]


@dataclass(frozen=True)
class Rules:
    """When a difference counts.

    Attributes:
        margin: ratios within ``1/(1+margin) .. 1+margin`` are no difference that matters.
        confidence: of the bootstrap interval.
        resamples: of the bootstrap.
        widest: an interval wider than this factor on either side, with no verdict, is "unstable".
        drift: a ratio whose first and second half of the rounds differ by more than this is "unstable".
        rotation: an engine whose turns after another engine's differ by more from those after its own is
            "unstable".
        clean: the least number of undisturbed rounds.
    """

    margin: float = 0.03
    confidence: float = 0.99
    resamples: int = 2000
    widest: float = 0.10
    drift: float = 0.15
    rotation: float = 0.15
    clean: int = 6


@dataclass(frozen=True)
class Ratio:
    """Latency of one engine over another's: below 1 the first is faster.

    Attributes:
        value: median over the rounds of the paired ratio.
        low, high: bootstrap interval.
        rounds: undisturbed rounds it rests on.
        verdict: what may be said.
        reason: why it is unstable, or what the verdict rests on.
    """

    value: float
    low: float
    high: float
    rounds: int
    verdict: Word
    reason: str = ""


@dataclass(frozen=True)
class Latency:
    """Latency of one call in milliseconds, over all calls; `throughput` in inferences a second."""

    n: int
    min_ms: float
    mean_ms: float
    median_ms: float
    p10_ms: float
    p90_ms: float
    p99_ms: float
    throughput: float


def latency(seconds: Sequence[float], batch: int = 1, streams: int = 1) -> Latency:
    """Summary of single-call times.

    Throughput is what `streams` callers reach together, `batch` inferences a call.

    >>> latency([0.001, 0.002, 0.003]).median_ms
    2.0
    """
    ms = np.asarray(seconds, float) * 1e3
    p10, median, p90, p99 = (float(v) for v in np.percentile(ms, (10, 50, 90, 99)))
    mean = float(ms.mean())
    return Latency(len(ms), float(ms.min()), mean, median, p10, p90, p99, 1e3 * batch * streams / mean)


def bootstrap(
    groups: Sequence[Sequence[float]], *, confidence: float, resamples: int, seed: int = 0
) -> tuple[float, float, float]:
    """(median, low, high) of values that come in groups (launches): groups are resampled, then their members.

    The interval is the percentile bootstrap's; the same seed gives the same interval. scipy.stats.bootstrap resamples
    single values only: it would take eighteen rounds of three processes for eighteen processes.
    """
    arrays = [np.asarray(g, float) for g in groups if len(g)]
    flat, sizes = np.concatenate(arrays), np.array([len(a) for a in arrays])
    offsets = np.cumsum(sizes) - sizes
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(arrays), (resamples, len(arrays), 1))
    place = rng.random((resamples, len(arrays), sizes.max()))
    drawn = flat[offsets[chosen] + (place * sizes[chosen]).astype(int)]
    drawn[np.arange(sizes.max()) >= np.broadcast_to(sizes[chosen], drawn.shape)] = np.nan  # launches of unequal length
    medians = np.nanmedian(drawn.reshape(resamples, -1), axis=1)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(medians, (tail, 100 - tail))
    return float(np.median(flat)), float(low), float(high)


def compare_rounds(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    rules: Rules | None = None,
    *,
    disturbed: int = 0,
    rotation: Sequence[float] = (),
    seed: int = 0,
) -> Ratio:
    """The verdict on two engines.

    Args:
        first, second: for each launch, the turn medians in seconds, round by round; pairs belong together.
        disturbed: rounds thrown away because something else used the processor.
        rotation: for each engine, its time after another engine's turn over its time after its own.
    """
    rules = rules or Rules()
    logs = [np.log(np.asarray(a, float) / np.asarray(b, float)) for a, b in zip(first, second, strict=True)]
    n = sum(map(len, logs))
    if n == 0:
        return Ratio(float("nan"), float("nan"), float("nan"), 0, "unstable", _disturbance(0, disturbed))
    middle, low, high = bootstrap(logs, confidence=rules.confidence, resamples=rules.resamples, seed=seed)
    value, low, high = float(np.exp(middle)), float(np.exp(low)), float(np.exp(high))
    problem = _instability(first, second, n, disturbed, rotation, rules)
    if problem:
        return Ratio(value, low, high, n, "unstable", problem)
    if high < 1 / (1 + rules.margin):
        return Ratio(value, low, high, n, "faster")
    if low > 1 + rules.margin:
        return Ratio(value, low, high, n, "slower")
    if max(high / value, value / low) > 1 + rules.widest:
        width = max(high / value, value / low) - 1
        return Ratio(value, low, high, n, "unstable", f"the interval is {width:.0%} wide on one side")
    return Ratio(value, low, high, n, "no difference measured", f"within {rules.margin:.0%} or inside the interval")


def is_open(ratio: Ratio, rules: Rules) -> bool:
    """Whether more rounds could still change what is said: nothing may be said yet, or there seems to be a
    difference above the margin and the interval contains none, or one below it.

    >>> [is_open(Ratio(value, 0.93, 1.01, 36, "no difference measured"), Rules()) for value in (0.96, 0.98)]
    [True, False]
    """
    if ratio.verdict != "no difference measured":
        return ratio.verdict == "unstable"
    least, most = 1 / (1 + rules.margin), 1 + rules.margin
    if least <= ratio.low and ratio.high <= most:
        return False
    return not least <= ratio.value <= most or not ratio.low <= 1 <= ratio.high


def _disturbance(clean: int, disturbed: int) -> str:
    return f"something else used the processor in {disturbed} of {clean + disturbed} rounds"


def _instability(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    n: int,
    disturbed: int,
    rotation: Sequence[float],
    rules: Rules,
) -> str:
    """Why nothing may be said, or nothing."""
    if n < rules.clean:
        return _disturbance(n, disturbed) if disturbed else f"only {n} rounds, {rules.clean} are needed"
    for ratio in rotation:
        if not 1 / (1 + rules.rotation) <= ratio <= 1 + rules.rotation:
            return f"an engine's time right after another engine's turn is {ratio:.2f} of its time after its own"
    drift = drift_of(first) / drift_of(second)  # what both share, a clock that changes, cancels
    if abs(np.log(drift)) > np.log1p(rules.drift):
        return f"the ratio drifted: in the second half of the rounds it is {drift:.2f} of the first"
    return ""


def drift_of(launches: Sequence[Sequence[float]]) -> float:
    """Median of the rounds' second half over the first half's; 1 where there are too few rounds."""
    flat = [t for launch in launches for t in launch]
    half = len(flat) // 2
    return float(np.median(flat[-half:]) / np.median(flat[:half])) if half >= 3 else 1.0
