"""1-d convolutions and poolings as 2-d ones, one pixel high."""

import numpy as np
import pytest
from onnx import helper
from tvm import relax, tirx

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tests.passes.helpers import build, check_rewrite, rand, run
from tvmopt.passes import ConvertConv1d, FoldConstant
from tvmopt.passes.graph import op_name, shape
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


def test_a_border_stays_before_its_convolution():
    """Filled with the zero point of bytes, it is the convolution's: one kernel copies or computes it."""
    w = c(np.random.default_rng(0).integers(-128, 128, (8, 4, 3)).astype("int8"))

    def body(bb, x):
        return nn.conv1d(bb.emit(nn.pad(x, [0, 0, 0, 0, 1, 2], pad_value=9.0)), w, out_dtype="int32")

    after = check_rewrite(
        ConvertConv1d, build({"x": ((2, 4, 9), "uint8")}, body), {"reshape": 3, "nn.pad": 1, "nn.conv2d": 1}
    )
    calls = [b.value for b in after["main"].body.blocks[0].bindings]
    (conv,) = (v for v in calls if op_name(v) == "nn.conv2d")
    (pad,) = (b for b in after["main"].body.blocks[0].bindings if op_name(b.value) == "nn.pad")
    assert conv.args[0].same_as(pad.var) and shape(pad.var) == (2, 4, 1, 12)


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


@pytest.mark.parametrize("groups, attrs", [(2, dict(padding=(1, 2), strides=2)), (1, dict(padding=(4, 4), dilation=4))])
def test_an_open_length(groups, attrs):
    n, w = tirx.Var("n", "int64"), c(rand(8, 4 // groups, 3))
    mod = build({"x": (2, 4, n)}, lambda bb, x: nn.conv1d(x, w, groups=groups, **attrs))
    made = check_rewrite(
        lambda log: lambda m: FoldConstant(log)(ConvertConv1d(log)(m)),
        mod,
        {"reshape": 2, "nn.conv2d": 1},
        numbers=False,
    )
    for length in (1, 7, 8, 9, 33):
        x = rand(2, 4, length, seed=length)
        np.testing.assert_allclose(run(made, [x])[0], run(mod, [x])[0], rtol=1e-5, atol=1e-5)


def test_open_channels_stay():
    n = tirx.Var("n", "int64")
    mod = build({"x": (1, n, 9)}, lambda bb, x: nn.max_pool1d(x, 3))
    check_rewrite(ConvertConv1d, mod, numbers=False)


def test_families_compute_a_network_of_open_length():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[6, 6], dilations=[3]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "each"], ["c"], pads=[7, 7], group=32),
        helper.make_node("Conv", ["c", "far"], ["y"], strides=[4]),
    ]
    weights = {"w": rand(32, 8, 5), "each": rand(32, 1, 15), "far": rand(48, 32, 8)}
    made = model(nodes, [value("x", ("n", 8, "t"))], [value("y", None)], weights)
    compiled = tvmopt.compile(made, shape={"n": "1..3", "t": "8..600@100"}, verify=False)
    kernels = [(k.family, k.name) for k in compiled.report.kernels]
    assert {"conv2d", "depthwise"} <= {family for family, _ in kernels}
    assert not [name for family, name in kernels if family == "generic" and "conv" in name]
    for batch, length in [(1, 8), (2, 9), (1, 33), (3, 100), (1, 600)]:
        x = rand(batch, 8, length, seed=length)
        (expected,) = run_ort(made, {"x": x})
        found = compiled.model.run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
