"""3-d convolutions and poolings as 2-d ones over every frame."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.passes import ConvertConv3d
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


@pytest.mark.parametrize(
    "kernel, groups, attrs",
    [
        ((3, 3, 3), 1, dict(padding=(1, 1, 1))),
        ((3, 3, 3), 1, dict(strides=(2, 1, 2), padding=(1, 0, 2, 2, 1, 0))),
        ((2, 3, 1), 1, dict(dilation=(2, 1, 1))),
        ((1, 3, 3), 1, dict(padding=(0, 1, 1))),
        ((3, 1, 1), 1, dict(padding=(1, 0, 0), strides=(2, 1, 1))),
        ((1, 1, 1), 1, dict(strides=2)),
        ((3, 3, 3), 4, dict(padding=(1, 1, 1))),
        ((3, 1, 1), 2, dict(padding=(1, 0, 0))),
    ],
)
def test_conv3d(kernel, groups, attrs):
    w = c(rand(8, 4 // groups, *kernel))
    mod = build({"x": (2, 4, 7, 9, 8)}, lambda bb, x: nn.conv3d(x, w, groups=groups, **attrs))
    kinds = ops(ConvertConv3d(DecisionLog())(mod))
    assert kinds["nn.conv2d"] and not kinds["nn.conv3d"]
    assert kinds["concat"] == (groups == 1 and kernel[0] > 1 and kernel[1:] != (1, 1))
    check_rewrite(ConvertConv3d, mod, dict(kinds))


@pytest.mark.parametrize("pool", [nn.max_pool3d, nn.avg_pool3d])
@pytest.mark.parametrize(
    "window, attrs",
    [((2, 2, 2), dict(strides=2)), ((1, 2, 2), dict(strides=(1, 2, 2))), ((3, 3, 2), dict(padding=(1, 1, 0)))],
)
def test_pools(pool, window, attrs):
    mod = build({"x": (1, 3, 7, 9, 8)}, lambda bb, x: pool(x, window, **attrs))
    kinds = ops(ConvertConv3d(DecisionLog())(mod))
    assert not kinds["nn.max_pool3d"] and not kinds["nn.avg_pool3d"]
    check_rewrite(ConvertConv3d, mod, dict(kinds))


def test_a_maximum_of_windows_rounded_up():
    mod = build({"x": (1, 3, 7, 9, 8)}, lambda bb, x: nn.max_pool3d(x, (3, 2, 3), 2, ceil_mode=True))
    check_rewrite(ConvertConv3d, mod, dict(ops(ConvertConv3d(DecisionLog())(mod))))


@pytest.mark.parametrize(
    "reason, body",
    [
        ("1", lambda x, w: nn.conv3d(x, c(rand(8, 3, 3, 3, 3)), data_layout="NDHWC", kernel_layout="OIDHW")),
        ("2", lambda x, w: nn.conv3d(x, w)),
        ("3", lambda x, w: nn.avg_pool3d(x, (3, 2, 3), 2, ceil_mode=True)),
    ],
)
def test_what_stays(reason, body):
    log = DecisionLog()
    size = (1, 7, 9, 8, 3) if reason == "1" else (1, 3, 7, 9, 8)
    mod = build({"x": size, "w": (8, 3, 3, 3, 3)}, lambda bb, x, w: body(x, w))
    check_rewrite(ConvertConv3d, mod)
    ConvertConv3d(log)(mod)
    assert [d.reason[0] for d in log] == [reason]
