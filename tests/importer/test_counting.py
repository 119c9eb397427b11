"""Loops that count, as TensorFlow's exporters write them: their number of trips follows from sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tvmopt.errors import InputError

node = helper.make_node
INT32, INT64 = TensorProto.INT32, TensorProto.INT64
SIZES = (1, 7, 8, 9, 16, 33)


def while_loop(
    *condition: onnx.NodeProto, step: int = 1, limit: str = "", first: str = "begin"
) -> list[onnx.NodeProto]:
    """h = 0; while ``condition``: h = tanh(x[i] + h / 2), each h collected; the length of x is `n`.

    Args:
        condition: nodes that compute `goes` of the counter `next`, which grows by `step`, the number of the trip
            `trip` and `n`.
    """
    body = helper.make_graph(
        [
            node("Add", ["i", "step"], ["next"]),
            node("Gather", ["x", "i"], ["row"]),
            node("Mul", ["h", "half"], ["less"]),
            node("Add", ["row", "less"], ["sum"]),
            node("Tanh", ["sum"], ["h_next"]),
            node("Identity", ["h_next"], ["given"]),
            *condition,
        ],
        "body",
        [value("trip", (), INT64), value("c", (), TensorProto.BOOL), value("i", (), INT32), value("h", None)],
        [value("goes", (), TensorProto.BOOL), value("next", (), INT32), value("h_next", None), value("given", None)],
        [onnx.numpy_helper.from_array(np.array(step, np.int32), "step")],
    )
    return [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["shape32"], to=INT32),
        node("Slice", ["shape32", "zero1", "one1"], ["first"]),
        node("Squeeze", ["first"], ["n"]),
        node("Cast", ["n"], ["float_n"], to=TensorProto.FLOAT),
        node("Less", ["zero_float", "float_n"], ["begin"]),
        node("Loop", [limit, first, "zero", "h0"], ["last", "h_last", "rows"], name="loop", body=body),
        node("Shape", ["rows"], ["collected"]),
        node("ConstantOfShape", ["collected"], ["zeros"]),
        node("Add", ["rows", "zeros"], ["y"]),
    ]


def looped(nodes: list[onnx.NodeProto], size: int | str = "t") -> onnx.ModelProto:
    constants: dict[str, Any] = {
        "zero": np.int32(0), "zero_float": np.float32(0), "half": np.float32(0.5), "h0": np.zeros((2, 3), np.float32),
        "zero1": np.array([0]), "one1": np.array([1]), "huge": np.array(2**31 - 1), "yes": np.array(True),
        "huge32": np.int32(2**31 - 1), "zero64": np.array(0),
    }  # fmt: skip
    outputs = [value("y", None), value("h_last", None), value("last", None, INT32)]
    return model(nodes, [value("x", (size, 2, 3))], outputs, constants)


def rows(size: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(size).standard_normal((size, 2, 3)).astype(np.float32)}


CONDITIONS = {
    "less": [node("Less", ["next", "n"], ["goes"])],
    "in floats": [
        node("Cast", ["next"], ["a"], to=TensorProto.FLOAT),
        node("Cast", ["n"], ["b"], to=TensorProto.FLOAT),
        node("Less", ["a", "b"], ["goes"]),
    ],
    "greater": [node("Greater", ["n", "next"], ["goes"])],
    "not above the last": [node("Sub", ["n", "step"], ["end"]), node("LessOrEqual", ["next", "end"], ["goes"])],
    "of the trip": [
        node("Cast", ["trip"], ["trip32"], to=INT32),
        node("Add", ["trip32", "step"], ["following"]),
        node("Less", ["following", "n"], ["goes"]),
    ],
    "twice": [
        node("Less", ["next", "n"], ["goes0"]),
        node("Cast", ["trip"], ["trip32"], to=INT32),
        node("Add", ["trip32", "step"], ["following"]),
        node("Less", ["following", "n"], ["goes1"]),
        node("And", ["goes0", "goes1"], ["goes"]),
    ],
    "one behind the other": [
        node("Less", ["next", "n"], ["goes0"]),
        node("Cast", ["trip"], ["trip32"], to=INT32),
        node("Less", ["trip32", "n"], ["goes1"]),
        node("And", ["goes1", "goes0"], ["goes"]),
    ],
    "beside a limit": [
        node("Less", ["next", "huge32"], ["far"]),
        node("Less", ["next", "n"], ["near"]),
        node("And", ["far", "near"], ["goes"]),
    ],
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_loop_over_the_rows_of_an_open_size(condition: str) -> None:
    made = looped(while_loop(*CONDITIONS[condition]))
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    for size in SIZES:
        for array, expected in zip(compiled.run(rows(size)).values(), run_ort(made, rows(size)), strict=True):
            assert array.shape == expected.shape and array.dtype == expected.dtype
            np.testing.assert_allclose(array, expected, 1e-5, 1e-6)


@pytest.mark.parametrize(("first", "limit"), [("", ""), ("yes", "huge"), ("begin", "huge")])
def test_what_is_asked_before_the_first_trip(first: str, limit: str) -> None:
    made = looped(while_loop(*CONDITIONS["less"], first=first, limit=limit))
    found = tvmopt.compile(made, threads=1, verify=False).model.run(rows(9))
    for array, expected in zip(found.values(), run_ort(made, rows(9)), strict=True):
        np.testing.assert_allclose(array, expected, 1e-5, 1e-6)


def test_a_limit_that_is_the_open_size() -> None:
    """As Keras's layers are exported: the condition says of the length what the trip count says, too."""
    *before, loop, shape, zeros, last = while_loop(*CONDITIONS["one behind the other"], limit="all", first="both")
    known = [node("Cast", ["n"], ["all"], to=INT64), node("And", ["begin", "begin"], ["both"])]
    made = looped([*before, *known, loop, shape, zeros, last])
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    for size in SIZES:
        for array, expected in zip(compiled.run(rows(size)).values(), run_ort(made, rows(size)), strict=True):
            assert array.shape == expected.shape
            np.testing.assert_allclose(array, expected, 1e-5, 1e-6)


@pytest.mark.parametrize("size", [1, 2, 9, 40])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_trips_of_a_known_size(size: int, step: int) -> None:
    made = looped(while_loop(*CONDITIONS["less"], step=step), size)
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    found, expected = compiled.run(rows(size)), run_ort(made, rows(size))
    assert len(expected[0]) == -(-size // step)
    for array, exact in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(array, exact, 1e-5, 1e-6)


def test_a_loop_that_stops_by_what_it_computes_is_left_alone() -> None:
    stop = [
        node("ReduceMax", ["h_next"], ["most"], keepdims=0),
        node("Less", ["most", "half"], ["small"]),
        node("Less", ["next", "n"], ["near"]),
        node("And", ["small", "near"], ["goes"]),
    ]
    made = looped([n for n in while_loop(*stop) if n.op_type not in ("ConstantOfShape", "Add")], 9)
    made.graph.output[0].name = "rows"
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    trips = set()
    for seed in range(6):
        feeds = {"x": 0.4 * np.random.default_rng(seed).standard_normal((9, 2, 3)).astype(np.float32)}
        found, expected = list(compiled.run(feeds).values()), run_ort(made, feeds)
        trips.add(len(expected[0]))
        assert [a.shape for a in found] == [e.shape for e in expected]
        np.testing.assert_allclose(found[0], expected[0], 1e-5, 1e-6)
    assert len(trips) > 1


def test_a_loop_that_no_trip_begins_collects_nothing() -> None:
    made = looped(while_loop(*CONDITIONS["less"], first="never"), 5)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "never"))
    found = tvmopt.compile(made, threads=1, verify=False).model.run(rows(5))
    assert [a.shape for a in found.values()] == [(0, 2, 3), (2, 3), ()]


def test_sequences_are_reversed_at_open_sizes() -> None:
    reverse = node("ReverseSequence", ["x", "n"], ["y"], time_axis=0, batch_axis=1, name="r")
    made = model([reverse], [value("x", ("t", "b", 5)), value("n", ("b",), INT64)], [value("y", None)])
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    random = np.random.default_rng(0)
    for t, b in ((1, 1), (7, 3), (16, 2), (33, 9)):
        feeds = {"x": random.standard_normal((t, b, 5)).astype(np.float32), "n": random.integers(0, t + 1, b)}
        np.testing.assert_array_equal(compiled.run(feeds)["y"], run_ort(made, feeds)[0])
    for length in (-1, 5):
        with pytest.raises(InputError, match="out of range"):
            compiled.run({"x": np.zeros((4, 1, 5), np.float32), "n": np.array([length])})


def test_a_limit_that_wraps_is_no_size() -> None:
    """In uint8 the length of 256 rows is 0, and of 300 it is 44."""
    wrapped = [
        node("Cast", ["n"], ["byte"], to=TensorProto.UINT8),
        node("Cast", ["byte"], ["wrapped"], to=INT32),
    ]
    *before, loop, _, _, _ = while_loop(node("Less", ["next", "wrapped"], ["goes"]))
    made = looped([*before, *wrapped, loop])
    made.graph.output[0].name = "rows"
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    for size in (9, 256, 300):
        found, expected = list(compiled.run(rows(size)).values()), run_ort(made, rows(size))
        assert [a.shape for a in found] == [e.shape for e in expected]
        np.testing.assert_allclose(found[0], expected[0], 1e-5, 1e-6)
