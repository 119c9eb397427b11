"""Constant scales and shifts end up in the constants of their producer."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.importer.sizes import variable
from tvmopt.passes import FoldScaleShift
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def chain(bb, x, *steps):
    """Apply ``(operator, constant)`` pairs."""
    for f, value in steps:
        x = bb.emit(f(x, c(value)))
    return x


@pytest.mark.parametrize("channels", [1, 15, 16, 17])
def test_caffe_scale_after_a_convolution(channels):
    w, s = c(rand(channels, 3, 3, 3)), rand(channels, 1, 1)

    def body(bb, x):
        y = bb.emit(nn.conv2d(x, w))
        return chain(bb, y, (op.multiply, s), (op.add, s + 1), (op.subtract, s * 2), (op.divide, abs(s) + 1))

    check_rewrite(FoldScaleShift, build({"x": (1, 3, 8, 8)}, body), {"nn.conv2d": 1, "add": 1})


def test_a_layer_scale_after_a_gemm():
    w, b, s = c(rand(8, 9)), rand(9), rand(9, seed=2)

    def body(bb, x):
        return chain(bb, bb.emit(op.matmul(x, w)), (op.add, b), (op.multiply, s))

    check_rewrite(FoldScaleShift, build({"x": (2, 3, 8)}, body), {"matmul": 1, "add": 1})


def test_a_scalar_scale():
    w = c(rand(8, 9))
    mod = build({"x": (3, 8)}, lambda bb, x: op.multiply(bb.emit(op.matmul(x, w)), c(rand())))
    check_rewrite(FoldScaleShift, mod, {"matmul": 1})


def test_scale_and_shift_chains_without_a_producer():
    s = rand(1, 7, 1, 1)

    def body(bb, x):
        return chain(bb, x, (op.multiply, s), (op.add, s), (op.multiply, s + 2), (op.subtract, s))

    check_rewrite(FoldScaleShift, build({"x": (1, 7, 5, 5)}, body), {"multiply": 1, "add": 1})


def test_a_scale_that_varies_over_the_image_stays():
    w, log = c(rand(4, 3, 1, 1)), DecisionLog()
    mod = build(
        {"x": (1, 3, 5, 5)},
        lambda bb, x: chain(bb, bb.emit(nn.conv2d(x, w)), (op.multiply, rand(1, 4, 5, 5))),
    )
    check_rewrite(FoldScaleShift, mod)
    FoldScaleShift(log)(mod)
    assert [d.reason[0] for d in log] == ["2"]


def test_a_shared_producer_stays():
    w, log = c(rand(4, 3, 1, 1)), DecisionLog()

    def body(bb, x):
        y = bb.emit(nn.conv2d(x, w))
        return chain(bb, y, (op.multiply, rand(4, 1, 1))), nn.relu(y)

    mod = build({"x": (1, 3, 5, 5)}, body)
    check_rewrite(FoldScaleShift, mod)
    FoldScaleShift(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_product_of_two_activations_is_not_scaled():
    mod = build(
        {"x": (3, 8), "w": (8, 9)},
        lambda bb, x, w: chain(bb, bb.emit(op.matmul(x, w)), (op.multiply, rand(9))),
    )
    check_rewrite(FoldScaleShift, mod)


def test_constants_that_would_grow_stay_apart():
    log = DecisionLog()
    mod = build({"x": (8, 9)}, lambda bb, x: chain(bb, x, (op.multiply, rand(8, 1)), (op.multiply, rand(9))))
    check_rewrite(FoldScaleShift, mod)
    FoldScaleShift(log)(mod)
    assert [d.reason[0] for d in log] == ["3"]


def test_a_bias_alone_is_the_normal_form():
    w = c(rand(4, 3, 1, 1))
    mod = build({"x": (1, 3, 5, 5)}, lambda bb, x: chain(bb, bb.emit(nn.conv2d(x, w)), (op.add, rand(4, 1, 1))))
    check_rewrite(FoldScaleShift, mod)


def test_the_trick_of_log1p_stays():
    log, one = DecisionLog(), rand() * 0 + 1
    mod = build({"x": (7,)}, lambda bb, x: chain(bb, x, (op.add, one), (op.subtract, one)))
    check_rewrite(FoldScaleShift, mod)
    FoldScaleShift(log)(mod)
    assert [d.reason[0] for d in log] == ["4"]


@pytest.mark.parametrize("factor", [np.inf, -np.inf, 1e30, np.nan])
def test_weights_stay_in_their_type(factor):
    """Sums of products with infinite weights are NaN, and with huge ones leave the type half way."""
    w, log, big = c(rand(4, 3, 1, 1)), DecisionLog(), np.full((4, 1, 1), factor, "float32")
    mod = build({"x": (1, 3, 5, 5)}, lambda bb, x: chain(bb, bb.emit(nn.conv2d(x, w)), (op.multiply, big)))
    assert ops(FoldScaleShift(log)(mod)) == {"nn.conv2d": 1, "multiply": 1}
    assert [d.reason[0] for d in log] == ["5"]


@pytest.mark.parametrize(
    "steps",
    [
        [(op.multiply, 1e30), (op.multiply, 1e30)],  # 1e-50 is 1e10, not 0 or infinite
        [(op.multiply, 1e-30), (op.multiply, 1e-30)],
        [(op.multiply, 1e-30), (op.divide, 1e30)],
        [(op.add, 3e38), (op.add, 3e38)],
        [(op.multiply, 2.0), (op.add, 3.0), (op.multiply, np.inf)],  # inf * x + inf
    ],
)
def test_two_constants_that_leave_their_type_together_stay_apart(steps):
    log = DecisionLog()
    numbers = [(operator, np.array(number, "float32")) for operator, number in steps]
    mod = build({"x": (7,)}, lambda bb, x: chain(bb, x, *numbers))
    check_rewrite(FoldScaleShift, mod)
    FoldScaleShift(log)(mod)
    assert [d.reason[0] for d in log] == ["5"]


def test_a_masks_fill_is_no_reason_to_keep_two_additions():
    fill = np.array([0, -np.inf, 0], "float32")
    mod = build({"x": (3,)}, lambda bb, x: chain(bb, x, (op.add, fill), (op.add, np.ones(3, "float32"))))
    assert ops(FoldScaleShift(DecisionLog())(mod)) == {"add": 1}


def test_open_pictures():
    """What scales and shifts channels of a convolution of open pictures stayed behind it."""
    w, s = c(rand(8, 3, 3, 3)), rand(8, 1, 1)
    n, h, wide = map(variable, "nhw")

    def body(bb, x):
        y = bb.emit(nn.conv2d(x, w))
        return chain(bb, y, (op.multiply, s), (op.add, s + 1), (op.subtract, s * 2))

    assert ops(FoldScaleShift(DecisionLog())(build({"x": (n, 3, h, wide)}, body))) == {"nn.conv2d": 1, "add": 1}


def test_a_constant_that_makes_an_open_axis_longer_is_not_folded():
    """Both shapes were None, which was taken for equal."""
    n = variable("n")
    mod = build({"x": (n, 1)}, lambda bb, x: chain(bb, x, (op.multiply, rand(1, 1)), (op.multiply, rand(1, 9))))
    assert ops(FoldScaleShift(DecisionLog())(mod)) == {"multiply": 2}


@pytest.mark.parametrize(("factor", "left"), [(-0.1021, 1), (0.25, 0)])
def test_weights_of_float16_are_not_rounded_again(factor, left):
    """A power of two rounds nothing; any other factor stays behind the product, which is summed in float32."""
    weight = relax.const(rand(8, 4, seed=1).astype("float16"))

    def body(bb, x):
        total = bb.emit(relax.op.matmul(x, weight, out_dtype="float32"))
        return relax.op.multiply(total, relax.const(np.float32(factor)))

    log = DecisionLog()
    after = FoldScaleShift(log)(build({"x": ((3, 8), "float16")}, body))
    assert dict(ops(after)).get("multiply", 0) == left
    assert {d.reason[0] for d in log if d.verdict == "declined"} == ({"6"} if left else set())
