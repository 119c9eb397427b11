"""Values that are assigned where a mask is true, as PyTorch's dynamo exporter writes ``y[mask] = value``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.errors import UnsupportedOp
from tvmopt.importer import prepare
from tvmopt.importer.relax import to_relax

node = helper.make_node
X = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)


def assigned(rank: int, given: Any, reduction: str = "none") -> onnx.ModelProto:
    """``y = x.clone(); y[mask] = given`` for the mask ``m`` of the first `rank` axes of x."""
    mask = ["rows", "places", "m"][rank - 1]
    nodes = [
        node("Slice", ["x", "zero", "one", "two"], ["first"]),
        node("Greater", ["x" if rank == 3 else "first", "limit"], ["m"]),
        *([node("Squeeze", ["m", "two"], ["places"])] if rank < 3 else []),
        *([node("Slice", ["m", "zero", "one", "one"], ["some"]), node("Reshape", ["some", "end"], ["rows"])]
          if rank == 1 else []),
        node("Reshape", [mask, "column"], ["raised"]),
        node("Shape", ["x"], ["shape"]),
        node("Expand", ["raised", "shape"], ["whole"]),
        node("NonZero", ["whole"], ["found"]),
        node("Transpose", ["found"], ["at"], perm=[1, 0]),
        node("Reshape", [mask, "end"], ["flat"]),
        node("Cast", ["flat"], ["ones"], to=TensorProto.INT64),
        node("ReduceSum", ["ones"], ["count"], keepdims=1),
        node("Slice", ["shape", "rank", "three"], ["trailing"]),
        node("Concat", ["count", "trailing"], ["selection"], axis=0),
        node("Expand", ["given", "selection"], ["spread"]),
        node("Reshape", ["spread", "end"], ["updates"]),
        node("ScatterND", ["x", "at", "updates"], ["y"], reduction=reduction),
    ]  # fmt: skip
    numbers = {"zero": [0], "one": [1], "two": [2], "three": [3], "end": [-1], "rank": [rank]}
    constants = {name: np.array(number, np.int64) for name, number in numbers.items()}
    column = np.array([0, 0, 0][:rank] + [1] * (3 - rank), np.int64)
    constants |= {"column": column, "limit": np.zeros((), np.float32), "given": np.asarray(given, np.float32)}
    return model(nodes, [value("x", X.shape)], [value("y", X.shape)], constants, opset=18)


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(
    "rank, given",
    [(3, 0.5), (2, [7]), (2, [1, 2, 3, 4]), (2, [[1, 2, 3, 4]]), (1, [1, 2, 3, 4]), (1, [[1], [2], [3], [4], [5]]),
     (1, np.arange(20).reshape(5, 4))],
)  # fmt: skip
def test_one_value_for_all_places_of_a_mask(rank: int, given: Any, reduction: str) -> None:
    proto = assigned(rank, given, reduction)
    prepared = prepare(proto)
    assert {n.op_type for n in prepared.graph.node}.isdisjoint({"NonZero", "ScatterND"})
    (found,) = run_relax(to_relax(prepared), {"x": X})
    np.testing.assert_array_equal(found, run_ort(proto, {"x": X})[0])


def test_a_mask_that_differs_along_the_values_stays_a_selection() -> None:
    with pytest.raises(UnsupportedOp, match="whether 4 is found0"):
        to_relax(prepare(assigned(3, [[1, 2, 3, 4]])))


def selected(rank: int, newer: bool, other_mask: bool = False) -> onnx.ModelProto:
    """``y[m] = exp(x[m]) * 2 + x[m]`` for the mask ``m`` of the first `rank` axes of x, as PyTorch's newer and older
    exporters write it; `other_mask`: the values are those of another mask."""
    nodes = [
        node("Slice", ["x", "zero", "one", "two"], ["first"]),
        node("Squeeze", ["first", "two"], ["short"]),
        node("Greater", ["x" if rank == 3 else "short", "limit"], ["m"]),
        node("Less", ["x" if rank == 3 else "short", "limit"], ["n"]),
        node("NonZero", ["n" if other_mask else "m"], ["there"]),
        node("Transpose", ["there"], ["places"], perm=[1, 0]),
        node("GatherND", ["x", "places"], ["chosen"]),
        node("Exp", ["chosen"], ["grown"]),
        node("Mul", ["grown", "twice"], ["more"]),
        node("Add", ["more", "chosen"], ["values"]),
        node("Shape", ["x"], ["shape"]),
        *([node("Unsqueeze", ["m", "two"], ["raised"])] if rank == 2 else []),
        *([node("Expand", ["raised" if rank == 2 else "m", "shape"], ["whole"])] if rank == 2 or not newer else []),
        node("NonZero", ["whole" if rank == 2 or not newer else "m"], ["found"]),
        node("Transpose", ["found"], ["at"], perm=[1, 0]),
    ]
    if newer:
        nodes += [
            node("Reshape", ["m", "end"], ["flat"]),
            node("Cast", ["flat"], ["ones"], to=TensorProto.INT64),
            node("ReduceSum", ["ones"], ["count"], keepdims=1),
            node("Concat", ["count", "four"] if rank == 2 else ["count"], ["selection"], axis=0),
            node("Expand", ["values", "selection"], ["spread"]),
            node("Reshape", ["spread", "end"], ["updates"]),
        ]
    else:
        nodes += [
            node("Reshape", ["values", "end"], ["every"]),
            node("Shape", ["at"], ["many"]),
            node("Slice", ["many", "zero", "one"], ["count"]),
            node("Slice", ["every", "zero", "count", "zero"], ["updates"]),
        ]
    nodes.append(node("ScatterND", ["x", "at", "updates"], ["y"]))
    numbers = {"zero": [0], "one": [1], "two": [2], "four": [4], "end": [-1]}
    constants = {name: np.array(number, np.int64) for name, number in numbers.items()}
    constants |= {"limit": np.zeros((), np.float32), "twice": np.array(2, np.float32)}
    return model(nodes, [value("x", ("b", "n", 4))], [value("y", None)], constants, opset=18)


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("rank", [2, 3])
def test_values_of_the_places_that_are_assigned(rank: int, newer: bool) -> None:
    """They are computed of all elements: no value decides the size of a tensor."""
    proto = selected(rank, newer)
    prepared = prepare(proto)
    assert {n.op_type for n in prepared.graph.node}.isdisjoint({"NonZero", "GatherND", "ScatterND"})
    imported = to_relax(prepared)
    for x in (X, X[:1, :1], -np.abs(X), np.where(X > 1, np.float32(np.nan), X), np.where(X > 1, np.float32(np.inf), X)):
        (found,) = run_relax(imported, {"x": x})
        np.testing.assert_allclose(found, run_ort(proto, {"x": x})[0], rtol=1e-6)


def test_values_of_other_places_stay_a_selection() -> None:
    with pytest.raises(UnsupportedOp):
        to_relax(prepare(selected(3, False, other_mask=True)))
