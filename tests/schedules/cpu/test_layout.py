"""Data movement against NumPy: transposes, seams, shuffles, gathers; each recognised by one family only."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, topi

from tvmopt.schedules.cpu import elementwise, layout

F = "float32"


def prim(make, *shapes):
    inputs = [te.placeholder(s, F, f"x{i}") for i, s in enumerate(shapes)]
    out = make(*inputs)
    outputs = [out] if isinstance(out, te.Tensor) else list(out)
    return te.create_prim_func([*inputs, *outputs]), [tuple(int(d) for d in o.shape) for o in outputs]


def check(make, reference, scheduled, execute, machine, *shapes, knobs=None):
    func, outputs = prim(make, *shapes)
    assert elementwise.recognise(func, machine) is None
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(F) for s in shapes]
    want = reference(*arrays)
    want = want if isinstance(want, (tuple, list)) else [want]
    for got, exact in zip(execute(scheduled(layout, func, knobs), arrays, outputs), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("knobs", [{}, {"tile": 8, "parallel": 1}])
def test_transpose(edge, knobs, scheduled, execute, machine):
    if edge > 1:
        tools = (scheduled, execute, machine)
        check(lambda x: topi.transpose(x, (1, 0)), lambda x: x.T, *tools, (edge, 37), knobs=knobs)
        check(
            lambda x: topi.transpose(x, (0, 2, 1)),
            lambda x: x.swapaxes(1, 2),
            *tools,
            (2, edge, edge),
            knobs=knobs,
        )


def test_short_axes_interleave(scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    for channels in (2, 3, 4, 8):
        check(
            lambda x: topi.transpose(x, (0, 2, 3, 1)),
            lambda x: x.transpose(0, 2, 3, 1),
            *tools,
            (1, channels, 9, 11),
        )
        check(
            lambda x: topi.transpose(x, (0, 3, 1, 2)),
            lambda x: x.transpose(0, 3, 1, 2),
            *tools,
            (1, 9, 11, channels),
        )


@pytest.mark.parametrize("groups", [2, 3, 4, 8])
def test_channel_shuffle(groups, scheduled, execute, machine):
    c = groups * 10

    def shuffle(x):
        split = topi.reshape(x, (1, 6, 6, groups, 10))
        return topi.reshape(topi.transpose(split, (0, 1, 2, 4, 3)), (1, 6, 6, c))

    def reference(x):
        return x.reshape(1, 6, 6, groups, 10).swapaxes(3, 4).reshape(1, 6, 6, c)

    check(shuffle, reference, scheduled, execute, machine, (1, 6, 6, c))
    func, _ = prim(shuffle, (1, 6, 6, c))
    assert "T.unroll" in scheduled(layout, func).script()


def test_concatenate(edge, scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    shapes = [(3, edge), (3, edge), (3, 5)]
    check(lambda *x: topi.concatenate(x, axis=1), lambda *x: np.concatenate(x, 1), *tools, *shapes)
    check(lambda *x: topi.concatenate(x, axis=0), lambda *x: np.concatenate(x, 0), *tools, (edge, 5), (3, 5))
    check(
        lambda *x: topi.nn.relu(topi.concatenate(x, axis=1)),
        lambda *x: np.maximum(np.concatenate(x, 1), 0),
        *tools,
        *shapes,
    )


def test_split_and_slices(edge, scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    check(lambda x: topi.split(x, [edge], axis=1), lambda x: (x[:, :edge], x[:, edge:]), *tools, (4, edge + 3))
    check(
        lambda x: topi.strided_slice(x, [0, 0], [4, 3 * edge], [1, 3]),
        lambda x: x[:, : 3 * edge : 3],
        *tools,
        (4, 3 * edge + 1),
    )


def test_pad(edge, scheduled, execute, machine):
    tools = (scheduled, execute, machine)
    check(lambda x: topi.nn.pad(x, (1, 1), (0, 2)), lambda x: np.pad(x, ((1, 0), (1, 2))), *tools, (3, edge))
    spatial = ((0, 0), (1, 1), (2, 1), (0, 0))
    check(
        lambda x: topi.nn.pad(x, (0, 1, 2, 0), (0, 1, 1, 0)),
        lambda x: np.pad(x, spatial),
        *tools,
        (1, 4, 5, edge),
    )


@pytest.mark.parametrize("make", [
    lambda x: topi.exp(x),
    lambda x: topi.sum(x, axis=1),
    lambda x: te.compute((16, 8), lambda i, j: x[i, 2 * j], attrs={"tvmopt.kernel": "other"}),
])  # fmt: skip
def test_declines(make, machine):
    assert layout.recognise(prim(make, (16, 16))[0], machine) is None
