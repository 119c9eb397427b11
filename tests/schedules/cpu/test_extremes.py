"""Maxima and minima of rows that hold nothing finite."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine


@pytest.mark.parametrize("highest", [True, False])
@pytest.mark.parametrize("axes", [[0], [1], [0, 2], None])
def test_infinite_rows(highest: bool, axes: list[int] | None) -> None:
    dead = -np.inf if highest else np.inf
    x = np.random.default_rng(1).standard_normal((3, 7, 9)).astype(np.float32)
    x[:, 2], x[1] = dead, dead
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            op = relax.op.max if highest else relax.op.min
            out = bb.emit_output(relax.Tuple([bb.emit(op(var, axes, True))]))
        bb.emit_func_output(out)
    machine = Machine.load("cpu")
    vm = relax.VirtualMachine(build(lower(bb.get(), machine), machine), tvm.cpu())
    fold = np.max if highest else np.min
    axis = None if axes is None else tuple(axes)
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x))[0].numpy(), fold(x, axis, keepdims=True))
