"""Seeded inputs: valid for the model, the same every time."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.samples import sample_inputs
from tvmopt.runtime.tensors import TensorInfo


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, "float32"), name)


def embedding_model(rows: int = 7) -> onnx.ModelProto:
    """ids -> Cast -> Unsqueeze -> Gather of a table with `rows` rows; `types` is added, `mask` multiplied."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["ids64"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["ids64", "axes"], ["more"]),
        helper.make_node("Gather", ["table", "more"], ["e"], axis=0),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["m"], ["s"], keepdims=0),
        helper.make_node("Mul", ["e", "s"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g",
        [value("ids", TensorProto.INT32, [1, 64]), value("mask", TensorProto.INT64, [1, 64])],
        [value("y", TensorProto.FLOAT, [1, 1, 64, 4])],
        [weights("table", rows, 4), numpy_helper.from_array(np.array([0]), "axes")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_token_ids_stay_in_the_table() -> None:
    model = embedding_model()
    bounds = integer_bounds(model)
    assert bounds == {"ids": (0, 7)}
    infos = [TensorInfo("ids", (1, 64), "int32"), TensorInfo("mask", (1, 64), "int64")]
    feeds = sample_inputs(infos, bounds=bounds)
    assert set(feeds["ids"].ravel()) == set(range(7))
    assert set(feeds["mask"].ravel()) == {0, 1}
    assert feeds["ids"].dtype == np.int32


def test_seeded() -> None:
    infos = [
        TensorInfo("a", (3, 5), "float32"),
        TensorInfo("b", (), "bool"),
        TensorInfo("c", (2,), "bfloat16"),
    ]
    first, second, other = (sample_inputs(infos, seed=seed) for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    assert not np.array_equal(first["a"], other["a"])
    assert sample_inputs(infos, fill="ones")["a"].min() == 1
    assert not sample_inputs(infos, fill="zeros")["a"].any()
