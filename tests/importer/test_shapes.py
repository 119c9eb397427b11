"""--shape and values: what they bind, what stays open, and every wrong one named."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.importer.onnx_check import model, run_ort, value
from tvmopt.errors import InputError, ModelError
from tvmopt.importer import load, prepare
from tvmopt.importer.open_model import read

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


def test_one_size_needs_no_list():
    made = prepare(two_inputs((1, 3, "h", "w")), {"h": 8, "w": np.int64(9), "batch": "5"})
    assert shapes(made) == {"image": [1, 3, 8, 9], "tokens": [5, 4]}


@pytest.mark.parametrize("wrong", [{"h": 1.5}, {"image": None}, {"image": [1, None, 2, 2]}, 5, [1, 3, 8, 9]])
def test_what_is_no_shape_is_refused(wrong):
    with pytest.raises(InputError, match="give a dictionary"):
        prepare(two_inputs(), wrong)


def dims(made):
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input}


def test_open_dimensions_stay_open_under_names_of_their_own():
    made = prepare(two_inputs())
    assert dims(made) == {"image": ["batch", 3, "image_2", "width"], "tokens": ["batch", 4]}
    assert {n: (r.min, r.opt) for n, r in read(made).ranges.items()} == {
        "batch": (1, 1), "image_2": (1, 224), "width": (1, 224)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        (
            {"image": ("1..8", 3, "2..9@4", "?"), "width": ["5..6"]},
            {"batch": "1..8@1", "image_2": "2..9@4", "width": "5..6@6"},
        ),
        ({"image": "4x3x7x1..9"}, {"width": "1..9@9"}),
        ({"batch": "2..3"}, {"batch": "2..3@2"}),
    ],
)  # fmt: skip
def test_ranges(given, ranges):
    found = {n: str(r) for n, r in read(prepare(two_inputs(), given)).ranges.items()}
    assert {n: found[n] for n in ranges} == ranges


@pytest.mark.parametrize("name", ["Dyn:0", "batch size", "in", "2"])
def test_names_that_are_no_identifiers(name):
    made = model([node("Add", ["x", "z"], ["y"])], [value("x", (name, 3)), value("z", (name, 3))], [value("y", None)])
    first, second = dims(prepare(made)).values()
    assert first == second and first[0].isidentifier()
    assert dims(prepare(made, {name: [4]})) == {"x": [4, 3], "z": [4, 3]}


def test_arithmetic_in_names():
    inputs = [value("past", (1, "past_length")), value("mask", (1, "past_length + 1"))]
    made = model(
        [node("Relu", ["past"], ["a"]), node("Relu", ["mask"], ["b"])], inputs, [value("a", None), value("b", None)]
    )
    assert dims(prepare(made))["mask"] == [1, "past_length + 1"]
    assert dims(prepare(made, {"past": (1, 7)}))["mask"] == [1, 8]
    assert dims(prepare(made, {"past": (1, 7), "mask": (1, 9)}))["mask"] == [1, 9]  # as the caller says


def test_an_open_number_of_dimensions():
    made = model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])
    with pytest.raises(ModelError, match="number of dimensions of input 'x' is open"):
        prepare(made)
    assert shapes(prepare(made, {"x": (2, 5)})) == {"x": [2, 5]}
    assert dims(prepare(made, {"x": "?x5"})) == {"x": ["x_0", 5]}


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
        ({"batch": "0..4"}, ["begins at 0"]),
        ({"batch": "4..2"}, ["empty range"]),
        ({"batch": "1..4@7"}, ["outside"]),
        ({"batch": "many"}, ["no size"]),
        ({"image": ("1..2", 3, 8, 8), "tokens": ("1..4", 4)}, ["'batch' is bound to 1..2 and to 1..4"]),
    ],
)
def test_wrong_flags(given, words):
    with pytest.raises(InputError) as caught:
        prepare(two_inputs(), given)
    assert all(word in str(caught.value) for word in words), caught.value


def test_weights_that_are_listed_are_no_inputs():
    made = model([node("Add", ["x", "w"], ["y"])], [value("x", (4,)), value("w", (4,))], [value("y", (4,))])
    made.graph.initializer.append(numpy_helper.from_array(np.ones(4, "float32"), "w"))
    made.ir_version = 3
    for given in ({"shapes": {"foo": (1,)}}, {"values": {"foo": 1}}):
        with pytest.raises(InputError, match="no input 'foo'") as caught:
            prepare(made, **given)
        assert caught.value.fix == "the inputs are 'x'"


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
