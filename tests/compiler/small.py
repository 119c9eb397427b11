"""A small model for tests of the compiler: a product and a SiLU, which one pass puts together from two operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def silu(path: Path, depth: int) -> Path:
    """Write x[33, depth] @ w[depth, 24], times its sigmoid."""
    weight = np.random.default_rng(0).standard_normal((depth, 24), dtype=np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
            helper.make_node("Sigmoid", ["h"], ["s"], name="sigmoid"),
            helper.make_node("Mul", ["h", "s"], ["y"], name="times"),
        ],
        "silu", [value("x", TensorProto.FLOAT, [33, depth])], [value("y", TensorProto.FLOAT, [33, 24])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
