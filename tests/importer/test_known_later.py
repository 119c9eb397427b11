"""A size that a later node knows: the nodes in front of it, which took it for open, fit it or are refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.errors import ModelError

node = helper.make_node
I64 = TensorProto.INT64


def known_later(first, shape, size, weights, more):
    """A model whose axis "a" is `size` by an addition behind a node that reads x."""
    nodes = [first, node("Add", ["u", "c"], ["p"])]
    inputs, results = [value("x", shape), *more, value("u", ["a"])], [value("r", None), value("p", None)]
    return model(nodes, inputs, results, {"c": np.ones(size, "float32"), **weights}, 22)


ROWS = value("i", (3, 4), I64)
CASES = {  # the node, the shape of x, constants, further inputs; the least size that fits, words of the error
    "rows of indices": (node("GatherElements", ["x", "i"], ["r"], axis=1), ("a", 4), {}, [ROWS], 3, "do not agree"),
    "the largest": (node("TopK", ["x", "k"], ["r", "j"], axis=0), ("a", 4), {"k": [3]}, [], 3, "K is 3"),
    "cut rows": (node("Pad", ["x", "k"], ["r"]), ("a", 4), {"k": [-3, 0, 0, 0]}, [], 3, "cut 3 of the 2"),
    "a window": (node("MaxPool", ["x"], ["r"], kernel_shape=[3]), (1, 1, "a"), {}, [], 3, "window is larger"),
    "a filter": (node("Conv", ["x", "k"], ["r"]), ("n", 1, "a"), {"k": np.ones((2, 1, 3), "f")}, [], 3, "larger"),
    "a row": (node("Gather", ["x", "k"], ["r"], axis=0), ("a", 4), {"k": [2]}, [], 3, "out of range"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_in_front_of_the_one_that_knows_a_size(name):
    """Their sizes were not looked at again: GatherElements read beyond its input, and windows of nothing were TVM's
    error, or an axis of -1."""
    first, shape, weights, more, least, words = CASES[name]
    weights = {k: np.asarray(v) for k, v in weights.items()}
    done = tvmopt.compile(known_later(first, shape, least, weights, more), verify=False, records=False)
    assert [i.shape for i in done.artifact.manifest.inputs][-1] == (least,)
    with pytest.raises(ModelError, match=words):
        tvmopt.compile(known_later(first, shape, least - 1, weights, more), verify=False, records=False)


def test_sizes_that_one_another_decide():
    """b is 3 a, and a is 2: both are known, the rows in front, too, and a third stays open."""
    nodes = [
        node("Concat", ["x", "x", "x"], ["r"], axis=0),
        node("Mul", ["r", "y"], ["m"]),
        node("Add", ["u", "c"], ["p"]),
    ]
    inputs = [value("x", ("a", "n")), value("y", ("b", 1)), value("u", ("a",))]
    made = model(nodes, inputs, [value("m", None), value("p", None)], {"c": np.ones(2, "float32")}, 22)
    done = tvmopt.compile(made, verify=False, records=False)
    assert [str(i.shape) for i in done.artifact.manifest.inputs] == ["(2, n)", "(6, 1)", "(2,)"]
    rng = np.random.default_rng(0)
    x, y, u = (rng.standard_normal(s).astype("float32") for s in ((2, 5), (6, 1), (2,)))
    found = done.model.run({"x": x, "y": y, "u": u})
    np.testing.assert_allclose(found["m"], np.concatenate([x, x, x]) * y, rtol=1e-6)
    np.testing.assert_allclose(found["p"], u + 1, rtol=1e-6)


@pytest.mark.parametrize(
    "op, shape",
    [
        *(("Conv", shape) for shape in [("n", 2, 8, 3), ("n", 2, 3, "w"), ("n", 2, 8, 0)]),
        *((op, ("n", 2, 8, 0)) for op in ("MaxPool", "AveragePool", "LpPool")),
    ],
)
def test_windows_larger_than_what_is_known_of_an_open_image(op, shape):
    """They were taken where the batch or the other axis is open, and gave an axis of nothing, or of less."""
    weights = {"k": np.ones((4, 2, 4, 4), "float32")} if op == "Conv" else {}
    made = model(
        [node(op, ["x", *weights], ["y"], kernel_shape=[4, 4])], [value("x", shape)], [value("y", None)], weights, 22
    )
    with pytest.raises(ModelError, match="no window of"):
        tvmopt.compile(made, verify=False, records=False)
