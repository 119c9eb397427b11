"""Kernels over pictures of open height and width: right at every size, and nothing read or written outside."""

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cpu.test_open_rows import nhwc, random
from tests.schedules.harness import Open, close, convolution, machines, open_module
from tvmopt.importer.sizes import LEAST_SIZES

PICTURES = [(1, 1), (1, 7), (7, 8), (9, 1), (2, 9), (3, 13), (8, 15), (16, 16), (5, 17), (31, 23), (33, 32), (12, 101)]


def layer(weight, bias, activation=relax.op.nn.relu, **attrs):
    """conv + bias + every further operand, activated."""

    def build(bb, x, *rest):
        y = bb.emit(nhwc(relax.op.nn.conv2d, **attrs)(x, relax.const(weight)))
        for other in (relax.const(bias), *rest):
            y = bb.emit(relax.op.add(y, other))
        return activation(y)

    return build


def reference(x, w, groups, stride, pad, dilation):
    parts = zip(np.split(x, groups, 3), np.split(w, groups, 0), strict=True)
    return np.concatenate([convolution(a, b, stride, pad, (dilation, dilation)) for a, b in parts], 3)


def fits(size, kernel, pad, dilation):
    return all(s + 2 * pad > dilation * (k - 1) for s, k in zip(size, kernel, strict=True))


@pytest.mark.parametrize(
    "weight, groups, stride, pad, dilation, machine",
    [
        *(((17, 3, 3, 5), 1, 1, 1, 1, machine) for machine in machines()),
        *(((32, 3, 3, 4), 4, 2, 1, 1, machine) for machine in machines()),
        ((16, 3, 3, 3), 1, 2, 1, 1, machines()[0]),
        ((33, 5, 5, 16), 1, 1, 2, 1, machines()[0]),
        ((24, 3, 3, 8), 1, 1, 2, 2, machines()[0]),
        ((40, 1, 1, 24), 1, 2, 0, 1, machines()[0]),
        ((96, 3, 3, 8), 1, 3, 0, 1, machines()[0]),
        ((48, 7, 1, 8), 3, 1, 3, 1, machines()[0]),
    ],
)
def test_convolution_of_open_pictures(weight, groups, stride, pad, dilation, machine):
    w, b = random(*weight), random(weight[0])
    build = layer(w, b, strides=stride, padding=pad, dilation=dilation, groups=groups)
    model = Open(open_module(build, [("n", "h", "w", weight[3] * groups)]), machine)
    assert list(model.how.values()) == [("conv2d", "")]
    for k, size in enumerate(PICTURES):
        if fits(size, weight[1:3], pad, dilation):
            x = random(1 + k % 3, *size, weight[3] * groups)
            expected = np.maximum(reference(x, w, groups, stride, pad, dilation) + b, 0)
            close(model.guarded([x], expected.shape), expected, w[0].size)


@pytest.mark.parametrize("shape", [(1, "h", 9, 8), (1, 16, "w", 8), ("n", 3, "w", 8)])
def test_one_side_is_known(shape):
    w, b = random(24, 3, 3, 8), random(24)
    model = Open(open_module(layer(w, b, strides=1, padding=1), [shape]))
    assert list(model.how.values()) == [("conv2d", "")]
    for n, h, wide in [(1, 1, 1), (2, 7, 8), (1, 15, 17), (3, 33, 31)]:
        size = [d if isinstance(d, int) else {"n": n, "h": h, "w": wide}[d] for d in shape]
        x = random(*size)
        expected = np.maximum(convolution(x, w, 1, 1) + b, 0)
        close(model.guarded([x], expected.shape), expected, 72)


@pytest.mark.parametrize("rows", [16, 64, 128, 512])
def test_high_pictures_of_open_width(rows):
    """Where any width gives threads enough to do, no part of a kernel is for widths below 1: TVM fails on a division
    by one there."""
    w, b = random(16, 3, 1, 12), random(16)
    model = Open(open_module(layer(w, b, strides=1, padding=(4, 0), dilation=(4, 1)), [(1, rows, "w", 12)]))
    assert list(model.how.values()) == [("conv2d", "")]
    for wide in (1, 7, 8, 9, 33):
        x = random(1, rows, wide, 12)
        expected = np.pad(x.astype("float64"), ((0, 0), (4, 4), (0, 0), (0, 0)))
        expected = sum(expected[:, 4 * k : 4 * k + rows] @ w[:, k, 0].astype("float64").T for k in range(3))
        close(model.guarded([x], expected.shape), np.maximum(expected + b, 0), 36)


def test_what_follows_a_convolution_is_computed_in_it():
    w, b = random(24, 3, 3, 24), random(24)
    shapes = [("n", "h", "w", 24), ("n", "h", "w", 24), ("n", 1, 1, 24)]
    model = Open(open_module(layer(w, b, relax.op.nn.silu, strides=1, padding=1), shapes))
    assert list(model.how.values()) == [("conv2d", "")]
    for n, *size in [(1, 1, 1), (2, 7, 9), (3, 16, 17), (1, 40, 33)]:
        inputs = [random(n, *size, 24), random(n, *size, 24), random(n, 1, 1, 24)]
        t = convolution(inputs[0], w, 1, 1) + b + inputs[1] + inputs[2]
        expected = t / (1 + np.exp(-t))
        close(model.guarded(inputs, expected.shape), expected, 216)


def test_a_block_that_adds_its_own_input():
    w, b = random(16, 3, 3, 16), random(16)

    def build(bb, x):
        y = bb.emit(nhwc(relax.op.nn.conv2d, padding=1)(x, relax.const(w)))
        return relax.op.add(bb.emit(relax.op.add(y, relax.const(b))), x)

    model = Open(open_module(build, [("n", "h", "w", 16)]))
    assert list(model.how.values()) == [("conv2d", "")]
    for n, *size in [(1, 1, 1), (2, 7, 9), (3, 16, 17)]:
        x = random(n, *size, 16)
        expected = convolution(x, w, 1, 1) + b + x
        close(model.guarded([x], expected.shape), expected, 144)


@pytest.mark.parametrize("cores", [1, 3, 6])
def test_open_pictures_on_many_cores(cores):
    w, b = random(192, 3, 3, 64), random(192)
    model = Open(open_module(layer(w, b, strides=1, padding=1), [("n", "h", "w", 64)]), cores=cores)
    for n, *size in [(1, 1, 1), (1, 3, 40), (2, 20, 20), (9, 5, 8), (1, 70, 7)]:
        x = random(n, *size, 64)
        expected = np.maximum(convolution(x, w, 1, 1) + b, 0)
        close(model.guarded([x], expected.shape), expected, 576)


def test_infinities_and_nan_stay_where_they_are_read():
    w, b = random(24, 3, 3, 8), random(24)
    model = Open(open_module(layer(w, b, relax.op.negative, strides=1, padding=1), [("n", "h", "w", 8)]))
    x = random(1, 21, 37, 8)
    x[0, 5, 11, 3], x[0, 20, 36, 0] = np.nan, np.inf
    y = model(x)[0]
    spoiled = np.zeros(y.shape[1:3], bool)
    spoiled[4:7, 10:13] = spoiled[19:, 35:] = True
    assert np.isfinite(y[0][~spoiled]).all()
    assert np.isnan(y[0, 4:7, 10:13]).all() and not np.isfinite(y[0, 19:, 35:]).any()


def test_every_width_up_to_70():
    w, b = random(16, 3, 3, 4), random(16)
    model = Open(open_module(layer(w, b, strides=1, padding=1), [(1, "h", "w", 4)]))
    for wide in range(1, 71):
        x = random(1, 1 + wide % 4, wide, 4)
        expected = np.maximum(convolution(x, w, 1, 1) + b, 0)
        close(model(x)[0], expected, 36)


@pytest.mark.parametrize("machine", machines()[:1])
def test_a_1x1_convolution_is_a_product_of_all_pixels(machine):
    w, b = random(40, 1, 1, 24), random(40)
    model = Open(open_module(layer(w, b, strides=1, padding=0), [("n", "h", "w", 24), ("n", "h", "w", 40)]), machine)
    assert list(model.how.values()) == [("gemm", "")]
    for n, *size in [(1, 1, 1), (2, 7, 9), (3, 16, 17), (1, 5, 1)]:
        x, r = random(n, *size, 24), random(n, *size, 40)
        expected = np.maximum(convolution(x, w, 1, 0) + b + r, 0)
        close(model.guarded([x, r], expected.shape), expected, 24)


def test_a_product_of_pixels_that_are_scaled_picture_by_picture():
    w, b = random(40, 1, 1, 24), random(40)
    model = Open(open_module(layer(w, b, strides=1, padding=0), [("n", "h", "w", 24), ("n", 1, 1, 40)]))
    assert list(model.how.values()) == [("gemm", "")]
    for n, *size in [(1, 1, 1), (2, 7, 9), (3, 16, 17), (1, 5, 1)]:
        x, r = random(n, *size, 24), random(n, 1, 1, 40)
        expected = np.maximum(convolution(x, w, 1, 0) + b + r, 0)
        close(model.guarded([x, r], expected.shape), expected, 24)


@pytest.mark.parametrize("channels, stride", [(32, 1), (58, 2), (3, 1)])
def test_depthwise_and_pooling_of_open_pictures(channels, stride):
    w = random(channels, 3, 3, 1)
    window = {"pool_size": (3, 3), "strides": stride, "padding": 1, "layout": "NHWC", "out_layout": "NHWC"}
    attrs = {"strides": stride, "padding": 1, "groups": channels}
    depthwise = Open(open_module(layer(w, random(channels), **attrs), [("n", "h", "w", channels)]))
    largest = Open(open_module(lambda bb, x: relax.op.nn.max_pool2d(x, **window), [("n", "h", "w", channels)]))
    assert list(depthwise.how.values()) == [("depthwise", "")] and list(largest.how.values()) == [("pool", "")]
    for k, size in enumerate(PICTURES):
        x = random(1 + k % 3, *size, channels)
        taps = [
            np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)[
                :, ky : ky + size[0] : stride, kx : kx + size[1] : stride
            ]
            for ky in range(3)
            for kx in range(3)
        ]
        filled = [np.where(np.isinf(t), 0, t).astype("float64") for t in taps]
        sums = sum(t * w[:, k // 3, k % 3, 0] for k, t in enumerate(filled))
        expected = np.maximum(sums + random(channels), 0)
        close(depthwise.guarded([x], expected.shape), expected, 9)
        np.testing.assert_array_equal(largest.guarded([x], expected.shape), np.max(taps, 0))


def test_averages_of_open_pictures():
    window = {"pool_size": (2, 2), "strides": 2, "layout": "NHWC", "out_layout": "NHWC"}
    model = Open(open_module(lambda bb, x: relax.op.nn.avg_pool2d(x, **window), [("n", "h", "w", 24)]))
    assert list(model.how.values()) == [("pool", "")]
    for h, w in [(2, 2), (7, 9), (16, 33), (3, 70)]:
        x = random(2, h, w, 24)
        even = x[:, : h // 2 * 2, : w // 2 * 2].astype("float64").reshape(2, h // 2, 2, w // 2, 2, 24)
        close(model.guarded([x], even.mean((2, 4)).shape), even.mean((2, 4)), 4)


def test_what_follows_the_second_of_two_strided_layers_is_computed_in_it():
    """Sizes such as (h - 1)//2 + 1 of its input, and of what it adds to them, were handed over, and nothing fused."""
    w, b = random(16, 3, 3, 1), random(16)
    attrs = {"padding": 1, "groups": 16}

    def build(bb, x):
        y = bb.emit(layer(w, b, **attrs, strides=2)(bb, x))
        return layer(w, b, **attrs)(bb, bb.emit(layer(w, b, **attrs, strides=2)(bb, y)))

    model = Open(open_module(build, [("n", "h", "w", 16)]))
    assert len(model.how) == 2 and {family for family, _ in model.how.values()} == {"depthwise"}
    for n, *size in [(1, 1, 1), (2, 7, 9), (1, 16, 17), (3, 33, 31), (1, 8, 15), (1, 32, 5)]:
        x = y = random(n, *size, 16)
        for stride in (2, 2, 1):
            y = np.maximum(reference(y, w, 16, stride, 1, 1) + b, 0)
        close(model(x)[0], y, 81)


def least(module, **sizes):
    """The module with the smallest sizes that its symbols may have."""
    module["main"] = module["main"].with_attr(LEAST_SIZES, sizes)
    return module


@pytest.mark.parametrize(
    "least_side, padding, machine",
    [*((4, 1, machine) for machine in machines()), *((side, pad, machines()[0]) for side, pad in ((2, 1), (6, 0)))],
)
def test_squares_of_open_pictures(least_side, padding, machine):
    w, b = random(40, 3, 3, 24), random(40)
    build = layer(w, b, strides=1, padding=padding)
    module = least(open_module(build, [("n", "h", "w", 24), ("n", "h", "w", 40)][: 1 + (padding == 1)]), h=least_side)
    model = Open(least(module, h=least_side, w=least_side), machine)
    assert list(model.how.values()) == [("winograd", "")]
    for k, size in enumerate([(4, 4), (4, 7), (7, 8), (9, 5), (2, 9), (15, 16), (16, 15), (5, 17), (31, 33), (32, 47)]):
        if min(size) >= least_side:
            inputs = [random(1 + k % 3, *size, 24), random(1 + k % 3, *size, 40)][: len(model.module["main"].params)]
            expected = np.maximum(convolution(inputs[0], w, 1, padding) + b + (inputs[1] if len(inputs) > 1 else 0), 0)
            close(model.guarded(inputs, expected.shape), expected, 9 * 24 * 8)


@pytest.mark.parametrize("cores", [1, 6])
def test_squares_of_open_pictures_on_many_cores(cores):
    w, b = random(24, 3, 3, 16), random(24)
    module = least(open_module(layer(w, b, strides=1, padding=1), [("n", "h", "w", 16)]), h=2, w=3)
    model = Open(module, cores=cores)
    assert list(model.how.values()) == [("winograd", "")]
    for n, *size in [(1, 2, 3), (1, 3, 40), (2, 20, 21), (9, 5, 8), (1, 71, 7)]:
        x = random(n, *size, 16)
        expected = np.maximum(convolution(x, w, 1, 1) + b, 0)
        close(model.guarded([x], expected.shape), expected, 9 * 16 * 8)


def test_pictures_that_may_be_smaller_than_a_square_are_convolved_directly():
    w, b = random(16, 3, 3, 16), random(16)
    module = least(open_module(layer(w, b, strides=1, padding=1), [(1, "h", "w", 16)]), h=64, w=1)
    assert list(Open(module).how.values()) == [("conv2d", "")]


def scripts(model):
    return [f.script() for g, f in model.module.functions_items() if g.name_hint in model.how]


def test_depthwise_convolutions_copy_no_border():
    """The copy took as long as the taps of a 3x3 window."""
    build = layer(random(96, 5, 5, 1), random(96), padding=2, groups=96)
    (script,) = scripts(Open(open_module(build, [("n", "h", "w", 96)])))
    assert "depthwise" in script and "border = " not in script


def windows(x, pad, kernel, stride, dilation):
    """The taps of each window of a picture [n, h, w, c] with a border of zeros, as an array of each tap."""
    padded = np.pad(x, ((0, 0), (pad[0], pad[2]), (pad[1], pad[3]), (0, 0)))
    size = [(padded.shape[1 + k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in (0, 1)]
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            top, left = ky * dilation[0], kx * dilation[1]
            rows = slice(top, top + (size[0] - 1) * stride[0] + 1, stride[0])
            yield padded[:, rows, left : left + (size[1] - 1) * stride[1] + 1 : stride[1]]


WINDOWS = [
    # kernel, stride, dilation, padding (top, left, bottom, right)
    ((3, 3), (1, 2), (1, 1), (1, 1, 1, 1)),
    ((5, 5), (2, 1), (1, 1), (2, 2, 2, 2)),
    ((1, 7), (1, 1), (1, 1), (0, 3, 0, 3)),
    ((7, 1), (3, 2), (1, 1), (3, 0, 3, 0)),
    ((3, 3), (1, 1), (3, 2), (3, 2, 3, 2)),
    ((3, 3), (2, 2), (1, 1), (0, 0, 1, 1)),
    ((2, 4), (1, 1), (1, 1), (1, 3, 0, 0)),
    ((1, 1), (1, 1), (1, 1), (1, 2, 0, 1)),
    ((3, 3), (1, 1), (1, 1), (4, 5, 4, 5)),
]


@pytest.mark.parametrize("kernel, stride, dilation, pad", WINDOWS)
def test_depthwise_windows_of_every_form(kernel, stride, dilation, pad):
    w, b = random(32, *kernel, 1), random(32)
    attrs = {"strides": list(stride), "padding": list(pad), "dilation": list(dilation), "groups": 32}
    model = Open(open_module(layer(w, b, **attrs), [("n", "h", "w", 32)]))
    assert list(model.how.values()) == [("depthwise", "")]
    for k, size in enumerate([*PICTURES, (3, 200), (90, 61)]):
        if any(size[a] + pad[a] + pad[a + 2] <= dilation[a] * (kernel[a] - 1) for a in (0, 1)):
            continue
        x = random(1 + k % 3, *size, 32)
        taps = windows(x.astype("float64"), pad, kernel, stride, dilation)
        sums = sum(tap * w[:, k // kernel[1], k % kernel[1], 0] for k, tap in enumerate(taps))
        expected = np.maximum(sums + b, 0)
        close(model.guarded([x], expected.shape), expected, kernel[0] * kernel[1])


def test_weights_that_are_not_finite_meet_the_zeros_of_the_border():
    w, b = random(16, 3, 3, 1), random(16)
    w[3, 0, 1], w[5, 2, 2], w[7, 1, 0] = np.inf, np.nan, -np.inf
    model = Open(open_module(layer(w, b, relax.op.negative, padding=1, groups=16), [("n", "h", "w", 16)]))
    assert list(model.how.values()) == [("depthwise", "")]
    for size in [(1, 1), (2, 3), (5, 9), (9, 33)]:
        x = random(1, *size, 16)
        with np.errstate(invalid="ignore"):
            taps = windows(x.astype("float64"), (1, 1, 1, 1), (3, 3), (1, 1), (1, 1))
            expected = -(sum(tap * w[:, k // 3, k % 3, 0] for k, tap in enumerate(taps)) + b)
        y = model.guarded([x], expected.shape)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        np.testing.assert_allclose(y, expected, 1e-4, 1e-4)
