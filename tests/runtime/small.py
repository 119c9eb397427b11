"""A small model for tests of artifact, runtime and command line: a convolution, a pooling and a GEMM."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_model(seed: int = 0, classes: int = 10) -> onnx.ModelProto:
    """x[1,3,9,9] -> conv 3x3 (8) -> relu -> global mean -> gemm."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "g", "h"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        [weight("w", 8, 3, 3, 3), weight("b", 8), weight("g", 8, classes), weight("h", classes)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def expected(seed: int, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """onnxruntime's answer."""
    import onnxruntime

    session = onnxruntime.InferenceSession(small_model(seed).SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])
