"""Positions in sequences, from the front and from the back, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.errors import ModelError
from tvmopt.importer import prepare
from tvmopt.importer.relax import to_relax

OPERATORS = ("SequenceAt", "SequenceErase", "SequenceInsert")


def placed(op: str, position: int | None):
    """A row of three, or the rows without it or with another one."""
    given = [] if position is None else ["p"]
    weights = {} if position is None else {"p": np.array(position, np.int64)}
    result = "y" if op == "SequenceAt" else "t"
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"]),
        helper.make_node(op, ["s", *(["z"] if op == "SequenceInsert" else []), *given], [result], name="n"),
    ]
    if result != "y":
        nodes.append(helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0))
    return model(nodes, [value("x", (3, 2)), value("z", (1, 2))], [value("y", None)], weights)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("position", [-3, -2, -1, 0, 1, 2, None])
def test_positions(op: str, position: int | None) -> None:
    """SequenceAt -1: Tuple cannot be accessed with negative index."""
    if op == "SequenceAt" and position is None:
        position = 2  # it has no default
    made = placed(op, position)
    feeds = {"x": np.arange(6, dtype="f").reshape(3, 2), "z": np.full((1, 2), 9, "f")}
    (expected,) = run_ort(made, feeds)
    (found,) = run_relax(to_relax(prepare(made)), feeds)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("position", [-4, 4])
def test_positions_outside(op: str, position: int) -> None:
    """SequenceInsert took the nearest one, without a word."""
    with pytest.raises(ModelError, match=f"Position {position} is outside a sequence of 3"):
        to_relax(prepare(placed(op, position)))
