"""Small models that take pictures, and their stages evaluated by onnxruntime, without a compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.importer.onnx_check import run_ort
from tvmopt.preprocessing.stages import staged


def identity(shape: Any, elem: int = TensorProto.FLOAT, opset: int = 17) -> onnx.ModelProto:
    """A model that hands its input on."""
    infos = [helper.make_tensor_value_info(name, elem, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"], name="model")], "g", infos[:1], infos[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = min(made.ir_version, 8)
    return made


def prepared(text: str, x: np.ndarray, shape: Any, elem: int = TensorProto.FLOAT, opset: int = 17) -> np.ndarray:
    """What a model with an input of `shape` is given of `x`, behind the stage."""
    model = staged(identity(shape, elem, opset), {"": text})
    onnx.checker.check_model(model)
    result: np.ndarray = run_ort(model, {"x": x})[0]
    return result
