"""NaN and infinities through the whole pipeline: pools, which begin with minus infinity, and what follows a product."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, pipelined


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("size", "channels"), [(9, 7), (9, 16), (81, 8)])
def test_a_max_pool_of_nothing_but_minus_infinity(size: int, channels: int, precision: str) -> None:
    """Behind a product, so that `precision` is what the pool reads; with few outputs threads share a window."""
    x = array((1, size, size, 8), "float32")
    x[0, :4, :4] = -np.inf
    x[0, 8, 8] = np.nan
    w = np.full((channels, 1, 1, 8), 0.25, "float32")

    def build(bb: relax.BlockBuilder, var: relax.Expr) -> relax.Expr:
        made = bb.emit(relax.op.nn.conv2d(var, relax.const(w), data_layout="NHWC", kernel_layout="OHWI"))
        return relax.op.nn.max_pool2d(made, (3, 3), (2, 2), padding=1, layout="NHWC")

    out, _, used = pipelined(build, [x], precision)
    assert used[-1] in ("pool", "reduce")
    sums = np.pad(x.sum(-1) / 4, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    exact = np.lib.stride_tricks.sliding_window_view(sums, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))[..., None]
    exact = np.broadcast_to(exact, out.shape)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(exact))
    there = ~np.isnan(exact)
    tolerance = {"fp32": 1e-6, "fp16": 4e-3, "bf16": 3e-2}[precision]
    np.testing.assert_allclose(out[there], exact[there], rtol=tolerance, atol=tolerance)
    assert np.isneginf(out).any() and np.isnan(out).any()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_relu_of_nan(precision: str) -> None:
    x, w = array((20, 24), "float32"), array((24, 16), "float32", 1, 1)
    x[3, 5], x[4, 5], x[11, 0] = np.nan, np.inf, -np.inf

    def build(bb: relax.BlockBuilder, var: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(bb.emit(relax.op.matmul(var, relax.const(w))))

    out, _, _ = pipelined(build, [x], precision)
    exact = np.maximum(x.astype("float64") @ w.astype("float64"), 0)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(exact))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("shape", "axis"), [((7, 16), 1), ((16, 7), 0), ((2, 300), 1), ((5,), 0)])
def test_extremes_of_rows(shape: tuple[int, ...], axis: int, dtype: str, name: str) -> None:
    """TVM begins a maximum of float16 with `inf * -1`, which was not taken for an infinity and did not compile."""
    x = array(shape, dtype)
    x[(0,) * len(shape)] = np.inf * (1 if name == "max" else -1)
    out, _, _ = pipelined(lambda bb, x: getattr(relax.op, name)(x, axis), [x], "fp32")
    np.testing.assert_array_equal(out, getattr(x.astype("float64"), name)(axis).astype(x.dtype))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis", "family"), [((4, 2000), 1, "rows"), ((3, 5, 40), (1, 2), "rows"), ((600, 7), 0, "reduce")]
)
def test_threads_share_an_extreme_of_infinities_and_nan(shape, axis, family, dtype, name) -> None:
    """TVM divides among threads what begins with the lowest finite number, which was the maximum of -inf and -inf; what
    began with -inf was a thread's."""
    sign = 1 if name == "max" else -1
    x = np.full(shape, -sign * np.inf, dtype)
    x.reshape(-1)[-1] = np.nan
    x.reshape(-1)[0] = sign * 3
    out, _, used = pipelined(lambda bb, x: getattr(relax.op, name)(x, axis), [x], "fp32")
    assert used == [family]
    exact = getattr(np, name)(x, axis)
    assert np.isinf(exact).any() and np.isnan(exact).any()
    np.testing.assert_array_equal(out, exact)
