"""Ifs beside open sizes: those that a run decides are computed; those that sizes decide hold calls to a branch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tvmopt.dims import Dim, Range
from tvmopt.errors import InputError, ModelError
from tvmopt.importer import prepare
from tvmopt.importer.open_model import read
from tvmopt.importer.symbols import Symbols

node = helper.make_node
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
SIZES = (1, 7, 8, 9, 16, 33)


def branch(*nodes: onnx.NodeProto, results: tuple[str, ...] = (), dtype: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """A branch whose results are those of its last node, or these."""
    names = results or tuple(nodes[-1].output)
    return helper.make_graph(list(nodes), "branch", [], [value(name, None, dtype) for name in names])


def either(condition: str, then: onnx.GraphProto, other: onnx.GraphProto, *outputs: str) -> onnx.NodeProto:
    return node("If", [condition], list(outputs), name="either", then_branch=then, else_branch=other)


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agrees(made: onnx.ModelProto, cases: list[dict[str, Any]]) -> None:
    """Compile without sizes, and compare with onnxruntime on every case."""
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    for feeds in cases:
        found = compiled.run(feeds)
        for (name, array), expected in zip(found.items(), run_ort(made, feeds), strict=True):
            assert array.shape == expected.shape and array.dtype == expected.dtype
            np.testing.assert_allclose(array, expected, 1e-5, 1e-5, err_msg=f"{name} at {feeds}")


def cases(*shape: int | None, name: str = "x") -> list[dict[str, Any]]:
    """Both conditions at all sizes; None in the shape is the size."""
    return [
        {"c": np.array(c), name: floats(n, *(n if size is None else size for size in shape))}
        for n in SIZES
        for c in (True, False)
    ]


def test_a_branch_that_a_run_decides() -> None:
    made = model(
        [either("c", branch(node("Relu", ["x"], ["b"])), branch(node("Neg", ["x"], ["b"])), "y")],
        [value("c", (), BOOL), value("x", ("n", 3))],
        [value("y", None)],
    )
    agrees(made, cases(None, 3))


def test_branches_with_weights_and_two_results_in_the_middle_of_a_model() -> None:
    then = branch(node("MatMul", ["a", "w"], ["p"]), node("Softmax", ["p"], ["q"]), results=("p", "q"))
    other = branch(node("Exp", ["a"], ["e"]), node("Tanh", ["a"], ["t"]), results=("t", "e"))
    made = model(
        [node("Mul", ["x", "half"], ["a"]), either("c", then, other, "r", "s"), node("Add", ["r", "s"], ["y"])],
        [value("c", (1,), BOOL), value("x", ("n", "t", 24))],
        [value("y", None), value("s", None)],
        {"w": floats(1, 24, 24), "half": np.float32(0.5)},
    )
    agrees(made, [feeds | {"c": feeds["c"].reshape(1)} for feeds in cases(None, 5, 24)])


def test_a_condition_that_is_computed_from_values_and_an_if_in_an_if() -> None:
    inner = either("big", branch(node("Sqrt", ["p"], ["b"])), branch(node("Neg", ["p"], ["b"])), "i")
    then = branch(
        node("Abs", ["x"], ["p"]), node("ReduceMax", ["p"], ["m"], keepdims=0),
        node("Greater", ["m", "two"], ["big"]), inner,
    )  # fmt: skip
    made = model(
        [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Less", ["sum", "zero"], ["c"]),
         either("c", then, branch(node("Identity", ["x"], ["b"])), "y")],
        [value("x", ("n", 3))], [value("y", None)], {"zero": np.float32(0), "two": np.float32(2)},
    )  # fmt: skip
    seeds = [(seed, n, k) for seed in range(3) for n in SIZES for k in (0.1, 3)]
    agrees(made, [{"x": k * floats(seed, n, 3)} for seed, n, k in seeds])


def test_integers_and_an_unused_result() -> None:
    other = branch(node("Add", ["x", "x"], ["d"]), node("Neg", ["x"], ["e"]), results=("d", "e"), dtype=INT64)
    then = branch(node("Mul", ["x", "x"], ["d"]), node("Abs", ["x"], ["e"]), results=("d", "e"), dtype=INT64)
    made = model(
        [either("c", then, other, "y", "")],
        [value("c", (), BOOL), value("x", ("n",), INT64)], [value("y", None, INT64)],
    )  # fmt: skip
    compiled = tvmopt.compile(made, threads=1, verify=False).model  # onnxruntime wants each result to be read
    for n in SIZES:
        x = np.arange(-3, n - 3)
        for c in (True, False):
            np.testing.assert_array_equal(compiled.run({"c": np.array(c), "x": x})["y"], x * x if c else x + x)


def test_a_size_that_values_decide_may_decide_in_turn() -> None:
    """Fewer than three rows are selected, or none."""
    made = model(
        [node("NonZero", ["m"], ["places"]), node("Squeeze", ["places", "zeroth"], ["at"]),
         node("Gather", ["x", "at"], ["g"], axis=0), node("Shape", ["g"], ["s"]), node("Gather", ["s", "z"], ["count"]),
         node("Less", ["count", "three"], ["c"]),
         either("c", branch(node("Relu", ["g"], ["b"])), branch(node("Neg", ["g"], ["b"])), "y")],
        [value("m", ("n",)), value("x", ("n", 4))], [value("y", None)],
        {"zeroth": np.array([0]), "z": np.array(0), "three": np.array(3)},
    )  # fmt: skip
    masks = [np.float32(floats(n, n) < limit) for n in SIZES for limit in (-9, -0.5, 0, 9)]
    agrees(made, [{"m": mask, "x": floats(1, len(mask), 4)} for mask in masks])


def test_branches_of_different_shapes_are_refused_by_name() -> None:
    then, other = branch(node("Relu", ["x"], ["b"])), branch(node("Concat", ["x", "x"], ["b"], axis=0))
    made = model(
        [either("c", then, other, "y")], [value("c", (), BOOL), value("x", ("n", 3))], [value("y", None)]
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"If cannot be imported: a run decides it, sizes are open, and its branches"):
        tvmopt.compile(made, threads=1)


def test_branches_of_different_known_shapes_are_told() -> None:
    """What was said of them was that the shape of the result is not known, and to cut boxes off."""
    then, other = branch(node("Neg", ["x"], ["b"])), branch(node("Transpose", ["x"], ["b"]))
    made = model([either("c", then, other, "y")], [value("c", (), BOOL), value("x", (2, 3))], [value("y", None)])
    with pytest.raises(ModelError, match=r"float32\[2, 3\] and float32\[3, 2\]") as caught:
        tvmopt.compile(made, threads=1)
    assert "--value" in caught.value.fix


def test_one_loop_takes_the_state_of_another() -> None:
    """The second loop was given a variable that was there no more."""
    formal = [value("i", (), INT64), value("go", (), BOOL), value("s", ("n", 3))]

    def body(op: str) -> onnx.GraphProto:
        results = [value("on", (), BOOL), value("r", None)]
        return helper.make_graph([node("Identity", ["go"], ["on"]), node(op, ["s", "x"], ["r"])], op, formal, results)

    made = model(
        [node("Loop", ["k", "", "x"], ["a"], body=body("Add")), node("Loop", ["k", "", "a"], ["y"], body=body("Mul"))],
        [value("k", (), INT64), value("x", ("n", 3))], [value("y", None)],
    )  # fmt: skip
    agrees(made, [{"k": np.array(k), "x": floats(n, n, 3)} for n in SIZES for k in (0, 1, 3)])


# -- sizes that decide -------------------------------------------------------------------------------------------------

SQUEEZED = branch(node("Squeeze", ["p", "last"], ["b"]))
KEPT = branch(node("Identity", ["p"], ["b"]))
AXIS = {"last": np.array([-1]), "index": np.array([-1]), "one": np.array([1]), "zeroth": np.array([0])}
LENGTH = [node("Shape", ["p"], ["shape"]), node("Gather", ["shape", "index"], ["length"])]


def pooled(*nodes: onnx.NodeProto, then: Any = SQUEEZED, other: Any = KEPT, ask: str = "Equal", **weights: Any) -> Any:
    """A model that pools windows of 4, of [n, 3, t], and asks how many there are."""
    whole = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[4], strides=[4]), *LENGTH, node(ask, ["length", "one"], ["c"]),
        either("c", then, other, "r"), *nodes,
    ]  # fmt: skip
    return model(whole, [value("x", ("n", 3, "t"))], [value(nodes[-1].output[0], None)], AXIS | weights)


def test_a_size_of_1_is_squeezed_and_calls_are_held_to_it() -> None:
    """As torch's exporter writes ``squeeze(-1)``: what follows takes two dimensions."""
    made = pooled(node("Gemm", ["r", "w"], ["y"]), w=floats(1, 3, 5))
    assert read(prepare(made)).ranges["t"] == Range(4, 7, 7)
    compiled = tvmopt.compile(made, threads=1).model
    for n, t in ((1, 4), (3, 5), (8, 6), (33, 7)):
        x = floats(n, n, 3, t)
        np.testing.assert_allclose(compiled.run({"x": x})["y"], run_ort(made, {"x": x})[0], 1e-5, 1e-5)
    for t in (3, 8):
        with pytest.raises(InputError, match="'t' is"):
            compiled.run({"x": floats(1, 1, 3, t)})


@pytest.mark.parametrize("negated", [False, True])
def test_the_other_branch_where_what_follows_does_not_fit_the_first(negated: bool) -> None:
    """A convolution takes three dimensions, so that nothing is squeezed: 2 windows and more."""
    made = pooled(node("Conv", ["r", "w"], ["y"], pads=[1, 1]), w=floats(1, 5, 3, 3))
    if negated:
        made = pooled(node("Conv", ["r", "w"], ["y"], pads=[1, 1]), then=KEPT, other=SQUEEZED, w=floats(1, 5, 3, 3))
        place = next(i for i, n in enumerate(made.graph.node) if n.op_type == "If")
        made.graph.node.insert(place, node("Not", ["c"], ["not"]))
        made.graph.node[place + 1].input[0] = "not"
    assert read(prepare(made)).ranges["t"].min == 8
    agrees(made, [{"x": floats(n, n, 3, t)} for n in (1, 3) for t in (8, 9, 16, 33)])


def test_the_branch_of_more_sizes_first() -> None:
    """Neither squeezes, and both fit: one window only would be a narrow range."""
    made = pooled(
        node("Relu", ["r"], ["y"]),
        then=branch(node("Flatten", ["p"], ["b"])), other=branch(node("Unsqueeze", ["p", "zeroth"], ["b"])),
    )  # fmt: skip
    assert read(prepare(made)).ranges["t"].min == 8


@pytest.mark.parametrize("ask", ["Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
def test_comparisons(ask: str) -> None:
    made = pooled(
        node("Relu", ["r"], ["y"]), ask=ask,
        then=branch(node("Flatten", ["p"], ["b"])), other=branch(node("Unsqueeze", ["p", "zeroth"], ["b"])),
    )  # fmt: skip
    made.graph.initializer[2].CopyFrom(helper.make_tensor("one", INT64, [1], [3]))
    low, high = {"Less": (4, 11), "Greater": (16, None), "LessOrEqual": (4, 15), "GreaterOrEqual": (12, None)}[ask]
    found = read(prepare(made)).ranges["t"]
    assert found.min == low and (high is None or found.max == high)
    agrees(made, [{"x": floats(t, 2, 3, t)} for t in (low, low + 1, high or low + 9)])


def test_sizes_decide_between_branches_of_one_shape_in_each_call() -> None:
    made = pooled(
        node("Neg", ["r"], ["y"]), then=branch(node("Relu", ["p"], ["b"])), other=branch(node("Exp", ["p"], ["b"]))
    )  # fmt: skip
    assert read(prepare(made)).ranges["t"].min == 4
    agrees(made, [{"x": floats(t, n, 3, t)} for t in (4, 7, 8, 9, 33) for n in (1, 5)])


def test_a_question_inside_a_branch_that_a_run_decides() -> None:
    """As in silero-vad: the rate decides, and in each branch another length is squeezed. Calls are held to both."""

    def half(kernel: int) -> onnx.GraphProto:
        inner = either("one_window", SQUEEZED, KEPT, "i")
        return branch(
            node("MaxPool", ["x"], ["p"], kernel_shape=[kernel], strides=[kernel]), *LENGTH,
            node("Equal", ["length", "one"], ["one_window"]), inner, node("Gemm", ["i", "w"], ["g"]),
        )  # fmt: skip

    made = model(
        [either("c", half(6), half(4), "y")], [value("c", (), BOOL), value("x", ("n", 3, "t"))], [value("y", None)],
        AXIS | {"w": floats(1, 3, 5)},
    )  # fmt: skip
    found = read(prepare(made)).ranges["t"]
    assert (found.min, found.max) == (6, 7)
    with pytest.raises(
        InputError, match=r"(?s)'t' is at most 7 .*take one branch: (--value c=NUMBER|values=.'c': NUMBER)"
    ):
        prepare(made, {"t": ["6..20"]})
    assert read(prepare(made, values={"c": np.array(True)})).ranges["t"] == Range(6, 11, 11)
    agrees(made, [{"c": np.array(c), "x": floats(t, n, 3, t)} for c in (True, False) for t in (6, 7) for n in (1, 9)])


def test_windows_written_in_two_ways_are_one_size() -> None:
    """A slice of everything behind a convolution: TVM writes ``(t - 192)//128 + 1`` and we ``(t + 64)//128 - 1``."""
    made = model(
        [node("Conv", ["x", "w"], ["p"], strides=[128]), node("Slice", ["p", "from", "to", "axis"], ["s"]),
         node("Sqrt", ["s"], ["y"])],
        [value("x", ("n", 1, "t"))], [value("y", None)],
        {"w": np.abs(floats(1, 4, 1, 192)), "from": np.array([0]), "to": np.array([1 << 62]), "axis": np.array([2])},
    )  # fmt: skip
    agrees(made, [{"x": np.abs(floats(t, 2, 1, t))} for t in (192, 319, 320, 321, 1000)])


def test_a_size_that_became_another_one_is_that_one() -> None:
    """Of three sizes of one node: the second equation was read in the symbols of before the first."""
    symbols = Symbols(names=("a", "b", "c"))
    a, b, c = map(Dim.symbol, "abc")
    assert symbols.unify(a, c, "node", lambda mapping: None) == a
    assert symbols.unify(a, c, "node", lambda mapping: None) == a
    assert symbols.unify(c, b, "node", lambda mapping: None) == a
    assert symbols.names == ("a",) and {n: str(s) for n, (s, _) in symbols.replaced.items()} == {"b": "a", "c": "a"}


def test_a_branch_of_static_sizes_knows_its_shapes() -> None:
    """A Flatten in a branch that a run decides: what it gives was not known there."""
    then = branch(node("Flatten", ["x"], ["f"], axis=1), node("MatMul", ["f", "w"], ["p"]))
    other = branch(node("Reshape", ["x", "whole"], ["g"]), node("MatMul", ["g", "v"], ["q"]))
    made = model(
        [either("c", then, other, "y")],
        [value("c", (), BOOL), value("x", (2, 3, 4))],
        [value("y", None)],
        {"w": floats(1, 12, 5), "v": floats(2, 12, 5), "whole": np.array([0, -1])},
    )
    agrees(made, [{"c": np.array(c), "x": floats(3, 2, 3, 4)} for c in (True, False)])


def test_many_ifs_whose_first_branches_do_not_fit_cost_a_walk_each() -> None:
    """Eight inputs whose windows are squeezed if there is one, and convolutions that take three dimensions: which If a
    problem is about follows from where it stands, so that not all 256 ways are tried."""
    nodes, inputs, results = [], [], []
    for k in range(8):
        nodes += [
            node("MaxPool", [f"x{k}"], [f"p{k}"], kernel_shape=[4], strides=[4]), node("Shape", [f"p{k}"], [f"s{k}"]),
            node("Gather", [f"s{k}", "index"], [f"l{k}"]), node("Equal", [f"l{k}", "one"], [f"c{k}"]),
            either(
                f"c{k}",
                branch(node("Squeeze", [f"p{k}", "last"], [f"a{k}"])), branch(node("Identity", [f"p{k}"], [f"b{k}"])),
                f"r{k}",
            ),
            node("Conv", [f"r{k}", "w"], [f"y{k}"], pads=[1, 1]),
        ]  # fmt: skip
        inputs.append(value(f"x{k}", (2, 3, f"t{k}")))
        results.append(value(f"y{k}", None))
    made = model(nodes, inputs, results, AXIS | {"w": floats(1, 5, 3, 3)})
    ranges = read(prepare(made)).ranges
    assert [ranges[f"t{k}"].min for k in range(8)] == [8] * 8


def test_sizes_inside_a_branch_are_no_less_than_1() -> None:
    """As in silero-vad of 2022: windows are cut in each branch, and none of its results has their number."""

    def most(kernel: int) -> onnx.GraphProto:
        return branch(
            node("MaxPool", ["x"], ["p"], kernel_shape=[kernel], strides=[4]),
            node("ReduceMax", ["p"], ["m"], axes=[2], keepdims=0),
        )

    made = model(
        [either("c", most(9), most(4), "y")], [value("c", (), BOOL), value("x", ("n", 3, "t"))], [value("y", None)]
    )
    assert read(prepare(made)).ranges["t"].min == 9
    agrees(made, [{"c": np.array(c), "x": floats(t, 2, 3, t)} for c in (True, False) for t in (9, 10, 33)])
