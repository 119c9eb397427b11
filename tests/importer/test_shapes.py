"""--shape and values: what they bind, what stays open, and every wrong one named."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, run_ort, value
from tvmopt.errors import InputError, ModelError
from tvmopt.importer import load, prepare

node = helper.make_node


def two_inputs(first=("batch", 3, None, "width"), second=("batch", 4)):
    nodes = [node("Relu", ["image"], ["a"]), node("Relu", ["tokens"], ["b"])]
    return model(nodes, [value("image", first), value("tokens", second)], [value("a", None), value("b", None)])


def shapes(made):
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input}


def test_bound_by_name():
    made = prepare(two_inputs(), {"image": (2, 3, 7, 9)})
    assert shapes(made) == {"image": [2, 3, 7, 9], "tokens": [2, 4]}  # `batch` is one size everywhere
    assert [d.dim_value for d in made.graph.output[1].type.tensor_type.shape.dim] == [2, 4]


def test_bound_by_symbol():
    made = prepare(two_inputs((1, 3, "h", "w")), {"h": [8], "w": [9], "batch": [5]})
    assert shapes(made) == {"image": [1, 3, 8, 9], "tokens": [5, 4]}


def test_all_open_inputs_at_once_with_their_flags():
    with pytest.raises(ModelError) as caught:
        prepare(two_inputs())
    text = str(caught.value)
    assert "'image' has open dimensions: float32[batch,3,?,width]" in text
    assert "'tokens' has open dimensions: float32[batch,4]" in text
    assert "shape={'image': (1, 3, 224, 224), 'tokens': (1, 4)}" in text


def test_the_flag_proposed_works():
    made = model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])
    with pytest.raises(ModelError, match="unknown rank"):
        prepare(made)
    assert shapes(prepare(made, {"x": (2, 5)})) == {"x": [2, 5]}


def test_zero_is_a_size():
    made = model([node("Relu", ["x"], ["y"])], [value("x", (0, 3))], [value("y", None)])
    assert shapes(prepare(made)) == {"x": [0, 3]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"imag": (1, 3, 8, 8)}, ["no input 'imag'", "Did you mean 'image'?"]),
        ({"zzz": (1,)}, ["no input 'zzz'", "'image', 'tokens'"]),
        ({"image": (1, 3, 8)}, ["it has 4 dimensions, not 3"]),
        ({"image": (1, 4, 8, 8)}, ["dimension 1 is 3, not 4"]),
        ({"image": (1, 3, -8, 8)}, ["whole numbers"]),
        ({"image": (1, 3, 8.5, 8)}, ["whole numbers"]),
        ({"image": (1, 3, 8, 8), "tokens": (2, 4)}, ["'batch' is bound to 1 and to 2"]),
        ({"imag": (1,), "token": (1,)}, ["'imag'", "'token'"]),
    ],
)
def test_wrong_flags(given, words):
    with pytest.raises(InputError) as caught:
        prepare(two_inputs(), given)
    assert all(word in str(caught.value) for word in words), caught.value


def test_values_become_constants():
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("Mul", ["r", "scale"], ["y"])]
    borders = [value("x", (2, 6)), value("shape", (2,), TensorProto.INT64), value("scale", ("n",))]
    made = model(nodes, borders, [value("y", None)])
    bound = prepare(made, values={"shape": np.array([3, 4]), "scale": np.float32([1, 2, 3, 4])})
    assert [v.name for v in bound.graph.input] == ["x"]
    x = np.arange(12, dtype="float32").reshape(2, 6)
    feeds = {"x": x, "shape": np.array([3, 4]), "scale": np.float32([1, 2, 3, 4])}
    np.testing.assert_array_equal(run_ort(bound, {"x": x})[0], run_ort(made, feeds)[0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokes": np.ones((1, 4), "float32")}, "Did you mean 'tokens'?"),
        ({"tokens": np.ones((1, 4))}, "its dtype is float32"),
        ({"tokens": np.ones((1, 5), "float32")}, "its dimension 1 is 4"),
        ({"tokens": np.ones(4, "float32")}, "it has 2 dimensions"),
    ],
)
def test_wrong_values(given, words):
    with pytest.raises(InputError) as caught:
        prepare(two_inputs(), {"image": (1, 3, 8, 8)}, given)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["?", "", "-1", "None", "unk__7"])
def test_names_that_are_none_may_have_several_sizes(name):
    made = model([node("Relu", ["x"], ["y"])], [value("x", (1, 3, name, name))], [value("y", None)])
    prepared = prepare(load(made), {"x": (1, 3, 48, 192)})
    assert [d.dim_value for d in prepared.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 48, 192]


def test_numbers_become_values_of_the_declared_type():
    made = model([node("Add", ["x", "n"], ["y"])], [value("x", (2,)), value("n", ())], [value("y", (2,))])
    prepared = prepare(load(made), values={"n": 2})
    assert [v.name for v in prepared.graph.input] == ["x"]
    made.graph.input[1].type.tensor_type.elem_type = TensorProto.UINT8
    with pytest.raises(InputError, match="dtype is uint8"):
        prepare(load(made), values={"n": 300})
