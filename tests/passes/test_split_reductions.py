"""Sums over several open axes, and reductions of axes that lie apart, in two steps."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.passes.helpers import ops
from tvmopt.passes import SplitReductions
from tvmopt.report import DecisionLog


def reduction(make, dims, kind="float32"):
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dims, kind))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(make(x))
        bb.emit_func_output(out)
    return bb.get()


h, w = tirx.Var("h", "int64"), tirx.Var("w", "int64")


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["mean", "sum"])
@pytest.mark.parametrize("axes", [[1, 2], [-2, -3], None])
def test_an_image(name, keepdims, axes):
    mod = reduction(lambda x: getattr(relax.op, name)(x, axes, keepdims), (2, h, w, 5))
    after = SplitReductions(DecisionLog())(mod)
    assert ops(after)[name] >= 2
    relax.analysis.well_formed(after)
    again = SplitReductions(DecisionLog())(after)
    if axes is not None:
        assert tvm_ffi.structural_equal(again, after)
    vm = relax.VirtualMachine(tvm.compile(again, tvm.target.Target("llvm")), tvm.cpu())
    x = np.random.default_rng(0).standard_normal((2, 33, 17, 5)).astype("float32")
    want = getattr(np, name)(x.astype("float64"), tuple(axes) if axes else None, keepdims=keepdims)
    got = vm["main"](tvm.runtime.tensor(x)).numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    "make, dims, kind",
    [
        (lambda x: relax.op.mean(x, [1, 2]), (2, 30, 40, 5), "float32"),  # static
        (lambda x: relax.op.mean(x, [1]), (2, h, w, 5), "float32"),  # one axis
        (lambda x: relax.op.sum(x, [1, 2]), (2, h, w, 5), "int64"),  # exact
        (lambda x: relax.op.max(x, [1, 2]), (2, h, w, 5), "float32"),  # exact
        (lambda x: relax.op.mean(x, [1, 2]), (2, h, 1, 5), "float32"),
    ],
)
def test_others_stay(make, dims, kind):
    mod = reduction(make, dims, kind)
    assert tvm_ffi.structural_equal(SplitReductions(DecisionLog())(mod), mod)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize(
    "dims, axes", [((4, 5, 6), [0, 2]), ((3, 1, 5, 4, 6, 1), [0, 1, -2, 5]), ((2, 3, 4, 5, 6), [0, 2, 4])]
)
def test_axes_apart(name, keepdims, dims, axes):
    mod = reduction(lambda x: getattr(relax.op, name)(x, axes, keepdims), dims)
    after = SplitReductions(DecisionLog())(mod)
    assert ops(after)[name] == 2
    assert tvm_ffi.structural_equal(SplitReductions(DecisionLog())(after), after)
    vm = relax.VirtualMachine(tvm.compile(after, tvm.target.Target("llvm")), tvm.cpu())
    x = np.random.default_rng(0).standard_normal(dims).astype("float32")
    want = getattr(np, name)(x.astype("float64"), tuple(axes), keepdims=keepdims)
    got = vm["main"](tvm.runtime.tensor(x)).numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    x.flat[7] = np.nan
    want = getattr(np, name)(x, tuple(axes), keepdims=keepdims)
    assert np.array_equal(np.isnan(vm["main"](tvm.runtime.tensor(x)).numpy()), np.isnan(want)) or name in ("max", "min")


@pytest.mark.parametrize(
    "make, dims, kind",
    [
        (lambda x: relax.op.mean(x, [0, 2]), (4, 5, 6), "float16"),  # rounds between
        (lambda x: relax.op.mean(x, [0, 1]), (4, 5, 6), "float32"),  # the last axis stays
        (lambda x: relax.op.mean(x, [1, 2]), (4, 5, 6), "float32"),  # neighbours
        (lambda x: relax.op.max(x, [0, 2]), (4, 1, 6), "float32"),  # nothing between
        (lambda x: relax.op.mean(x, [2]), (4, 5, 6), "float32"),
        (lambda x: relax.op.prod(x, [0, 2]), (4, 5, 6), "float32"),
    ],
)
def test_neighbours_stay(make, dims, kind):
    mod = reduction(make, dims, kind)
    assert tvm_ffi.structural_equal(SplitReductions(DecisionLog())(mod), mod)


@pytest.mark.parametrize(
    "make, dims, kind, stays",
    [
        (lambda x: relax.op.mean(x, [2, 3]), (2, 5, h, w), "float32", True),
        (lambda x: relax.op.mean(x, [2, 3]), (1, 1, h, w), "float32", False),  # all of it
        (lambda x: relax.op.mean(x, [1, 2]), (2, h, w, 5), "float32", False),  # not the last axes
        (lambda x: relax.op.mean(x, [2, 3]), (2, 5, h, w), "float64", False),
    ],
)
def test_rows_that_a_kernel_adds_in_lanes_stay(make, dims, kind, stays):
    mod = reduction(make, dims, kind)
    assert tvm_ffi.structural_equal(SplitReductions(DecisionLog(), lanes=True)(mod), mod) == stays
    assert not tvm_ffi.structural_equal(SplitReductions(DecisionLog())(mod), mod)
