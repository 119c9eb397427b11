"""Sums over several open axes, in two steps."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.passes.helpers import ops
from tvmopt.passes import SplitOpenSums
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
    after = SplitOpenSums(DecisionLog())(mod)
    assert ops(after)[name] >= 2
    relax.analysis.well_formed(after)
    again = SplitOpenSums(DecisionLog())(after)
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
    assert tvm_ffi.structural_equal(SplitOpenSums(DecisionLog())(mod), mod)
