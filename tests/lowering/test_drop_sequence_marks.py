"""Compiling a scatter says nothing of TVM's own source code."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvmopt


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_no_warning_and_the_right_numbers(op, tmp_path):
    at = [9] if op == "ScatterElements" else [9, 1]
    types = {"x": (TensorProto.FLOAT, [7]), "at": (TensorProto.INT64, at), "u": (TensorProto.FLOAT, [9])}
    node = helper.make_node(op, list(types), ["y"], reduction="add")
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in types.items()]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, [7])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    command = [sys.executable, "-m", "tvmopt", "compile", "m.onnx", "--no-verify"]
    env = os.environ | {"TVMOPT_CACHE": "off"}  # a kept kernel is not generated again
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    rng = np.random.default_rng(0)
    feeds = {"x": rng.random(7, np.float32), "at": rng.integers(-7, 7, at), "u": rng.random(9, np.float32)}
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = tvmopt.load(tmp_path / "m.tvmopt").run(feeds)["y"]
    np.testing.assert_allclose(found, theirs.run(None, feeds)[0], rtol=1e-6)
