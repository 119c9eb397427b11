"""Products and convolutions of bytes and of bfloat16 with open sizes: right at the edges of tiles, nothing read or
written outside."""

from functools import partial

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cpu.test_bf16 import runs_bf16
from tests.schedules.cpu.test_int8 import numbers
from tests.schedules.cpu.test_open_pictures import PICTURES, fits
from tests.schedules.cpu.test_open_rows import nhwc, random
from tests.schedules.harness import Open, convolution, machines, open_module, rounded

ROWS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 130)
HOSTS = ["cpu", *machines()]
RNG = np.random.default_rng(3)


def taken(model, family):
    """That one kernel computes the model, in the form of its family for open sizes."""
    ((found, note),) = model.how.values()
    assert found.removeprefix("amx_") == family and not note, model.how


def of_bytes(op, w):
    """`op` of bytes in integers, as float32: with these sizes each number is one exactly."""

    def build(bb, x):
        total = bb.emit(op(x, relax.const(w)))
        return relax.op.multiply(bb.emit(relax.op.astype(total, "float32")), relax.const(np.float32(2.0)))

    return build


@pytest.mark.parametrize("machine", HOSTS)
@pytest.mark.parametrize("k, n", [(33, 17), (64, 96)])
def test_rows_of_bytes(machine, k, n):
    w = numbers(RNG, k, n, kind="int8")
    model = Open(open_module(of_bytes(partial(relax.op.matmul, out_dtype="int32"), w), [("rows", k)], "uint8"), machine)
    assert "gemm" in {f.removeprefix("amx_") for f, note in model.how.values() if not note}
    for m in ROWS:
        x = numbers(RNG, m, k, kind="uint8")
        np.testing.assert_array_equal(model(x)[0], 2 * (x.astype("int64") @ w.astype("int64")))


@runs_bf16
@pytest.mark.parametrize("cores, k, n", [(1, 33, 32), (2, 2, 17), (2, 64, 96), (2, 130, 40)])
def test_rows_of_bfloat16(cores, k, n):
    w, b = random(k, n), random(n)

    def build(bb, x, r):
        y = bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, relax.const(w))), relax.const(b)))
        return relax.op.add(y, r)

    model = Open(open_module(build, [("batch", "seq", k), ("batch", "seq", n)]), "cpu", cores, "bf16")
    assert "gemm" in {f.removeprefix("amx_") for f, note in model.how.values() if not note}
    for m in ROWS:
        for batch in (1, 3):
            x, r = random(batch, m, k), random(batch, m, n)
            expected = rounded(x) @ rounded(w) + b + r
            np.testing.assert_allclose(model(x, r)[0], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


LAYERS = [  # family, weight, groups, stride, border, what is in it
    ("conv2d", (17, 3, 3, 5), 1, 2, 1, 114),
    ("conv2d", (40, 3, 3, 32), 1, 1, 1, 0),
    ("conv2d", (33, 7, 7, 3), 1, 2, 3, 255),
    ("gemm", (40, 1, 1, 24), 1, 1, 0, 7),
    ("depthwise", (24, 3, 3, 1), 24, 1, 1, 128),
    ("depthwise", (17, 5, 5, 1), 17, 2, 2, 0),
]


def convolved(x, w, groups, stride, pad):
    parts = zip(np.split(x, groups, 3), np.split(w, groups, 0), strict=True)
    return np.concatenate([convolution(a, b, stride, pad) for a, b in parts], 3)


@pytest.mark.parametrize("shape", [("n", 9, 11), ("n", "h", "w")], ids=["samples", "pictures"])
@pytest.mark.parametrize("family, weight, groups, stride, pad, zero", LAYERS)
def test_convolution_of_bytes(shape, family, weight, groups, stride, pad, zero):
    w, channels = numbers(RNG, *weight, kind="int8"), weight[3] * groups
    inner = of_bytes(nhwc(relax.op.nn.conv2d, strides=stride, groups=groups, out_dtype="int32"), w)

    def build(bb, x):  # the border of a quantised picture is its zero point
        width = [0, 0, pad, pad, pad, pad, 0, 0]
        return inner(bb, bb.emit(relax.op.nn.pad(x, width, pad_value=float(zero))) if pad else x)

    model = Open(open_module(build, [(*shape, channels)], "uint8"), "cpu")
    taken(model, family)
    sizes = [(9, 11)] if shape[1] == 9 else [s for s in PICTURES if fits(s, weight[1:3], pad, 1)]
    for k, size in enumerate(sizes):
        for n in (1, 3) if k % 3 == 0 else (2,):
            x = numbers(RNG, n, *size, channels, kind="uint8")
            whole = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=zero)
            expected = convolved(whole, w, groups, stride, 0)
            np.testing.assert_array_equal(model.guarded([x], expected.shape), 2 * expected)


@runs_bf16
@pytest.mark.parametrize("shape", [("n", 9, 11), ("n", "h", "w")], ids=["samples", "pictures"])
@pytest.mark.parametrize("family, weight, groups, stride, pad", [layer[:5] for layer in LAYERS])
def test_convolution_of_bfloat16(shape, family, weight, groups, stride, pad):
    w, channels = random(*weight), weight[3] * groups
    conv = nhwc(relax.op.nn.conv2d, strides=stride, groups=groups, padding=pad)
    model = Open(open_module(lambda bb, x: conv(x, relax.const(w)), [(*shape, channels)]), "cpu", precision="bf16")
    assert family in {f.removeprefix("amx_") for f, note in model.how.values() if not note}, model.how
    sizes = [(9, 11)] if shape[1] == 9 else [s for s in PICTURES if fits(s, weight[1:3], pad, 1)]
    for k, size in enumerate(sizes):
        x = random(1 + k % 3, *size, channels)
        expected = convolved(rounded(x), rounded(w), groups, stride, pad)
        np.testing.assert_allclose(model(x)[0], expected, rtol=0, atol=2e-6 * max(np.abs(expected).max(), 1e-6))
