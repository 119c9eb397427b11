"""Convolutions whose weight is computed at run time, through the whole pipeline, against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine


def definition(x, w, stride, pad, groups):
    x = np.pad(x.astype("float64"), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    n, _, height, width = x.shape
    out, each, kh, kw = w.shape
    rows, columns = (height - kh) // stride + 1, (width - kw) // stride + 1
    y = np.zeros((n, out, rows, columns))
    for o, ky, kx in product(range(out), range(kh), range(kw)):
        first = o // (out // groups) * each
        part = x[:, first : first + each, ky:, kx:][:, :, : rows * stride : stride, : columns * stride : stride]
        y[:, o] += np.einsum("nchw,c->nhw", part[:, :, :rows, :columns], w[o, :, ky, kx])
    return y


@pytest.mark.parametrize(
    ("dims", "out", "kernel", "stride", "pad", "groups", "family"),
    [
        ((1, 8, 9, 17), 33, 3, 1, 1, 1, "conv2d"),
        ((2, 7, 8, 8), 16, 3, 2, 0, 1, "conv2d"),
        ((1, 24, 7, 9), 40, 1, 1, 0, 1, "gemm"),
        ((1, 12, 7, 7), 24, 3, 1, 1, 3, "conv2d"),
        ((1, 33, 9, 9), 33, 3, 1, 1, 33, "depthwise"),
        ((1, 16, 8, 15), 32, 5, 2, 2, 16, "depthwise"),
    ],
)
def test_weight_of_run_time(dims, out, kernel, stride, pad, groups, family):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(dims).astype("float32")
    w = rng.standard_normal((out, dims[1] // groups, kernel, kernel)).astype("float32")
    bb = relax.BlockBuilder()
    given = [relax.Var(n, relax.TensorType(a.shape, "float32")) for n, a in (("x", x), ("w", w))]
    with bb.function("main", given):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.conv2d(*given, strides=stride, padding=pad, groups=groups))
            out_var = bb.emit_output(relax.Tuple([bb.emit(relax.op.nn.relu(y))]))
        bb.emit_func_output(out_var)
    machine = Machine.load("cpu").with_cores(2)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    got = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))[0].numpy()
    np.testing.assert_allclose(got, np.maximum(definition(x, w, stride, pad, groups), 0), rtol=1e-4, atol=1e-4)
    families = {k.family for k in lowered.kernels}
    assert family in families and "generic" not in families
