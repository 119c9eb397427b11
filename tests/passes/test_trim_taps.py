"""Taps that only meet the border of zeros are cut off."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import TrimTaps
from tvmopt.passes.trim_taps import _inside

nn, c = relax.op.nn, relax.const


def kernel(mod):
    (call,) = (
        b.value
        for block in mod["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call) and "conv2d" in str(b.value.op)
    )
    return tuple(call.args[1].ty.shape.values)[2:], [int(v) for v in call.attrs.padding]


def layer(image, taps, **attrs):
    return build(
        {"x": (2, 4, *image)}, lambda bb, x: nn.conv2d(x, c(rand(6, 4 // attrs.get("groups", 1), *taps)), **attrs)
    )


@pytest.mark.parametrize(
    ("image", "taps", "attrs", "left", "padding"),
    [
        ((1, 9), (3, 3), dict(padding=1), (1, 3), [0, 1, 0, 1]),
        ((9, 1), (3, 5), dict(padding=(1, 2), groups=2), (3, 1), [1, 0, 1, 0]),
        ((2, 2), (5, 5), dict(padding=2), (3, 3), [1, 1, 1, 1]),
        ((4, 5), (3, 3), dict(padding=6, dilation=6), (1, 1), [0, 0, 0, 0]),
        ((1, 7), (3, 3), dict(padding=(2, 1, 0, 1)), (1, 3), [0, 1, 0, 1]),
        ((2, 9), (4, 3), dict(padding=(3, 1), strides=2), (4, 3), [3, 1, 3, 1]),
    ],
)
def test_taps_outside(image, taps, attrs, left, padding):
    mod = layer(image, taps, **attrs)
    after = check_rewrite(TrimTaps, mod, {"nn.conv2d": 1}) if left != taps else TrimTaps()(mod)
    assert kernel(after) == (left, padding)


@pytest.mark.parametrize("image", [(2, 9), (3, 3), (7, 7)])
def test_taps_that_some_output_reads_stay(image):
    assert kernel(TrimTaps()(layer(image, (3, 3), padding=1))) == ((3, 3), [1, 1, 1, 1])


def test_a_border_would_become_negative():
    # taps at -1, 1, 3 of two rows: without the first one the picture would begin a row later
    assert _inside(3, 1, 2, 1, 2, 2, 1) == (0, 2)


def test_weights_that_are_not_finite_stay():
    weight = rand(6, 4, 3, 3)
    weight[0, 0, 0, 0] = np.inf
    mod = build({"x": (1, 4, 1, 9)}, lambda bb, x: nn.conv2d(x, c(weight), padding=1))
    assert kernel(TrimTaps()(mod))[0] == (3, 3)


def test_weights_that_are_no_constants_stay():
    mod = build({"x": (1, 4, 1, 9), "w": (6, 4, 3, 3)}, lambda bb, x, w: nn.conv2d(x, w, padding=1))
    assert kernel(TrimTaps()(mod))[0] == (3, 3)
