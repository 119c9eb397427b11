"""ArgMax and ArgMin: the first of equals, along any axis and for every type, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine

EDGES = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 65, 130]


def run(x, highest, axis, keepdims=False, after=None):
    """The positions, and the families of the kernels."""
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with bb.function("main", [var]):
        with bb.dataflow():
            found = bb.emit((relax.op.argmax if highest else relax.op.argmin)(var, axis, keepdims))
            out = bb.emit_output(relax.Tuple([found if after is None else bb.emit(after(found))]))
        bb.emit_func_output(out)
    machine = Machine.load("cpu").with_cores(2)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x))[0].numpy(), {k.family for k in lowered.kernels}


def few_values(shape, dtype):
    """Numbers with many ties, the extremes of the type among them."""
    x = np.random.default_rng(0).integers(0, 5, shape).astype(dtype)
    if np.dtype(dtype).kind == "f":
        return np.where(x == 0, -np.inf, x - 2).astype(dtype)
    info = np.iinfo(dtype)
    return np.where(x == 4, info.max, np.where(x == 0, info.min, x)).astype(dtype)


@pytest.mark.parametrize("n", EDGES)
def test_last_axis(n):
    x = few_values((3, 2, n), "float32")
    got, families = run(x, True, -1)
    np.testing.assert_array_equal(got, x.argmax(-1))
    assert families == {"rows"}


@pytest.mark.parametrize("shape", [(2, 7, 33), (1, 16, 8), (3, 1, 17), (1, 130, 5)])
def test_another_axis(shape):
    x = few_values(shape, "float32")
    got, families = run(x, False, 1, keepdims=True)
    np.testing.assert_array_equal(got, np.expand_dims(x.argmin(1), 1))
    assert "generic" not in families


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_types(dtype, axis):
    x = few_values((17, 33), dtype)
    for highest in (True, False):
        got, _ = run(x, highest, axis)
        np.testing.assert_array_equal(got, x.argmax(axis) if highest else x.argmin(axis))


def test_of_everything_and_what_follows():
    x = few_values((5, 7), "int64")
    got, _ = run(x, True, None)
    assert got.shape == () and got == x.argmax()
    got, families = run(x, True, 1, after=lambda v: relax.op.where(relax.op.less(v, relax.const(3, "int64")), v, v))
    np.testing.assert_array_equal(got, x.argmax(1))
    assert families == {"rows"}  # in the same kernel


def test_nan_gives_an_index_in_range():
    x = np.full((2, 20), np.nan, "float32")
    got, _ = run(x, True, 1)
    assert ((got >= 0) & (got < 20)).all()
