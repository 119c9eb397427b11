"""Convolutions and poolings of images one pixel wide, as ones of a row."""

import numpy as np
import pytest
from tvm import relax, tirx

from tests.passes.helpers import build, check_rewrite, rand, run
from tvmopt.passes import FoldConstant, TurnColumns
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


@pytest.mark.parametrize("height", [7, 8, 9, 33])
@pytest.mark.parametrize(
    "groups, attrs",
    [
        (1, dict(padding=(1, 0, 2, 0))),
        (4, dict(strides=(2, 1))),
        (2, dict(dilation=(2, 1))),
        (1, dict(strides=(3, 5), dilation=(1, 4))),
    ],
)
def test_convolution_of_a_column(height, groups, attrs):
    w = c(rand(8, 4 // groups, 3, 1))
    mod = build({"x": (2, 4, height, 1)}, lambda bb, x: nn.conv2d(x, w, groups=groups, **attrs))
    check_rewrite(lambda log: lambda m: FoldConstant(log)(TurnColumns(log)(m)), mod, {"reshape": 2, "nn.conv2d": 1})


@pytest.mark.parametrize("pool, name", [(nn.max_pool2d, "nn.max_pool2d"), (nn.avg_pool2d, "nn.avg_pool2d")])
def test_pools(pool, name):
    mod = build({"x": (1, 3, 17, 1)}, lambda bb, x: pool(x, (3, 1), (2, 1), (1, 0), ceil_mode=True))
    check_rewrite(TurnColumns, mod, {"reshape": 2, name: 1})


@pytest.mark.parametrize(
    "shape, kernel, padding",
    [
        ((1, 4, 9, 2), (3, 1), (0, 0)),  # two pixels wide
        ((1, 4, 9, 1), (3, 3), (1, 1)),  # a wider kernel, over padding
        ((1, 4, 9, 1), (3, 1), (1, 1)),  # the result is three pixels wide
        ((1, 4, 1, 1), (1, 1), (0, 0)),  # one pixel
    ],
)
def test_others_stay(shape, kernel, padding):
    w = c(rand(8, 4, *kernel))
    mod = build({"x": shape}, lambda bb, x: nn.conv2d(x, w, padding=padding))
    check_rewrite(TurnColumns, mod)


def test_another_layout_stays():
    log, w = DecisionLog(), c(rand(8, 3, 1, 1))
    mod = build({"x": (1, 4, 9, 1)}, lambda bb, x: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"))
    check_rewrite(TurnColumns, mod)
    TurnColumns(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_an_open_batch():
    n, w = tirx.Var("n", "int64"), c(rand(8, 2, 3, 1))
    mod = build({"x": (n, 4, 9, 1)}, lambda bb, x: nn.conv2d(x, w, groups=2, padding=(1, 0, 2, 0), strides=(2, 1)))
    made = check_rewrite(
        lambda log: lambda m: FoldConstant(log)(TurnColumns(log)(m)), mod, {"reshape": 2, "nn.conv2d": 1}, numbers=False
    )
    for batch in (1, 3):
        x = rand(batch, 4, 9, 1, seed=batch)
        np.testing.assert_allclose(run(made, [x])[0], run(mod, [x])[0], rtol=1e-5, atol=1e-5)


def test_an_open_length_stays():
    n, w = tirx.Var("n", "int64"), c(rand(8, 2, 3, 1))
    mod = build({"x": (1, 4, n, 1)}, lambda bb, x: nn.conv2d(x, w, groups=2, padding=(1, 0, 2, 0), strides=(2, 1)))
    check_rewrite(TurnColumns, mod, numbers=False)
