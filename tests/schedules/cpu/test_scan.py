"""CumSum and CumProd along any axis, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine


def run(x, axis, dtype=None, exclusive=False, op=relax.op.cumsum, after=None):
    """The running values, and the families of the kernels."""
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with bb.function("main", [var]):
        with bb.dataflow():
            found = bb.emit(op(var, axis, dtype, exclusive))
            out = bb.emit_output(relax.Tuple([found if after is None else bb.emit(after(found))]))
        bb.emit_func_output(out)
    machine = Machine.load("cpu").with_cores(2)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x))[0].numpy(), {k.family for k in lowered.kernels}


def shifted(y, axis, start):
    """The running values without their own term."""
    first = np.full_like(np.take(y, [0], axis), start)
    return np.concatenate([first, np.take(y, range(y.shape[axis] - 1), axis)], axis)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 33), 1), ((1, 1), 1), ((7, 17), 0), ((2, 5, 16), 1), ((31,), 0), ((1, 1, 9), 1)]
)
def test_cumsum(shape, axis, exclusive):
    x = np.random.default_rng(0).integers(-9, 9, shape)
    got, families = run(x, axis, exclusive=exclusive)
    want = x.cumsum(axis)
    np.testing.assert_array_equal(got, shifted(want, axis, 0) if exclusive else want)
    assert families == {"rows"}


@pytest.mark.parametrize("axis", [0, 1, None])
def test_floats(axis):
    x = np.random.default_rng(1).standard_normal((65, 40)).astype("float32")
    got, _ = run(x, axis)
    want = x.astype("float64").cumsum(axis)
    assert np.abs(got - want).max() <= 1e-4


def test_products():
    x = (1 + np.random.default_rng(1).standard_normal((3, 40)) / 20).astype("float32")
    got, _ = run(x, 1, exclusive=True, op=relax.op.cumprod)
    np.testing.assert_allclose(got, shifted(x.astype("float64").cumprod(1), 1, 1), rtol=1e-5)


def test_a_mask_of_another_type_and_what_follows():
    x = np.random.default_rng(2).integers(0, 2, (2, 19)).astype("bool")
    got, families = run(x, 1, "int64", after=lambda v: relax.op.multiply(v, relax.const(3, "int64")))
    np.testing.assert_array_equal(got, 3 * x.cumsum(1))
    assert families == {"rows"}  # one kernel
