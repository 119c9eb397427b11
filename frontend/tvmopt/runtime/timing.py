"""Latencies of repeated calls, and their summary - for `Model.time`, `tvmopt run --print-time` and the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Latency in milliseconds over `n` calls after `warmup` more; `throughput` in calls a second (back to back)."""

    n: int
    warmup: int
    min_ms: float
    median_ms: float
    mean_ms: float
    p90_ms: float
    p99_ms: float
    std_ms: float
    throughput: float

    @property
    def unstable(self) -> bool:
        """Whether the spread makes the figures doubtful: (p90 - median) above a tenth of the median."""
        return self.p90_ms - self.median_ms > 0.1 * self.median_ms


def measure(call: Callable[[], object], *, iterations: int = 100, warmup: int = 10, duration: float = 0.0) -> Timing:
    """Time `call`: at least `iterations` times, and until `duration` seconds have passed."""
    for _ in range(warmup):
        call()
    samples: list[int] = []
    clock = time.perf_counter_ns
    begin = clock()
    while len(samples) < max(1, iterations) or clock() - begin < duration * 1e9:
        start = clock()
        call()
        samples.append(clock() - start)
    return summarise(samples, warmup)


def summarise(nanoseconds: list[int], warmup: int = 0) -> Timing:
    """The summary of single-call latencies.

    >>> summarise([1_000_000, 2_000_000, 3_000_000]).median_ms
    2.0
    """
    ms = np.asarray(nanoseconds) / 1e6
    median, p90, p99 = (float(q) for q in np.percentile(ms, (50, 90, 99)))
    total = float(ms.sum())
    return Timing(
        len(ms),
        warmup,
        float(ms.min()),
        median,
        float(ms.mean()),
        p90,
        p99,
        float(ms.std()),
        1e3 * len(ms) / total,
    )
