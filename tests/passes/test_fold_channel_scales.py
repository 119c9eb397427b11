"""A scale for each channel of a depthwise convolution's data goes into its weight."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, ops, run
from tvmopt.passes import ConvertIntegerProducts, FoldChannelScales
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
RNG = np.random.default_rng(0)
CHANNELS = 5


def down(x, scale, zero, axis):
    return op.dequantize(x, c(scale.astype("float32")), c(zero), axis=axis)


def depthwise(bb, x, *, zeros=None, kind="uint8", multiplier=1, per_tensor=False, scale=None, groups=CHANNELS, uses=1):
    """quantize and dequantize per channel, then a convolution of each channel of its own."""
    s = c(((RNG.random(CHANNELS) + 0.5) / 40 if scale is None else scale).astype("float32"))
    z = c(np.full(CHANNELS, 0 if kind == "int8" else 128, kind) if zeros is None else zeros.astype(kind))
    q = bb.emit(op.quantize(x, s, z, axis=1, out_dtype=kind))
    real = bb.emit(op.dequantize(q, s, z, axis=1))
    count = CHANNELS * multiplier
    weight = c(RNG.integers(-127, 128, (count, CHANNELS // groups, 3, 3)).astype("int8"))
    own = np.array(0.02) if per_tensor else RNG.random(count) / 50 + 0.001
    none = np.zeros(own.shape, "int8")
    y = bb.emit(nn.conv2d(real, bb.emit(down(weight, own, none, 0)), padding=1, groups=groups))
    return y if uses == 1 else (y, bb.emit(op.exp(real)))


def check(mod, applied=True):
    log = DecisionLog()
    after = FoldChannelScales(log)(mod)
    assert ops(after)["divide"] == applied
    x = (RNG.standard_normal((2, CHANNELS, 9, 7)) * 2).astype("float32")
    for a, b in zip(run(after, [x]), run(mod, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6 * np.abs(b).max())
    return after, log


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_rewrites(kind, multiplier, per_tensor):
    options = dict(kind=kind, multiplier=multiplier, per_tensor=per_tensor)
    after, _ = check(build({"x": (2, CHANNELS, 9, 7)}, lambda bb, x: depthwise(bb, x, **options)))
    if kind == "uint8":  # int8 goes through ConvertSignedQuantization first
        products = ConvertIntegerProducts(DecisionLog())(after)
        kinds = [str(b.value.attrs.out_dtype) for b in products["main"].body.blocks[0].bindings if _is_conv(b.value)]
        assert kinds == ["int32"]


def _is_conv(value):
    return isinstance(value, relax.Call) and value.op.name == "relax.nn.conv2d"


REFUSED = {
    "zero points that differ": (dict(zeros=np.arange(CHANNELS)), "1"),
    "another reader": (dict(uses=2), "2"),
    "a scale of zero": (dict(scale=np.array([0.1, 0.0, 0.1, 0.1, 0.1])), "3"),
    "an infinite scale": (dict(scale=np.array([0.1, np.inf, 0.1, 0.1, 0.1])), "3"),
    "a sum over channels": (dict(groups=1), ""),
    "one scale": (dict(scale=np.array([0.1]), zeros=np.array([3])), ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    options, reason = REFUSED[case]
    log, mod = DecisionLog(), build({"x": (2, CHANNELS, 9, 7)}, lambda bb, x: depthwise(bb, x, **options))
    assert ops(FoldChannelScales(log)(mod)) == ops(mod)
    assert [d.reason[0] for d in log] == ([reason] if reason else [])
