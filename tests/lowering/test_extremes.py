"""Where an infinity or a mask's fill must stay in its place: which convolutions Winograd does not take."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tvmopt.lowering.extremes import Extremes

CONV2D = tvm.ir.Op.get("relax.nn.conv2d")

CONV = helper.make_node("Conv", ["v", "w"], ["c"], "conv", pads=[1] * 4)
HERE = helper.make_node("Identity", ["x"], ["v"])
QUANTIZE = helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"])


def model(before: list, behind: list, **values: object) -> onnx.ModelProto:
    """A 3x3 convolution of 32 channels in between."""
    rng = np.random.default_rng(0)
    values = {"w": rng.standard_normal((32, 32, 3, 3)) / 17, "s": 0.05, **values}
    stored = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in values.items()]
    stored.append(numpy_helper.from_array(np.asarray(3, np.uint8), "z"))
    read = {n for node in before for n in node.input}
    infos = [helper.make_tensor_value_info("x", 1, [1, 32, 28, 28])]
    infos += [helper.make_tensor_value_info("m", TensorProto.BOOL, [1, 1, 28, 28])] if "m" in read else []
    last = [*behind, CONV][-1 if not behind else len(behind) - 1].output[0]
    kind = TensorProto.UINT8 if last == "q" else 1
    graph = helper.make_graph(
        [*before, CONV, *behind], "g", infos, [helper.make_tensor_value_info(last, kind, None)], stored
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def families(one: onnx.ModelProto) -> set[str]:
    report = tvmopt.compile(one, target="znver5", int8="off", verify=False, records=False).report
    return {kernel.family for kernel in report.kernels if kernel.flops}


RELU = helper.make_node("Relu", ["c"], ["r"])
DEQUANTIZED = [
    helper.make_node("QuantizeLinear", ["x", "s", "z"], ["i"]),
    helper.make_node("DequantizeLinear", ["i", "s", "z"], ["v"]),
]


@pytest.mark.parametrize(
    ("before", "behind", "values", "family"),
    [
        ([HERE], [RELU], {}, "winograd"),
        ([HERE], [RELU, QUANTIZE], {}, "conv2d"),
        (DEQUANTIZED, [RELU, QUANTIZE], {}, "winograd"),  # what was bytes is finite
        ([helper.make_node("Where", ["m", "x", "f"], ["v"])], [RELU], {"f": -1e9}, "conv2d"),
        ([helper.make_node("Where", ["m", "x", "f"], ["v"])], [RELU], {"f": -np.inf}, "conv2d"),
        ([helper.make_node("Where", ["m", "x", "f"], ["v"])], [RELU], {"f": 0.0}, "winograd"),
        ([helper.make_node("Clip", ["x", "a", "b"], ["v"])], [RELU], {"a": -65504, "b": 65504}, "winograd"),
    ],
)
def test_winograd_is_not_where_it_would_make_wrong_numbers(before, behind, values, family):
    assert families(model(before, behind, **values)) & {"conv2d", "winograd"} == {family}


def test_an_infinity_reaches_the_pixels_beside_it_alone_where_the_result_is_quantised():
    compiled = tvmopt.compile(model([HERE], [RELU, QUANTIZE]), verify=False, records=False).model
    x = np.random.default_rng(1).standard_normal((1, 32, 28, 28)).astype(np.float32)
    before = compiled.run({"x": x})["q"]
    x[0, 3, 10, 10] = np.inf
    changed = np.argwhere(before != compiled.run({"x": x})["q"])
    assert changed[:, 2:].min() == 9 and changed[:, 2:].max() == 11


def test_a_graph_that_joins_and_cuts_again_and_again_is_walked_once():
    x = relax.Var("x", relax.TensorType((1, 32, 28, 28), "int8"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            one = bb.emit(relax.op.dequantize(x, relax.const(np.float32(0.1)), relax.const(np.int8(0))))
            for _ in range(100):
                both = bb.emit(relax.op.concat([one, one], 1))
                one = bb.emit(relax.op.strided_slice(both, [1], [0], [32]))
            weight = relax.const(np.ones((32, 32, 3, 3), np.float32))
            last = bb.emit_output(relax.op.nn.conv2d(one, weight))
        bb.emit_func_output(last)
    extremes = Extremes(bb.get()["main"])
    data = next(value.args[0] for value in extremes.values.values() if getattr(value, "op", None) == CONV2D)
    assert extremes.finite(data) and not extremes.filled(data)
