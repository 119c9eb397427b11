"""Axes that a run finds to be empty, or shorter than what is asked of them: an error, and no foreign memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.errors import InputError, UnsupportedOp

ROWS, COLUMNS = 9, 15
GRID = np.random.default_rng(0).random((1, 3, 3, 2), np.float32)


def model(op: str, inputs: dict[str, np.ndarray | None], **attributes: Any) -> onnx.ModelProto:
    """`op` of the rows of x that a mask chooses, as a picture [1, 1, rows, 15]."""
    constants = {name: array for name, array in inputs.items() if array is not None}
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["rows"], axis=0),
        helper.make_node("Unsqueeze", ["rows", "axes"], ["u"]),
        helper.make_node(op, ["u", *(name if name in constants else "" for name in inputs)], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS]),
         helper.make_tensor_value_info("mask", TensorProto.BOOL, [ROWS])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in (constants | {"axes": np.array([0, 1])}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def at(chosen: int) -> dict[str, np.ndarray]:
    mask = np.arange(ROWS) < chosen
    return {"x": np.random.default_rng(chosen).standard_normal((ROWS, COLUMNS)).astype(np.float32), "mask": mask}


PADS = {"pads": np.array([0, 0, 1, 0, 0, 0, 1, 0])}
SIZES = {"roi": None, "scales": None, "sizes": np.array([1, 1, 4, 15])}


@pytest.mark.parametrize(
    "op, inputs, attributes, enough, told",
    [
        ("Pad", PADS, {"mode": "edge"}, 1, "axis 2 is empty"),
        ("Pad", PADS, {"mode": "wrap"}, 1, "axis 2 is empty"),
        ("Pad", PADS, {"mode": "reflect"}, 2, "axis 2 is empty"),
        ("Resize", SIZES, {"mode": "nearest"}, 1, "axis 2 is empty"),
        ("Resize", SIZES, {"mode": "linear"}, 1, "axis 2 is empty"),
        ("GridSample", {"grid": GRID}, {"padding_mode": "border"}, 1, "axis 2 is empty"),
        ("GridSample", {"grid": GRID}, {"padding_mode": "reflection", "mode": "nearest"}, 1, "axis 2 is empty"),
        ("ArgMax", {}, {"axis": 2}, 1, "axis 2 is empty, so it has no largest"),
        (
            "ArgMin",
            {},
            {"axis": -2, "keepdims": 0, "select_last_index": 1},
            1,
            "axis 2 is empty, so it has no smallest",
        ),
        ("TopK", {"k": np.array([1])}, {"axis": 2}, 1, "k is 1, and axis 2 has fewer"),
        ("TopK", {"k": np.array([3])}, {"axis": 2}, 3, "k is 3, and axis 2 has fewer"),
    ],
)
def test_what_has_too_little_is_an_error(
    op: str, inputs: dict[str, np.ndarray | None], attributes: dict[str, Any], enough: int, told: str
) -> None:
    made = model(op, inputs, **attributes)
    if op == "TopK":
        made.graph.node[-1].output.append("indices")
    compiled = tvmopt.compile(made, verify=False, threads=1)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for chosen in (enough, 8, ROWS):
        right = session.run(["y"], at(chosen))[0]
        np.testing.assert_allclose(compiled(**at(chosen)), right, rtol=1e-4, atol=1e-5)
    for chosen in range(1 if op == "Pad" else enough):
        with pytest.raises(InputError, match=told):
            compiled(**at(chosen))
    np.testing.assert_allclose(compiled(**at(8)), session.run(["y"], at(8))[0], rtol=1e-4, atol=1e-5)


def test_a_scale_of_nothing_is_nothing() -> None:
    scales = {"roi": None, "scales": np.array([1, 1, 2, 1], np.float32)}
    compiled = tvmopt.compile(model("Resize", scales, mode="linear"), verify=False, threads=1)
    assert np.shape(compiled(**at(0))) == (1, 1, 0, COLUMNS)


@pytest.mark.parametrize(("op", "more"), [("MeanVarianceNormalization", ()), ("GroupNormalization", ("s", "b"))])
def test_operators_that_onnx_infers_nothing_for_have_empty_results_too(op: str, more: tuple[str, ...]) -> None:
    """A mean of nothing divided by zero while it was lowered."""
    node = helper.make_node(op, ["x", *more], ["y"], **({"num_groups": 1} if more else {}))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3, 0, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(3, np.float32), n) for n in more],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    assert compiled.run({"x": np.zeros((3, 3, 0, 1), np.float32)})["y"].shape == (3, 3, 0, 1)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_the_place_of_an_extreme_of_a_found_vector_is_one_number(op: str) -> None:
    """What ends the call where there is none made a vector of it."""
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["some"]),
        helper.make_node(op, ["some"], ["y"], axis=0, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5]),
         helper.make_tensor_value_info("mask", TensorProto.BOOL, [5])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    x, mask = np.float32([3, 1, 9, 0, 4]), np.array([True, True, False, False, True])
    found = compiled.run({"x": x, "mask": mask})["y"]
    assert found.shape == () and found == getattr(np, op.lower())(x[mask])


@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_windows_larger_than_what_is_found(op):
    """A size of minus one was memory of 2**61 bytes, and TVM's error; the next call finds the model as it was."""
    weights = {"w": np.ones((4, COLUMNS, 3), np.float32)} if op == "Conv" else {}
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["c"], axis=0),
        helper.make_node("Transpose", ["c"], ["t"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["t", "zero"], ["u"]),
        helper.make_node(op, ["u", *weights], ["y"], kernel_shape=[3]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS]),
         helper.make_tensor_value_info("mask", TensorProto.BOOL, [ROWS])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in (weights | {"zero": np.array([0])}).items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    for chosen in (4, 1, 3, 1, 5):
        if chosen < 3:
            with pytest.raises(InputError, match="select too few"):
                compiled.run(at(chosen))
        else:
            assert compiled.run(at(chosen))["y"].shape[2] == chosen - 2


@pytest.mark.parametrize("batch", [3, "n"])
def test_a_sum_with_rows_whose_number_is_not_known_is_refused(batch: int | str) -> None:
    """A Range with a step from outside has one row or seven, or does not fit: TVM's code generator was asked to add."""
    nodes = [
        helper.make_node("Range", ["zero", "seven", "step"], ["range"]),
        helper.make_node("Gather", ["table", "range"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"], "sum"),
    ]
    table = np.zeros((70, 12), np.float32)
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 7, 12]),
         helper.make_tensor_value_info("step", TensorProto.INT64, [])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in (("zero", np.array(0)), ("seven", np.array(7)), ("table", table))],
    )  # fmt: skip
    with pytest.raises(UnsupportedOp, match="values decide whether sizes") as caught:
        tvmopt.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))
    assert "sum" in caught.value.where


def test_a_range_that_would_end_before_it_begins_is_empty() -> None:
    """From 2 to the number of what a mask selects."""
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["rows"], axis=0),
        helper.make_node("Shape", ["rows"], ["shape"], start=0, end=1),
        helper.make_node("Squeeze", ["shape"], ["count"]),
        helper.make_node("Range", ["two", "count", "one"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS]),
         helper.make_tensor_value_info("mask", TensorProto.BOOL, [ROWS])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array(n), name) for n, name in ((2, "two"), (1, "one"))],
    )  # fmt: skip
    made = tvmopt.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)).model
    for chosen in (0, 1, 2, 3, ROWS):
        np.testing.assert_array_equal(made.run(at(chosen))["y"], np.arange(2, chosen))


@pytest.mark.parametrize("op, nothing", [("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceProd", 1.0)])
def test_a_reduction_of_at_most_one_number(op: str, nothing: float) -> None:
    """One number chosen or none: the kernel's parameters have known sizes, only what is between them is open."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float x) => (float y) <float bound = {{100}}, int64[1] flat = {{-1}}, int64[1] axis = {{0}}> {{
            large = Greater (x, bound)
            mask = Reshape (large, flat)
            one = Reshape (x, flat)
            chosen = Compress (one, mask)
            y = {op} <keepdims = 0> (chosen, axis)
        }}""")
    compiled = tvmopt.compile(model, cache=False)
    for x, expected in ((200.0, 200.0), (0.0, nothing), (np.nan, nothing)):
        assert compiled.model.run({"x": np.float32(x)})["y"] == np.float32(expected)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_size_that_values_decide_in_16_bits(precision: str) -> None:
    """Products in 16 bits rewrite the whole function, and what names a size is read by nobody."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[9, 16] x) => (float[rows, 24] y) <float zero = {0}, int64[1] last = {-1}> {
            product = MatMul (x, weight)
            best = ReduceMin <keepdims = 0> (product, last)
            mask = Less (best, zero)
            chosen = Compress <axis = 0> (product, mask)
            y = Softmax (chosen)
        }""")
    weight = np.abs(np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32))
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    compiled = tvmopt.compile(model, precision=precision, cache=False)
    for signs in (np.ones(9), -np.ones(9), np.where(np.arange(9) % 3, 1, -1)):
        x = np.broadcast_to(signs[:, None], (9, 16)).astype(np.float32)
        assert compiled.model.run({"x": x})["y"].shape == (int((signs < 0).sum()), 24)
