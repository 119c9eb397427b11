"""BatchNorm folds into every linear producer, and into scale and shift where there is none."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.importer.sizes import variable
from tvmopt.passes import FoldBatchNorm
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def norm(bb, x, channels, axis=1, seed=3, **attrs):
    """Item 0 of a batch_norm with random statistics."""
    g, b, m = (c(rand(channels, seed=seed + i)) for i in range(3))
    v = c(np.abs(rand(channels, seed=seed + 3)) + 0.1)
    call = bb.emit(nn.batch_norm(x, g, b, m, v, axis=axis, training=False, **attrs))
    return bb.emit(relax.TupleGetItem(call, 0))


@pytest.mark.parametrize("channels", [1, 7, 8, 9, 17])
def test_conv2d(channels):
    w = c(rand(channels, 3, 3, 3))
    mod = build({"x": (1, 3, 8, 8)}, lambda bb, x: norm(bb, bb.emit(nn.conv2d(x, w, padding=1)), channels))
    check_rewrite(FoldBatchNorm, mod, {"nn.conv2d": 1, "add": 1})


def test_conv2d_with_bias_depthwise_and_grouped():
    for groups, per in ((1, 6), (6, 1), (2, 3)):
        w, b = c(rand(6, per, 3, 3)), c(rand(1, 6, 1, 1))
        mod = build(
            {"x": (2, 6, 7, 7)},
            lambda bb, x, w=w, b=b, g=groups: norm(bb, bb.emit(op.add(bb.emit(nn.conv2d(x, w, groups=g)), b)), 6),
        )
        check_rewrite(FoldBatchNorm, mod, {"nn.conv2d": 1, "add": 1})


def test_conv1d():
    w = c(rand(9, 4, 3))
    mod = build({"x": (1, 4, 15)}, lambda bb, x: norm(bb, bb.emit(nn.conv1d(x, w)), 9))
    check_rewrite(FoldBatchNorm, mod, {"nn.conv1d": 1, "add": 1})


@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d_transpose(groups):
    w = c(rand(4, 6 // groups, 3, 3))
    mod = build(
        {"x": (1, 4, 5, 5)},
        lambda bb, x: norm(bb, bb.emit(nn.conv2d_transpose(x, w, groups=groups, strides=(2, 2))), 6),
    )
    numbers = groups == 1  # TVM 0.27 has no kernel for grouped transposed convolutions
    check_rewrite(FoldBatchNorm, mod, {"nn.conv2d_transpose": 1, "add": 1}, numbers=numbers)


def test_gemm():
    w, b = c(rand(8, 17)), c(rand(17))
    mod = build({"x": (3, 8)}, lambda bb, x: norm(bb, bb.emit(op.add(bb.emit(op.matmul(x, w)), b)), 17))
    check_rewrite(FoldBatchNorm, mod, {"matmul": 1, "add": 1})


def test_without_a_producer_it_becomes_scale_and_shift():
    mod = build({"x": (1, 7, 5, 5)}, lambda bb, x: norm(bb, bb.emit(nn.relu(x)), 7))
    check_rewrite(FoldBatchNorm, mod, {"nn.relu": 1, "multiply": 1, "add": 1})


def test_centre_and_scale_off():
    w = c(rand(5, 3, 1, 1))
    mod = build(
        {"x": (1, 3, 4, 4)},
        lambda bb, x: norm(bb, bb.emit(nn.conv2d(x, w)), 5, center=False, scale=False),
    )
    check_rewrite(FoldBatchNorm, mod, {"nn.conv2d": 1, "add": 1}, numbers=False)


def test_a_shared_convolution_is_not_scaled():
    w, log = c(rand(5, 3, 1, 1)), DecisionLog()

    def body(bb, x):
        conv = bb.emit(nn.conv2d(x, w))
        return norm(bb, conv, 5), nn.relu(conv)

    mod = build({"x": (1, 3, 4, 4)}, body)
    check_rewrite(FoldBatchNorm, mod, {"nn.conv2d": 1, "multiply": 1, "add": 1, "nn.relu": 1})
    FoldBatchNorm(log)(mod)
    assert "other users" in next(iter(log)).reason


def test_another_axis_is_not_the_channels():
    w = c(rand(6, 3, 3, 3))
    mod = build({"x": (1, 3, 8, 8)}, lambda bb, x: norm(bb, bb.emit(nn.conv2d(x, w)), 6, axis=2))
    check_rewrite(FoldBatchNorm, mod, {"nn.conv2d": 1, "multiply": 1, "add": 1}, numbers=False)


def test_statistics_that_are_inputs_decline():
    def body(bb, x, s):
        call = bb.emit(nn.batch_norm(x, s, s, s, s, axis=1, training=False))
        return bb.emit(relax.TupleGetItem(call, 0))

    log = DecisionLog()
    mod = build({"x": (1, 3, 4, 4), "s": (3,)}, body)
    check_rewrite(FoldBatchNorm, mod)
    FoldBatchNorm(log)(mod)
    assert log.count("tvmopt.FoldBatchNorm", "declined") == 1


def test_used_running_mean_declines():
    def body(bb, x):
        s = c(rand(3) ** 2)
        call = bb.emit(nn.batch_norm(x, s, s, s, s, axis=1, training=False))
        return bb.emit(relax.TupleGetItem(call, 0)), bb.emit(relax.TupleGetItem(call, 1))

    check_rewrite(FoldBatchNorm, build({"x": (1, 3, 4, 4)}, body))


@pytest.mark.parametrize("producer", ["conv2d", "conv2d_transpose", "relu"])
def test_open_pictures(producer):
    """It was left as it was, and every batch_norm cost two transposes."""
    w = c(rand(6, 6, 3, 3))
    n, h, wide = map(variable, "nhw")
    forms = {
        "relu": nn.relu,
        "conv2d": lambda x: nn.conv2d(x, w),
        "conv2d_transpose": lambda x: nn.conv2d_transpose(x, w),
    }

    def body(shape):
        return build({"x": shape}, lambda bb, x: norm(bb, bb.emit(forms[producer](x)), 6))

    found = FoldBatchNorm(DecisionLog())(body((n, 6, h, wide)))
    assert ops(found) == ops(FoldBatchNorm(DecisionLog())(body((2, 6, 7, 9)))) and "nn.batch_norm" not in ops(found)
