"""What is no algebra of real numbers: sums of floats that do not cancel, comparisons with the lowest integer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvmopt

FLOATS = np.array([np.nan, np.inf, -np.inf, 1e38, -3e38, 1.0, 0.3, -0.0, 12582911.6, 1e-30], "float32")


def model_of(nodes, inputs, constants=None, kinds=None):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g",
        [value(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()],
        [value(n.output[0], (kinds or {}).get(n.output[0], 1), None) for n in nodes if n.output[0].startswith("y")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, inputs):
    return tvmopt.compile(model, verify=False, records=False).model.run(inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sums_do_not_cancel(dtype):
    """(x + z) - z is x only where nothing is rounded: adding 1.5 * 2^23 and taking it away rounds to whole numbers.
    Sums of float16 are computed in float32."""
    x = np.clip(FLOATS, -6e4, 6e4).astype(dtype) if dtype == "float16" else FLOATS.astype(dtype)
    z, c = np.roll(x, 3), np.array({"float16": 1536, "float32": 12582912, "float64": 1.5 * 2**52}[dtype], dtype)
    node = helper.make_node
    nodes = [
        node("Add", ["x", "z"], ["a"]), node("Sub", ["a", "z"], ["y0"]), node("Sub", ["a", "x"], ["y1"]),
        node("Add", ["x", "c"], ["b"]), node("Sub", ["b", "c"], ["y2"]), node("Sub", ["b", "x"], ["y3"]),
        node("Sub", ["x", "x"], ["y4"]), node("Mul", ["x", "z"], ["p"]), node("Mul", ["z", "x"], ["q"]),
        node("Sub", ["p", "q"], ["y5"]), node("Sub", ["x", "z"], ["d"]), node("Add", ["d", "z"], ["y6"]),
    ]  # fmt: skip
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of(nodes, {"x": x, "z": z}, {"c": c}, {f"y{i}": number for i in range(7)})
    found = run(model, {"x": x, "z": z})
    if dtype == "float16":
        x, z, c = (np.asarray(t, np.float32) for t in (x, z, c))
    with np.errstate(all="ignore"):
        a, b, d = x + z, x + c, x - z
        want = [t.astype(dtype) for t in (a - z, a - x, b - c, b - x, x - x, x * z - z * x, d + z)]
    for i, one in enumerate(want):
        np.testing.assert_array_equal(found[f"y{i}"], one, err_msg=str(i))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_lowest_integer_is_compared(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.min + 1, -1, 0, info.max], dtype)
    functions = {
        "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
    }  # fmt: skip
    nodes, want = [], []
    for name, function in functions.items():
        for constant, value in (("low", info.min), ("high", info.max)):
            nodes.append(helper.make_node(name, ["x", constant], [f"y{len(nodes)}"]))
            nodes.append(helper.make_node(name, [constant, "x"], [f"y{len(nodes)}"]))
            want += [function(x, value), function(value, x)]
    constants = {"low": np.array(info.min, dtype), "high": np.array([info.max], dtype)}
    model = model_of(nodes, {"x": x}, constants, {f"y{i}": 9 for i in range(len(want))})
    found = run(model, {"x": x})
    for i, one in enumerate(want):
        np.testing.assert_array_equal(found[f"y{i}"], one, err_msg=f"{nodes[i].op_type} {list(nodes[i].input)}")


@pytest.mark.parametrize("shape", [(7,), (9,), (7, 1)])
def test_prelu_of_integers(shape):
    x = np.arange(-31, 32, dtype="int32").reshape(7, 9)
    slope = np.arange(2, 2 + np.prod(shape), dtype="int32").reshape(shape)
    if shape == (7,):
        x = x.reshape(1, 7, 9)
        slope = slope.reshape(7, 1)
    model = model_of([helper.make_node("PRelu", ["x", "s"], ["y"])], {"x": x, "s": slope}, None, {"y": 6})
    np.testing.assert_array_equal(run(model, {"x": x, "s": slope})["y"], np.where(x < 0, x * slope, x))


def test_a_subtraction_is_one_operation():
    x = np.zeros((9, 33), "float32")
    model = model_of([helper.make_node("Sub", ["x", "z"], ["y"])], {"x": x, "z": x})
    assert tvmopt.compile(model, verify=False, records=False).report.flops == x.size
