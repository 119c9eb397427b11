"""Softmax and ArgMax along other axes than the last, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.harness import machines, module_of, run
from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine

SHAPES = [(1, 21, 128), (2, 2, 16), (3, 7, 17), (1, 150, 33), (2, 5, 63), (1, 3, 65), (4, 1, 40), (1, 1000, 70)]

NARROW = [
    (1, 2, 2), (9, 3, 3), (7, 8, 5), (5, 30, 7), (3, 31, 8), (6, 16, 9), (11, 100, 10), (2, 15, 15), (1, 300, 4),
]  # fmt: skip
"""Fewer columns than a vector has: rows of columns are taken several at a time."""


def softmax(x, log):
    x = x.astype("float64") - x.max(1, keepdims=True)
    total = np.exp(x).sum(1, keepdims=True)
    return x - np.log(total) if log else np.exp(x) / total


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW])
@pytest.mark.parametrize("machine", machines())
def test_softmax(machine, shape, log):
    x = 5 * np.random.default_rng(0).standard_normal(shape).astype("float32")
    function = relax.op.nn.log_softmax if log else relax.op.nn.softmax
    (y,), how = run(lambda bb, x: relax.op.nn.relu(bb.emit(relax.op.negative(bb.emit(function(x, 1))))), [x], machine)
    np.testing.assert_allclose(y, np.maximum(-softmax(x, log), 0), rtol=1e-5, atol=1e-5)
    assert "rows" in [s.family for s in how.values()]


def test_a_nan_stays_in_its_column():
    x = np.random.default_rng(0).standard_normal((1, 9, 100)).astype("float32")
    x[0, 3, 7], x[0, 0, 99], x[0, 4, 50], x[0, 8, 51] = np.nan, np.nan, -np.inf, 1e38
    (y,), how = run(lambda bb, x: relax.op.nn.softmax(x, 1), [x])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y, softmax(x, False), rtol=1e-5, atol=1e-7)
    assert len(how) == 1


@pytest.mark.parametrize("highest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64", "float16"])
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW])
def test_positions(shape, dtype, highest):
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, shape).astype(dtype) if dtype[0] in "fi" else rng.integers(0, 9, shape).astype(dtype)
    if dtype.startswith("float"):
        x[rng.random(shape) < 0.02] = np.nan
        x[:, 0, 0], x[:, 0, 1], x[:, 0, -1] = np.inf, -np.inf, np.nan
    function = relax.op.argmax if highest else relax.op.argmin
    (y,), _ = run(lambda bb, x: function(x, 1), [x])
    np.testing.assert_array_equal(y, (np.argmax if highest else np.argmin)(x, 1))


@pytest.mark.parametrize("highest", [True, False])
@pytest.mark.parametrize("shape", [(5, 9, 3), (5, 9, 10), (5, 9, 33), (4, 2000, 10)])
def test_the_first_of_equals_and_the_first_nan(shape, highest):
    """Of both zeros, of infinities alone, of NaN first, last, twice and alone."""
    x = np.random.default_rng(3).choice(np.array([-0.0, 0.0], "float32"), shape)
    x[0], x[1, :, 0] = -np.inf, np.inf
    x[1, 0, 1] = x[1, -1, 2] = np.nan
    x[2, 3] = x[2, 5] = np.nan
    x[3] = np.nan
    function = relax.op.argmax if highest else relax.op.argmin
    (y,), how = run(lambda bb, x: function(x, 1), [x])
    np.testing.assert_array_equal(y, (np.argmax if highest else np.argmin)(x, 1))
    assert [s.family for s in how.values()] == ["rows"]


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW, (3, 4, 31), (2, 9, 33), (1, 6, 784), (5, 17, 30), (1, 131, 1089)])
@pytest.mark.parametrize("machine", machines())
def test_reductions(machine, kind, shape):
    x = np.random.default_rng(2).standard_normal(shape).astype("float32")
    (y,), how = run(lambda bb, x: relax.op.nn.relu(bb.emit(getattr(relax.op, kind)(x, 1))), [x], machine)
    want = np.maximum(getattr(x.astype("float64"), kind)(1), 0)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-6 * shape[1] ** 0.5 * (shape[1] if kind == "sum" else 1))
    assert "generic" not in [s.family for s in how.values()]


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_a_nan_reaches_the_result_of_its_column_alone(kind):
    x = np.random.default_rng(2).standard_normal((1, 9, 33)).astype("float32")
    x[0, 0, 5], x[0, 8, 32], x[0, 4, 16] = np.nan, np.nan, np.inf
    machine = Machine.load("cpu")
    lowered = lower(module_of(lambda bb, x: getattr(relax.op, kind)(x, 1), [x]), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    want = getattr(np, kind)(x.astype("float64"), 1)
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)
    assert [k.family for k in lowered.kernels] == ["rows"]


def test_what_is_computed_on_the_way_is_fused_to_loops():
    """Numbers of 64x49x384 that are stored first: 141 us instead of 56."""
    x = np.random.default_rng(2).standard_normal((4, 49, 395)).astype("float32")
    (y,), how = run(lambda bb, x: relax.op.sum(bb.emit(relax.op.negative(x)), 1), [x])
    np.testing.assert_allclose(y, -x.astype("float64").sum(1), rtol=1e-5, atol=1e-4)
    assert [s.family for s in how.values()] == ["reduce"]


@pytest.mark.parametrize("shape", [(4, 49, 395), (5, 9, 3), (5, 9, 10), (1, 6, 784)])
@pytest.mark.parametrize("machine", machines())
def test_terms_of_norms_are_not_stored(machine, shape):
    x = np.random.default_rng(2).standard_normal(shape).astype("float32")
    for term, of in ((relax.op.abs, np.abs), (lambda x: relax.op.multiply(x, x), np.square)):
        (y,), how = run(lambda bb, x, term=term: relax.op.sum(bb.emit(term(x)), 1), [x], machine)
        np.testing.assert_allclose(y, of(x.astype("float64")).sum(1), rtol=1e-5)
        assert len(how) == 1 and "generic" not in [s.family for s in how.values()]


def test_many_short_rows_are_tasks():
    """Their exponentials take many times as long as their bytes."""
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2112, 33), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(relax.op.nn.softmax(x, -1)))
        bb.emit_func_output(out)
    assert "in T.parallel(2112)" in lower(bb.get(), Machine.load("cpu").with_cores(2)).module.script()
