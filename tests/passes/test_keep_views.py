"""Reshapes between open sizes take no kernel, and no numbers change; an output of the model is a tensor of its own."""

import numpy as np
import onnx
from onnx import helper
from tvm import relax

import tvmopt
from tests.passes.helpers import build, ops
from tests.schedules.harness import Open, open_module
from tvmopt.importer.sizes import variable
from tvmopt.passes import KeepViews
from tvmopt.report import DecisionLog

op = relax.op
SIZES = [(1, 1, 2), (2, 7, 8), (1, 9, 15), (3, 16, 17), (1, 31, 33), (1, 2, 70)]


def joined(bb, x, y):
    """Two pictures' pixels behind each other, [n, h*w + (h*w)//2, 3, 4], with exp behind them."""
    n, h, w, c = x.ty.shape
    rest = bb.emit(op.reshape(x, (n, h * w, c)))
    both = bb.emit(op.concat([rest, y], 1))
    split = bb.emit(op.reshape(both, (n, h * w + y.ty.shape[1], 3, 4)))
    return op.exp(bb.emit(op.reshape(bb.emit(op.exp(split)), (n, 3 * (h * w + y.ty.shape[1]), 4))))


def test_sums_of_products_are_views():
    """TVM's analysis did not see it, and each number was found by divisions."""
    h, w = variable("h"), variable("w")
    module = open_module(joined, [("n", "h", "w", 12), ("n", "rest", 12)])
    model = Open(module)
    assert not any("reshape" in name for name in model.how)
    for n, h, w in SIZES:
        rng = np.random.default_rng(h)
        x, y = (rng.uniform(-1, 1, s).astype("float32") for s in ((n, h, w, 12), (n, h + 1, 12)))
        expected = np.concatenate([x.reshape(n, h * w, 12), y], 1).astype("float64")
        expected = np.exp(np.exp(expected)).reshape(n, -1, 4)
        np.testing.assert_allclose(model(x, y)[0], expected, rtol=1e-5)


def test_outputs_and_plain_sizes_are_left():
    n, h = variable("n"), variable("h")

    def body(bb, x):
        inside = bb.emit(op.reshape(x, (n, 2, h, 3)))
        last = bb.emit_output(op.reshape(bb.emit(op.reshape(x, (n * h, 6))), (n * h * 2, 3)))
        return op.exp(inside), last

    found = ops(KeepViews(DecisionLog())(build({"x": (n, 2 * h, 3)}, body)))
    assert found["tvmopt.view"] == 2 and found["reshape"] == 1
    plain = build({"x": (n, h, 6)}, lambda bb, x: op.exp(bb.emit(op.reshape(x, (n, h, 2, 3)))))
    assert "tvmopt.view" not in ops(KeepViews(DecisionLog())(plain))


def test_a_reshape_that_is_the_output_is_a_copy():
    def build_output(bb, x):
        n, h, w, c = x.ty.shape
        return op.reshape(x, (n, h * w, c))

    model = Open(open_module(build_output, [("n", "h", "w", 5)]))
    for n, h, w in SIZES:
        x = np.random.default_rng(h).standard_normal((n, h, w, 5)).astype("float32")
        y = model(x)[0]
        np.testing.assert_array_equal(y, x.reshape(n, h * w, 5))


def test_tensors_beyond_32_bits_compile():
    """TVM's pass ended with "Literal value 2162688000 exceeds range of int32" at a copy of the whole tensor."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    sides = [65536, 33000]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape)]
        for name, shape in (("x", sides), ("y", sides[::-1]))
    )
    graph = helper.make_graph([node], "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert tvmopt.compile(made, verify=False, records=False).artifact.manifest.outputs[0].shape == (33000, 65536)
