"""TopK: order, ties and indices, along any axis, against a stable sort of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine


def run(x, k, axis=-1, largest=True, kind="both", dtype="int64"):
    """The results, and the families of the kernels."""
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with bb.function("main", [var]):
        with bb.dataflow():
            found = bb.emit(relax.op.topk(var, k, axis, kind, largest, dtype))
            outs = [bb.emit(relax.TupleGetItem(found, i)) for i in range(2)] if kind == "both" else [found]
            out = bb.emit_output(relax.Tuple(outs))
        bb.emit_func_output(out)
    machine = Machine.load("cpu").with_cores(2)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    return [t.numpy() for t in vm["main"](tvm.runtime.tensor(x))], {k.family for k in lowered.kernels}


def definition(x, k, axis=-1, largest=True):
    order = np.argsort(-x.astype("float64") if largest else x, axis, kind="stable")
    index = np.take(order, range(k), axis)
    return np.take_along_axis(x, index, axis), index


@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 31, 32, 33, 100])
@pytest.mark.parametrize("largest", [True, False])
def test_ties_and_order(k, largest):
    x = np.random.default_rng(k).integers(-9, 9, (3, 100)).astype("float32")  # many equals
    got, families = run(x, k, largest=largest)
    for a, b in zip(got, definition(x, k, largest=largest), strict=True):
        np.testing.assert_array_equal(a, b)
    assert families == {"rows"}


@pytest.mark.parametrize("n", [2, 9, 31, 33, 40, 41, 73, 104, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("largest", [True, False])
def test_lists_in_registers_and_blocks_that_are_passed_over(n, dtype, largest):
    """From rising numbers, of which all count, to falling ones, of which none does; equals, infinities and NaN."""
    rng = np.random.default_rng(n)
    x = np.stack([np.arange(n), -np.arange(n), rng.integers(-3, 3, n), rng.permutation(n), np.zeros(n)]) % 127
    x[1] = np.sort(x[1])[::-1]
    x = x.astype(dtype)
    if dtype.startswith("float"):
        x[2, rng.integers(0, n, n // 8)] = np.inf
        x[3, rng.integers(0, n, n // 8)] = -np.inf
    for k in range(2, min(n, 8) + 1):
        got, families = run(x, k, largest=largest)
        for a, b in zip(got, definition(x.astype("float64"), k, largest=largest), strict=True):
            np.testing.assert_array_equal(a, b)
        assert families == {"rows"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8", "uint16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes_and_types(dtype, axis):
    x = np.random.default_rng(0).integers(0, 200, (9, 17, 33)).astype(dtype)
    got, families = run(x, 5, axis)
    for a, b in zip(got, definition(x, 5, axis), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "generic" not in families


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 4, 20, 33])
def test_nan_is_larger_than_every_number(k, largest, dtype):
    rng = np.random.default_rng(k)
    x = rng.integers(-9, 9, (4, 33)).astype(dtype)
    x[1:][rng.random((3, 33)) < 0.2] = np.nan
    x[3, :30], x[:, 7] = np.nan, -np.inf
    got, families = run(x, k, largest=largest)
    keys = np.where(np.isnan(x), 100, x).astype("float64")
    index = np.argsort(-keys if largest else keys, -1, kind="stable")[:, :k]
    np.testing.assert_array_equal(got[1], index)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, index, -1))
    assert "rows" in families


def keyed(dtype: str, n: int, seed: int) -> np.ndarray:
    """Rows with extremes of a type and many equals, one of nothing else, one rising and one of its lowest numbers."""
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38], dtype)
        x = np.stack([rng.standard_normal(n), rng.integers(-2, 3, n), np.full(n, 7), np.arange(n), np.full(n, -np.inf)])
    else:
        info = np.iinfo(dtype)
        ends = np.array([info.min, info.max, info.min + 1, info.max - 1, 0], dtype)
        x = np.stack([rng.integers(info.min, info.max, n, endpoint=True), rng.integers(0, 3, n), np.full(n, 7),
                      np.arange(n) % info.max, np.full(n, info.min)])  # fmt: skip
    x = x.astype(dtype)
    at = rng.random((2, n)) < 0.3
    x[:2][at] = rng.choice(ends, int(at.sum()))
    return x


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("n", [9, 15, 16, 17, 31, 32, 33, 100, 257])
def test_rows_are_ranked_and_chosen_from(n, dtype, largest):
    x = keyed(dtype, n, n)
    keys = np.where(np.isnan(x), np.inf, x) if dtype == "float32" else x.astype("float64")
    above = np.isnan(x) * 1 if dtype == "float32" else np.zeros(x.shape)
    sign = -1.0 if largest else 1.0
    for k in sorted({9, 10, n // 2, n - 1, n} & set(range(9, n + 1))):
        order = np.stack([np.lexsort((np.arange(n), sign * keys[r], sign * above[r])) for r in range(len(x))])[:, :k]
        got, families = run(x, k, largest=largest)
        np.testing.assert_array_equal(got[1], order)
        np.testing.assert_array_equal(got[0], np.take_along_axis(x, order, -1))
        assert families == {"rows"}


@pytest.mark.parametrize("n", [1000, 16384, 16385])
def test_long_rows(n):
    x = np.random.default_rng(n).standard_normal((3, n)).astype("float32")
    for k in (9, 100, 900):
        for a, b in zip(run(x, k)[0], definition(x, k), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rising", [True, False])
def test_sorted_rows(rising):
    x = np.arange(1000, dtype="float32")[None, :: 1 if rising else -1].copy()
    got, _ = run(x, 300)
    for a, b in zip(got, definition(x, 300), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("kind", "which"), [("values", 0), ("indices", 1)])
def test_one_result_and_infinities(kind, which):
    x = np.random.default_rng(1).standard_normal((2, 40)).astype("float32")
    x[0, ::3], x[1, ::4] = -np.inf, np.inf
    got, _ = run(x, 30, kind=kind, dtype="int32")
    want = definition(x, 30)[which]
    np.testing.assert_array_equal(got[0], want)
    assert got[0].dtype == ("float32" if which == 0 else "int32")


def test_rows_of_many_elements_are_tasks():
    x = np.random.default_rng(1).standard_normal((8, 8400)).astype("float32")
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(relax.op.topk(var, 100, -1, "values")))
        bb.emit_func_output(out)
    module = lower(bb.get(), Machine.load("cpu").with_cores(2)).module
    assert "in T.parallel(8)" in module.script()  # its time is not that of its bytes: 268 KB
