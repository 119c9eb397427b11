"""Small networks for tests of `compare` and `surgeon`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def weight(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    """Normal numbers of a size that keeps activations near 1."""
    rng = np.random.default_rng([seed, *name.encode()])
    return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype("f4"), name)


def info(name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def model(nodes, inputs, outputs, weights=(), opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "net", list(inputs), list(outputs), list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def residual() -> onnx.ModelProto:
    """x[1,3,9,9] -> conv1 relu1 conv2 relu2 conv3, + relu1, -> pool -> head: y[1,10]."""
    conv = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", **conv),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", **conv),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], name="conv3"),
        helper.make_node("Add", ["c3", "r1"], ["a3"], name="add3"),
        helper.make_node("GlobalAveragePool", ["a3"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "g", "h"], ["y"], name="head"),
    ]
    weights = [
        weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 6, 8, 3, 3), weight("b2", 6),
        weight("w3", 8, 6, 1, 1), weight("g", 8, 10), weight("h", 10),
    ]  # fmt: skip
    return model(nodes, [info("x", 1, 3, 9, 9)], [info("y", 1, 10)], weights)


def spoiled(source: onnx.ModelProto, name: str, element: int = 5, by: float = 3.0) -> onnx.ModelProto:
    """The model with one element of one weight wrong."""
    copy = onnx.ModelProto.FromString(source.SerializeToString())
    tensor = next(t for t in copy.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[element] += by
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return copy


def saved(source: onnx.ModelProto, path: Path) -> Path:
    onnx.save(source, str(path))
    return path


def outputs(path: str | Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """onnxruntime's answer."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in feeds.items() if k in wanted})
