"""Runs that round go through loops as the exact run does: what a trip reads is moved by its own rounding error."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, value
from tvmopt.analysis.judge import Truth

TRIPS, WIDTH = 40, 8


def recurrence() -> onnx.ModelProto:
    """h = tanh(3 h + row i of x), written into row i of a table; i is counted as a float32, and the loop ends when it
    is as many as there are rows, or when h is beyond every tanh."""
    make = helper.make_node
    nodes = [
        make("Gather", ["x", "i"], ["row"], axis=0),
        make("Mul", ["h", "three"], ["more"]),
        make("Add", ["more", "row"], ["sum"]),
        make("Tanh", ["sum"], ["h_next"]),
        make("Unsqueeze", ["i", "zero"], ["place"]),
        make("Unsqueeze", ["h_next", "zero"], ["new"]),
        make("Unsqueeze", ["place", "zero"], ["places"]),
        make("ScatterND", ["table", "places", "new"], ["table_next"]),
        make("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
        make("Add", ["number", "one"], ["larger"]),
        make("Cast", ["larger"], ["i_next"], to=TensorProto.INT64),
        make("Less", ["larger", "many"], ["left"]),
        make("ReduceMax", ["h_next"], ["most"], keepdims=0),
        make("Less", ["most", "two"], ["inside"]),
        make("And", ["left", "inside"], ["on"]),
    ]
    states = [value("i", (), TensorProto.INT64), value("h", (WIDTH,)), value("table", (TRIPS, WIDTH))]
    results = [value("on", (), TensorProto.BOOL), value("i_next", (), TensorProto.INT64), value("h_next", (WIDTH,))]
    formal = [value("trip", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), *states]
    body = helper.make_graph(nodes, "body", formal, [*results, value("table_next", (TRIPS, WIDTH))])
    constants = {
        "zero": np.array([0]), "one": np.float32(1), "two": np.float32(2), "three": np.float32(3), "start": np.array(0),
        "many": np.float32(TRIPS), "h0": np.zeros(WIDTH, np.float32), "t0": np.zeros((TRIPS, WIDTH), np.float32),
        "go": np.array(True),
    }  # fmt: skip
    loop = helper.make_node("Loop", ["", "go", "start", "h0", "t0"], ["count", "last", "y"], body=body)
    outputs = [value("count", (), TensorProto.INT64), value("y", (TRIPS, WIDTH))]
    return model([loop], [value("x", (TRIPS, WIDTH))], outputs, constants, 17)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_trip_is_rounded_and_none_is_left_out(precision: str) -> None:
    x = np.random.default_rng(0).standard_normal((TRIPS, WIDTH)).astype(np.float32)
    truth = Truth(recurrence(), {"x": x}, ["count", "y"])
    runs = [*truth.naturals(precision), *truth.more(precision), *truth.scattered(precision)]
    assert len(truth.naturals(precision)) == 2 and len(runs) >= 6
    for run in runs:
        assert int(run["count"]) == TRIPS
        errors = np.abs(run["y"] - truth.exact["y"]).max(axis=1)
        assert (errors[1:] > 0).all() and errors.max() < (1e-4 if precision == "fp32" else 0.5)
