"""If, Loop and Scan written out, against onnxruntime's own control flow."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import check, model, ops, same, value
from tvmopt.errors import ModelError, UnsupportedOp
from tvmopt.importer import import_model, load, prepare

node = helper.make_node
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def branches():
    then = helper.make_graph(
        [node("Add", ["x", "k"], ["t"])],
        "then",
        [],
        [value("t", (3,))],
        [helper.make_tensor("k", TensorProto.FLOAT, [1], [10.0])],
    )
    other = helper.make_graph([node("Neg", ["x"], ["t"])], "else", [], [value("t", (3,))])
    return {"then_branch": then, "else_branch": other}


@pytest.mark.parametrize("condition", [True, False])
def test_an_if_of_a_constant_is_its_branch(condition):
    made = model(
        [node("If", ["c"], ["r"], name="if", **branches()), node("Relu", ["r"], ["y"])],
        [value("x", (3,))],
        [value("y", (3,))],
        {"c": np.array(condition)},
    )
    assert ops(same(made)) == ["Add" if condition else "Neg", "Relu"]


@pytest.mark.parametrize("operator", ["If", "Loop"])
def test_a_condition_is_a_boolean(operator):
    """A number reached the compiler, which ended in an error of TVM's."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["s", "s"], ["t"])],
        "body",
        [value("i", (), INT64), value("go", (), BOOL), value("s", (3,))],
        [value("on", (), BOOL), value("t", (3,))],
    )
    made = model(
        [
            node("ReduceSum", ["x"], ["c"], keepdims=0),
            node("If", ["c"], ["y"], **branches())
            if operator == "If"
            else node("Loop", ["n", "c", "x"], ["y"], body=body),
        ],
        [value("x", (3,)), value("n", (), INT64)],
        [value("y", (3,))],
    )
    with pytest.raises(ModelError, match="its input 'cond' cannot be float32"):
        import_model(made)


@pytest.mark.parametrize("trips", [4, None])
@pytest.mark.parametrize(
    ("gives", "has"),
    [
        (node("Add", ["s", "s"], ["on"]), "type float32"),
        (node("Shape", ["s"], ["on"]), "type int64"),
        (node("Constant", [], ["on"], value_float=1.0), "type float32"),
        (node("Greater", ["three", "s"], ["on"]), r"shape \[3\]"),
    ],
)
def test_what_a_body_goes_on_with_is_one_boolean(gives, has, trips):
    """A number reached the compiler, which ended in an error of TVM's, or was taken for true."""
    body = helper.make_graph(
        [gives, node("Add", ["s", "s"], ["t"])],
        "body",
        [value("i", (), INT64), value("go", (), BOOL), value("s", (1,))],
        [value("on", (), BOOL), value("t", (1,))],
    )
    known = {"three": np.zeros(3, np.float32)} | ({} if trips is None else {"n": np.int64(trips)})
    inputs = [value("x", (1,)), *([value("n", (), INT64)] if trips is None else [])]
    made = model([node("Loop", ["n", "", "x"], ["y"], body=body)], inputs, [value("y", (1,))], known)
    with pytest.raises(ModelError, match=f"the condition that its body gives has {has}"):
        import_model(made)


def test_an_if_of_an_input_stays_with_folded_branches():
    then = helper.make_graph(
        [
            node("Shape", ["x"], ["s"]),
            node("Mul", ["s", "two"], ["s2"]),
            node("Expand", ["v", "s2"], ["w"]),
            node("Identity", ["w"], ["t"]),
        ],
        "then",
        [],
        [value("t", None)],
    )
    other = helper.make_graph([node("Concat", ["x", "x"], ["e"], axis=0)], "else", [], [value("e", None)])
    made = model(
        [node("If", ["c"], ["r"], name="if", then_branch=then, else_branch=other), node("Neg", ["r"], ["y"])],
        [value("x", (3,)), value("c", (), BOOL)],
        [value("y", (6,))],
        {"two": np.array(2), "v": np.float32([7])},
    )
    for condition in (True, False):
        prepared = same(made, inputs={"x": np.float32([1, 2, 3]), "c": np.array(condition)})
        check(prepared, {"x": np.float32([1, 2, 3]), "c": np.array(condition)})
    folded = {a.name: [n.op_type for n in a.g.node] for a in prepared.graph.node[0].attribute}
    assert folded == {"then_branch": ["Identity"], "else_branch": ["Concat"]}


def loop_body(condition="Identity"):
    nodes = [
        node("Cast", ["i"], ["i_f"], to=1),
        node("Mul", ["s", "x"], ["s2"]),
        node("Add", ["s2", "i_f"], ["o"]),
    ]
    if condition == "Identity":
        nodes.append(node("Identity", ["c"], ["c2"]))
    elif condition == "Less":
        nodes.append(node("Less", ["i", "limit"], ["c2"]))
    else:
        nodes += [node("ReduceSum", ["s2"], ["sum"], keepdims=0), node("Less", ["sum", "big"], ["c2"])]
    return helper.make_graph(
        nodes,
        "body",
        [value("i", (), INT64), value("c", (), BOOL), value("s", (3,))],
        [value("c2", (), BOOL), value("s2", (3,)), value("o", (3,))],
    )


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("condition", "trips"), [("Identity", 4), ("Less", 10), ("Identity", 1)])
def test_a_loop_of_constant_trips_is_written_out(condition, trips, opset):
    made = model(
        [node("Loop", ["n", "go", "x"], ["s", "all"], name="loop", body=loop_body(condition))],
        [value("x", (3,))],
        [value("s", (3,)), value("all", (None, 3))],
        {"n": np.array(trips), "go": np.array(True), "limit": np.array(2)},
        opset=opset,
    )
    prepared = same(made)
    assert "Loop" not in ops(prepared) and ops(prepared).count("Mul") == (3 if condition == "Less" else trips)


@pytest.mark.parametrize(("trips", "go"), [(0, True), (5, False)])
def test_a_loop_that_never_runs(trips, go):
    body = loop_body()
    del body.output[-1]
    made = model(
        [node("Loop", ["n", "go", "x"], ["s"], body=body), node("Neg", ["s"], ["y"])],
        [value("x", (3,))],
        [value("y", (3,))],
        {"n": np.array(trips), "go": np.array(go)},
    )
    assert ops(same(made)) == ["Neg"]


def test_a_loop_of_unknown_trips_stays_one():
    made = model(
        [node("Loop", ["n", "", "x"], ["s", "all"], name="decode", body=loop_body("data"))],
        [value("x", (3,)), value("n", (), INT64)],
        [value("s", (3,)), value("all", (None, 3))],
        {"big": np.float32(9)},
    )
    assert ops(prepare(load(made))) == ["Loop"]


def test_loops_of_many_trips_in_each_other_are_walked_once():
    """Each was tried to be written out in 500 trips of the one around it: four of them took days."""

    def body(level):
        inner = helper.make_node("Add", [f"h{level}", "one"], [f"a{level}"])
        if level < 4:
            inner = helper.make_node("Loop", ["many", "", f"h{level}"], [f"a{level}"], body=body(level + 1))
        formal = [value(f"t{level}", (), TensorProto.INT64), value(f"go{level}", (), TensorProto.BOOL)]
        same = helper.make_node("Identity", [f"go{level}"], [f"on{level}"])
        results = [value(f"on{level}", (), TensorProto.BOOL), value(f"a{level}", (2, 3))]
        return helper.make_graph([inner, same], f"b{level}", [*formal, value(f"h{level}", (2, 3))], results)

    loop = helper.make_node("Loop", ["many", "", "x"], ["y"], body=body(1))
    constants = {"many": np.array(1001), "one": np.float32(1)}
    made = model([loop], [value("x", (2, 3))], [value("y", (2, 3))], constants)
    assert ops(prepare(load(made))) == ["Loop"]


def test_an_endless_loop_is_refused_quickly():
    made = model([node("Loop", ["", "", "x"], ["s", ""], body=loop_body())], [value("x", (3,))], [value("s", (3,))])
    with pytest.raises(UnsupportedOp):
        import_model(made)


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_is_written_out(backward, axis):
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["s2"]), node("Mul", ["s2", "e"], ["o"])],
        "body",
        [value("s", (3,)), value("e", (3,))],
        [value("s2", (3,)), value("o", (3,))],
    )
    made = model(
        [
            node(
                "Scan",
                ["x", "seq"],
                ["final", "all"],
                body=body,
                num_scan_inputs=1,
                scan_input_axes=[axis],
                scan_input_directions=[backward],
                scan_output_axes=[1],
                scan_output_directions=[backward],
            )
        ],
        [value("x", (3,)), value("seq", (5, 3) if axis == 0 else (3, 5))],
        [value("final", (3,)), value("all", (3, 5))],
    )
    assert "Scan" not in ops(same(made))


def test_a_damaged_branch_names_the_input_that_decides():
    """silero_vad.onnx: the branch for another sampling rate reads what only that rate makes."""
    then = helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [value("t", None)])
    other = helper.make_graph([node("MatMul", ["x", "w"], ["e"], name="inner")], "else", [], [value("e", None)])
    nodes = [
        node("Equal", ["sr", "rate"], ["c"]),
        node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other),
    ]
    inputs = [value("x", (2, 3)), value("unused", (1,)), value("sr", (), TensorProto.INT64)]
    weights = {"rate": np.array(16000), "w": np.ones((4, 5), "float32")}
    made = model(nodes, inputs, [value("y", None)], weights)
    with pytest.raises(ModelError) as caught:
        prepare(load(made))
    text = str(caught.value)
    assert "in a branch of the If 'choice'" in text and "inner'" in text and "--value sr=NUMBER" in text
    assert "unused" not in text
    prepared = prepare(load(made), values={"sr": 16000})
    assert ops(prepared)[0] == "Relu" and "If" not in ops(prepared)


@pytest.mark.parametrize("count, going", [((0,), ()), ((), (0,)), ((2,), ()), ((), (2, 1))])
@pytest.mark.parametrize("known", [False, True])
def test_a_loop_asks_one_number(count, going, known):
    """A condition of no element was NumPy's IndexError."""
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["s", "s"], ["t"])], "body",
        [value("i", (), INT64), value("c", (), BOOL), value("s", (3,))], [value("d", (), BOOL), value("t", (3,))],
    )  # fmt: skip
    given = {"m": np.full(count, 4), "g": np.full(going, True)}
    inputs = [] if known else [value("m", count, INT64), value("g", going, BOOL)]
    made = model(
        [node("Loop", ["m", "g", "x"], ["y"], body=body)], [value("x", (3,)), *inputs], [value("y", (3,))],
        given if known else {},
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"has shape .*, and is one number"):
        import_model(made)


def test_a_body_gives_one_truth_value():
    empty = helper.make_tensor("empty", BOOL, [0], [])
    body = helper.make_graph(
        [node("Identity", ["empty"], ["d"]), node("Add", ["s", "s"], ["t"])], "body",
        [value("i", (), INT64), value("c", (), BOOL), value("s", (3,))], [value("d", (0,), BOOL), value("t", (3,))],
        [empty],
    )  # fmt: skip
    made = model(
        [node("Loop", ["m", "", "x"], ["y"], body=body)], [value("x", (3,))], [value("y", (3,))], {"m": np.array(4)}
    )
    with pytest.raises(ModelError, match="one"):
        import_model(made)
