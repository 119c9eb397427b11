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


def test_other_sizes_grow_first():
    found = ranges(("batch", "seq", 768), 3072)
    assert found["seq"] == "1..4096@128" and found["batch"].startswith("1..16")
