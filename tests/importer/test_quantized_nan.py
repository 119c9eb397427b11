"""NaN into QuantizeLinear: ONNX leaves open what comes out; here it is the zero point, by every way there is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tvmopt.analysis.oracle.evaluate import Oracle

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "uint16": TensorProto.UINT16, "int16": TensorProto.INT16}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("lanes", [1, 9, 17])
def test_nan_is_the_zero_point(kind: str, source: str, along: bool, lanes: int) -> None:
    """The oracle said 0: a right model whose logarithms are NaN was refused (fuzz, seed 30009, 180)."""
    x = np.resize(np.array([np.nan, 1.25, np.inf, -np.inf, -0.75], source), (lanes, 5))
    scale, zero = np.array([0.5] * 5 if along else 0.5, source), np.array([3] * 5 if along else 3, kind)
    value = helper.make_tensor_value_info
    given = {n: helper.make_tensor(n, t, a.shape, a.reshape(-1).tolist()) for n, t, a in (
        ("s", helper.np_dtype_to_tensor_dtype(np.dtype(source)), scale), ("z", TYPES[kind], zero))}  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1)], "g",
        [value("x", helper.np_dtype_to_tensor_dtype(np.dtype(source)), x.shape)],
        [value("y", TYPES[kind], x.shape)], list(given.values()),
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    row = np.array([3, 5, high, low, 1], kind)  # 2.5 is 2, -1.5 is -2: to even
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.broadcast_to(row, x.shape))
    np.testing.assert_array_equal(Oracle(model).run({"x": x})["y"], np.broadcast_to(row, x.shape))


@pytest.mark.parametrize("zero", [0.0, 0.5, -2.0])
@pytest.mark.parametrize("constant", [False, True])
def test_a_zero_point_of_float8_is_subtracted(zero: float, constant: bool) -> None:
    """The formula is that of integers; the point was left out (fuzz, seed 98002, 1132)."""
    kind = np.dtype(ml_dtypes.float8_e4m3fn)
    x = np.array([-2, -0.5, 0, 0.25, 1.5, 448], np.float32).astype(kind)
    point = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [zero])
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT8E4M3FN, x.shape)]
    inputs += [] if constant else [value("z", TensorProto.FLOAT8E4M3FN, [])]
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])], "g", inputs,
        [value("y", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]), *([point] if constant else [])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": x} if constant else {"x": x, "z": np.array(zero, kind)}
    found = tvmopt.compile(model, threads=1, verify=False).model.run(feeds)["y"]
    np.testing.assert_allclose(found, (x.astype(np.float32) - zero) * 0.5)


@pytest.mark.parametrize("lanes", [1, 9, 17, 512])
@pytest.mark.parametrize("ends", [(np.inf, 1), (-np.inf, 1), (-np.inf, np.inf), (np.nan, 1)])
def test_the_zero_point_of_an_infinite_range(lanes: int, ends: tuple[float, float]) -> None:
    """It was what the processor makes of NaN: 255 in one kernel, 0 in another one and in the oracle."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    value, (f, u8) = helper.make_tensor_value_info, (TensorProto.FLOAT, TensorProto.UINT8)
    outputs = [value("q", u8, [lanes, 2]), value("s", f, []), value("z", u8, []), value("y", f, [lanes, 2])]
    graph = helper.make_graph(nodes, "g", [value("x", f, [lanes, 2])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    x = np.resize(np.float32(ends), (lanes, 2))
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})
    assert int(found["z"]) == 0 and not np.isfinite(found["s"])
    for name, expected in Oracle(model).run({"x": x}).items():
        np.testing.assert_array_equal(found[name], expected)
