"""Positions in sequences, from the front and from the back, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
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


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize(
    ("split", "keepdims"), [(None, 0), (None, 1), (1, 1), (2, 1), (5, 1), ("all", 1), ("parts", 1)]
)
@pytest.mark.parametrize("axis", [0, -1])
def test_pieces(length: int, split: int | str | None, axis: int, keepdims: int) -> None:
    """A sequence of one piece was a tensor, whose first row SequenceAt took."""
    lengths = {"all": [length], "parts": [length - 1, 1]}
    given = {} if split is None else {"p": np.array(lengths.get(split, split), np.int64)}
    nodes = [
        helper.make_node("SplitToSequence", ["x", *given], ["s"], axis=axis, keepdims=keepdims),
        helper.make_node("SequenceLength", ["s"], ["n"]),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    shape = (length, 4) if axis == 0 else (4, length)
    weights = {**given, "i": np.array(-1, np.int64)}
    made = model(nodes, [value("x", shape)], [value("y", None), value("n", (), TensorProto.INT64)], weights)
    feeds = {"x": np.arange(4 * length, dtype="f").reshape(shape)}
    found = run_relax(to_relax(prepare(made)), feeds)
    for ours, theirs in zip(found, run_ort(made, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("split", [[2, 2], [4, -1], 0, -1])
def test_lengths_that_do_not_fit(split: int | list[int]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "p"], ["s"], name="n"),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    weights = {"p": np.array(split, np.int64), "i": np.array(0, np.int64)}
    with pytest.raises(ModelError):
        to_relax(prepare(model(nodes, [value("x", (3, 4))], [value("y", None)], weights)))


def test_nothing_to_erase() -> None:
    """Of an empty sequence: a ModelError that names node and input, where Python said: list assignment index."""
    made = model(
        [
            helper.make_node("SequenceEmpty", [], ["s"]),
            helper.make_node("SequenceErase", ["s"], ["t"], name="n"),
            helper.make_node("SequenceLength", ["t"], ["y"]),
            helper.make_node("Identity", ["x"], ["z"]),
        ],
        [value("x", (3,))],
        [value("y", None, TensorProto.INT64), value("z", None)],
    )
    with pytest.raises(ModelError, match="no element to erase") as error:
        to_relax(prepare(made))
    assert "node 'n', input 's'" in error.value.where


@pytest.mark.parametrize("opset", [17, 21])
def test_an_if_that_asks_for_an_element_of_an_open_tensor(opset: int) -> None:
    """The answer is known at compile time: both branches beside open sizes cannot read an optional."""
    shape = ["n", 4]
    then = helper.make_graph([helper.make_node("OptionalGetElement", ["q"], ["a"])], "then", [], [value("a", shape)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "else", [], [value("b", shape)])
    nodes = [
        helper.make_node("Optional", ["x"], ["q"]),
        helper.make_node("OptionalHasElement", ["q"], ["h"]),
        helper.make_node("If", ["h"], ["y"], then_branch=then, else_branch=other),
    ]
    outputs = [value("y", None), value("h", None, TensorProto.BOOL)]
    made = model(nodes, [value("x", shape)], outputs, opset=opset)
    x = np.arange(12, dtype="f").reshape(3, 4)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    found = compiled.run({"x": x})
    np.testing.assert_array_equal(found["y"], x)
    assert found["h"].item() is True


SIZES = {"zero": np.array(0, np.int64), "one": np.array([1], np.int64), "first": np.array(1, np.int64)}


def body_that_asks_for_the_rank():
    """What PyTorch writes for atleast_1d: a number becomes a row, anything else stays."""
    then = helper.make_graph([helper.make_node("Reshape", ["e", "one"], ["t"])], "then", [], [value("t", None)])
    other = helper.make_graph([helper.make_node("Identity", ["e"], ["u"])], "else", [], [value("u", None)])
    nodes = [
        helper.make_node("Shape", ["e"], ["s"]),
        helper.make_node("Size", ["s"], ["r"]),
        helper.make_node("Equal", ["r", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["m"], then_branch=then, else_branch=other),
    ]
    return helper.make_graph(nodes, "body", [value("e", None)], [value("m", None)])


@pytest.mark.parametrize("made_by", ["SequenceConstruct", "SplitToSequence", "pieces"])
@pytest.mark.parametrize("shape", [("n", 4), (3, 4)])
def test_a_map_whose_body_asks_for_the_rank(made_by: str, shape) -> None:
    """torch.hstack of open sizes ended the import's process with a segmentation fault."""
    made = {
        "SequenceConstruct": helper.make_node("SequenceConstruct", ["x", "x"], ["q"]),
        "SplitToSequence": helper.make_node("SplitToSequence", ["x"], ["q"], axis=1),
        "pieces": helper.make_node("SplitToSequence", ["x", "three"], ["q"], axis=1),
    }[made_by]
    nodes = [
        made,
        helper.make_node("SequenceMap", ["q"], ["w"], body=body_that_asks_for_the_rank()),
        helper.make_node("SequenceAt", ["w", "first"], ["a"]),
        helper.make_node("ConcatFromSequence", ["w"], ["y"], axis=1),
    ]
    weights = SIZES | {"three": np.array(3, np.int64)}
    made = model(nodes, [value("x", shape)], [value("y", None), value("a", None)], weights, opset=18)
    feeds = {"x": np.arange(12, dtype="f").reshape(3, 4)}
    found = tvmopt.compile(made, verify=False, records=False).model.run(feeds)
    for ours, theirs in zip(found.values(), run_ort(made, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_pieces_without_their_axis_of_an_old_opset() -> None:
    """Split and Squeeze take their numbers as attributes there."""
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["q"], axis=-1, keepdims=0),
        helper.make_node("SequenceAt", ["q", "first"], ["y"]),
    ]
    made = model(nodes, [value("x", (3, 4))], [value("y", None)], {"first": SIZES["first"]}, opset=11)
    feeds = {"x": np.arange(12, dtype="f").reshape(3, 4)}
    (expected,) = run_ort(made, feeds)
    (found,) = run_relax(to_relax(prepare(made)), feeds)
    np.testing.assert_array_equal(found, expected)
