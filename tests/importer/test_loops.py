"""Loops and scans that a run goes through, against onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import tvmopt
from tests.importer.onnx_check import model, ops, value
from tvmopt.errors import ModelError, UnsupportedOp
from tvmopt.importer import load, prepare
from tvmopt.importer.relax import to_relax
from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine

node, BOOL, INT64 = helper.make_node, TensorProto.BOOL, TensorProto.INT64
TRIP = [value("i", (), INT64), value("go", (), BOOL)]


def body(nodes: list[Any], states: dict[str, Any], results: list[str], condition: str = "go") -> Any:
    """A body with these states; `results`: of the states and rows. It says of itself whether another trip follows."""
    nodes = [*nodes, node("Identity", [condition], ["go_on"])]
    formal = [*TRIP, *(value(name, shape) for name, shape in states.items())]
    return helper.make_graph(nodes, "body", formal, [value("go_on", (), BOOL), *(value(r, None) for r in results)])


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agrees(made: Any, cases: list[dict[str, Any]], tolerance: float = 1e-5) -> Any:
    """Run the compiled model and onnxruntime on every case; the prepared model. Shapes and numbers must agree."""
    prepared = prepare(load(made))
    imported = to_relax(prepared, dynamic=True)
    machine = Machine.load("cpu")
    run = relax.VirtualMachine(build(lower(imported.module, machine), machine), tvm.cpu())["main"]
    sessions = [onnxruntime.InferenceSession(one.SerializeToString()) for one in (made, prepared)]
    for feeds in cases:
        found = run(*(tvm.runtime.tensor(np.asarray(feeds[one.name])) for one in imported.inputs))
        for session in sessions:
            for array, expected in zip(
                found, session.run(None, {k: np.asarray(v) for k, v in feeds.items()}), strict=True
            ):
                assert array.numpy().shape == expected.shape and str(array.dtype) == expected.dtype.name
                np.testing.assert_allclose(array.numpy(), expected, tolerance, tolerance)
    return prepared


def test_trips_that_an_input_counts():
    nodes = [node("Mul", ["s", "k"], ["s2"]), node("Cast", ["i"], ["f"], to=1), node("Add", ["s2", "f"], ["row"])]
    made = model(
        [node("Loop", ["n", "", "x"], ["y", "rows"], body=body(nodes, {"s": (3,)}, ["s2", "row"]))],
        [value("x", (3,)), value("n", (), INT64)],
        [value("y", (3,)), value("rows", (None, 3))],
        {"k": np.float32([0.5, 1.5, -1])},
    )
    prepared = agrees(made, [{"x": floats(n, 3), "n": np.array(n)} for n in (0, 1, 2, 3, 17, 40)])
    assert ops(prepared) == ["Loop"]


@pytest.mark.parametrize("first", [True, False])
def test_a_loop_that_runs_until_something_computed_says_stop(first):
    nodes = [
        node("Add", ["s", "x"], ["s2"]),
        node("ReduceMax", ["s2"], ["most"], keepdims=0),
        node("Less", ["most", "limit"], ["more"]),
    ]
    made = model(
        [node("Loop", ["", "start", "x"], ["y", "all"], body=body(nodes, {"s": (5,)}, ["s2", "most"], "more"))],
        [value("x", (5,)), value("limit", ()), value("start", (), BOOL)],
        [value("y", (5,)), value("all", (None,))],
    )
    x = np.abs(floats(1, 5)) + np.float32(0.1)
    cases = [{"x": x, "limit": np.float32(stop), "start": np.array(first)} for stop in (0, 1, 7.5, 90)]
    agrees(made, cases)


def test_both_limits_hold():
    nodes = [node("Add", ["s", "x"], ["s2"]), node("Less", ["s2", "limit"], ["more"])]
    made = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body(nodes, {"s": ()}, ["s2"], "more"))],
        [value("x", ()), value("limit", ()), value("n", (), INT64)],
        [value("y", ())],
    )
    cases = [
        {"x": np.float32(1), "limit": np.float32(limit), "n": np.array(n)} for limit in (0, 3, 50) for n in (0, 2, 9)
    ]
    agrees(made, cases)


def test_states_rows_and_what_stays():
    """Two states change places, one stays as it is, one row is unused, one is a state before the trip."""
    nodes = [node("Add", ["b", "keep"], ["a2"]), node("Identity", ["a"], ["b2"]), node("Neg", ["keep"], ["unused"])]
    inner = body(nodes, {"a": (2, 2), "b": (2, 2), "keep": (2, 2)}, ["a2", "b2", "keep", "unused", "b"])
    made = model(
        [node("Loop", ["n", "", "x", "z", "x"], ["p", "q", "r", "u", "rows"], body=inner), node("Relu", ["r"], ["t"])],
        [value("x", (2, 2)), value("z", (2, 2)), value("n", (), INT64)],
        [value("p", (2, 2)), value("q", (2, 2)), value("t", (2, 2)), value("rows", (None, 2, 2))],
    )
    agrees(made, [{"x": floats(1, 2, 2), "z": floats(2, 2, 2), "n": np.array(n)} for n in (0, 1, 2, 5)])


def recurrence() -> Any:
    """tanh(x[:, i] W + s U + bias), a step of a recurrence, for open batch and length."""
    nodes = [
        node("Gather", ["x", "i"], ["e"], axis=1),
        node("MatMul", ["e", "w"], ["a"]),
        node("MatMul", ["s", "u"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Add", ["c", "bias"], ["d"]),
        node("Tanh", ["d"], ["s2"]),
        node("Identity", ["s2"], ["row"]),
    ]
    width = 48
    before = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["n"]),
        node("Slice", ["shape", "zeros", "ones"], ["batch"]),
        node("Concat", ["batch", "width"], ["size"], axis=0),
        node("ConstantOfShape", ["size"], ["start"]),
        node("Loop", ["n", "", "start"], ["last", "all"], name="steps", body=body(nodes, {"s": None}, ["s2", "row"])),
        node("Transpose", ["all"], ["y"], perm=[1, 0, 2]),
    ]
    weights = {
        "w": floats(1, width, width) / 7, "u": floats(2, width, width) / 7, "bias": floats(3, width),
        "one": np.array(1), "zeros": np.array([0]), "ones": np.array([1]), "width": np.array([width]),
    }  # fmt: skip
    return model(
        before, [value("x", ("batch", "t", width))], [value("last", ("batch", width)), value("y", None)], weights
    )


def test_as_many_trips_as_an_open_size():
    shapes = [(1, 1), (1, 7), (2, 5), (3, 64), (8, 33)]
    prepared = agrees(recurrence(), [{"x": floats(b * t, b, t, 48)} for b, t in shapes])
    assert ops(prepared).count("Loop") == 1
    kind = next(v.type for v in prepared.graph.output if v.name == "y")
    assert [d.dim_param for d in kind.tensor_type.shape.dim[:2]] == ["batch", "t"]


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", ["t", 2000])
def test_a_scan_of_many_or_of_an_open_number_of_steps(backward, axis, length):
    inner = helper.make_graph(
        [node("Add", ["s", "e"], ["s2"]), node("Mul", ["s2", "e"], ["o"])],
        "body",
        [value("s", (3,)), value("e", (3,))],
        [value("s2", (3,)), value("o", (3,))],
    )
    directions = {"scan_input_directions": [backward], "scan_output_directions": [backward]}
    scan = node(
        "Scan", ["x", "seq"], ["final", "all"], body=inner, num_scan_inputs=1,
        scan_input_axes=[axis], scan_output_axes=[1 - axis], **directions,
    )  # fmt: skip
    shape = (3, length) if axis else (length, 3)
    made = model([scan], [value("x", (3,)), value("seq", shape)], [value("final", (3,)), value("all", None)])
    lengths = [1, 2, 7, 30] if length == "t" else [length]
    cases = [{"x": floats(n, 3), "seq": floats(n, *((3, n) if axis else (n, 3))) / 9} for n in lengths]
    assert "Loop" in ops(agrees(made, cases))


def test_a_loop_in_a_loop():
    inside = helper.make_graph(
        [node("Mul", ["a", "k"], ["a1"]), node("Add", ["a1", "x"], ["a2"]), node("Identity", ["c"], ["c2"])],
        "inside",
        [value("j", (), INT64), value("c", (), BOOL), value("a", (3,))],
        [value("c2", (), BOOL), value("a2", (3,))],
    )
    nodes = [
        node("Loop", ["m", "", "s"], ["s2"], name="inner", body=inside),
        node("ReduceSum", ["s2"], ["sum"], keepdims=0),
        node("Abs", ["sum"], ["size"]),
        node("Less", ["size", "big"], ["more"]),
    ]
    made = model(
        [node("Loop", ["n", "", "x"], ["y", "sums"], body=body(nodes, {"s": (3,)}, ["s2", "sum"], "more"))],
        [value("x", (3,)), value("n", (), INT64), value("m", (), INT64)],
        [value("y", (3,)), value("sums", (None,))],
        {"k": np.float32([1, 1.5, 0.5]), "big": np.float32(1e4)},
    )
    agrees(
        made, [{"x": floats(4, 3), "n": np.array(n), "m": np.array(m)} for n, m in ((1, 1), (3, 0), (2, 5), (50, 3))]
    )


def test_a_branch_in_a_loop_in_a_branch():
    then = helper.make_graph([node("Mul", ["s", "two"], ["t"])], "then", [], [value("t", (3,))])
    other = helper.make_graph([node("Add", ["s", "two"], ["e"])], "other", [], [value("e", (3,))])
    nodes = [
        node("ReduceSum", ["s"], ["sum"], keepdims=0),
        node("Less", ["sum", "big"], ["small"]),
        node("If", ["small"], ["s2"], then_branch=then, else_branch=other),
    ]
    loop = node("Loop", ["n", "", "x"], ["y1"], body=body(nodes, {"s": (3,)}, ["s2"]))
    outer = helper.make_graph([loop], "outer", [], [value("y1", (3,))])
    plain = helper.make_graph([node("Neg", ["x"], ["y2"])], "plain", [], [value("y2", (3,))])
    made = model(
        [node("If", ["c"], ["y"], then_branch=outer, else_branch=plain)],
        [value("x", (3,)), value("n", (), INT64), value("c", (), BOOL)],
        [value("y", (3,))],
        {"two": np.float32([2, 1, 3]), "big": np.float32(9)},
    )
    cases = [{"x": np.float32([1, 2, 1]), "n": np.array(n), "c": np.array(c)} for n in (0, 1, 6) for c in (True, False)]
    agrees(made, cases)


def test_one_number_at_the_place_that_the_trip_says():
    """Of such a GatherND ONNX's inference knows no rank, and the loop was refused: its state would change its type."""
    nodes = [
        node("Unsqueeze", ["i", "zero"], ["at"]),
        node("GatherND", ["t", "at"], ["row"]),
        node("Add", ["s", "row"], ["s2"]),
    ]
    made = model(
        [node("Loop", ["n", "", "x"], ["y", "rows"], body=body(nodes, {"s": (3,)}, ["s2", "row"]))],
        [value("x", (3,)), value("t", (7,)), value("n", (), INT64)],
        [value("y", (3,)), value("rows", (None,))],
        {"zero": np.array([0])},
    )
    agrees(made, [{"x": floats(0, 3), "t": floats(1, 7), "n": n} for n in (0, 1, 7)])


def test_integers_and_truth_values_are_states_too():
    nodes = [
        node("Add", ["count", "i"], ["count2"]),
        node("Not", ["flag"], ["flag2"]),
        node("Mod", ["count2", "seven"], ["row"]),
    ]
    inner = helper.make_graph(
        [*nodes, node("Identity", ["go"], ["go_on"])],
        "body",
        [*TRIP, value("count", (1,), INT64), value("flag", (1,), BOOL)],
        [value("go_on", (), BOOL), value("count2", (1,), INT64), value("flag2", (1,), BOOL), value("row", (1,), INT64)],
    )
    made = model(
        [node("Loop", ["n", "", "c", "f"], ["y", "z", "rows"], body=inner)],
        [value("c", (1,), INT64), value("f", (1,), BOOL), value("n", (), INT64)],
        [value("y", (1,), INT64), value("z", (1,), BOOL), value("rows", (None, 1), INT64)],
        {"seven": np.array(7)},
    )
    agrees(made, [{"c": np.array([3]), "f": np.array([True]), "n": np.array(n)} for n in (0, 1, 20)])


def test_states_of_another_shape_are_refused_by_name():
    nodes = [node("Concat", ["s", "x"], ["s2"], axis=0)]
    made = model(
        [node("Loop", ["n", "", "x"], ["y"], name="grow", body=body(nodes, {"s": None}, ["s2"]))],
        [value("x", (3,)), value("n", (), INT64)],
        [value("y", None)],
    )
    with pytest.raises(UnsupportedOp) as caught:
        prepare(load(made))
    assert "'grow'" in str(caught.value) and "float32[3] becomes float32[6]" in str(caught.value)
    known = model(
        [node("Loop", ["n", "", "x"], ["y"], name="grow", body=body(nodes, {"s": None}, ["s2"]))],
        [value("x", (3,))],
        [value("y", (303,))],
        {"n": np.array(100)},
    )
    assert "Loop" not in ops(agrees(known, [{"x": floats(0, 3)}]))


def filling() -> Any:
    """A table that is filled row by row until a row says stop, as paddle2onnx writes such a loop (SLANet): a truth
    value that is a scalar in one branch and has an axis in the other, one that gets an axis in each trip, a state that
    is set in a trip before it is read, one that nobody reads, and the condition as a number with a zero added."""
    branches = [
        helper.make_graph([node("Not", ["no_yet"], ["yes"])], "then", [],
                          [value("yes", (), BOOL)]),
        helper.make_graph([node("Cast", ["done"], ["number"], to=1), node("Add", ["number", "zero1"], ["sum"]),
                           node("Cast", ["sum"], ["no"], to=BOOL)], "else", [], [value("no", (), BOOL)]),
    ]  # fmt: skip
    nodes = [
        node("Gather", ["x", "at"], ["row"], axis=0),
        node("Unsqueeze", ["at", "zero"], ["place"]),
        node("Add", ["place", "one"], ["next1"]),
        node("Unsqueeze", ["row", "zero"], ["upright"]),
        node("Slice", ["old", "place", "next1", "zero"], ["cut"]),
        node("Shape", ["cut"], ["cut_shape"]),
        node("Expand", ["upright", "cut_shape"], ["new"]),
        node("Unsqueeze", ["place", "zero"], ["places"]),
        node("ScatterND", ["old", "places", "new"], ["set"]),
        node("ReduceMax", ["row"], ["most"], keepdims=0),
        node("Less", ["most", "end"], ["going"]),
        node("Not", ["going"], ["over"]),
        node("If", ["over"], ["finished"], then_branch=branches[0], else_branch=branches[1]),
        node("Squeeze", ["next1", "zero"], ["at_next"]),
        node("Less", ["at_next", "many"], ["left"]),
        node("Not", ["finished"], ["unfinished"]),
        node("And", ["left", "unfinished"], ["on"]),
        node("Cast", ["on"], ["on_number"], to=1),
        node("Add", ["on_number", "zero1"], ["on_sum"]),
        node("Cast", ["on_sum"], ["on_too"], to=BOOL),
        node("Identity", ["set"], ["old_next"]),
        node("Identity", ["finished"], ["done_next"]),
        node("Identity", ["set"], ["unused_next"]),
    ]
    inner = body(
        nodes,
        {"at": None, "old": None, "set_before": None, "done": (), "unused": None},
        ["at_next", "old_next", "set", "done_next", "unused_next"],
        "on_too",
    )
    for formal, result, kind in zip(inner.input[2:], inner.output[1:], (INT64, 1, 1, BOOL, 1), strict=True):
        formal.type.tensor_type.elem_type = result.type.tensor_type.elem_type = kind
    constants = {
        "zero": np.array([0]), "one": np.array([1]), "zero1": np.float32([0]), "many": np.array(401),
        "start": np.array(0), "end": np.float32(3), "table": np.zeros((401, 3), np.float32), "scalar": np.float32(7),
        "no_yet": np.array(False), "begin": np.array(True),
    }  # fmt: skip
    return model(
        [
            node("Loop", ["", "begin", "start", "table", "scalar", "no_yet", "scalar"],
                 ["count", "whole", "filled", "over_now", "unread"], name="fill", body=inner),
            node("Neg", ["filled"], ["y"]),
        ],
        [value("x", (401, 3))],
        [value("count", (), INT64), value("y", (401, 3))],
        constants,
    )  # fmt: skip


def test_states_of_one_element_gain_an_axis_and_unread_ones_have_any_shape():
    cases = []
    for stop in (0, 1, 7, 400, 401):
        x = floats(stop, 401, 3).clip(-2, 2)
        x[stop:, 1] = 5
        cases.append({"x": x})
    assert "Loop" in ops(agrees(filling(), cases))


def test_a_state_that_no_trip_reads_is_read_behind_a_loop_in_a_function():
    """The names behind it are those of the call: a state is not dead because the file does not read it by its name."""
    made = filling()
    constants = [node("Constant", [], [t.name], value=t) for t in made.graph.initializer]
    opset = helper.make_opsetid("", made.opset_import[0].version)
    function = helper.make_function("own", "Filling", ["x"], ["count", "y"], [*constants, *made.graph.node], [opset])
    graph = helper.make_graph([node("Filling", ["x"], ["count", "y"], domain="own")], "g", made.graph.input, [])
    graph.output.extend(made.graph.output)
    whole = helper.make_model(graph, functions=[function], opset_imports=[opset, helper.make_opsetid("own", 1)])
    whole.ir_version = made.ir_version
    x = floats(3, 401, 3).clip(-2, 2)
    x[7:, 1] = 5
    found = [tvmopt.compile(one, threads=1, verify=False).model.run({"x": x}) for one in (whole, made)]
    assert int(found[0]["count"]) == int(found[1]["count"]) == 8
    np.testing.assert_array_equal(found[0]["y"], found[1]["y"])


def test_a_state_that_is_not_read_keeps_its_shape_where_no_trip_may_be():
    made = filling()
    made.graph.input.append(value("asked", (), BOOL))
    made.graph.node[0].input[1] = "asked"
    with pytest.raises(UnsupportedOp, match=r"float32\[\] becomes float32\[401,3\]"):
        prepare(load(made))


def test_a_loop_that_nothing_stops_is_refused():
    nodes = [node("Neg", ["s"], ["s2"])]
    for trips in ({}, {"n": np.array(2**63 - 1)}):
        made = model(
            [node("Loop", ["n" if trips else "", "", "x"], ["y"], body=body(nodes, {"s": (3,)}, ["s2"]))],
            [value("x", (3,))],
            [value("y", (3,))],
            trips,
        )
        with pytest.raises(ModelError, match="ever says stop"):
            prepare(load(made))


def test_a_body_with_an_operator_that_nobody_knows_is_refused():
    """Its condition has no type, which the rolled loop would have to say."""
    inside = body([node("Next", ["go"], ["t"], domain="my.own"), node("Neg", ["s"], ["u"])], {"s": (3,)}, ["u"], "t")
    made = model(
        [node("Loop", ["n", "", "x"], ["y"], body=inside)],
        [value("n", (), INT64), value("x", (3,))],
        [value("y", (3,))],
        domains={"my.own": 1},
    )
    with pytest.raises(UnsupportedOp, match="computes is not known"):
        prepare(load(made))


@pytest.mark.parametrize("seed", range(6))
def test_random_bodies(seed):
    """Chains of operators on states, inputs and constants, with a stop that depends on what is computed."""
    rng = np.random.default_rng(seed)
    width = int(rng.choice([1, 7, 16, 33]))
    names, nodes = ["a", "b", "x", "k"], []
    for index in range(8):
        op = rng.choice(["Add", "Sub", "Mul", "MatMul", "Tanh", "Softmax", "Relu"])
        first, second = rng.choice(names, 2)
        inputs = [first, "w"] if op == "MatMul" else [first, second] if op in ("Add", "Sub", "Mul") else [first]
        nodes += [node(op, inputs, [f"r{index}"]), node("Tanh", [f"r{index}"], [f"v{index}"])]
        names.append(f"v{index}")
    nodes += [
        node("ReduceMax", ["v7"], ["most"], keepdims=0),
        node("Less", ["most", "stop"], ["more"]),
    ]
    inner = body(nodes, {"a": (2, width), "b": (2, width)}, ["v6", "v7", "v5", "most"], "more")
    made = model(
        [node("Loop", ["n", "", "x", "x"], ["p", "q", "rows", "mosts"], body=inner)],
        [value("x", (2, width)), value("n", (), INT64)],
        [value("p", (2, width)), value("q", (2, width)), value("rows", (None, 2, width)), value("mosts", (None,))],
        {
            "k": floats(seed, 2, width),
            "w": floats(seed + 9, width, width) / width,
            "stop": np.float32(rng.uniform(0, 2)),
        },
    )
    agrees(made, [{"x": floats(seed + n, 2, width), "n": np.array(n)} for n in (0, 1, 2, 9)], 1e-4)
