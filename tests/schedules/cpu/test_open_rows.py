"""Kernels with an open number of rows: right at every number, and nothing read or written outside."""

import numpy as np
import pytest
from tvm import relax

from tests.schedules.harness import Open, close, machines, open_module

SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 64, 101, 197, 600)


def linear(weight, bias, activation=relax.op.nn.relu):
    def build(bb, x, *rest):
        y = bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, relax.const(weight))), relax.const(bias)))
        for r in rest:
            y = bb.emit(relax.op.add(y, r))
        return activation(y)

    return build


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("k, n", [(33, 31), (64, 96), (7, 8), (9, 300), (1, 1), (17, 47)])
def test_gemm_of_open_rows(machine, k, n):
    w, b = random(k, n), random(n)
    model = Open(open_module(linear(w, b), [("rows", k), ("rows", n)]), machine)
    assert list(model.how.values()) == [("gemm", "")]
    for m in SIZES:
        x, r = random(m, k), random(m, n)
        close(model.guarded([x, r], (m, n)), np.maximum(x.astype("float64") @ w + b + r, 0), k)


def test_every_number_of_rows_up_to_200():
    w, b = random(40, 64), random(64)
    model = Open(open_module(linear(w, b), [("rows", 40)]))
    for m in range(1, 201):
        x = random(m, 40)
        close(model(x)[0], np.maximum(x.astype("float64") @ w + b, 0), 40)


def test_two_symbols_are_one_number_of_rows_with_gelu_and_residual():
    w, b = random(48, 80), random(80)
    model = Open(open_module(linear(w, b, relax.op.nn.gelu), [("batch", "seq", 48), ("batch", "seq", 80)]))
    assert list(model.how.values()) == [("gemm", "")]
    from math import erf

    for batch, seq in [(1, 1), (1, 17), (3, 5), (2, 8), (8, 1), (5, 33)]:
        x, r = random(batch, seq, 48), random(batch, seq, 80)
        t = x.astype("float64") @ w + b + r
        close(model(x, r)[0], t * 0.5 * (1 + np.vectorize(erf)(t / 2**0.5)), 48)


def test_an_operand_of_one_of_two_symbols_keeps_them_apart():
    w, b = random(16, 40), random(40)
    model = Open(open_module(linear(w, b), [("batch", "seq", 16), ("seq", 40)]))
    assert list(model.how.values()) == [("gemm", "")]
    for batch, seq in [(1, 1), (3, 9), (2, 16), (4, 7)]:
        x, r = random(batch, seq, 16), random(seq, 40)
        close(model.guarded([x, r], (batch, seq, 40)), np.maximum(x.astype("float64") @ w + b + r, 0), 16)


def test_rows_that_are_an_expression_and_a_batch_that_is_known():
    w, b = random(16, 40), random(40)
    cached = linear(w, b)
    model = Open(open_module(lambda bb, past, x: cached(bb, x), [("past", 4), (2, "past + 1", 16)]))
    assert list(model.how.values()) == [("gemm", "")]
    for past in (1, 6, 7, 8, 31):
        x = random(2, past + 1, 16)
        close(model(random(past, 4), x)[0], np.maximum(x.astype("float64") @ w + b, 0), 16)


@pytest.mark.parametrize("cores", [1, 2, 7])
def test_few_panels_on_many_cores(cores):
    w, b = random(96, 80), random(80)
    model = Open(open_module(linear(w, b), [("rows", 96)]), cores=cores)
    assert list(model.how.values()) == [("gemm", "")]
    for m in SIZES:
        x = random(m, 96)
        close(model.guarded([x], (m, 80)), np.maximum(x.astype("float64") @ w + b, 0), 96)


def test_infinities_and_nan_stay_in_their_rows():
    w, b = random(24, 40), random(40)
    model = Open(open_module(linear(w, b, relax.op.negative), [("rows", 24)]))
    x = random(21, 24)
    x[3, 5], x[20, 0], x[10] = np.inf, np.nan, 3e38
    with np.errstate(all="ignore"):
        expected = -(x.astype("float64") @ w + b).astype("float32")
    y = model(x)[0]
    fine = [i for i in range(21) if i not in (3, 10, 20)]
    close(y[fine], expected[fine], 24)
    assert np.isnan(y[20]).all() and not np.isfinite(y[3]).any()
