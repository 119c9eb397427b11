"""Names, order, attributes, opsets, functions: what a graph must be, and all problems at once."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, value
from tvmopt.errors import ModelError
from tvmopt.importer import load
from tvmopt.importer.structure import topological_order

node = helper.make_node


def refused(made) -> str:
    with pytest.raises(ModelError) as caught:
        load(made)
    return str(caught.value)


def graph(nodes, weights=None, **options):
    return model(nodes, [value("x", (1, 3, 8, 8))], [value("y", None)], weights, **options)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("Relu", ["z"], ["y"], name="r")], ["'r'", "reads 'z'"]),
        ([node("Relu", ["x"], ["z"])], ["'y'", "computed by no node"]),
        ([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], name="n")], ["'y' is defined twice", "'n'"]),
        ([node("Relu", ["x"], ["x"]), node("Neg", ["x"], ["y"])], ["'x' is defined twice"]),
        (
            [
                node("Add", ["x", "b"], ["a"], name="p"),
                node("Neg", ["a"], ["b"], name="q"),
                node("Neg", ["a"], ["y"]),
            ],
            ["cycle", "'p'", "'q'"],
        ),
        ([node("Relu", ["y"], ["y"])], ["cycle"]),
        ([node("", ["x"], ["y"])], ["no operator"]),
        ([node("Relu", ["x", "x"], ["y"])], ["takes 1 inputs, not 2"]),
        ([node("Add", ["x"], ["y"])], ["takes 2 inputs, not 1"]),
        ([node("Add", ["x", ""], ["y"])], ["cannot do without its input 1, 'B'"]),
        ([node("Relu", ["x"], ["y"], alpha=1.0)], ["no attribute 'alpha'"]),
        ([node("Concat", ["x"], ["y"])], ["lacks its attribute 'axis'"]),
        ([node("Concat", ["x"], ["y"], axis=1.5)], ["'axis' of Concat is FLOAT, not INT"]),
        ([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[0, 1])], ["must be positive"]),
        ([node("LpPool", ["x"], ["y"], kernel_shape=[2, 2], p=0)], ["'p' is [0]; it must be positive"]),
        ([node("ReduceMean", ["x"], ["y"], keepdims=-7)], ["'keepdims' is -7; it is a switch"]),
        ([node("Pad", ["x", "x"], ["y"], mode="mirror")], ["'mirror', not one of: constant reflect"]),
        # ONNX's shape function has no end for these
        ([node("Einsum", ["x"], ["y"], equation="ij1->i")], ["'ij1->i' is none"]),
        ([node("Einsum", ["x"], ["y"], equation="..ij->i")], ["'..ij->i' is none"]),
        ([node("Einsum", ["x"], ["y"], equation="i\tj->i")], ["is none"]),
        ([node("Einsum", ["x"], ["y"], equation="ij-")], ["'ij-' is none"]),
        ([node("Einsum", ["x"], ["y"], equation=b"\xff\xfe")], [r"'\xff\xfe' is none"]),
    ],
)
def test_what_is_refused(nodes, words):
    text = refused(graph(nodes))
    assert all(word in text for word in words), text


def test_an_unknown_operator_is_left_to_the_importers_check():
    load(graph([node("Foo", ["x"], ["y"])]))


def test_all_undefined_names_are_listed():
    text = refused(graph([node("Relu", [f"u{i}"], [f"v{i}"], name=f"n{i}") for i in range(3)]))
    assert all(f"'u{i}'" in text for i in range(3))


def test_the_order_of_nodes_does_not_matter():
    nodes = [node("Relu", [f"t{i}"], [f"t{i + 1}" if i < 8 else "y"]) for i in range(9)]
    loaded = load(model(nodes[::-1], [value("t0", (3,))], [value("y", (3,))]))
    assert [n.input[0] for n in loaded.graph.node] == [f"t{i}" for i in range(9)]


def test_topological_order_keeps_the_given_one():
    nodes = [node("Neg", ["x"], [str(i)]) for i in range(20)]
    assert topological_order(nodes) == (list(range(20)), [])


def test_a_branch_reads_what_comes_later():
    branch = helper.make_graph([node("Neg", ["late"], ["b"])], "b", [], [value("b", None)])
    nodes = [
        node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
        node("Relu", ["x"], ["late"]),
    ]
    made = model(nodes, [value("x", (3,)), value("c", (), TensorProto.BOOL)], [value("y", (3,))])
    assert [n.op_type for n in load(made).graph.node] == ["Relu", "If"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.graph.ClearField("output"), "no output"),
        (lambda m: m.ClearField("opset_import"), None),
        (lambda m: setattr(m.opset_import[0], "version", 999), "opset 999"),
        (lambda m: setattr(m.opset_import[0], "version", 0), "Opset 0"),
        (lambda m: setattr(m.opset_import[0], "domain", "other"), "which opset of ai.onnx"),
        (lambda m: m.graph.input[0].ClearField("type"), "no type"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77), "77"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -7), "negative"),
        (lambda m: m.graph.input.append(m.graph.input[0]), "called 'x'"),
        (lambda m: m.graph.output.append(m.graph.output[0]), "called 'y'"),
        (lambda m: setattr(m.graph.input[0], "name", ""), "no name"),
    ],
)
def test_borders_and_opsets(change, words):
    made = graph([node("Relu", ["x"], ["y"])])
    change(made)
    if words:
        assert words in refused(made)
    else:
        load(made)  # older than IR 3: opset 1


@pytest.mark.parametrize(
    ("type_", "filled"), [(1, "i"), (2, "f"), (4, "i"), (5, "s"), (0, "f"), (99, "f"), (7, "strings")]
)
def test_an_attribute_holds_what_it_says(type_, filled):
    made = graph([node("LeakyRelu", ["x"], ["y"], alpha=0.5)])
    attr = made.graph.node[0].attribute[0]
    attr.ClearField("f")
    field = getattr(attr, filled)
    if filled == "strings":
        field.append(b"x")
    else:
        setattr(attr, filled, b"x" if filled == "s" else 1)
    if type_ == 99:  # an enum value that protobuf does not know is dropped: the attribute has no type
        attr.ClearField("type")
    else:
        attr.type = type_
    assert "'alpha'" in refused(made)


def test_bodies_fit_their_operator():
    body = helper.make_graph([node("Neg", ["x"], ["b"])], "b", [], [value("b", None)])
    text = refused(graph([node("Loop", ["n", ""], ["y"], name="l", body=body)], {"n": np.array(3)}))
    assert "'body' has 0 inputs and 1 outputs" in text


def function(name, calls):
    nodes = [node(c, ["p"], [f"q{i}"], domain="f") for i, c in enumerate(calls)]
    nodes.append(node("Sum", [f"q{i}" for i in range(len(calls))] or ["p"], ["q"]))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["p"], ["q"], nodes, imports)


def test_functions_that_call_themselves():
    functions = [function("A", ["B"]), function("B", ["A"])]
    made = graph([node("A", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=functions)
    assert "calls itself" in refused(made)


def test_functions_that_would_explode():
    functions = [function(f"F{i}", [f"F{i + 1}"] * 10) for i in range(12)] + [function("F12", [])]
    made = graph([node("F0", ["x"], ["y"], domain="f")], domains={"f": 1}, functions=functions)
    assert "the limit is" in refused(made)
