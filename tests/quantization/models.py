"""A small float network, and data for it, for the tests of quantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def network(seed: int = 0, opset: int = 17, size: int | str = 16) -> onnx.ModelProto:
    """Two convolutions, one BatchNorm, a pooling and a product: ``x [1, 3, size, size] -> y [1, 5]``."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32) * np.float32(0.3)

    weights = {
        "w1": normal(9, 3, 3, 3), "b1": normal(9), "w2": normal(16, 9, 3, 3), "w3": normal(5, 16), "b3": normal(5),
        "gamma": np.abs(normal(9)) + 1, "beta": normal(9), "mean": normal(9), "var": np.abs(normal(9)) + 1,
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "gamma", "beta", "mean", "var"], ["n1"], name="norm"),
        helper.make_node("Relu", ["n1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="last", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def write(folder: Path, **given: Any) -> tuple[Path, Path]:
    """The network and 12 samples of random data, as files."""
    model, data = folder / "float.onnx", folder / "data.npz"
    onnx.save(network(**given), model)
    rng = np.random.default_rng(1)
    np.savez(data, x=rng.standard_normal((12, 3, 16, 16)).astype(np.float32))
    return model, data
