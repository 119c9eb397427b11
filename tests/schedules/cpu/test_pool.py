"""Pooling against a plain definition: odd channels, strides, dilation, borders, ceil_mode, both ways of counting."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tvm import te, topi

from tvmopt.lowering.window import Window
from tvmopt.schedules.cpu import depthwise, elementwise, pool
from tvmopt.schedules.cpu.pool.compute import pool_te


def window(size, kernel, stride, pad, dilation=1, ceil=False):
    attrs = SimpleNamespace(strides=[stride] * 2, padding=[pad] * 4, dilation=[dilation] * 2, ceil_mode=ceil)
    return Window.of(attrs, (kernel, kernel), size)


def definition(x, win, kind, include):
    n, h, w, c = x.shape
    (oh, ow), (pt, pl, pb, pr) = win.out, win.padding
    out = np.zeros((n, oh, ow, c))
    for i in range(oh):
        for j in range(ow):
            taps, count = [], 0
            for ky in range(win.kernel[0]):
                for kx in range(win.kernel[1]):
                    y = i * win.strides[0] - pt + ky * win.dilation[0]
                    z = j * win.strides[1] - pl + kx * win.dilation[1]
                    inside = 0 <= y < h and 0 <= z < w
                    if inside:
                        taps.append(x[:, y, z])
                    count += inside or (include and -pt <= y < h + pb and -pl <= z < w + pr)
            out[:, i, j] = np.max(taps, 0) if kind == "max" else np.sum(taps, 0) / count
    return out


def check(scheduled, execute, machine, shape, win, kind="max", include=False, knobs=None, epilogue=False):
    data = te.placeholder(shape, name="x")
    out = pool_te(data, win, kind, include, machine.lanes())
    out = topi.exp(out) if epilogue else out
    func = te.create_prim_func([data, out])
    x = np.random.default_rng(1).standard_normal(shape).astype("float32") - 3  # negative: zero padding would win a max
    (got,) = execute(scheduled(pool, func, knobs), [x], [tuple(int(d) for d in out.shape)])
    want = definition(x.astype("float64"), win, kind, include)
    np.testing.assert_allclose(got, np.exp(want) if epilogue else want, rtol=1e-5, atol=1e-6)
    assert depthwise.recognise(func, machine) is None and elementwise.recognise(func, machine) is None


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_channels(edge, kind, scheduled, execute, machine):
    check(scheduled, execute, machine, (1, 5, 9, edge), window((5, 9), 3, 2, 1), kind, epilogue=True)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("kind", "include"), [("max", False), ("avg", False), ("avg", True)])
def test_borders(kind, include, stride, ceil, scheduled, execute, machine):
    win = window((11, 10), 3, stride, 1, ceil=ceil)
    check(scheduled, execute, machine, (1, 11, 10, 16), win, kind, include)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_dilation_batch_and_knobs(kind, scheduled, execute, machine):
    check(scheduled, execute, machine, (2, 9, 9, 16), window((9, 9), 3, 1, 1, dilation=2), kind)
    knobs = {"wt": 4, "cv": 2, "rows": 2, "unroll": 1}
    check(scheduled, execute, machine, (1, 8, 8, 32), window((8, 8), 2, 2, 0), kind, knobs=knobs)
    check(scheduled, execute, machine, (1, 96, 96, 64), window((96, 96), 3, 2, 1), kind)  # threads


def test_whole_image(scheduled, execute, machine):
    check(scheduled, execute, machine, (1, 7, 7, 48), window((7, 7), 7, 1, 0), "avg")


def test_minus_infinity_is_a_value(scheduled, execute, machine):
    data = te.placeholder((1, 4, 4, 16), name="x")
    func = te.create_prim_func([data, pool_te(data, window((4, 4), 2, 2, 0), "max", False, machine.lanes())])
    x = np.full((1, 4, 4, 16), -np.inf, "float32")
    assert np.isneginf(execute(scheduled(pool, func), [x], [(1, 2, 2, 16)])[0]).all()
