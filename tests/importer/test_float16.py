"""Sums, averages and functions of float16 are computed in float32 and rounded once: errors against float64."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.runtime.model import Model

EPSILON = 2.0**-11
"""Half a unit in the last place: rounding once leaves an rms error of 0.3 to 0.42 of it."""


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


CASES = {
    "GlobalAveragePool": ((1, 5, 31, 17), {}, {}),
    "GlobalLpPool": ((1, 5, 31, 17), {}, {}),
    "CumSum": ((3, 33), {}, {"axis": np.array(1)}),
    "CumProd": ((3, 9), {}, {"axis": np.array(1)}),
    "Einsum": ((4, 15, 33), {"equation": "abc->a"}, {}),
    "Gemm": ((9, 2), {"alpha": 0.3, "beta": 0.7, "transB": 1}, weights(w=(33, 2), c=(33,))),
    "Conv": ((1, 3, 9, 9), {}, {**weights(w=(8, 3, 3, 3)), "b": np.full(8, 3.0, np.float16)}),
    "ConvTranspose": ((1, 3, 9, 9), {}, {**weights(w=(3, 8, 3, 3)), "b": np.full(8, 3.0, np.float16)}),
    "LSTM": ((7, 2, 8), {"hidden_size": 9}, weights(w=(1, 36, 8), r=(1, 36, 9), b=(1, 72))),
    "GRU": ((7, 2, 8), {"hidden_size": 9}, weights(w=(1, 27, 8), r=(1, 27, 9), b=(1, 54))),
    "LpNormalization": ((31, 33), {}, {}),
    "Sigmoid": ((31, 33), {}, {}),
    "HardSwish": ((31, 33), {}, {}),
    "Gelu": ((31, 33), {}, {}),
}


def compiled(name, shape, attributes, values, tmp_path, opset=20, kind=TensorProto.FLOAT16, out=TensorProto.FLOAT16):
    node = helper.make_node(name, ["x", *values], ["y"], **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(v, n) for n, v in values.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.save(model, tmp_path / "m.onnx")
    return model, Model(tvmopt.compile(tmp_path / "m.onnx", verify=False).artifact)


@pytest.mark.parametrize("name", CASES)
def test_one_rounding(name, tmp_path):
    shape, attributes, values = CASES[name]
    model, ours = compiled(name, shape, attributes, values, tmp_path, 26 if name == "CumProd" else 20)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    exact = Oracle(model).run({"x": x})["y"]
    found = ours.run({"x": x})["y"]
    assert found.dtype == np.float16
    allowed = EPSILON * np.abs(exact) + 2.0**-13 * np.abs(exact).max()
    assert (np.abs(found.astype(np.float64) - exact) <= allowed).all()


def test_a_product_beyond_float16_is_a_term_of_its_sum(tmp_path):
    w = np.array([[-300.0], [299.0]], np.float16)
    _, ours = compiled("Gemm", (1, 2), {}, {"w": w}, tmp_path)
    assert ours.run({"x": np.array([[300, 300]], np.float16)})["y"] == -300


def test_a_sum_of_squares_beyond_float16(tmp_path):
    _, ours = compiled("LpNormalization", (2,), {}, {}, tmp_path)
    np.testing.assert_allclose(ours.run({"x": np.array([3000, 4000], np.float16)})["y"], [0.6, 0.8], atol=5e-4)


def test_is_nan_of_bfloat16(tmp_path):
    kinds = {"kind": TensorProto.BFLOAT16, "out": TensorProto.BOOL}
    _, ours = compiled("IsNaN", (3,), {}, {}, tmp_path, **kinds)
    x = np.array([1, np.nan, np.inf]).astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    assert ours.run({"x": x})["y"].tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceL2", "ReduceMean", "Softmax", "CumSum"])
def test_constants_of_16_bits_are_added_up_in_float32(op: str, kind: int) -> None:
    """NumPy adds up bfloat16 in bfloat16: 1,536 ones are 256, which verification accepted as the file's constant."""
    array = np.ones((3, 512), np.float32) if op != "Softmax" else np.zeros((3, 512), np.float32)
    constant = array.astype(helper.tensor_dtype_to_np_dtype(kind))
    values = {"c": constant} | ({"axis": np.array(1 if op == "CumSum" else [1])} if op != "Softmax" else {})
    nodes = [helper.make_node(op, list(values), ["s"]), helper.make_node("Add", ["x", "s"], ["y"])]
    made = model(nodes, [value("x", (3, 512), kind)], [value("y", (3, 512), kind)], values, opset=20)
    found = tvmopt.compile(made, records=False).model.run({"x": np.zeros_like(constant)})["y"]
    sums = {"ReduceSum": 512.0, "ReduceL2": 512**0.5, "ReduceMean": 1.0, "Softmax": 1 / 512}
    want = np.cumsum(array, 1) if op == "CumSum" else np.full_like(array, sums[op])
    np.testing.assert_allclose(found.astype(float), want, rtol=2**-8)
