"""CumSum and CumProd on a GPU: rows of one chunk and of several, along memory and across it."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, pipelined

SHAPES = [
    ((1,), 0), ((7,), 0), ((31, 33), 1), ((3, 2047), 1), ((3, 2048), -1), ((2, 2049), 1), ((1, 600_001), 1),
    ((3, 33, 7), 1), ((2, 300, 3), 1), ((5000, 3), 0), ((4, 17, 1100), 1),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("exclusive", [False, True])
def test_integers_are_summed_exactly(shape: tuple[int, ...], axis: int, exclusive: bool) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape, "int64")
    out, source, _ = pipelined(lambda bb, x: relax.op.cumsum(x, axis, exclusive=exclusive), [x], "fp32")
    assert "cumsum_kernel" in source and "continuous_cumsum" not in source
    np.testing.assert_array_equal(out, np.cumsum(x, axis) - x * exclusive)


@pytest.mark.parametrize(("shape", "axis"), [((33,), 0), ((2, 5000), 1), ((3, 300, 2), 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_numbers(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = np.abs(array(shape, dtype, 4))
    out, _, _ = pipelined(lambda bb, x: relax.op.cumsum(x, axis, dtype), [x], "fp32")
    exact = np.cumsum(x.astype("float64"), axis)
    if "float" in dtype:
        np.testing.assert_allclose(out, exact, rtol={"float16": 1e-3, "float32": 2e-6, "float64": 1e-14}[dtype])
    else:
        np.testing.assert_array_equal(out, np.cumsum(x, axis, dtype))


@pytest.mark.parametrize("exclusive", [False, True])
def test_products(exclusive: bool) -> None:
    x = np.exp2(np.random.default_rng(1).integers(-1, 2, (3, 5000))).astype("float32")
    out, _, _ = pipelined(lambda bb, x: relax.op.cumprod(x, 1, exclusive=exclusive), [x], "fp32")
    exact = np.cumprod(x.astype("float64"), 1)
    exact = exact / x if exclusive else exact
    kept = (np.abs(np.log2(exact)) < 120).all(axis=1)
    assert kept.any()
    np.testing.assert_array_equal(out[kept], exact[kept])


def test_infinite_and_nan_stay_where_they_are() -> None:
    x = np.ones((4, 4500), "float32")
    x[1, 4300], x[2, 2100], x[3, 5], x[3, 9] = np.inf, np.nan, np.inf, -np.inf
    out, _, _ = pipelined(lambda bb, x: relax.op.cumsum(x, 1), [x], "fp32")
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, np.cumsum(x, 1))


def test_flags_of_an_axis_that_none_is() -> None:
    x = np.random.default_rng(2).random((3, 700, 2)) < 0.5
    out, _, _ = pipelined(lambda bb, x: relax.op.cumsum(x, None, "int64"), [x], "fp32")
    np.testing.assert_array_equal(out, np.cumsum(x))
