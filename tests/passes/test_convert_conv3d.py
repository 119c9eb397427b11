"""3-d convolutions and poolings as 2-d ones over every frame."""

import numpy as np
import pytest
from onnx import helper
from tvm import relax

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tests.passes.helpers import build, check_rewrite, ops, rand, run
from tvmopt.importer.sizes import variable
from tvmopt.passes import ConvertConv3d
from tvmopt.passes.graph import op_name, shape
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


N, D, H, W = map(variable, ("n", "d", "h", "w"))


@pytest.mark.parametrize(
    "depth, kernel, groups, attrs",
    [
        (1, (3, 3, 3), 1, dict(padding=(1, 1, 1))),
        (1, (1, 11, 5), 1, dict(padding=(0, 5, 2))),
        (1, (3, 1, 2), 4, dict(padding=(1, 0, 0), strides=(2, 1, 2), dilation=(1, 1, 3))),
        (4, (3, 3, 3), 1, dict(padding=(1, 1, 0, 0, 1, 2), strides=(2, 1, 1))),
        (3, (2, 3, 3), 2, dict(padding=(0, 1, 1), dilation=(2, 1, 1))),
        (D, (1, 3, 3), 1, dict(padding=(0, 1, 1))),
        (D, (1, 1, 1), 1, dict(strides=(2, 1, 1))),
        (D, (3, 1, 1), 1, dict(padding=(1, 0, 0))),
        (D, (3, 3, 3), 4, dict(padding=(1, 1, 1))),
        (D, (2, 3, 3), 1, dict(padding=(1, 1, 1), strides=(2, 1, 1))),
    ],
)
def test_open_sizes(depth, kernel, groups, attrs):
    w = c(rand(8, 4 // groups, *kernel))
    mod = build({"x": (N, 4, depth, H, W)}, lambda bb, x: nn.conv3d(x, w, groups=groups, **attrs))
    after = ConvertConv3d(DecisionLog())(mod)
    assert ops(after)["nn.conv2d"] and not ops(after)["nn.conv3d"]
    check_rewrite(ConvertConv3d, mod, dict(ops(after)), numbers=False)
    for batch, frames, height, width in [(1, 3, 7, 8), (2, 4, 9, 15), (3, 5, 16, 17), (1, 2, 33, 9)]:
        x = rand(batch, 4, frames if depth is D else depth, height, width, seed=height)
        np.testing.assert_allclose(run(after, [x])[0], run(mod, [x])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frames", [1, "open"])
@pytest.mark.parametrize("pool", [nn.max_pool3d, nn.avg_pool3d])
def test_open_pools(pool, frames):
    """Beside a convolution, which has its data in channels-last."""
    w, depth = c(rand(4, 3, 1, 1, 1)), D if frames == "open" else 1
    mod = build(
        {"x": (N, 3, depth, H, W)}, lambda bb, x: pool(bb.emit(nn.conv3d(x, w)), (2, 3, 2), (1, 2, 1), (1, 1, 0))
    )
    after = ConvertConv3d(DecisionLog())(mod)
    assert not ops(after)["nn.max_pool3d"] and not ops(after)["nn.avg_pool3d"]
    for batch, frame, height, width in [(1, 3, 7, 8), (2, 4, 9, 15), (3, 5, 16, 17)]:
        x = rand(batch, 3, 1 if depth == 1 else frame, height, width, seed=height)
        np.testing.assert_allclose(run(after, [x])[0], run(mod, [x])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("height", [9, H])
def test_one_frame_meets_one_tap(height):
    weight = rand(8, 4, 3, 3, 3)
    mod = build({"x": (2, 4, 1, height, 8)}, lambda bb, x: nn.conv3d(x, c(weight), padding=(1, 1, 1)))
    after = check_rewrite(
        ConvertConv3d, mod, {"permute_dims": 2, "reshape": 2, "nn.conv2d": 1}, numbers=height is not H
    )
    (conv,) = (b.value for b in after["main"].body.blocks[0].bindings if op_name(b.value) == "nn.conv2d")
    assert shape(conv.args[1]) == (8, 3, 3, 4)


def test_frames_that_no_tap_meets_are_the_border():
    """Taps two frames apart meet the only frame for the second result and the fourth; one between them never does."""
    w = c(rand(8, 4, 3, 3, 3))
    mod = build({"x": (1, 4, 1, 7, 8)}, lambda bb, x: nn.conv3d(x, w, padding=(2, 1, 1), strides=(2, 1, 1)))
    kinds = ops(ConvertConv3d(DecisionLog())(mod))
    assert kinds["strided_slice"] == 2
    check_rewrite(ConvertConv3d, mod, dict(kinds))
    none = build({"x": (1, 4, 1, 7, 8)}, lambda bb, x: nn.conv3d(x, c(rand(8, 4, 2, 3, 3)), padding=(1, 1, 1),
                                                                 dilation=(2, 1, 1)))  # fmt: skip
    check_rewrite(ConvertConv3d, none, dict(ops(ConvertConv3d(DecisionLog())(none))))


def test_infinite_weights_meet_the_border():
    """Zeros times them are NaN."""
    weight = rand(8, 4, 3, 3, 3)
    weight[2, 0, 0] = np.inf
    mod = build({"x": (1, 4, 1, 7, 8)}, lambda bb, x: nn.conv3d(x, c(weight), padding=(1, 1, 1)))
    x = rand(1, 4, 1, 7, 8)
    (found,), (expected,) = run(ConvertConv3d(DecisionLog())(mod), [x]), run(mod, [x])
    assert np.isnan(expected[:, 2]).all() and np.isfinite(expected[:, 3:]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "reason, size, body",
    [
        ("2", (N, 3, D, H, W), lambda x: nn.conv3d(x, nn.relu(c(rand(8, 3, 3, 3, 3))))),
        ("4", (N, 3, D, H, W), lambda x: nn.max_pool3d(x, 3)),
        ("4", (N, 3, 4, H, W), lambda x: nn.avg_pool3d(x, 3)),
    ],
)
def test_what_stays_where_sizes_are_open(reason, size, body):
    log = DecisionLog()
    mod = build({"x": size}, lambda bb, x: body(x))
    check_rewrite(ConvertConv3d, mod, numbers=False)
    ConvertConv3d(log)(mod)
    assert [d.reason[0] for d in log] == [reason]


@pytest.mark.parametrize("depth, bias", [(1, True), (1, False), (3, True)])
def test_families_compute_a_network_of_open_sizes(depth, bias):
    """Each convolution, pooling and transposed convolution of pictures one frame deep, or of a known number of them,
    was one of plain loops, at 1.8 GFLOP/s."""
    ends = ["b"] if bias else []
    nodes = [
        helper.make_node("Conv", ["x", "first", *ends], ["a"], auto_pad="SAME_UPPER", strides=[1, 2, 1]),
        helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("Conv", ["t", "each", *ends], ["c"], pads=[0, 2, 1, 0, 2, 1], dilations=[1, 2, 1], group=32),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[1, 3, 2], pads=[0, 1, 0, 0, 1, 1]),
        helper.make_node("ConvTranspose", ["p", "up"], ["u"], strides=[1, 2, 2], pads=[0, 1, 1, 0, 1, 1]),
        helper.make_node("Conv", ["u", "last"], ["y"], group=2),
    ]
    weights = {"first": rand(32, 3, 3, 5, 3), "each": rand(32, 1, 1, 3, 3), "up": rand(32, 8, 1, 4, 4),
               "last": rand(6, 4, 1, 1, 3), "b": rand(32)}  # fmt: skip
    if not bias:
        del weights["b"]
    made = model(nodes, [value("x", ("n", 3, depth, "h", "w"))], [value("y", None)], weights)
    compiled = tvmopt.compile(made, shape={"n": "1..3", "h": "7..40@16", "w": "7..40@16"}, verify=False)
    kernels = [(k.family, k.name) for k in compiled.report.kernels]
    assert not [name for family, name in kernels if family == "generic" and ("conv" in name or "pool" in name)]
    assert {"conv2d", "depthwise", "pool"} <= {family for family, _ in kernels}
    for batch, height, width in [(1, 7, 8), (2, 9, 15), (3, 16, 17), (1, 33, 9)]:
        x = rand(batch, 3, depth, height, width, seed=height)
        (expected,) = run_ort(made, {"x": x})
        found = compiled.model.run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


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
