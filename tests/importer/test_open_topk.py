"""TopK along an open axis of every type, and attention whose depth is open."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.importer.onnx_check import model, value
from tvmopt import api
from tvmopt.errors import InputError

KINDS = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("kind", KINDS)
def test_topk_sorts_every_type(kind: str) -> None:
    """Ties go to the lower index; the largest and the smallest number of the type are among them."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "at"], axis=0)]
    outputs = [value("y", None, number), value("at", None, 7)]
    made = model(nodes, [value("x", ("n", 3), number)], outputs, {"k": np.array([3])})
    compiled = api.compile(made, shape={"n": "3..40"}, verify=False)
    limits = np.finfo(kind) if kind.startswith("float") else np.iinfo(kind)
    for n in (3, 7, 8, 9, 33):
        x = np.random.default_rng(n).integers(-9 if limits.min else 0, 9, (n, 3)).astype(kind)
        x[n // 2, 0], x[0, 1], x[n - 1, 2] = limits.max, limits.min, limits.max
        y, at = compiled(x)
        order = np.argsort(-x.astype(object), axis=0, kind="stable")[:3]
        np.testing.assert_array_equal(at, order)
        np.testing.assert_array_equal(y, np.take_along_axis(x, order, 0))


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_topk_of_an_open_number_of_a_known_axis(kind: str) -> None:
    """As many as another input is long; more than there are is an error of the call."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [helper.make_node("Shape", ["like"], ["k"]), helper.make_node("TopK", ["x", "k"], ["y", "at"], axis=1)]
    inputs = [value("x", (4, 33), number), value("like", ("k",))]
    compiled = api.compile(model(nodes, inputs, [value("y", None, number), value("at", None, 7)]))
    x = np.random.default_rng(0).integers(0, 20, (4, 33)).astype(kind)
    order = np.argsort(-x.astype(float), axis=1, kind="stable")
    for k in (1, 7, 8, 32, 33):
        y, at = compiled(x, np.zeros(k, np.float32))
        np.testing.assert_array_equal(at, order[:, :k])
        np.testing.assert_array_equal(y, np.take_along_axis(x, order[:, :k], 1))
    with pytest.raises(InputError, match="compiled for 1 to 33"):
        compiled(x, np.zeros(34, np.float32))


@pytest.mark.parametrize("largest", [1, 0])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_topk_along_a_known_axis_beside_an_open_one(kind: str, largest: int) -> None:
    """NaN is above all numbers, wherever it stands; TVM's own kernel left it in the middle of the sorted ones."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "at"], axis=1, largest=largest)]
    outputs = [value("y", None, number), value("at", None, 7)]
    made = model(nodes, [value("x", ("n", 16, 3), number)], outputs, {"k": np.array([13])})
    compiled = api.compile(made, shape={"n": "1..40"}, verify=False)
    for n in (1, 7, 8, 9, 33):
        x = np.random.default_rng(n).standard_normal((n, 16, 3)).astype(kind)
        x[:, 5], x[0, 2], x[0, 3], x[-1, 7], x[-1, 9] = np.nan, np.inf, -np.inf, -0.0, 0.0
        y, at = compiled(x)
        last = np.isnan(x).astype(int) if largest == 0 else -np.isnan(x).astype(int)
        numbers = np.nan_to_num(-x if largest else x, nan=0.0, posinf=np.inf, neginf=-np.inf)
        order = np.lexsort((np.broadcast_to(np.arange(16)[:, None], x.shape), numbers, last), axis=1)[:, :13]
        np.testing.assert_array_equal(at, order)
        np.testing.assert_array_equal(y, np.take_along_axis(x, order, 1))


def test_attention_of_an_open_depth_compiles() -> None:
    """Scores that a mask replaces, where no attention kernel takes the depth."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["scores"]),
        helper.make_node("Where", ["mask", "scores", "fill"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    inputs = [value("x", (2, "n", "n")), value("mask", ("n", "n"), 9)]
    made = model(nodes, inputs, [value("y", None)], {"fill": np.float32(-10000)})
    compiled = api.compile(made, shape={"n": "1..17"})
    assert compiled.report.accuracy["verified"]


@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "float16"])
@pytest.mark.parametrize("rows", ["n", 5])
def test_the_first_none_of_an_axis(kind: str, rows: int | str) -> None:
    """A k of 0 means all elements to TVM."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "at"])]
    outputs = [value("y", None, number), value("at", None, 7)]
    made = model(nodes, [value("x", (rows, 4), number)], outputs, {"k": np.array([0])})
    y, at = api.compile(made, shape={"n": "1..40"} if rows == "n" else None)(np.ones((5, 4), kind))
    assert (y.shape, y.dtype, at.shape, at.dtype) == ((5, 0), kind, (5, 0), "int64")
