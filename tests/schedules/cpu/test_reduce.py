"""Reductions over middle axes against NumPy, at the edges of a vector."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, topi

from tvmopt.schedules.cpu import elementwise, layout, reduce

F = "float32"


@pytest.mark.parametrize("knobs", [{}, {"parallel": 1, "strip": 64}])
def test_mean_over_pixels(edge, knobs, scheduled, execute):
    channels = 4 * edge
    x = te.placeholder((2, 5, 3, channels), F, "x")
    mean = topi.divide(topi.sum(x, axis=(1, 2), keepdims=True), 15.0)
    func = te.create_prim_func([x, topi.nn.relu(mean)])
    values = np.random.default_rng(0).standard_normal((2, 5, 3, channels)).astype(F)
    (got,) = execute(scheduled(reduce, func, knobs), [values], [(2, 1, 1, channels)])
    want = np.maximum(values.astype("float64").mean((1, 2), keepdims=True), 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_max_of_the_first_axis(scheduled, execute):
    x = te.placeholder((33, 40), F, "x")
    values = np.random.default_rng(0).standard_normal((33, 40)).astype(F)
    result = scheduled(reduce, te.create_prim_func([x, topi.max(x, axis=0)]))
    np.testing.assert_array_equal(execute(result, [values], [(40,)])[0], values.max(0))


@pytest.mark.parametrize("make", [
    lambda x: topi.sum(x, axis=1), lambda x: topi.matmul(x, x),
    lambda x: topi.argmax(x, axis=0), lambda x: topi.exp(x),
])  # fmt: skip
def test_declines(make, machine):
    x = te.placeholder((16, 16), F, "x")
    assert reduce.recognise(te.create_prim_func([x, make(x)]), machine) is None


def test_disjoint(machine):
    x = te.placeholder((16, 16), F, "x")
    func = te.create_prim_func([x, topi.sum(x, axis=0)])
    assert elementwise.recognise(func, machine) is None and layout.recognise(func, machine) is None
