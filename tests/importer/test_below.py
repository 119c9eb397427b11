"""Indices that operators of the model compute need no check, and others keep theirs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.errors import InputError

node, INT64 = helper.make_node, onnx.TensorProto.INT64
X = np.random.default_rng(0).standard_normal((7, 9)).astype(np.float32)


def compiled(nodes: list[onnx.NodeProto], **constants: np.ndarray) -> tvmopt.Compiled:
    proto = model(nodes, [value("x", X.shape)], [value("y", None)], constants)
    return tvmopt.compile(proto, verify=False, cache=False)


def checks(made: tvmopt.Compiled) -> int:
    return sum(kernel.name.startswith("check") for kernel in made.report.kernels)


def largest(axis: int = -1) -> onnx.NodeProto:
    return node("TopK", ["x", "k"], ["values", "at"], axis=axis)


K = np.array([5])
SELECTED = [node("Greater", ["x", "zero"], ["mask"]), node("NonZero", ["mask"], ["places"])]
TURNED = [*SELECTED, node("Transpose", ["places"], ["at"], perm=[1, 0])]
ZERO = np.float32(0)


def test_what_topk_gives_is_inside_of_its_axis() -> None:
    made = compiled([largest(), node("GatherElements", ["x", "at"], ["y"], axis=1)], k=K)
    assert checks(made) == 0
    np.testing.assert_array_equal(made.model.run({"x": X})["y"], -np.sort(-X, axis=1)[:, :5])


def test_another_axis_may_be_shorter() -> None:
    """A TopK along 9 elements, taken from 7 rows: an error where it is one of the last two."""
    made = compiled([largest(), node("Gather", ["x", "at"], ["y"], axis=0)], k=np.array([1]))
    assert checks(made) == 1
    x = np.zeros_like(X)
    x[:, 6] = 1
    assert (made.model.run({"x": x})["y"] == x[6]).all()
    x[3, 7] = 2
    with pytest.raises(InputError, match="out of range"):
        made.model.run({"x": x})


def test_a_longer_axis_is_long_enough() -> None:
    made = compiled([largest(0), node("Gather", ["x", "at"], ["y"], axis=1)], k=np.array([1]))
    assert checks(made) == 0
    np.testing.assert_array_equal(made.model.run({"x": X})["y"], X[:, X.argmax(0)[None]])


@pytest.mark.parametrize("through", ["Cast", "Squeeze", "Slice"])
def test_numbers_that_are_only_moved(through: str) -> None:
    nodes = [node("ArgMax", ["x"], ["best"], axis=1)]
    inputs = {"Cast": [], "Squeeze": ["one"], "Slice": ["zeros", "threes"]}[through]
    nodes.append(node(through, ["best", *inputs], ["at"], **({"to": INT64} if through == "Cast" else {})))
    made = compiled(
        [*nodes, node("Gather", ["x", "at"], ["y"], axis=1)],
        one=np.array([1]), zeros=np.array([0]), threes=np.array([3]),
    )  # fmt: skip
    at = {"Cast": X.argmax(1)[:, None], "Squeeze": X.argmax(1), "Slice": X.argmax(1)[:3, None]}[through]
    assert checks(made) == 0
    np.testing.assert_array_equal(made.model.run({"x": X})["y"], X[:, at])


def test_numbers_that_are_computed_with_keep_their_check() -> None:
    nodes = [node("ArgMax", ["x"], ["best"], axis=1), node("Add", ["best", "one"], ["at"])]
    made = compiled([*nodes, node("Gather", ["x", "at"], ["y"], axis=1)], one=np.array([1]))
    assert checks(made) == 1
    x = np.zeros_like(X)
    made.model.run({"x": x})
    x[2, 8] = 1
    with pytest.raises(InputError, match="out of range"):
        made.model.run({"x": x})


def test_positions_that_values_select() -> None:
    made = compiled([*TURNED, node("GatherND", ["x", "at"], ["y"])], zero=ZERO)
    assert checks(made) == 0
    for x in (X, np.zeros_like(X), np.abs(X)):
        np.testing.assert_array_equal(made.model.run({"x": x})["y"], x[x > 0])


def test_positions_are_those_of_one_shape() -> None:
    """x turned has 9 rows of 7, and a position of x may be in its column 8."""
    turned = node("Transpose", ["x"], ["other"], perm=[1, 0])
    made = compiled([*TURNED, turned, node("GatherND", ["other", "at"], ["y"])], zero=ZERO)
    assert checks(made) == 1
    x = np.zeros_like(X)
    x[2, 3] = 1
    made.model.run({"x": x})
    x[2, 8] = 1
    with pytest.raises(InputError, match="out of range"):
        made.model.run({"x": x})


def test_components_one_below_the_other_are_no_positions() -> None:
    """What NonZero gives, not transposed: 2 rows of the numbers of an axis, taken from an axis of 9."""
    made = compiled([*SELECTED, node("Gather", ["x", "places"], ["y"], axis=0)], zero=ZERO)
    assert checks(made) == 1
