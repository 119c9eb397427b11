"""TVM's own schedules for GPUs: what they make of a kernel must be code that TVM itself takes."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tests.cuda.emulator import emulated
from tests.schedules.cuda.harness import array
from tests.schedules.harness import open_module
from tvmopt import pipeline
from tvmopt.report import DecisionLog
from tvmopt.targets import Machine


def test_a_convolution_of_groups_and_open_sizes() -> None:
    """dlight's Reduction took it, and TVM's pass of reductions over threads then refused the loops."""
    w = array((6, 3, 1, 3), "float32", 1, 1)

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return relax.op.nn.conv2d(x, relax.const(w), strides=4, groups=3)

    module = open_module(build, [(2, 9, "height", "width")])
    with emulated():
        lowered = pipeline.lower(module, Machine.load("nvidia-h100"), DecisionLog(), precision="fp32")
        executable = pipeline.build(lowered, Machine.load("nvidia-h100"), cuda_graph=False)
    assert {k.family for k in lowered.kernels} == {"dlight.Fallback"}
    x = array((2, 9, 9, 15), "float32")
    vm = relax.VirtualMachine(executable, tvm.cpu())
    out = vm["main"](tvm.runtime.tensor(x)).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x, (1, 3), (2, 3))[:, :, ::4, ::4].reshape(2, 3, 3, 3, 4, 1, 3)
    exact = np.einsum("ngcyxkl,gockl->ngoyx", windows, w.reshape(3, 2, 3, 1, 3)).reshape(out.shape)
    np.testing.assert_allclose(out, exact, atol=1e-5)
