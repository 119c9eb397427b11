"""Parts of tensors, the loops: which function is a concatenation, and what stays contiguous in a larger tensor."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from tvmopt.scheduling.parts import Part, Place, concatenation, runs_stay, within

EIGHT = tirx.IntImm("int32", 8)


def func(compute, *shapes):
    inputs = [te.placeholder(s, "float32", name=f"x{k}") for k, s in enumerate(shapes)]
    return te.create_prim_func([*inputs, compute(*inputs)])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenation(axis):
    shapes = [tuple(n if k == axis else 4 for k in range(3)) for n in (1, 7, 33)]
    found = concatenation(func(lambda *x: topi.concatenate(x, axis), *shapes))
    assert found == (axis, (Part(0, 0, 1), Part(1, 1, 8), Part(2, 8, 41)))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: topi.nn.relu(topi.concatenate((x, y), 1)),  # two blocks
        lambda x, y: te.compute((4, 16), lambda i, j: te.if_then_else(tirx.LE(EIGHT, j), x[i, j - 8] + 1.0, y[i, j])),
        lambda x, y: te.compute((4, 16), lambda i, j: te.if_then_else(tirx.LE(EIGHT, j), x[i, 15 - j], y[i, j])),
        lambda x, y: te.compute((4, 16), lambda i, j: te.if_then_else(tirx.LT(EIGHT, j), x[i, j - 8], y[i, j])),
        lambda x, y: te.compute((4, 8), lambda i, j: x[i, j]),
    ],
)
def test_not_a_concatenation(compute):
    assert concatenation(func(compute, (4, 8), (4, 8))) is None


def test_within_reads_and_writes_parts():
    relu = func(topi.nn.relu, (4, 8))
    places = {0: Place((4, 20), (0, 3)), 1: Place((6, 9), (2, 0))}
    built = tvm.compile(within(relu, places, free=1), "llvm")
    x, y = np.random.default_rng(0).standard_normal((4, 20)).astype("float32"), np.zeros((6, 9), "float32")
    want = y.copy()
    want[2:, 1:] = np.maximum(x[:, 3:11], 0)
    out = tvm.runtime.tensor(y)
    built["main"](tvm.runtime.tensor(x), 1, out)
    np.testing.assert_array_equal(out.numpy(), want)


def test_a_loop_over_rows_does_not_stay():
    relu = func(topi.nn.relu, (4, 8))
    places = {1: Place((4, 20), (0, 3))}
    assert runs_stay(relu, places)
    sch = tvm.s_tir.Schedule(relu)
    sch.fuse(*sch.get_loops(sch.get_sblock("compute")))
    assert not runs_stay(sch.mod["main"], places)
    assert runs_stay(sch.mod["main"], {1: Place((9, 8), (5, 0))})  # whole rows
