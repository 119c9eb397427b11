"""FLOPs, parameters, bytes and peak memory of whole models, against published figures and hand arithmetic."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt.analysis.metrics import inspect, metrics, propagates

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def _fill(light: onnx.ModelProto) -> onnx.ModelProto:
    """The light graph with zero weights as initialisers: shapes are all this test needs."""
    graph = light.graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    weights = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    del graph.node[:]
    graph.node.extend(nodes)
    for node in weights:
        shape = [int(d) for d in stored[node.input[0]]]
        tensor = graph.initializer.add(name=node.output[0], data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL  # no data at all: VGG-19 would be half a gigabyte
    return light


@pytest.mark.parametrize("entry", [e for e in models.SUITE if e.origin == "light" and e.gmacs], ids=lambda e: e.name)
def test_published_multiply_adds(entry):
    model = _fill(onnx.load(LIGHT / f"light_{entry.source}.onnx"))
    found = metrics(model)
    assert found.macs / 1e9 == pytest.approx(entry.gmacs, rel=0.02)
    assert not found.unknown


@pytest.mark.parametrize(
    ("source", "millions"),
    [
        ("bvlc_alexnet", 60.97),
        ("vgg19", 143.67),
        ("squeezenet", 1.2355),
        ("resnet50", 25.61),
        ("inception_v1", 7.0),
    ],
)
def test_published_parameters(source, millions):
    found = metrics(_fill(onnx.load(LIGHT / f"light_{source}.onnx")))
    assert found.parameters / 1e6 == pytest.approx(millions, rel=0.02)
    assert found.weight_bytes == 4 * found.parameters


def _chain() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Reshape", ["a", "shape"], ["b"], "view"),
        helper.make_node("MatMul", ["b", "w"], ["c"], "product"),
        helper.make_node("Add", ["c", "c"], ["y"], "twice"),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 7])],
        [
            numpy_helper.from_array(np.array([6, 5]), "shape"),
            numpy_helper.from_array(np.zeros((5, 7), np.float32), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_bytes_intensity_and_peak_by_hand():
    found = metrics(_chain())
    first, view, product, twice = found.ops
    assert (first.bytes, view.bytes) == (2 * 30 * 4, 0)
    assert product.bytes == 4 * (30 + 35 + 42)
    assert product.flops == 2 * 6 * 7 * 5
    assert product.intensity == pytest.approx(420 / 428)
    assert twice.bytes == 4 * (42 + 42)  # the same tensor twice is read once
    assert found.timeline == (240, 120, 120 + 168, 168 + 168)  # x+a; a; a+c; c+y
    assert (found.peak_activation_bytes, found.peak_op) == (336, "twice")
    assert (found.parameters, found.weight_bytes) == (35, 140)
    assert found.floor_bytes == 140 + 120 + 168


def test_dtype_sizes():
    model = _chain()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros((5, 7), np.float16), "w"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert metrics(model).weight_bytes == 70
    assert metrics(model).ops[0].bytes == 120


def test_of_a_table_that_is_looked_up_in_only_the_rows_are_read():
    table = numpy_helper.from_array(np.zeros((1000, 8), np.float32), "table")
    value = [
        helper.make_tensor_value_info("i", TensorProto.INT64, [3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8]),
    ]
    lookup = helper.make_node("Gather", ["table", "i"], ["y"])
    found = metrics(helper.make_model(helper.make_graph([lookup], "g", value[:1], value[1:], [table])))
    assert (found.weight_bytes, found.read_bytes) == (32000, 96)
    assert found.floor_bytes == 96 + 24 + 96
    other = helper.make_node("MatMul", ["table", "z"], ["p"])
    value.insert(0, helper.make_tensor_value_info("z", TensorProto.FLOAT, [8, 2]))
    graph = helper.make_graph([lookup, other], "g", value[:2], value[2:], [table])
    assert metrics(helper.make_model(graph)).read_bytes == 32000


def test_a_folded_copy_of_a_shared_weight_is_no_parameter():
    w = numpy_helper.from_array(np.zeros((16, 8), np.float32), "w")
    value = [
        helper.make_tensor_value_info("i", TensorProto.INT64, [3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 16]),
    ]
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["h"]),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "tied", value[:1], value[1:], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert inspect(model).parameters == 128


def test_a_node_of_unknown_shape_is_listed_and_counts_nothing():
    model = _chain()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found = metrics(model)
    assert "first (Relu)" in found.unknown
    assert all(op.name != "first" for op in found.ops)


def test_groups_sum_to_the_totals_and_json_is_plain():
    import json

    found = inspect(_chain())
    assert sum(flops for _, flops, _ in found.by_type().values()) == found.flops
    data = json.loads(json.dumps(found.as_dict()))
    assert data["flops"] == found.flops
    assert data["ops"][2]["intensity"] == pytest.approx(found.ops[2].intensity)


def test_constants_as_nodes_are_weights():
    model = _chain()
    del model.graph.initializer[0]
    value = numpy_helper.from_array(np.array([6, 5]))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["shape"], value=value))
    assert metrics(model).flops == metrics(_chain()).flops


@pytest.mark.parametrize(("size", "followed"), [(1 << 16, True), (1 << 31, False)])
def test_values_of_long_vectors_are_not_followed(size: int, followed: bool) -> None:
    """ONNX's inference makes a dimension of each element that a Gather may read: 2^31 of them took all memory."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size]),
         helper.make_tensor_value_info("i", TensorProto.INT64, [7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [7])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert propagates(model.graph) is followed
    assert metrics(model).outputs[0].shape == (7,)
