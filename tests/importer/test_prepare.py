"""prepare: static, folded, inlined, converted - and still the same function, by onnxruntime."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import model, ops, random_inputs, run_ort, same, value
from tvmopt.errors import ModelError
from tvmopt.importer import import_model, load, prepare
from tvmopt.importer.evaluate import evaluate, foldable
from tvmopt.importer.protos import static_shape

node = helper.make_node


def test_shape_arithmetic_disappears():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"]),
        node("Gather", ["s", "one"], ["t"]),
        node("Mul", ["t", "two"], ["t2"]),
        node("Unsqueeze", ["b", "axes"], ["bu"]),
        node("Unsqueeze", ["t2", "axes"], ["tu"]),
        node("Concat", ["bu", "tu", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["r"]),
        node("Range", ["zero", "t2", "one"], ["positions"]),
        node("Unsqueeze", ["positions", "axes"], ["p2"]),
        node("Expand", ["p2", "target2"], ["pe"]),
        node("Gather", ["table", "pe"], ["e"]),
        node("Add", ["r", "e"], ["y"]),
    ]
    weights = {
        "zero": np.array(0),
        "one": np.array(1),
        "two": np.array(2),
        "axes": np.array([0]),
        "minus": np.array([-1]),
        "target2": np.array([3, 1]),
        "table": np.random.default_rng(0).standard_normal((20, 5)).astype("float32"),
    }
    made = model(nodes, [value("x", ("b", "t", 10))], [value("y", ("b", "u", 5))], weights)
    prepared = same(made, {"x": (3, 7, 10)})
    assert ops(prepared) == ["Reshape", "Add"]
    assert static_shape(prepared.graph.output[0].type) == (3, 14, 5)
    assert {t.name for t in prepared.graph.initializer} == {"target", "e"}


def test_weights_made_by_nodes_are_folded():
    nodes = [
        node("ConstantOfShape", ["ws"], ["w0"], value=numpy_helper.from_array(np.float32([0.25]))),
        node("Expand", ["b0", "bs"], ["b"]),
        node("Transpose", ["w0"], ["w"], perm=[1, 0]),
        node("Gemm", ["x", "w", "b"], ["y"]),
    ]
    weights = {"ws": np.array([9, 6]), "b0": np.float32([0.5]), "bs": np.array([9])}
    assert ops(same(model(nodes, [value("x", (2, 6))], [value("y", (2, 9))], weights))) == ["Gemm"]


def test_identity_dropout_and_dead_nodes_are_removed():
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Dropout", ["a"], ["b", "mask"]),
        node("Relu", ["b"], ["c"]),
        node("Neg", ["b"], ["unused"]),
        node("Add", ["unused", "w"], ["unused2"]),
        node("Identity", ["c"], ["y"]),
    ]
    prepared = same(model(nodes, [value("x", (3,))], [value("y", (3,))], {"w": np.ones(3, "float32")}))
    assert ops(prepared) == ["Relu", "Identity"] and not prepared.graph.initializer


def test_the_mask_of_a_dropout_of_open_sizes():
    """Read or not; SqueezeNet's, with an open batch, was refused."""
    nodes = [node("Dropout", ["x"], ["b", "mask"]), node("Relu", ["b"], ["y"])]
    outputs = [value("y", None), value("mask", None, TensorProto.BOOL)]
    for read in (True, False):
        made = model(nodes, [value("x", ("n", 3))], outputs if read else outputs[:1])
        compiled = tvmopt.compile(made, verify=False, records=False).model
        x = np.random.default_rng(0).standard_normal((7, 3)).astype("float32")
        for found, expected in zip(compiled.run({"x": x}).values(), run_ort(made, {"x": x}), strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_inputs_and_constants_may_be_outputs():
    nodes = [node("Identity", ["x"], ["a"]), node("Add", ["w", "w"], ["b"]), node("Identity", ["x"], ["c"])]
    outputs = [value("a", (3,)), value("b", (2,)), value("c", (3,))]
    prepared = prepare(model(nodes, [value("x", (3,))], outputs, {"w": np.ones(2, "float32")}))
    assert [o.name for o in prepared.graph.output] == ["a", "b", "c"]
    assert {t.name for t in prepared.graph.initializer} == {"b"}


@pytest.mark.parametrize("form", ["value", "value_float", "value_floats", "value_int", "value_ints"])
def test_constants_in_all_forms(form):
    given = {"value_float": 2.0, "value_floats": [2.0, 3.0], "value_int": 2, "value_ints": [2, 3]}
    given["value"] = numpy_helper.from_array(np.float32([2]))
    nodes = [node("Constant", [], ["c"], **{form: given[form]}), node("Cast", ["c"], ["f"], to=1)]
    nodes.append(node("Mul", ["x", "f"], ["y"]))
    assert ops(same(model(nodes, [value("x", (2,))], [value("y", (2,))]))) == ["Mul"]


def test_local_functions_are_inlined_with_attributes_and_defaults():
    body = [
        node("LeakyRelu", ["p"], ["t"]),
        node("Elu", ["t"], ["u"]),
        node("Add", ["u", "q"], ["r"]),
    ]
    for inner, attr in ((body[0], "slope"), (body[1], "bend")):
        inner.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name=attr, type=1))
    function = helper.make_function(
        "local",
        "Act",
        ["p", "q"],
        ["r"],
        body,
        [helper.make_opsetid("", 17)],
        ["slope"],
        [helper.make_attribute("bend", 0.5)],
    )
    outer = helper.make_function(
        "local",
        "Outer",
        ["a"],
        ["b"],
        [node("Act", ["a", "a"], ["b"], name="inner", domain="local", slope=0.3)],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )
    nodes = [
        node("Act", ["x", "x"], ["t"], name="first", domain="local", slope=0.1, bend=2.0),
        node("Outer", ["t"], ["y"], name="second", domain="local"),
    ]
    made = model(nodes, [value("x", (7,))], [value("y", (7,))], domains={"local": 1}, functions=[function, outer])
    prepared = same(made)
    assert ops(prepared) == ["LeakyRelu", "Elu", "Add"] * 2 and not prepared.functions
    assert prepared.graph.node[0].name == "first/LeakyRelu"
    assert prepared.graph.node[3].name == "second/inner/LeakyRelu"


def test_operators_without_converter_are_replaced_by_their_definition():
    made = model([node("Celu", ["x"], ["y"], alpha=0.5)], [value("x", (9,))], [value("y", (9,))])
    inputs = random_inputs(made)
    prepared = prepare(made, has_converter=lambda domain, op: op != "Celu")
    assert "Celu" not in ops(prepared) and len(prepared.graph.node) > 1
    np.testing.assert_allclose(run_ort(prepared, inputs)[0], run_ort(made, inputs)[0], rtol=1e-6)


@pytest.mark.parametrize("version", [7, 8, 9, 10, 11, 12, 13, 17])
def test_old_opsets_are_converted(version):
    softmax = node("Softmax", ["r"], ["y"], axis=1)
    nodes = [node("Dropout", ["x"], ["d"]), node("Reshape", ["d", "shape"], ["r"]), softmax]
    shape = {"shape": np.array([2, 6, 2])}
    made = model(nodes, [value("x", (2, 3, 4))], [value("y", (2, 6, 2))], shape, opset=version)
    assert same(made).opset_import[0].version == (17 if version < 13 else version)


def test_q_and_dq_stay_but_int4_weights_are_unpacked():
    scale, zero = np.float32(0.1), np.int8(3)
    weights = {"s": scale, "z": zero, "q": np.arange(12, dtype="int8").reshape(3, 4)}
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    prepared = same(model(nodes, [value("x", (2, 3))], [value("y", (2, 4))], weights))
    assert ops(prepared) == ["DequantizeLinear", "MatMul"]
    made = model(nodes, [value("x", (2, 3))], [value("y", (2, 4))], {"s": scale}, opset=21)
    for name, data, dims in (("q", range(12), [3, 4]), ("z", [3], [])):
        made.graph.initializer.append(helper.make_tensor(name, TensorProto.INT4, dims, [d % 8 for d in data]))
    assert ops(same(made)) == ["MatMul"]


def test_random_nodes_are_not_folded():
    made = model(
        [node("RandomNormal", [], ["r"], shape=[3]), node("Add", ["x", "r"], ["y"])],
        [value("x", (3,))],
        [value("y", (3,))],
    )
    assert ops(prepare(made)) == ["RandomNormal", "Add"]


def test_contradictions_are_all_listed():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("Concat", ["x", "v"], ["b"], name="second", axis=1),
        node("Relu", ["b"], ["c"]),
    ]
    weights = {"w": np.ones((5, 2), "float32"), "v": np.ones((3, 3), "float32")}
    made = model(nodes, [value("x", (2, 3))], [value("a", None), value("c", None)], weights)
    with pytest.raises(ModelError) as caught:
        prepare(made)
    text = str(caught.value)
    assert "'first'" in text and "float32[5,2]" in text and "'second'" in text


def test_a_constant_above_the_budget_is_refused():
    nodes = [node("ConstantOfShape", ["s"], ["w"]), node("Add", ["w", "x"], ["y"])]
    made = model(nodes, [value("x", (1,))], [value("y", None)], {"s": np.array([1 << 20, 1 << 20])})
    with pytest.raises(ModelError, match="memory"):
        prepare(made)


def test_repeated_elements_travel_once():
    shape = np.array([64, 1 << 18])
    nodes = [node("ConstantOfShape", ["s"], ["w"]), node("Gather", ["w", "x"], ["y"])]
    made = model(nodes, [value("x", (1,), TensorProto.INT64)], [value("y", None)], {"s": shape})
    weight = numpy_helper.to_array(prepare(made).graph.initializer[0])
    assert weight.shape == (64, 1 << 18) and not weight[::17, ::4099].any()


def test_sparse_initialisers_are_written_out():
    dense = np.zeros((3, 4), "float32")
    dense[1, 2], dense[2, 0] = 5, -1
    made = model([node("Add", ["x", "w"], ["y"])], [value("x", (3, 4))], [value("y", (3, 4))])
    values = numpy_helper.from_array(np.float32([5, -1]), "w")
    indices = numpy_helper.from_array(np.array([6, 8]), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    x = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(run_ort(prepare(load(made)), {"x": x})[0], x + dense)
    made.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array([6, 12]), "i"))
    with pytest.raises(ModelError, match="do not fit"):
        prepare(load(made))


def test_node_names_are_distinct():
    nodes = [node("Relu", ["x"], ["a"], name="n"), node("Neg", ["a"], ["y"], name="n")]
    prepared = prepare(model(nodes, [value("x", (3,))], [value("y", (3,))]))
    assert [n.name for n in prepared.graph.node] == ["n", "n_2"]


def test_evaluate_gives_none_where_the_reference_disagrees():
    add = node("Add", ["a", "b"], ["c"])
    inputs = {"a": np.float32([1]), "b": np.float32([2])}
    assert evaluate(add, inputs, 17, {"c": (TensorProto.FLOAT, (1,))})["c"] == [3]
    assert evaluate(add, inputs, 17, {"c": (TensorProto.FLOAT, (2,))}) is None
    assert evaluate(add, inputs, 17, {"c": (TensorProto.DOUBLE, (1,))}) is None
    assert evaluate(node("Nonsense", ["a"], ["c"]), inputs, 17, {}) is None


def test_expensive_operators_are_folded_only_when_small():
    product = node("MatMul", ["a", "b"], ["c"])
    small = {"a": np.ones((8, 8), "float32"), "b": np.ones((8, 3), "float32")}
    big = {"a": np.ones((512, 512), "float32"), "b": np.ones((512, 3), "float32")}
    assert foldable(product, small, 24) and not foldable(product, big, 512 * 3)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose", "LRN", "Resize"])
def test_operators_of_networks_are_not_folded(name):
    """The reference's implementations of some are wrong."""
    assert not foldable(node(name, ["a"], ["c"]), {"a": np.ones((1, 2, 3, 3), "float32")}, 9)


@pytest.mark.parametrize("index", [2**62, -(2**62), 3])
def test_an_index_out_of_range_is_not_wrapped(index):
    """The reference subtracts the length until the index fits: an import hung."""
    gather = node("GatherElements", ["a", "i"], ["c"], axis=1)
    inputs = {"a": np.float32([[1, 2, 3], [4, 5, 6]]), "i": np.int64([[0, -1]])}
    assert evaluate(gather, inputs, 17, {"c": (TensorProto.FLOAT, (1, 2))})["c"].tolist() == [[1, 3]]
    assert evaluate(gather, inputs | {"i": np.int64([[0, index]])}, 17, {"c": (TensorProto.FLOAT, (1, 2))}) is None


def test_erf_of_float64_keeps_its_digits():
    """The reference has those of float32."""
    x = np.float64([-0.6483708, 0.1680580])
    found = evaluate(node("Erf", ["a"], ["c"]), {"a": x}, 17, {"c": (TensorProto.DOUBLE, (2,))})
    np.testing.assert_array_equal(found["c"], [math.erf(v) for v in x])


def test_nodes_that_give_nothing_are_constants():
    nodes = [node("Slice", ["x", "from", "to"], ["s"]), node("Concat", ["s", "x", "x"], ["y"], axis=0)]
    weights = {"from": np.array([2]), "to": np.array([-9])}
    prepared = same(model(nodes, [value("x", (3, 2))], [value("y", (6, 2))], weights))
    assert ops(prepared) == ["Concat"] and list(prepared.graph.node[0].input) == ["x", "x"]
    nodes[1].input.pop()
    prepared = same(model([*nodes, node("Neg", ["y"], ["z"])], [value("x", (3, 2))], [value("z", (3, 2))], weights))
    assert ops(prepared) == ["Neg"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (node("Conv", ["x", "w"], ["y"], kernel_shape=[5, 1]), "kernel_shape is [5, 1]"),
        (node("Conv", ["x", "w"], ["y"], group=2), "channels"),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[30, 30]), "larger than the padded image"),
        (node("Cast", ["x"], ["y"], to=TensorProto.INT32), "declared float32"),
    ],
)
def test_what_shape_functions_let_pass(made, words):
    weights = {"w": np.ones((4, 3, 3, 3), "float32")}
    with pytest.raises(ModelError) as caught:
        prepare(model([made], [value("x", (1, 3, 8, 8))], [value("y", None)], weights))
    assert words in str(caught.value)


def test_the_size_of_more_than_63_bits_count() -> None:
    """An OverflowError of Python's was what the user saw."""
    made = model([node("Size", ["x"], ["y"])], [value("x", (3, 2**63 - 1, 5))], [value("y", (), TensorProto.INT64)])
    with pytest.raises(ModelError, match="Tensor 'x' would take"):
        prepare(load(made), has_converter=lambda *key: True)


def test_a_tensor_of_nothing_whose_axis_no_memory_holds_is_refused() -> None:
    """NumPy makes no array of [2^62, 0]; a damaged file asked for it and got its traceback."""
    nodes = [node("Reshape", ["i", "to"], ["j"]), node("Gather", ["x", "j"], ["y"], axis=0)]
    inputs = [value("x", ("n", 0)), value("i", ("n",), TensorProto.INT64)]
    made = model(nodes, inputs, [value("y", None)], {"to": np.array([2**62])})
    with pytest.raises(ModelError, match="would be"):
        prepare(made)


def test_a_constant_that_nobody_waits_for_is_not_folded(monkeypatch):
    """ONNX's reference counts skips up to 2^63, while an import waited."""
    monkeypatch.setattr("tvmopt.importer.evaluate.MOST_SECONDS", 0.3)
    skip = node(
        "TfIdfVectorizer", ["c"], ["t"], mode="TF", min_gram_length=2, max_gram_length=2, max_skip_count=(1 << 63) - 1,
        ngram_counts=[0, 4], ngram_indexes=[0, 1, 2], pool_int64s=[2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    )  # fmt: skip
    known = {"c": np.array([1, 1, 3, 3, 3, 7], np.int32)}
    made = model([skip, node("Add", ["x", "t"], ["y"])], [value("x", (3,))], [value("y", None)], known)
    with pytest.raises(ModelError, match="TfIdfVectorizer cannot be imported"):
        import_model(made)
