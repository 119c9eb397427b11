"""LayerNorm and RMSNorm in the spellings of torch's two exporters, Keras, and by hand."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import EliminateIdentities, FuseLayerNorm, FuseRmsNorm
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
EPS = c(np.float32(1e-5))


def layer_norm(bb, x, axes, *, power=False, root="divide", eps_first=False, again=False):
    """x normalised, from its pieces."""
    e = bb.emit
    mean = e(op.mean(x, axes, keepdims=True))
    d = e(op.subtract(x, mean))
    d2 = e(op.subtract(x, mean)) if again else d
    square = e(op.power(d2, c(np.float32(2)))) if power else e(op.multiply(d2, d2))
    v = e(op.mean(square, axes, keepdims=True))
    v = e(op.add(EPS, v)) if eps_first else e(op.add(v, EPS))
    if root == "divide":
        return e(op.divide(d, e(op.sqrt(v))))
    if root == "rsqrt":
        return e(op.multiply(e(op.rsqrt(v)), d))
    if root == "reciprocal":
        return e(op.multiply(d, e(op.divide(c(np.float32(1)), e(op.sqrt(v))))))
    return e(op.multiply(d, e(op.power(v, c(np.float32(-0.5))))))


def fuse(log):
    """The two passes that belong together."""

    def run(mod):
        return FuseLayerNorm(log)(EliminateIdentities(log)(mod))

    return run


@pytest.mark.parametrize("root", ["divide", "rsqrt", "reciprocal", "power"])
@pytest.mark.parametrize("again", [False, True])
def test_roots_and_powers(root, again):
    def body(bb, x):
        n = layer_norm(bb, x, [-1], power=again, root=root, eps_first=again, again=again)
        return op.add(bb.emit(op.multiply(n, c(rand(33)))), c(rand(33, seed=1)))

    check_rewrite(fuse, build({"x": (2, 5, 33)}, body), {"nn.layer_norm": 1})


@pytest.mark.parametrize("width", [2, 8, 31])  # a mean of one number is no reduction
def test_widths_without_scale_and_shift(width):
    mod = build({"x": (3, width)}, lambda bb, x: layer_norm(bb, x, [1]))
    check_rewrite(fuse, mod, {"nn.layer_norm": 1}, tol=1e-4)


def test_several_axes_and_a_scale_given_the_other_way_round():
    def body(bb, x):
        return op.multiply(c(rand(1, 6, 7)), layer_norm(bb, x, [1, 2]))

    check_rewrite(fuse, build({"x": (2, 6, 7)}, body), {"nn.layer_norm": 1})


@pytest.mark.parametrize("shape", [(1, 6, 1), (6, 1), ()])
def test_a_norm_of_all_but_the_batch_has_a_scale_for_each_channel(shape):
    """ConvTasNet's: with a number for each place its scales and shifts would be 200 MB."""

    def body(bb, x):
        n = layer_norm(bb, x, [1, 2])
        return op.add(bb.emit(op.multiply(n, c(rand(*shape)))), c(rand(*shape, seed=1))) if shape else n

    mod = build({"x": (2, 6, 7)}, body)
    check_rewrite(fuse, mod, {"nn.group_norm": 1, **({"multiply": 1, "add": 1} if shape else {})}, tol=1e-4)


def test_a_scale_that_is_an_input():
    def body(bb, x, g):
        return op.multiply(layer_norm(bb, x, [-1]), g)

    check_rewrite(fuse, build({"x": (2, 9), "g": (9,)}, body), {"nn.layer_norm": 1})


def test_channels_first():
    def body(bb, x):
        return op.add(bb.emit(op.multiply(layer_norm(bb, x, [1]), c(rand(6, 1, 1)))), c(rand(6, 1, 1)))

    check_rewrite(fuse, build({"x": (2, 6, 3, 5)}, body), {"nn.layer_norm": 1})


def test_a_scale_of_another_axis_stays_outside():
    log = DecisionLog()
    mod = build({"x": (5, 9)}, lambda bb, x: op.multiply(layer_norm(bb, x, [-1]), c(rand(5, 1))))
    check_rewrite(fuse, mod, {"nn.layer_norm": 1, "multiply": 1})
    fuse(log)(mod)
    assert log.count("tvmopt.FuseLayerNorm", "declined") == 1


def test_two_means_over_different_axes_stay():
    def body(bb, x):
        d = bb.emit(op.subtract(x, bb.emit(op.mean(x, [1], keepdims=True))))
        v = bb.emit(op.mean(bb.emit(op.multiply(d, d)), [2], keepdims=True))
        return op.divide(d, bb.emit(op.sqrt(bb.emit(op.add(v, EPS)))))

    log, mod = DecisionLog(), build({"x": (2, 5, 5)}, body)
    check_rewrite(FuseLayerNorm, mod)
    FuseLayerNorm(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_variance_of_something_else_stays():
    def body(bb, x, y):
        d = bb.emit(op.subtract(x, bb.emit(op.mean(x, [1], keepdims=True))))
        v = bb.emit(op.mean(bb.emit(op.multiply(y, y)), [1], keepdims=True))
        return op.divide(d, bb.emit(op.sqrt(bb.emit(op.add(v, EPS)))))

    check_rewrite(FuseLayerNorm, build({"x": (2, 5), "y": (2, 5)}, body))


def rms_norm(bb, x, axes, root="rsqrt"):
    """x over the root of its mean square."""
    s = bb.emit(op.add(bb.emit(op.mean(bb.emit(op.multiply(x, x)), axes, keepdims=True)), EPS))
    if root == "rsqrt":
        return bb.emit(op.multiply(x, bb.emit(op.rsqrt(s))))
    return bb.emit(op.divide(x, bb.emit(op.sqrt(s))))


@pytest.mark.parametrize("root", ["rsqrt", "sqrt"])
@pytest.mark.parametrize("width", [7, 16])
def test_rms_norm(root, width):
    mod = build({"x": (2, 5, width)}, lambda bb, x: op.multiply(c(rand(width)), rms_norm(bb, x, [-1], root)))
    check_rewrite(FuseRmsNorm, mod, {"nn.rms_norm": 1})


def test_rms_norm_over_an_outer_axis_stays():
    log, mod = DecisionLog(), build({"x": (2, 5, 7)}, lambda bb, x: rms_norm(bb, x, [1]))
    check_rewrite(FuseRmsNorm, mod)
    FuseRmsNorm(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_scalar_scale_joins_rms_norm_and_a_row_scale_does_not():
    mod = build({"x": (5, 7)}, lambda bb, x: op.multiply(rms_norm(bb, x, [1]), c(rand(5, 1))))
    check_rewrite(FuseRmsNorm, mod, {"nn.rms_norm": 1, "multiply": 1})
    mod = build({"x": (5, 7)}, lambda bb, x: op.multiply(rms_norm(bb, x, [1]), c(rand())))
    check_rewrite(FuseRmsNorm, mod, {"nn.rms_norm": 1})


def test_rms_norm_over_everything_stays():
    check_rewrite(FuseRmsNorm, build({"x": (5, 7)}, lambda bb, x: rms_norm(bb, x, [0, 1])))
