"""Verdicts on made-up times: how often they are right, and what they refuse to say."""

import numpy as np
import pytest

from tvmopt.bench.stats import Rules, bootstrap, compare_rounds, drift_of, latency


def _rounds(rng, middle, *, noise=0.02, process=0.01, launches=3, rounds=6):
    """Turn medians with noise in each turn, and an offset of each process."""
    found = []
    for _ in range(launches):
        base = middle * np.exp(rng.normal(0, process))
        found.append(list(base * np.exp(rng.normal(0, noise, rounds))))
    return found


def test_identical_engines_are_never_told_apart():
    verdicts = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        verdicts.append(compare_rounds(_rounds(rng, 1.0), _rounds(rng, 1.0), seed=seed).verdict)
    assert verdicts.count("no difference measured") >= 98
    assert "faster" not in verdicts and "slower" not in verdicts


@pytest.mark.parametrize(("ratio", "word"), [(0.8, "faster"), (0.9, "faster"), (1.12, "slower"), (1.5, "slower")])
def test_real_differences_are_found_every_time(ratio, word):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = compare_rounds(_rounds(rng, ratio), _rounds(rng, 1.0), seed=seed)
        assert found.verdict == word
        assert found.low < ratio * 1.05 and found.high > ratio / 1.05


def test_noise_that_both_engines_share_cancels():
    rng = np.random.default_rng(0)
    common = np.exp(rng.normal(0, 0.05, 18)).reshape(3, 6)
    found = compare_rounds([list(0.9 * c) for c in common], [list(c) for c in common])
    assert found.verdict == "faster"
    assert found.high - found.low < 1e-9


def test_wide_intervals_are_unstable_not_equal():
    verdicts = set()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        verdicts.add(compare_rounds(_rounds(rng, 1.0, noise=0.4), _rounds(rng, 1.0, noise=0.4), Rules(drift=9)).verdict)
    assert verdicts == {"unstable"}


def test_too_few_quiet_rounds_are_unstable_and_say_why():
    found = compare_rounds([[2.0] * 3], [[1.0] * 3], disturbed=42)
    assert found.verdict == "unstable"
    assert "42 of 45" in found.reason
    found = compare_rounds([[], []], [[], []], disturbed=9)
    assert (found.verdict, found.rounds) == ("unstable", 0)
    assert np.isnan(found.value)


def test_drift_and_engines_that_disturb_each_other_are_unstable():
    rising = [[1.0, 1.0, 1.0, 1.4, 1.4, 1.4]]
    assert "drifted" in compare_rounds(rising, [[2.0] * 6]).reason
    assert compare_rounds(rising, [[2 * t for t in rising[0]]]).verdict == "faster"  # the clock fell for both
    assert drift_of(rising) == pytest.approx(1.4)
    found = compare_rounds([[1.0] * 6], [[2.0] * 6], rotation=(1.0, 1.5))
    assert (found.verdict, "is 1.50 of its time after its own" in found.reason) == ("unstable", True)


def test_a_difference_below_the_margin_is_none():
    found = compare_rounds([[1.02] * 8], [[1.0] * 8])
    assert found.verdict == "no difference measured"
    assert compare_rounds([[1.02] * 8], [[1.0] * 8], Rules(margin=0.01)).verdict == "slower"


def test_the_verdict_is_the_same_from_the_other_side():
    rng = np.random.default_rng(3)
    a, b = _rounds(rng, 1.3), _rounds(rng, 1.0)
    assert (compare_rounds(a, b).verdict, compare_rounds(b, a).verdict) == ("slower", "faster")


def test_the_bootstrap_knows_that_launches_differ():
    """Eighteen rounds of three processes are less than eighteen processes: the interval must be wider."""
    launches = [[0.9] * 6, [1.0] * 6, [1.1] * 6]
    _, low, high = bootstrap(launches, confidence=0.99, resamples=2000)
    assert (low, high) == (0.9, 1.1)
    _, low, high = bootstrap([[v for one in launches for v in one]], confidence=0.9, resamples=2000)
    assert (low, high) == (0.95, 1.05) or high - low < 0.15
    assert bootstrap(launches, confidence=0.9, resamples=500) == bootstrap(launches, confidence=0.9, resamples=500)


def test_latency_summary():
    found = latency([0.001] * 90 + [0.010] * 10, batch=4, streams=2)
    assert (found.n, found.min_ms, found.median_ms, found.p99_ms) == (100, 1.0, 1.0, 10.0)
    assert found.throughput == pytest.approx(1000 * 4 * 2 / 1.9)
