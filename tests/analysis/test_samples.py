"""Seeded inputs: valid for the model, the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.samples import sample_inputs, trial_inputs, trials
from tvmopt.runtime.tensors import TensorInfo


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, "float32"), name)


def embedding_model(rows: int = 7) -> onnx.ModelProto:
    """ids -> Cast -> Unsqueeze -> Gather of a table with `rows` rows; `types` is added, `mask` multiplied."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["ids64"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["ids64", "axes"], ["more"]),
        helper.make_node("Gather", ["table", "more"], ["e"], axis=0),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["m"], ["s"], keepdims=0),
        helper.make_node("Mul", ["e", "s"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g",
        [value("ids", TensorProto.INT32, [1, 64]), value("mask", TensorProto.INT64, [1, 64])],
        [value("y", TensorProto.FLOAT, [1, 1, 64, 4])],
        [weights("table", rows, 4), numpy_helper.from_array(np.array([0]), "axes")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_token_ids_stay_in_the_table() -> None:
    model = embedding_model()
    bounds = integer_bounds(model)
    assert bounds == {"ids": (0, 7)}
    infos = [TensorInfo("ids", (1, 64), "int32"), TensorInfo("mask", (1, 64), "int64")]
    feeds = sample_inputs(infos, bounds=bounds)
    assert set(feeds["ids"].ravel()) == set(range(7))
    assert set(feeds["mask"].ravel()) == {0, 1}
    assert feeds["ids"].dtype == np.int32


def test_seeded() -> None:
    infos = [
        TensorInfo("a", (3, 5), "float32"),
        TensorInfo("b", (), "bool"),
        TensorInfo("c", (2,), "bfloat16"),
    ]
    first, second, other = (sample_inputs(infos, seed=seed) for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    assert not np.array_equal(first["a"], other["a"])
    assert sample_inputs(infos, fill="ones")["a"].min() == 1
    assert not sample_inputs(infos, fill="zeros")["a"].any()


@pytest.mark.parametrize(
    ("dtype", "shape", "picture"),
    [
        (TensorProto.UINT8, [1, 9, 9, 3], True),
        (TensorProto.UINT8, ["n", 1, "h", "w"], True),
        (TensorProto.UINT8, [1, 9, 9, 4], False),
        (TensorProto.UINT8, [1, 9, 3], False),
        (TensorProto.INT8, [1, 9, 9, 3], False),
    ],
)
def test_pictures_have_all_bytes(dtype: int, shape: list[int | str], picture: bool) -> None:
    """Zeros and ones alone would hardly try a model that takes pictures."""
    infos = [helper.make_tensor_value_info("x", dtype, shape), helper.make_tensor_value_info("y", 1, shape)]
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=1)], "g", infos[:1], infos[1:])
    bounds = integer_bounds(helper.make_model(graph))
    assert bounds == ({"x": (0, 256)} if picture else {})
    x = sample_inputs([TensorInfo("x", (1, 50, 50, 3), "uint8")], bounds=bounds)["x"]
    assert (x.min(), x.max()) == ((0, 255) if picture else (0, 1))


@pytest.mark.parametrize(
    ("name", "shape", "other", "bound"),
    [
        ("waveforms_lens", [2], [2, 900], (450, 901)),
        ("xlen", [1], [7, 1, 80], (3, 8)),
        ("seq_lengths", [1], [1, 1], (1, 2)),
        ("length", [], [1, 50, 8], (25, 51)),
        ("silent", [2], [2, 900], None),
        ("lens", [2, 3], [2, 900], None),
        ("lens", [2], [5, 900], None),
        ("lens", ["n"], ["n", "t"], None),
    ],
)
def test_lengths_leave_most_of_a_sequence(
    name: str, shape: list[Any], other: list[Any], bound: tuple[int, int] | None
) -> None:
    """Drawn from 0 and 1, as integers of which nothing is known, they left padding alone: an output of zeros."""
    infos = [helper.make_tensor_value_info("x", 1, other), helper.make_tensor_value_info(name, 7, shape)]
    y = helper.make_tensor_value_info("y", 1, None)
    made = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos, [y]))
    assert integer_bounds(made) == ({name: bound} if bound else {})


@pytest.mark.parametrize(("op", "domain"), [("LSTM", ""), ("DynamicQuantizeLSTM", "com.microsoft")])
def test_a_recurrent_layer_has_no_more_steps_than_its_data(op: str, domain: str) -> None:
    infos = [helper.make_tensor_value_info("x", 1, [5, 1, 9]), helper.make_tensor_value_info("n", 6, [1])]
    node = helper.make_node(op, ["x", "w", "r", "", "n"], ["y"], domain=domain, hidden_size=8)
    y = helper.make_tensor_value_info("y", 1, None)
    assert integer_bounds(helper.make_model(helper.make_graph([node], "g", infos, [y]))) == {"n": (1, 6)}


def test_truth_values_take_turns() -> None:
    """Both branches of an If are verified; all combinations of two where there are seeds for them."""
    infos = [TensorInfo("x", (4,), "float32"), *(TensorInfo(n, (1,), "bool") for n in "ab")]
    seen = {tuple(bool(trial_inputs(infos, seed)[n][0]) for n in "ab") for seed in trials(infos)}
    assert len(seen) == 4
    assert len({tuple(bool(trial_inputs(infos[1:], s)[n][0]) for n in "ab") for s in trials(infos[1:])}) == 4
    counts = [TensorInfo("x", (4,), "float32"), TensorInfo("n", (), "int64")]
    assert {int(trial_inputs(counts, seed)["n"]) for seed in trials(counts)} == {0, 1}
    assert {int(trial_inputs(counts, seed, {"n": (5, 9)})["n"]) for seed in trials(counts)} <= set(range(5, 9))
