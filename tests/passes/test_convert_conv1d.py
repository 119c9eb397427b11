"""1-d convolutions and poolings as 2-d ones, one pixel high."""

import numpy as np
import pytest
from tvm import relax, tirx

from tests.passes.helpers import build, check_rewrite, rand, run
from tvmopt.passes import ConvertConv1d, FoldConstant
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


@pytest.mark.parametrize("width", [7, 8, 9, 33])
@pytest.mark.parametrize("groups, attrs", [(1, dict(padding=(1, 2))), (4, dict(strides=2)), (2, dict(dilation=2))])
def test_conv1d(width, groups, attrs):
    w = c(rand(8, 4 // groups, 3))
    mod = build({"x": (2, 4, width)}, lambda bb, x: nn.conv1d(x, w, groups=groups, **attrs))
    check_rewrite(lambda log: lambda m: FoldConstant(log)(ConvertConv1d(log)(m)), mod, {"reshape": 2, "nn.conv2d": 1})


@pytest.mark.parametrize("pool, name", [(nn.max_pool1d, "nn.max_pool2d"), (nn.avg_pool1d, "nn.avg_pool2d")])
def test_pools(pool, name):
    mod = build({"x": (1, 3, 17)}, lambda bb, x: pool(x, 3, 2, 1, ceil_mode=True))
    check_rewrite(ConvertConv1d, mod, {"reshape": 2, name: 1})


def test_another_layout_stays():
    log, w = DecisionLog(), c(rand(8, 3, 4))
    mod = build({"x": (1, 9, 4)}, lambda bb, x: nn.conv1d(x, w, data_layout="NWC", kernel_layout="OWI"))
    check_rewrite(ConvertConv1d, mod)
    ConvertConv1d(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_an_open_batch():
    n, w = tirx.Var("n", "int64"), c(rand(8, 2, 3))
    mod = build({"x": (n, 4, 9)}, lambda bb, x: nn.conv1d(x, w, groups=2, padding=(1, 2), strides=2))
    made = check_rewrite(
        lambda log: lambda m: FoldConstant(log)(ConvertConv1d(log)(m)),
        mod,
        {"reshape": 2, "nn.conv2d": 1},
        numbers=False,
    )
    for batch in (1, 3):
        x = rand(batch, 4, 9, seed=batch)
        np.testing.assert_allclose(run(made, [x])[0], run(mod, [x])[0], rtol=1e-5, atol=1e-5)


def test_an_open_length_stays():
    n, w = tirx.Var("n", "int64"), c(rand(8, 2, 3))
    mod = build({"x": (1, 4, n)}, lambda bb, x: nn.conv1d(x, w, groups=2, padding=(1, 2), strides=2))
    check_rewrite(ConvertConv1d, mod, numbers=False)
