"""ONNX's own backend suite: what fails is listed in expected_failures.txt, and the list may only shrink."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.onnx_backend.suite import KINDS, Outcome, load_cases, run_suite

LIST = Path(__file__).with_name("expected_failures.txt")
SUBSET, SEED = 200, 20261121


def expected_failures() -> dict[str, str]:
    """Case and reason, from lines ``name: reason``."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def judge(outcomes: list[Outcome]) -> list[str]:
    """Complaints: an unlisted case that fails, a listed one that passes."""
    listed = expected_failures()
    worse = [f"{o.name} fails: {o.detail}" for o in outcomes if not o.ok and o.name not in listed]
    settled = {name for name, reason in listed.items() if not reason.startswith("rounding")}
    better = [f"{o.name} passes: take it off {LIST.name}" for o in outcomes if o.ok and o.name in settled]
    return worse + better


def test_list_is_sorted_and_names_cases() -> None:
    names = list(expected_failures())
    assert names == sorted(set(names))
    assert not set(names) - set(load_cases(KINDS))


def test_seeded_subset() -> None:
    names = sorted(load_cases(KINDS))
    outcomes = run_suite(random.Random(SEED).sample(names, SUBSET), workers=2, timeout=180, kinds=KINDS)
    assert len(outcomes) == SUBSET
    assert not judge(outcomes)


@pytest.mark.slow
def test_whole_suite() -> None:
    cases = load_cases(KINDS)
    outcomes = run_suite(sorted(cases), workers=2, timeout=180, kinds=KINDS)
    assert not judge(outcomes)
    assert len(outcomes) == len(cases)
    assert sum(o.ok for o in outcomes) >= len(cases) - len(expected_failures())


def test_a_case_that_hangs_or_crashes_is_an_outcome() -> None:
    outcomes = run_suite(["test_abs", "no_such_case", "test_add"], timeout=60)
    assert [o.ok for o in outcomes] == [False, True, True]
    [hung] = run_suite(["test_attention_4d"], timeout=0.001)
    assert not hung.ok and "timeout" in hung.detail
