"""Pooling as it lies, channels first: one to three axes, borders, ceil_mode, both ways of counting, against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine

nn = relax.op.nn
POOLS = {("max", 1): nn.max_pool1d, ("max", 2): nn.max_pool2d, ("max", 3): nn.max_pool3d,
         ("avg", 1): nn.avg_pool1d, ("avg", 2): nn.avg_pool2d, ("avg", 3): nn.avg_pool3d}  # fmt: skip


def run(x, kind, kernel, after=None, **attrs):
    """The result of a pooling and the families of its kernels."""
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            y = bb.emit(POOLS[kind, len(kernel)](var, kernel, **attrs))
            out = bb.emit_output(relax.Tuple([y if after is None else bb.emit(after(y))]))
        bb.emit_func_output(out)
    machine = Machine.load("cpu").with_cores(2)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x))[0].numpy(), {k.family for k in lowered.kernels}


def definition(x, out, kind, kernel, strides, padding, dilation, include):
    """Every window by itself; `out`: the result's spatial shape."""
    rank, size = len(kernel), x.shape[2:]
    y = np.zeros((*x.shape[:2], *out))
    for at in product(*(range(o) for o in out)):
        taps, count = [], 0
        for k in product(*(range(e) for e in kernel)):
            place = [at[a] * strides[a] - padding[a] + k[a] * dilation[a] for a in range(rank)]
            inside = all(0 <= place[a] < size[a] for a in range(rank))
            if inside:
                taps.append(x[(slice(None), slice(None), *place)].astype("float64"))
            padded = all(-padding[a] <= place[a] < size[a] + padding[a + rank] for a in range(rank))
            count += inside or (include and padded)
        y[(slice(None), slice(None), *at)] = np.max(taps, 0) if kind == "max" else np.sum(taps, 0) / count
    return y


CASES = [
    ((2, 3, 33), (3,), (2,), (1, 1), (1,)),
    ((1, 1, 31), (4,), (4,), (0, 0), (1,)),
    ((1, 7, 17), (5,), (1,), (2, 2), (2,)),
    ((1, 3, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((1, 40, 8, 7), (2, 3), (1, 3), (0, 1, 1, 0), (1, 1)),
    ((2, 2, 5, 8, 9), (3, 3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1), (1, 1, 1)),
]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kind", "include"), [("max", False), ("avg", False), ("avg", True)])
@pytest.mark.parametrize(("dims", "kernel", "strides", "padding", "dilation"), CASES)
def test_pool(dims, kernel, strides, padding, dilation, kind, include, ceil):
    x = np.random.default_rng(0).standard_normal(dims).astype("float32") - 3  # a zero of the padding would win
    attrs = dict(strides=strides, padding=padding, dilation=dilation, ceil_mode=ceil, count_include_pad=include)
    got, families = run(x, kind, kernel, **attrs)
    want = definition(x, got.shape[2:], kind, kernel, strides, padding, dilation, include)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert "generic" not in families


def test_what_follows_is_in_the_same_kernel():
    x = np.random.default_rng(0).standard_normal((1, 3, 64)).astype("float32")
    got, families = run(x, "max", (2,), strides=(2,), after=nn.relu)
    np.testing.assert_array_equal(got, np.maximum(x.reshape(1, 3, 32, 2).max(-1), 0))
    assert len(families) == 1
