"""Results that have elements, of inputs that have none: the sum of nothing, and never what was in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.errors import TvmoptError

node = helper.make_node


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


CASES: dict[str, tuple[Any, dict[str, tuple[int, ...]], dict[str, Any], Any]] = {
    "Gemm": (
        node("Gemm", ["x", "w", "b"], ["y"], transA=1, transB=1),
        {"x": (0, 1)}, {"w": zeros(48, 0), "b": np.ones((1, 48), np.float32)}, np.ones((1, 48)),
    ),
    "MatMul": (node("MatMul", ["x", "w"], ["y"]), {"x": (2, 3, 0)}, {"w": zeros(2, 0, 4)}, np.zeros((2, 3, 4))),
    "Conv": (
        node("Conv", ["x", "w", "b"], ["y"]),
        {"x": (1, 0, 5, 5)}, {"w": zeros(4, 0, 3, 3), "b": np.ones(4, np.float32)}, np.ones((1, 4, 3, 3)),
    ),
    "ConvTranspose": (
        node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[1, 0, 0, 1], output_padding=[1, 0]),
        {"x": (1, 0, 5, 5)}, {"w": zeros(0, 4, 3, 3), "b": np.ones(4, np.float32)}, np.ones((1, 4, 11, 10)),
    ),
    "Det": (node("Det", ["x"], ["y"]), {"x": (2, 0, 0)}, {}, np.ones(2)),
    "ReduceMax": (node("ReduceMax", ["x"], ["y"], keepdims=0), {"x": (0, 3)}, {}, np.array(-np.inf)),
    "ReduceSum": (node("ReduceSum", ["x"], ["y"], keepdims=0), {"x": (0, 3)}, {}, np.array(0.0)),
    "a weighted mean of losses": (
        node("NegativeLogLikelihoodLoss", ["x", "t", "w"], ["y"]),
        {"x": (0, 5, 6)}, {"t": np.zeros((0, 6), np.int64), "w": np.ones(5, np.float32)}, np.array(np.nan),
    ),
    "a mean of losses": (
        node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"]),
        {"x": (2, 5, 0)}, {"t": np.zeros((2, 0), np.int64)}, np.array(0.0),
    ),
    "Einsum of one": (node("Einsum", ["x"], ["y"], equation="ij->i"), {"x": (3, 0)}, {}, np.zeros(3)),
    "Einsum of a diagonal": (
        node("Einsum", ["x", "w"], ["y"], equation="ii,j->j"), {"x": (0, 0)}, {"w": zeros(5)}, np.zeros(5),
    ),
    "Einsum": (
        node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik"), {"x": (3, 0)}, {"w": zeros(0, 4)}, np.zeros((3, 4)),
    ),
}  # fmt: skip


def dirtied() -> None:
    """Leave numbers in memory that is free then."""
    for number in (7e7, np.nan):
        held = [np.full(1 << 12, number, np.float32) for _ in range(50)]
        del held


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_of_no_elements(name: str, precision: str) -> None:
    made, inputs, weights, want = CASES[name]
    file = model([made], [value(n, s) for n, s in inputs.items()], [value("y", want.shape)], weights, opset=20)
    compiled = tvmopt.compile(file, precision=precision, records=False).model
    for _ in range(3):
        dirtied()
        np.testing.assert_array_equal(compiled.run({n: zeros(*s) for n, s in inputs.items()})["y"], want)


@pytest.mark.parametrize("constant", [False, True])
def test_the_scale_of_no_numbers_is_one(constant: bool) -> None:
    """The largest of no constants was whatever the evaluator found in memory."""
    nodes = [node("DynamicQuantizeLinear", ["c"], ["q", "s", "z"]), node("Abs", ["x"], ["y"])]
    inputs = [value("x", (2,)), *([] if constant else [value("c", (0, 4))])]
    outputs = [value("y", (2,)), value("s", ()), value("z", (), TensorProto.UINT8)]
    file = model(nodes, inputs, outputs, {"c": zeros(0, 4)} if constant else {}, opset=20)
    for _ in range(3):
        dirtied()
        compiled = tvmopt.compile(file, records=False).model
        found = compiled.run({"x": zeros(2)} | ({} if constant else {"c": zeros(0, 4)}))
        assert found["s"] == 1 and found["z"] == 0


def test_a_window_that_a_later_node_makes_too_large() -> None:
    """The updates of a ScatterND say that the image has no columns, once the convolution is through."""
    made = model(
        [
            node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 5], pads=[0, 2, 0, 2]),
            node("Reshape", ["d", "s"], ["r"]),
            node("ScatterND", ["r", "i", "u"], ["z"]),
        ],
        [value("x", ("n", 2, 3, "n")), value("d", (2, "n"))],
        [value("y", ("n", 4, 3, "n")), value("z", (2, "n", 1))],
        {
            "w": np.ones((4, 2, 1, 5), np.float32), "s": np.array([0, -1, 1]), "i": np.zeros((1, 1), np.int64),
            "u": zeros(1, 0, 1),
        },
    )  # fmt: skip
    with pytest.raises(TvmoptError, match="larger than the padded image"):
        tvmopt.compile(made, records=False)


@pytest.mark.parametrize("op", ["InstanceNormalization", "Softmax", "Relu"])
def test_no_elements_beside_an_open_size(op: str) -> None:
    weights = {"c": np.ones(17, np.float32), "d": np.ones(17, np.float32)} if op == "InstanceNormalization" else {}
    made = model([node(op, ["x", *weights], ["y"])], [value("x", ("n", 17, 1, 0))], [value("y", None)], weights)
    compiled = tvmopt.compile(made, threads=1, records=False).model
    for n in (1, 9):
        assert compiled.run({"x": zeros(n, 17, 1, 0)})["y"].shape == (n, 17, 1, 0)


def test_the_mean_of_no_elements_beside_an_open_size_is_no_number() -> None:
    norm = node("LayerNormalization", ["x", "w"], ["y", "mean", "inverse"], axis=1)
    outputs = [value(name, None) for name in ("y", "mean", "inverse")]
    made = model([norm], [value("x", ("n", 0, 3)), value("w", (0, 3))], outputs, {}, 17)
    found = tvmopt.compile(made, threads=1, verify=False, records=False).model.run(
        {"x": zeros(2, 0, 3), "w": zeros(0, 3)}
    )
    assert found["y"].shape == (2, 0, 3)
    assert found["mean"].shape == found["inverse"].shape == (2, 1, 1) and np.isnan(found["mean"]).all()


@pytest.mark.parametrize(("shape", "axis"), [(("n", 0), 0), (("n", 0), 1), (("n", 3, 0), 1), (("n", 0, 3), 1)])
def test_sums_along_an_axis_of_no_elements(shape: tuple[Any, ...], axis: int) -> None:
    """TVM divides by how many lie behind the axis."""
    nodes = [node("CumSum", ["x", "axis"], ["y"])]
    made = model(nodes, [value("x", shape)], [value("y", None)], {"axis": np.array(axis)})
    compiled = tvmopt.compile(made, verify=False)
    x = zeros(*(4 if size == "n" else size for size in shape))
    assert compiled.model.run({"x": x})["y"].shape == x.shape
