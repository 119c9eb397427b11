"""The comparator: every difference is told, in the order names, shapes, dtypes, NaN and Inf, values."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tvmopt.analysis.comparator import compare, tolerance

X = np.linspace(-2, 3, 33, dtype="float32").reshape(3, 11)


def test_equal() -> None:
    assert compare({"y": X}, {"y": X.copy()}).ok


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        ({}, "missing from the result"),
        ({"y": X, "z": X}, "z: not an output of the reference"),
        ({"y": X.T}, r"shape \(11, 3\), expected \(3, 11\)"),
        ({"y": X.astype("float64")}, "dtype float64, expected float32"),
        ({"y": np.where(X[1, 4] == X, np.nan, X)}, r"1 elements differ in NaN, the first at \[1, 4\]"),
        ({"y": np.where(X[2, 0] == X, np.inf, X).astype("float32")}, r"\+Inf, the first at \[2, 0\]"),
        ({"y": np.where(X[2, 0] == X, -np.inf, X).astype("float32")}, "-Inf"),
    ],
)
def test_differences_told(actual: dict[str, np.ndarray], words: str) -> None:
    result = compare({"y": X}, actual)
    assert not result.ok
    assert re.search(words, str(result))


def test_the_tolerance_that_would_pass() -> None:
    wrong = X.copy()
    wrong[1, 7] += 0.03
    result = compare({"y": X}, {"y": wrong}).outputs[0]
    assert result.worst == (1, 7)
    assert result.max_error == pytest.approx(0.03, rel=1e-4)
    assert "a tolerance of 0.01 would pass" in str(result)
    assert compare({"y": X}, {"y": wrong}, rtol=result.needed * 1.001).ok
    assert not compare({"y": X}, {"y": wrong}, rtol=result.needed * 0.999).ok


def test_same_infinities_and_nans_agree() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1], "float32")
    assert compare({"y": x}, {"y": x.copy()}).ok


def test_rounding_of_a_long_sum_passes_and_a_missing_term_does_not() -> None:
    """float32 in another order of summation is within the tolerance; one term left out is not."""
    rng = np.random.default_rng(0)
    for k in (9, 256, 4608):
        a, b = rng.standard_normal((64, k)), rng.standard_normal((k, 32))
        exact = a.astype("float32") @ b.astype("float32")
        blocked = sum(
            a[:, i : i + 8].astype("float32") @ b[i : i + 8].astype("float32") for i in range(0, k, 8)
        ).astype("float32")
        assert compare({"y": exact}, {"y": blocked}, reduction=k).ok
        short = (a[:, 1:].astype("float32") @ b[1:].astype("float32")).astype("float32")
        assert not compare({"y": exact}, {"y": short}, reduction=k).ok


def test_integers_are_exact_but_eight_bits_may_round() -> None:
    for dtype in ("int32", "int64", "bool"):
        x = np.array([0, 1, 1], dtype)
        assert not compare({"y": x}, {"y": x[::-1].copy()}).ok
    q = np.array([3, 200], "uint8")
    assert compare({"y": q}, {"y": q + np.uint8(1)}).ok
    assert not compare({"y": q}, {"y": q + np.uint8(2)}).ok


def test_tolerances_grow_with_coarser_arithmetic() -> None:
    order = [tolerance(d, 100) for d in ("float64", "float32", "tf32", "bfloat16")]
    assert order == sorted(order)
    assert tolerance("int8") == 0
    x = X.copy() * (1 + 2**-8)
    assert not compare({"y": X}, {"y": x}).ok
    assert compare({"y": X}, {"y": x}, precision="bf16").ok


def test_empty_and_scalar() -> None:
    assert compare({"y": np.zeros((0, 3), "float32")}, {"y": np.zeros((0, 3), "float32")}).ok
    assert compare({"y": np.float32(1)}, {"y": np.float32(1)}).ok


def test_degenerate_outputs_are_noticed() -> None:
    flat = np.full((1, 1000), 0.001, "float32")
    assert compare({"y": flat}, {"y": flat}).degenerate
    assert not compare({"y": X}, {"y": X}).degenerate
