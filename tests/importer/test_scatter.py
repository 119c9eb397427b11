"""ScatterND and ScatterElements over sizes that are expressions, and of nothing, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tvmopt.errors import InputError

node = helper.make_node
INT64 = TensorProto.INT64


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_slices_of_a_size_that_is_an_expression(reduction):
    """TVM took `2*n - 1` of the data and `2*n - 1` of the updates for two sizes."""
    nodes = [
        node("ConvTranspose", ["x", "w"], ["long"], strides=[2], pads=[1, 1]),
        node("Gather", ["long", "i"], ["part"]),
        node("Sigmoid", ["part"], ["updates"]),
        node("ScatterND", ["long", "at", "updates"], ["y"], reduction=reduction),
    ]
    inputs = [value("x", (4, 3, "n")), value("i", ("k",), INT64), value("at", ("k", 1), INT64)]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 5, 3)).astype("float32")}
    made = model(nodes, inputs, [value("y", None)], weights, opset=18)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    for n, places in ((1, [2]), (7, [3, 0]), (33, [1, 3, 0])):
        i = np.array(places, "int64")
        feeds = {"x": rng.standard_normal((4, 3, n)).astype("float32"), "i": i, "at": i[:, None]}
        np.testing.assert_allclose(compiled.run(feeds)["y"], run_ort(made, feeds)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("size", ["n", 3])
def test_no_updates_leave_the_data(axis, size):
    """Of data that are empty themselves, too: TVM's kernel divided by a size of 0."""
    nodes = [
        node("Gather", ["x", "none"], ["few"]),
        node("ScatterElements", ["few", "i", "u"], ["y"], axis=axis),
        node("ScatterElements", ["x", "i", "u"], ["z"], axis=axis),
    ]
    inputs = [value("x", (5, size, 4)), value("u", (0, 2, 4))]
    weights = {"none": np.zeros(0, "int64"), "i": np.zeros((0, 2, 4), "int64")}
    made = model(nodes, inputs, [value("y", None), value("z", None)], weights, opset=18)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    x = np.random.default_rng(0).standard_normal((5, 3, 4)).astype("float32")
    found = compiled.run({"x": x, "u": np.zeros((0, 2, 4), "float32")})
    np.testing.assert_array_equal(found["z"], x)
    assert found["y"].shape == (0, 3, 4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_indices_of_open_sizes_that_the_data_do_not_have(axis, reduction):
    """They were refused: torch's scatter with open dimensions writes them."""
    scatter = node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis, reduction=reduction)
    inputs = [value("x", ("a", "b", 4)), value("i", ("c", "d", 3), INT64), value("u", ("c", "d", 3))]
    made = model([scatter], inputs, [value("y", None)], opset=18)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    rng = np.random.default_rng(0)
    for shape, some in (((5, 6), (3, 2)), ((1, 1), (1, 1)), ((9, 40), (4, 33)), ((7, 3), (7, 3))):
        lines = [rng.permutation(shape[axis])[: some[axis]] for _ in range(3 * some[1 - axis])]
        i = np.moveaxis(np.reshape(lines, (some[1 - axis], 3, some[axis])), 2, axis)
        i = i - shape[axis] * (rng.random(i.shape) < 0.3)  # from the end
        x, u = (rng.standard_normal(s).astype("float32") for s in ((*shape, 4), (*some, 3)))
        feeds = {"x": x, "i": i, "u": u}
        np.testing.assert_allclose(compiled.run(feeds)["y"], run_ort(made, feeds)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_more_indices_than_data_along_another_axis_are_refused(axis):
    scatter = node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis)
    inputs = [value("x", ("a", "b")), value("i", ("c", "d"), INT64), value("u", ("c", "d"))]
    compiled = tvmopt.compile(model([scatter], inputs, [value("y", None)], opset=18), verify=False, records=False).model
    with pytest.raises(InputError, match="the model needs sizes for which"):
        compiled.run({"x": np.zeros((2, 2), "f"), "i": np.zeros((3, 3), "int64"), "u": np.zeros((3, 3), "f")})
