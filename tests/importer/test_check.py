"""check: every node that cannot be imported, at once, with name, operator, opset, reason and fix."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

from tests.importer.onnx_check import model, value
from tvmopt.errors import ModelError, UnsupportedOp
from tvmopt.importer import check, import_model, load, prepare
from tvmopt.importer.converters.context import Inputs, open_size, selected_by
from tvmopt.importer.relax import to_relax

node = helper.make_node


def refused(made, error=UnsupportedOp) -> str:
    with pytest.raises(error) as caught:
        import_model(made)
    return str(caught.value)


def test_everything_at_once():
    nodes = [
        node("Frobnicate", ["x"], ["a"], name="one", domain="com.acme"),
        node("Rellu", ["x"], ["b"], name="two"),
        node("Conv", ["x", "w"], ["c"], name="three"),
        node("Add", ["a", "b"], ["d"], name="behind"),
    ]
    outputs = [value("d", None), value("c", None)]
    weights = {"w": np.ones((2, 3, 1), "float32")}
    made = model(nodes, [value("x", (1, 3, 8))], outputs, weights, domains={"com.acme": 2})
    made.graph.node[2].attribute.append(helper.make_attribute("auto_pad", "SAME_UPPER"))
    text = refused(made)
    assert "com.acme::Frobnicate cannot be imported: no converter is registered for the domain" in text
    assert "node 'one' (opset 2), inputs 'x' float32[1,3,8]" in text
    assert "Rellu cannot be imported: opset 17 has no operator of that name; did you mean Relu?" in text
    assert "docs/how-to/add-operator.md" in text and "'behind'" not in text


def test_what_converters_refuse_is_listed_with_what_has_none():
    nodes = [
        node("Frobnicate", ["x"], ["a"], name="one", domain="com.acme"),
        node("Dropout", ["x", "ratio", "train"], ["y"], name="two"),
    ]
    weights = {"ratio": np.float32(0.5), "train": np.array(True)}
    outputs = [value("a", None), value("y", None)]
    text = refused(model(nodes, [value("x", (3,))], outputs, weights, domains={"com.acme": 1}))
    assert "'one'" in text and "'two'" in text and "training_mode" in text
    assert text.count("'one'") == 1


def test_a_dropout_that_may_be_training_is_refused_until_its_mode_is_bound():
    inputs = [value("x", (3,)), value("train", (), TensorProto.BOOL)]
    made = model([node("Dropout", ["x", "", "train"], ["y"])], inputs, [value("y", None)])
    assert "training_mode is not known" in refused(made) and "--value" in refused(made)
    assert import_model(made, values={"train": False}).outputs[0].name == "y"


def test_strings_and_sequences():
    made = model(
        [node("Identity", ["x"], ["y"])],
        [value("x", (3,), TensorProto.STRING)],
        [value("y", (3,), TensorProto.STRING)],
    )
    text = refused(made, ModelError)
    assert "Input 'x' is string[3]" in text and "Output 'y'" in text
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    made = model([node("SequenceLength", ["x"], ["y"])], [sequence], [value("y", (), TensorProto.INT64)])
    assert "is a sequence" in refused(made, ModelError)


def test_a_constant_text_that_becomes_a_number():
    """It reached TVM, which has no such type."""
    nodes = [
        node("Constant", [], ["c"], value_string="1"), node("CastLike", ["c", "x"], ["d"]),
        node("Less", ["x", "d"], ["y"]),
    ]  # fmt: skip
    made = model(nodes, [value("x", (3,))], [value("y", None, TensorProto.BOOL)])
    assert "strings" in refused(made, ModelError)


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml"])
def test_complex_constants(domain):
    """They reached TVM, which has no such type."""
    nodes = [node("LinearRegressor", ["c"], ["y"], domain=domain, coefficients=[1.0] * 3)]
    if not domain:
        nodes = [node("Identity", ["c"], ["d"]), node("Add", ["d", "c"], ["e"]), node("Cast", ["e"], ["y"], to=1)]
    made = model(nodes, [value("x", (3,))], [value("y", None)], {"c": np.ones((2, 3), np.complex64)})
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert "complex" in refused(made, ModelError)


@pytest.mark.parametrize("shape", [(1 << 62, 8), (1 << 41,)])
def test_an_input_that_no_memory_holds(shape):
    """TVM counts in 64 and 32 bits, which so many elements overflow."""
    made = model([node("Shape", ["x"], ["y"])], [value("x", shape)], [value("y", (len(shape),), TensorProto.INT64)])
    text = refused(made, ModelError)
    assert "Tensor 'x' would take" in text and "input 'x', float32[" in text


@pytest.mark.parametrize("last", [0, 1])
def test_an_axis_that_32_bits_do_not_count(last, monkeypatch):
    """From its end (`last`) TVM counts in 32 bits: a check of its own failed, in its words."""
    arg = node("ArgMax", ["x"], ["y"], axis=1, keepdims=0, select_last_index=last)
    made = model([arg], [value("x", (1, 1 << 31), TensorProto.INT8)], [value("y", (1,), TensorProto.INT64)])
    monkeypatch.setattr("tvmopt.importer.walk.free_memory", lambda: 1 << 40, raising=False)
    text = refused(made, ModelError)
    assert "An axis of tensor 'x' has 2147483648 elements" in text


def test_an_open_input_that_no_memory_holds():
    made = model([node("Shape", ["x"], ["y"])], [value("x", (15, "n", 1 << 62))], [value("y", (3,), TensorProto.INT64)])
    assert "Tensor 'x' would take at least" in refused(made, ModelError)


def test_a_good_model_passes():
    made = model([node("Relu", ["x"], ["y"])], [value("x", (3,))], [value("y", (3,))])
    check(prepare(load(made)))


def test_a_size_that_only_a_run_tells():
    nodes = [
        node("NonMaxSuppression", ["boxes", "scores", "most"], ["picked"]),
        node("Add", ["picked", "seven"], ["sum"]),  # only a run that picks seven, or one
        node("Pad", ["sum", "one_more"], ["a"], name="more"),
    ]
    inputs = [value("boxes", (1, 6, 4)), value("scores", (1, 1, 6))]
    outputs = [helper.make_tensor_value_info("a", TensorProto.INT64, None)]
    weights = {"most": np.array([4], "int64"), "one_more": np.array([0, 0, 1, 0], "int64")}
    text = refused(model(nodes, inputs, outputs, weights | {"seven": np.zeros((7, 3), "int64")}))
    assert "Add cannot be imported: whether found0 is 7 is decided by values, at run time" in text
    assert "select outside the model" in text and "TypeError" not in text


def test_an_output_may_have_a_size_that_only_a_run_tells():
    nodes = [
        node("NonZero", ["x"], ["at"], name="pick"),
        node("Transpose", ["at"], ["turned"]),
        node("Cast", ["turned"], ["y"], to=TensorProto.FLOAT),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])]
    prepared = prepare(load(model(nodes, [value("x", (3,))], outputs)))
    assert str(to_relax(prepared).outputs[0].shape) == "(found0, 1)"
    assert "behind node 'pick' (NonZero)" in selected_by(prepared.graph, "y")


def test_every_refusal_of_a_converter_is_told_once():
    nodes = [node("Reshape", ["x", "to"], ["a"], name="one"), node("Reshape", ["y", "to"], ["b"], name="two")]
    inputs, outputs = [value("x", (2, 3)), value("y", (5,))], [value("a", (7,)), value("b", (7,))]
    text = refused(model(nodes, inputs, outputs, {"to": np.array([7], "int64")}))
    assert text.count("node 'one'") == text.count("node 'two'") == 1
    assert text.count("if you gave shape") == 2


def test_a_rank_that_only_a_run_tells():
    either = relax.Var("a", relax.AnyType())  # what an If gives whose branches differ
    found = open_size(node("Slice", ["a", "begin"], ["y"]), Inputs([either, relax.const([0], "int64")]))
    assert found == "the rank of its input 'a' is decided by values, at run time"


@pytest.mark.parametrize("name", ["Dyn:0", "batch size", "n n", "1x", "min", "7"])
def test_any_text_names_a_size(name):
    """Also in the type of a result that nothing can be found out about."""
    made = model([node("Momentum", ["x"], ["y"])], [value("x", (name, 9))], [value("y", (name, 9))])
    with pytest.raises(UnsupportedOp, match="Momentum"):
        import_model(made)
