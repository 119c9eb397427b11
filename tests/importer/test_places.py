"""What is cut or counted from a place on that a run computes: one row in each trip of a loop, and others of known
length."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, ops, run_ort, value
from tvmopt.dims import parse
from tvmopt.errors import InputError, ModelError, UnsupportedOp
from tvmopt.importer import load, prepare
from tvmopt.importer.open_values import evaluate, objects
from tvmopt.importer.symbols import Symbols

node, BOOL, INT64, INT32, FLOAT = helper.make_node, TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, 1
TRIP = [value("trip", (), INT64), value("go", (), BOOL)]


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loop(
    nodes: list[onnx.NodeProto], limit: str = "n", condition: str = "go", axis: int = 0, counter: str = "next"
) -> onnx.ModelProto:
    """h = 0; for each trip: h = tanh(row + h / 2), where `nodes` compute `row` [1, 3] of `x` [t, 3] and, if they have
    it, of a counter `i` [1] that begins at 0. The trips are as many as `limit` says, `n` is the length of x."""
    steps = [] if any("next" in n.output for n in nodes) else [node("Add", ["i", "one1"], ["next"])]
    body = helper.make_graph(
        [
            *steps,
            *nodes,
            node("Mul", ["h", "half"], ["less"]),
            node("Add", ["row", "less"], ["sum"]),
            node("Tanh", ["sum"], ["h_next"]),
            node("Identity", [condition], ["goes"]),
            node("Identity", ["h_next"], ["given"]),
        ],
        "body",
        [*TRIP, value("i", (1,), INT64), value("h", (1, 3))],
        [value("goes", (), BOOL), value(counter, (1,), INT64), value("h_next", None), value("given", None)],
    )
    before = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Unsqueeze", ["n", "zero1"], ["n1"]),
    ]
    whole = node("Loop", [limit, "", "zero1", "h0"], ["behind", "last", "rows"], name="loop", body=body)
    constants = {
        "zero": np.array(0), "zero1": np.array([0]), "one": np.array(1), "one1": np.array([1]), "two1": np.array([2]),
        "three1": np.array([3]), "five1": np.array([5]), "half": np.float32(0.5), "h0": np.zeros((1, 3), np.float32),
        "one_float": np.float32([1]), "many": np.array(400), "four": np.array(4),
    }  # fmt: skip
    outputs = [value("last", (1, 3)), value("rows", None)]
    return model([*before, whole], [value("x", ("t", 3))], outputs, constants)


def compared(made: onnx.ModelProto, cases: list[dict[str, Any]], **options: Any) -> Any:
    """Compile a model and compare it with onnxruntime on every case; the compiled model."""
    compiled = tvmopt.compile(made, threads=1, verify=False, **options).model
    for feeds in cases:
        for array, expected in zip(compiled.run(feeds).values(), run_ort(made, feeds), strict=True):
            assert array.shape == expected.shape and array.dtype == expected.dtype
            np.testing.assert_allclose(array, expected, 1e-5, 1e-5)
    return compiled


ROWS = {
    "behind the counter": [node("Slice", ["x", "i", "next", "zero1"], ["row"])],
    "behind the trip": [
        node("Unsqueeze", ["trip", "zero1"], ["at"]),
        node("Add", ["at", "one1"], ["end"]),
        node("Slice", ["x", "at", "end", "zero1", "one1"], ["row"]),
    ],
    "no further than the end": [
        node("Cast", ["i"], ["number"], to=FLOAT),
        node("Add", ["number", "one_float"], ["larger"]),
        node("Cast", ["larger"], ["end"], to=INT64),
        node("Min", ["n1", "end"], ["most"]),
        node("Slice", ["x", "i", "most", "zero1"], ["row"]),
    ],
    "from the back": [
        node("Sub", ["n1", "i"], ["end"]),
        node("Sub", ["end", "one1"], ["at"]),
        node("Slice", ["x", "at", "end", "zero1"], ["row"]),
    ],
    "of both axes": [
        node("Concat", ["i", "zero1"], ["starts"], axis=0),
        node("Concat", ["next", "three1"], ["ends"], axis=0),
        node("Slice", ["x", "starts", "ends"], ["row"]),
    ],
    "rounded towards zero": [
        node("Sub", ["i", "i"], ["none"]),
        node("Sub", ["none", "three1"], ["below"]),
        node("Div", ["below", "two1"], ["more"]),
        node("Add", ["i", "more"], ["before"]),
        node("Add", ["before", "one1"], ["at"]),
        node("Add", ["at", "one1"], ["end"]),
        node("Slice", ["x", "at", "end", "zero1"], ["row"]),
    ],
}


@pytest.mark.parametrize("rows", ROWS)
def test_one_row_in_each_trip_over_an_open_size(rows: str) -> None:
    compared(loop(ROWS[rows]), [{"x": floats(n, n, 3)} for n in (1, 7, 8, 9, 15, 33)])


@pytest.mark.parametrize("rows", ROWS)
def test_one_row_in_each_of_many_trips(rows: str) -> None:
    made = loop(ROWS[rows])
    assert "Loop" in ops(prepare(load(made), {"x": (401, 3)}))
    compared(made, [{"x": floats(1, 401, 3)}], shape={"x": (401, 3)})


def test_a_row_that_is_written() -> None:
    """As paddle2onnx writes ``table[i] = row``: a Slice for its shape, and a ScatterElements at a Range."""
    nodes = [
        node("Min", ["n1", "next"], ["end"]),
        node("Slice", ["x", "i", "end", "zero1", "one1"], ["row"]),
        node("Slice", ["table", "i", "end", "zero1", "one1"], ["old"]),
        node("Shape", ["old"], ["old_shape"]),
        node("Expand", ["row", "old_shape"], ["new"]),
        *(node("Squeeze", [name], [f"{name}_scalar"]) for name in ("i", "end", "one1")),
        node("Range", ["i_scalar", "end_scalar", "one1_scalar"], ["places"]),
        node("Reshape", ["places", "column"], ["upright"]),
        node("Slice", ["old_shape", "one1", "two1", "zero1"], ["columns"]),
        node("Concat", ["one1", "columns"], ["times"], axis=0),
        node("Tile", ["upright", "times"], ["indices"]),
        node("ScatterElements", ["table", "indices", "new"], ["table_next"], axis=0),
        node("Add", ["i", "one1"], ["next"]),
        node("Less", ["next", "n1"], ["goes"]),
    ]
    nodes = [nodes[-2], *nodes[:-2], nodes[-1]]
    body = helper.make_graph(
        nodes,
        "body",
        [value("trip", (1,), INT64), value("go", (1,), BOOL), value("i", (1,), INT64), value("table", None)],
        [value("goes", (1,), BOOL), value("next", (1,), INT64), value("table_next", None)],
    )
    before = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero1"], ["n1"]),
        node("ConstantOfShape", ["shape"], ["empty"]),
        node("Loop", ["limit", "yes", "zero1", "empty"], ["behind", "y"], name="loop", body=body),
    ]
    constants = {
        "zero1": np.array([0]), "one1": np.array([1]), "two1": np.array([2]), "column": np.array([-1, 1]),
        "yes": np.array([True]), "limit": np.array([1024]),
    }  # fmt: skip
    made = model(before, [value("x", ("t", 5))], [value("y", ("t", 5))], constants)
    assert ops(prepare(load(made), {"x": (100, 5)})).count("Loop") == 1
    compared(made, [{"x": floats(1, 100, 5)}], shape={"x": (100, 5)})
    compared(made, [{"x": floats(1, 1030, 5)}], shape={"x": (1030, 5)})


@pytest.mark.parametrize("limit", ["", "four"])
def test_what_stops_bounds_the_counter(limit: str) -> None:
    """A trip follows while something computed says so, and there are rows: so each trip has one."""
    nodes = [
        node("Min", ["n1", "next"], ["end"]),
        node("Slice", ["x", "i", "end", "zero1"], ["row"]),
        node("ReduceMax", ["row"], ["largest"], keepdims=0),
        node("Less", ["largest", "stop"], ["small"]),
        node("Less", ["next", "n1"], ["inside"]),
        node("Squeeze", ["inside"], ["within"]),
        node("And", ["small", "within"], ["more"]),
    ]
    made = loop(nodes, limit, "more")
    made.graph.input.append(value("stop", ()))
    compared(
        made,
        [{"x": floats(n, n, 3), "stop": np.array(stop, np.float32)} for n in (1, 8, 33) for stop in (-9.0, 1.2, 9.0)],
    )


def test_a_loop_that_runs_past_the_last_row_ends_the_call() -> None:
    """Nothing bounds the counter but the rows: a trip behind the last one would have none."""
    compiled = compared(loop(ROWS["behind the counter"], "many"), [{"x": floats(1, 400, 3)}, {"x": floats(1, 512, 3)}])
    with pytest.raises(InputError):
        compiled.run({"x": floats(1, 399, 3)})


def test_a_counter_as_a_truth_value_is_false_in_the_first_trip() -> None:
    nodes = [
        node("Cast", ["i"], ["later"], to=BOOL),
        node("Not", ["later"], ["first"]),
        node("Slice", ["x", "i", "next", "zero1"], ["own"]),
        node("Where", ["first", "h", "own"], ["row"]),
    ]
    compared(loop(nodes), [{"x": floats(n, n, 3)} for n in (1, 2, 9)])


def test_a_place_that_each_trip_computes() -> None:
    """A state that is no counter: where the row's largest number is, is where the next trip looks."""
    nodes = [
        node("Add", ["i", "one1"], ["end"]),
        node("Slice", ["x", "i", "end", "zero1"], ["row"]),
        node("ArgMax", ["row"], ["next"], axis=1, keepdims=0),
    ]
    compared(loop(nodes), [{"x": floats(n, n, 3)} for n in (3, 8, 33)])


def cut(length: int, step: int, kind: int = INT64) -> onnx.ModelProto:
    """``x[:, p : p + length : step]`` and ``range(p, p + length, step)``, where `p` is an input."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        node("Unsqueeze", ["p", "zero1"], ["start"]),
        node("Add", ["length", "start"], ["end"]),
        node("Slice", ["x", "start", "end", "axis", "step1"], ["part"]),
        node("Mul", ["part", "part"], ["y"]),
        node("Squeeze", ["end"], ["end0"]),
        node("Range", ["p", "end0", "step"], ["places"]),
        node("Mul", ["places", "step"], ["z"]),
    ]
    constants = {
        "zero1": np.array([0]), "axis": np.array([1], dtype), "length": np.array([length], dtype),
        "step1": np.array([step], dtype), "step": np.array(step, dtype),
    }  # fmt: skip
    outputs = [value("y", None), value("z", None, kind)]
    return model(nodes, [value("x", (2, 9)), value("p", (), kind)], outputs, constants)


@pytest.mark.parametrize("kind", [INT64, INT32])
@pytest.mark.parametrize("length, step", [(1, 1), (2, 1), (3, 2), (4, 3), (1, 7), (9, 1)])
def test_a_place_that_is_an_input(length: int, step: int, kind: int) -> None:
    made = cut(length, step, kind)
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    wanted = -(-length // step)
    right = 0
    for place in (*range(-12, 13), np.iinfo(np.int32).min, np.iinfo(np.int32).max - 20):
        feeds = {"x": floats(1, 2, 9), "p": np.array(place, helper.tensor_dtype_to_np_dtype(kind))}
        expected = run_ort(made, feeds)
        if expected[0].shape[1] != wanted:
            with pytest.raises(InputError):
                compiled.run(feeds)
            continue
        right += 1
        for array, one in zip(compiled.run(feeds).values(), expected, strict=True):
            np.testing.assert_array_equal(array, one)
    assert right


BOUNDS = {"5 - n": range(3, 6), "n - 5": range(5, 13), "1 - n": range(2, 13), "-(n//2)": range(2, 13)}
"""A bound of a Slice that is below 0 at some sizes, and the sizes (to 12) that the model takes."""


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_on_both_sides_of_0(bound: str) -> None:
    """Taken for one from the start at all sizes, it was a place before the tensor."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "zero1", "one1"], ["n"]),
        *{
            "5 - n": [node("Sub", ["five1", "n"], ["at"])],
            "n - 5": [node("Sub", ["n", "five1"], ["at"])],
            "1 - n": [node("Sub", ["one1", "n"], ["at"])],
            "-(n//2)": [node("Div", ["n", "two1"], ["half"]), node("Neg", ["half"], ["at"])],
        }[bound],
        node("Slice", ["x", "at", "far", "zero1"], ["y"]),
    ]
    numbers = {"zero1": 0, "one1": 1, "two1": 2, "five1": 5, "far": 2**62}
    constants = {name: np.array([number]) for name, number in numbers.items()}
    made = model(nodes, [value("x", ("n", 3))], [value("y", None)], constants)
    compiled = compared(made, [{"x": floats(n, n, 3)} for n in BOUNDS[bound]])
    for n in {*range(1, 13)} - {*BOUNDS[bound]}:
        with pytest.raises(InputError):
            compiled.run({"x": floats(n, n, 3)})


@pytest.mark.parametrize("factor, number, divisor, sizes", [
    (1, -5, 2, range(5, 13)),
    (1, -5, -2, range(1, 6)),
    (-1, 5, 2, range(1, 6)),
    (-1, 1, 2, range(1, 13)),
    (2, -6, 2, range(1, 13)),
    (1, 5, -2, range(1, 13)),
])  # fmt: skip
def test_quotients_below_0_are_rounded_towards_0_or_refused(
    factor: int, number: int, divisor: int, sizes: range
) -> None:
    """Sizes are rounded down: ``(n - 5) / 2`` of 4 elements was -1."""
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Mul", ["n", "factor"], ["some"]),
        node("Add", ["some", "number"], ["more"]),
        node("Div", ["more", "divisor"], ["y"]),
    ]
    constants = {"factor": np.array([factor]), "number": np.array([number]), "divisor": np.array([divisor])}
    made = model(nodes, [value("x", ("n",))], [value("y", (1,), INT64)], constants)
    compiled = compared(made, [{"x": floats(n, n)} for n in sizes])
    for n in {*range(1, 13)} - {*sizes}:
        with pytest.raises(InputError):
            compiled.run({"x": floats(n, n)})


@pytest.mark.parametrize("axes, steps", [("rest1", "one1"), ("both", "one1")])
def test_cuts_that_contradict_themselves_are_refused_by_name(axes: str, steps: str) -> None:
    """An axis that a call decides; a step for one of two axes."""
    many = 1 if axes == "rest1" else 2
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "zero1", "one1"], ["n"]),
        node("Mod", ["n", "two1"], ["rest1"]),
        node("Concat", ["p"] * many, ["starts"], axis=0),
        node("Add", ["starts", "one1"], ["ends"]),
        node("Slice", ["x", "starts", "ends", axes, steps], ["y"]),
    ]
    constants = {"zero1": np.array([0]), "one1": np.array([1]), "two1": np.array([2]), "both": np.array([0, 1])}
    made = model(nodes, [value("x", ("n", 3)), value("p", (1,), INT64)], [value("y", None)], constants)
    with pytest.raises(ModelError, match="Slice"):
        tvmopt.compile(made, threads=1, verify=False)


CUTS = [(0, 5), (3, 3), (5, 2), (-4, -1), (-30, 4), (2, 30), (30, 40), (-1, 30), (-30, -20), (-(2**63), 2**63 - 1)]
"""Where a Slice begins and ends: inside of axes of 1 to 9 elements, and outside of them."""


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 8, 9, "n"])
def test_bounds_that_a_run_is_given(size: int | str, step: int) -> None:
    nodes = [node("Slice", ["x", "from", "to", "axis", "step"], ["part"]), node("Neg", ["part"], ["y"])]
    inputs = [value("x", (2, size)), value("from", (1,), INT64), value("to", (1,), INT64)]
    made = model(nodes, inputs, [value("y", (2, None))], {"axis": np.array([-1]), "step": np.array([step])})
    sizes = (1, 7, 17) if isinstance(size, str) else (size,)
    compared(made, [{"x": floats(n, 2, n), "from": np.array([a]), "to": np.array([b])} for n in sizes for a, b in CUTS])


def test_bounds_that_a_run_is_given_along_axes_beside_known_ones() -> None:
    """In int32, of two axes of four; a third one's bounds are constants."""
    nodes = [
        node("Concat", ["p", "one1", "q"], ["starts"], axis=0),
        node("Concat", ["q", "two1", "p"], ["ends"], axis=0),
        node("Slice", ["x", "starts", "ends", "axes"], ["y"]),
    ]
    inputs = [value("x", (5, 2, 3, 9)), value("p", (1,), INT32), value("q", (1,), INT32)]
    constants = {"one1": np.int32([1]), "two1": np.int32([2]), "axes": np.int32([3, 2, 0])}
    made = model(nodes, inputs, [value("y", (None, 2, 1, None))], constants)
    cuts = [(0, 4), (-4, 4), (2, -1), (4, 2), (-(2**31), 2**31 - 1)]
    compared(made, [{"x": floats(0, 5, 2, 3, 9), "p": np.int32([p]), "q": np.int32([q])} for p, q in cuts])


def test_the_sum_of_what_a_run_cuts() -> None:
    nodes = [
        node("Slice", ["x", "zero1", "p", "zero1"], ["part"]),
        node("ReduceSum", ["part", "zero1"], ["y"], keepdims=0),
    ]
    made = model(nodes, [value("x", (9, 3)), value("p", (1,), INT64)], [value("y", (3,))], {"zero1": np.array([0])})
    compared(made, [{"x": floats(0, 9, 3), "p": np.array([p])} for p in (0, 1, 8, 9, -1, -9, 99)])


def test_bounds_that_a_run_is_given_backwards_are_refused_by_name() -> None:
    made = model(
        [node("Slice", ["x", "p", "q", "zero1", "back"], ["y"])],
        [value("x", (9, 3)), value("p", (1,), INT64), value("q", (1,), INT64)],
        [value("y", (None, 3))],
        {"zero1": np.array([0]), "back": np.array([-1])},
    )
    with pytest.raises(UnsupportedOp, match="Slice"):
        tvmopt.compile(made, threads=1, verify=False)


def test_bounds_that_are_fractions_are_refused() -> None:
    """A ValueError of the walk was what the user saw."""
    constants = {"a": np.float32(0.5), "b": np.uint8(2)}
    cut = model([node("Slice", ["x", "a", "b"], ["y"])], [value("x", (5, 3))], [value("y", None)], constants)
    with pytest.raises(ModelError):
        tvmopt.compile(cut, verify=False)


def test_a_row_less_in_each_trip_is_refused_by_name() -> None:
    nodes = [
        node("Slice", ["x", "i", "n1", "zero1"], ["rest"]),
        node("ReduceSum", ["rest", "zero1"], ["row"], keepdims=1),
    ]
    with pytest.raises(UnsupportedOp, match="Slice"):
        tvmopt.compile(loop(nodes), threads=1, verify=False)


@pytest.mark.parametrize(
    "kind, attributes, arguments, elem_type, expected",
    [
        ("Cast", {"to": BOOL}, ["past"], BOOL, None),
        ("Cast", {"to": BOOL}, ["past + 1"], BOOL, "1"),
        ("Cast", {"to": BOOL}, ["0"], BOOL, "0"),
        ("Cast", {"to": INT32}, ["past"], INT32, "past"),
        ("Div", {}, ["-seq - 1", "2"], INT64, "-((seq + 1)//2)"),
        ("Div", {}, ["seq + 1", "-2"], INT64, "-((seq + 1)//2)"),
        ("Div", {}, ["seq + 1", "2"], INT64, "(seq + 1)//2"),
        ("Div", {}, ["-7", "2"], INT64, "-3"),
    ],
)
def test_truth_values_and_quotients_of_sizes(
    kind: str, attributes: dict[str, int], arguments: list[str], elem_type: int, expected: str | None
) -> None:
    """A size that may be 0 is neither true nor false; a quotient is rounded towards zero."""
    symbols = Symbols(names=("seq", "past"))
    arrays = [objects([parse(text)]) for text in arguments]
    found = evaluate(node(kind, ["a", "b"][: len(arrays)], ["c"], **attributes), arrays, elem_type, symbols)
    assert (None if found is None else str(found[0])) == (None if expected is None else str(parse(expected)))


def test_a_range_to_no_number_is_refused():
    """The end is the shape of nothing: a vector without elements."""
    nodes = [
        node("Shape", ["x"], ["end"], start=-2, end=-1),
        node("Range", ["zero", "end", "one"], ["places"]),
        node("Cast", ["places"], ["y"], to=FLOAT),
        node("Relu", ["x"], ["z"]),
    ]
    weights = {"zero": np.int64(0), "one": np.int64(1)}
    made = model(nodes, [value("x", ("n",))], [value("y", None), value("z", ("n",))], weights)
    with pytest.raises(ModelError, match="Range"):
        tvmopt.compile(made, verify=False, records=False)
