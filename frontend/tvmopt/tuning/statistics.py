"""When is a kernel known to be faster? Intervals and tests on times that only ever err upwards - for measuring and
for finals.

Times on a shared machine are a floor plus bursts, far from normal: everything here is by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, lgamma, log

from tvmopt.tuning.record import Verdict

MARGIN = 0.01
"""A record must be at least this share faster: less is not worth another schedule."""
ALPHA = 0.01
"""Largest probability, under no difference, at which a record may win."""


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two.

    >>> median([3, 1, 2]), median([4, 1, 2, 3])
    (2, 2.5)
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@cache
def median_ranks(n: int, level: float = 0.95) -> tuple[int, int]:
    """Zero-based order statistics that enclose the median with probability `level` at least.

    The number of samples below the median is binomial(n, 1/2), whatever the distribution (David and Nagaraja, Order
    Statistics, 7.1). With fewer than 6 samples: the extremes.

    >>> median_ranks(7), median_ranks(20), median_ranks(4)
    ((0, 6), (5, 14), (0, 3))
    """
    below, tail, rank = (1 - level) / 2, 0.0, -1
    while rank + 1 < n // 2:
        k = rank + 1
        tail += exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2))
        if tail > below:
            break
        rank = k
    rank = max(0, rank)
    return rank, n - 1 - rank


def settled(samples: Sequence[float], share: float) -> bool:
    """Whether the 95 % interval of the median is no wider than `share` of it, either way.

    >>> settled([1.0] * 10, 0.01), settled([1, 2, 1, 2, 1, 2, 1, 2], 0.05)
    (True, False)
    """
    ordered = sorted(samples)
    low, high = median_ranks(len(ordered))
    middle = median(ordered)
    return ordered[high] - middle <= share * middle and middle - ordered[low] <= share * middle


def verdict(pairs: Sequence[tuple[float, float]], margin: float = MARGIN) -> Verdict:
    """The outcome of a final: `pairs` of (analytic, candidate) times taken in turn.

    The candidate wins if the median of the paired ratios is below 1 - margin with its whole bootstrap interval below 1,
    and the Mann-Whitney test agrees (p < 0.01). A busy neighbour meets both of a pair alike, and cannot decide. A tie
    of medians in short bursts cannot either: the lower quartiles must agree, where bursts hardly reach.

    >>> verdict([(1.0 + i % 3 / 100, 0.9 + i % 5 / 100) for i in range(30)]).won
    True
    >>> verdict([(1.0 + i % 3 / 100, 1.0 + i % 5 / 100) for i in range(30)]).won
    False
    """
    base, other = [a for a, _ in pairs], [b for _, b in pairs]
    ratios = [b / a for a, b in pairs]
    low, high = bootstrap(ratios)
    p = mann_whitney(other, base)
    middle = median(ratios)
    quartiles = quantile(other, 0.25) < quantile(base, 0.25)
    won = middle < 1 - margin and high < 1 and p < ALPHA and quartiles
    return Verdict(round(middle, 5), round(low, 5), round(high, 5), float(f"{p:.3g}"), len(pairs), won)


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def bootstrap(values: Sequence[float], level: float = 0.95, draws: int = 500) -> tuple[float, float]:
    """Percentile interval of the median, from resamples drawn with a fixed seed.

    >>> bootstrap([2.0]), bootstrap([1.0, 1.0, 1.0])
    ((2.0, 2.0), (1.0, 1.0))
    """
    if len(values) == 1:
        return float(values[0]), float(values[0])
    import numpy as np
    from scipy import stats

    found = stats.bootstrap(
        (np.asarray(values, float),), np.median, n_resamples=draws, confidence_level=level, method="percentile",
        rng=np.random.default_rng(len(values)),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def mann_whitney(smaller: Sequence[float], larger: Sequence[float]) -> float:
    """One-sided p that `smaller` is not stochastically smaller; normal approximation with ties corrected.

    >>> mann_whitney(range(20), range(20, 40)) < 1e-6, round(mann_whitney(range(20), range(20)), 1)
    (True, 0.5)
    """
    from scipy import stats

    if len({*smaller, *larger}) == 1:  # nothing has a rank
        return 1.0
    test = stats.mannwhitneyu(smaller, larger, alternative="less", method="asymptotic", use_continuity=False)
    return float(test.pvalue)
