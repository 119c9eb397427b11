"""onnxruntime ends its process for some inputs: verification goes on without it, and says nothing of wrong kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.analysis.verify import peers_of, run_reference, verify
from tvmopt.errors import AccuracyError

UNITS, FEATURES = 8, 5
GATES = {"GRU": 3, "LSTM": 4}


def chosen_rows(tmp_path: Path, op: str) -> Path:
    """A recurrence over those of four sequences whose numbers add up to more than 0: maybe over none."""
    generator = np.random.default_rng(0)
    gates = GATES[op] * UNITS
    weights = {
        "W": generator.standard_normal((1, gates, FEATURES)).astype(np.float32),
        "R": generator.standard_normal((1, gates, UNITS)).astype(np.float32) * np.float32(0.3),
        "axes": np.array([0, 2], np.int64),
        "zero": np.array(0, np.float32),
    }
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sums"], keepdims=0),
        helper.make_node("Greater", ["sums", "zero"], ["wanted"]),
        helper.make_node("Compress", ["x", "wanted"], ["rows"], axis=1),
        helper.make_node(op, ["rows", "W", "R"], ["y"], hidden_size=UNITS),
    ]
    graph = helper.make_graph(
        nodes, "chosen",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4, FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 1, None, UNITS])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    path = tmp_path / f"{op}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize("op", GATES)
def test_no_sequences_are_verified_though_onnxruntime_dies_of_them(tmp_path: Path, op: str) -> None:
    path = chosen_rows(tmp_path, op)
    compiled = tvmopt.compile(path, verify=False)
    verdict = verify(compiled.artifact, path)
    assert verdict.ok
    assert [t.seed for t in verdict.trials] == [0, 1, 2, 3, 4, 5, 6], "zeros, which choose no row, among them"
    assert "onnxruntime" in verdict.reference, "it is asked about the other inputs"
    nothing = compiled.model.run({"x": np.zeros((3, 4, FEATURES), np.float32)})
    assert nothing["y"].shape == (3, 1, 0, UNITS)


def test_a_wrong_artifact_is_refused_without_onnxruntime_too(tmp_path: Path) -> None:
    path, other = chosen_rows(tmp_path, "GRU"), tmp_path / "other.onnx"
    model = onnx.load(str(path))
    recurrent = next(t for t in model.graph.initializer if t.name == "R")
    recurrent.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(recurrent) * np.float32(1.1), "R"))
    onnx.save(model, str(other))
    with pytest.raises(AccuracyError, match="differ"):
        verify(tvmopt.compile(path, verify=False).artifact, other)


def test_the_reference_of_compare_is_another_one_where_onnxruntime_dies(tmp_path: Path) -> None:
    path = chosen_rows(tmp_path, "GRU")
    zeros = {"x": np.zeros((3, 4, FEATURES), np.float32)}
    name, (outputs,) = run_reference(path, [zeros])
    assert outputs["y"].shape == (3, 1, 0, UNITS)
    ones = {"x": np.ones((3, 4, FEATURES), np.float32)}
    name, (outputs,) = run_reference(path, [ones])
    assert name.startswith("onnxruntime") and outputs["y"].shape == (3, 1, 4, UNITS)


def test_inputs_that_end_onnxruntime_have_no_peer_and_others_do(tmp_path: Path) -> None:
    feeds = {s: {"x": np.full((3, 4, FEATURES), s, np.float32)} for s in (0, 1)}
    name, peers = peers_of(chosen_rows(tmp_path, "GRU"), feeds, {}, apart=True)
    assert name.startswith("onnxruntime") and peers[1]["y"].shape == (3, 1, 4, UNITS)
    assert peers[0] == {} or peers[0]["y"].size == 0
