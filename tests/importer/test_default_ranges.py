"""The ranges of open sizes that nobody gave."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importer.onnx_check import model, value
from tvmopt.importer import load, open_model, prepare

node = helper.make_node


def ranges(shape, width=8):
    """Of a product with a matrix of `width` columns."""
    rank = len(shape)
    made = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", shape)],
        [value("y", (*shape[:-1], width))],
        {"w": np.zeros((*(1,) * (rank - 2), shape[-1], width), np.float32)},
    )
    return {name: str(known) for name, known in open_model.read(prepare(load(made))).ranges.items()}


def test_rows_that_no_other_size_needs_memory_for_are_many():
    assert ranges(("n", 40)) == {"n": "1..4096@1"}


def test_rows_end_where_memory_does():
    (rows,) = ranges(("n", 3, 64, 256), 4096).values()
    assert rows == "1..64@1"  # 64 * (3 * 64 * 4096 + 3 * 64 * 256) * 4 bytes are 214 MB


@pytest.mark.parametrize("name", ["seq_len", "sequence_length", "frames", "time"])
def test_a_first_axis_may_be_a_length(name):
    assert ranges((name, 576)) == {name: "1..4096@128"}


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("waveforms", ("n", "m"), {"n": "1..32@1", "m": "1..1048576@16000"}),
        ("x", (1, "num_samples"), {"num_samples": "1..1048576@16000"}),
        ("x", ("n", "m"), {"n": "1..4096@1", "m": "1..4096@128"}),
        ("audio", ("n", 1, "m"), {"n": "1..4096@1", "m": "1..4096@128"}),
        ("audio", (1, "frames"), {"frames": "1..1048576@128"}),
        ("samples", ("n", 80), {"n": "1..4096@1"}),
    ],
)
def test_a_signal_is_long(name, shape, wanted):
    """4096 samples are a quarter of a second."""
    made = model([node("Relu", [name], ["y"])], [value(name, shape)], [value("y", None)])
    assert {n: str(r) for n, r in open_model.read(prepare(made)).ranges.items()} == wanted


def test_boxes_beside_pictures_are_many():
    """They were 16 at the most where batch, height and width of the pictures took the memory."""
    made = model(
        [node("Relu", ["x"], ["y"]), node("Mul", ["boxes", "half"], ["z"])],
        [value("x", ("batch", 3, "height", "width")), value("boxes", ("count", 4))],
        [value("y", None), value("z", None)], {"half": np.float32(0.5)},
    )  # fmt: skip
    found = {name: str(known) for name, known in open_model.read(prepare(made)).ranges.items()}
    assert found["count"] == "1..4096@1" and found["batch"] == "1..16@1"


def test_other_sizes_grow_first():
    found = ranges(("batch", "seq", 768), 3072)
    assert found["seq"] == "1..4096@128" and found["batch"].startswith("1..16")


def test_a_length_grows_before_the_batch():
    made = model([node("Relu", ["x"], ["y"])], [value("x", ("n", 256, "t", 1024))], [value("y", None)])
    ranges = open_model.read(prepare(made)).ranges
    assert ranges["t"].max == 512 and ranges["n"].max == 1


def test_the_batch_of_a_state_is_named_1():
    weights = {"w": np.ones((1, 20, 4), "float32"), "r": np.ones((1, 20, 5), "float32")}
    states = [value("h", (1, "n", 5)), value("c", (1, "n", 5))]
    turned = node("Transpose", ["x"], ["rows"], perm=[1, 0, 2])
    lstm = node("LSTM", ["rows", "w", "r", "", "", "h", "c"], ["y"], hidden_size=5)
    made = model([turned, lstm], [value("x", ("n", "t", 4)), *states], [value("y", None)], weights)
    assert {n: r.opt for n, r in open_model.read(prepare(made)).ranges.items()} == {"n": 1, "t": 128}
    rows_first = model([lstm], [value("rows", ("t", "the_batch", 4)), *[value(n, (1, "the_batch", 5)) for n in "hc"]],
                       [value("y", None)], weights)  # fmt: skip
    assert open_model.read(prepare(rows_first)).ranges["the_batch"].opt == 1


def test_the_height_of_a_picture_is_named_where_its_channels_are_last():
    made = model([node("Relu", ["x"], ["y"])], [value("x", ("n", "a", "b", 3))], [value("y", None)])
    assert [r.opt for r in open_model.read(prepare(made)).ranges.values()] == [1, 224, 224]


def test_a_quotient_waits_for_the_sizes_that_it_is_divided_by():
    """``F.pixel_unshuffle(x, 2)`` by the dynamo exporter, whose -1 is the batch: at 1x1 it would be divided by 0."""
    made = model(
        [
            node("Shape", ["x"], ["h"], start=2, end=3),
            node("Shape", ["x"], ["w"], start=3, end=4),
            node("Div", ["h", "two"], ["rows"]),
            node("Div", ["w", "two"], ["columns"]),
            node("Concat", ["end", "eight", "rows", "two", "columns", "two"], ["cut"], axis=0),
            node("Reshape", ["x", "cut"], ["pieces"]),
            node("Transpose", ["pieces"], ["y"], perm=[0, 1, 3, 5, 2, 4]),
        ],
        [value("x", ("batch", 8, "height", "width"))],
        [value("y", None)],
        {name: np.array([number]) for name, number in (("two", 2), ("end", -1), ("eight", 8))},
    )
    known = open_model.read(prepare(load(made))).ranges
    assert (known["batch"].min, known["height"].min, known["width"].min) == (1, 2, 2)
