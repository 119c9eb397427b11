"""Small ONNX models for the notebooks, made here: no download, no training framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def encoder(layers: int = 2, width: int = 256, heads: int = 4, length: int = 128, seed: int = 0) -> onnx.ModelProto:
    """A transformer encoder with random weights: x[1, length, width] -> y of the same shape.

    Each layer is attention and a feed-forward part of four times the width, a LayerNorm before each.
    """
    rng = np.random.default_rng(seed)
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(name: str, *shape: int, scale: float = 1.0, offset: float = 0.0) -> str:
        array = offset + scale * rng.standard_normal(shape)
        weights.append(numpy_helper.from_array(array.astype("float32"), name))
        return name

    def integers(name: str, *values: int) -> str:
        weights.append(numpy_helper.from_array(np.array(values, "int64"), name))
        return name

    def node(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def linear(x: str, name: str, rows: int, columns: int) -> str:
        product = node("MatMul", [x, weight(f"{name}.w", rows, columns, scale=rows**-0.5)], f"{name}/MatMul")
        return node("Add", [product, weight(f"{name}.b", columns, scale=0.1)], f"{name}/Add")

    def norm(x: str, name: str) -> str:
        scale = weight(f"{name}.scale", width, scale=0.1, offset=1.0)
        bias = weight(f"{name}.bias", width, scale=0.1)
        return node("LayerNormalization", [x, scale, bias], name, axis=-1)

    split = integers("split", 1, length, heads, width // heads)
    joined = integers("joined", 1, length, width)
    root = numpy_helper.from_array(np.array((width // heads) ** 0.5, "float32"), "root")
    weights.append(root)
    x = "x"
    for i in range(layers):
        name = f"layer{i}"
        h = norm(x, f"{name}/norm1")
        parts = []
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            flat = node("Reshape", [linear(h, f"{name}/{part}", width, width), split], f"{name}/{part}/split")
            parts.append(node("Transpose", [flat], f"{name}/{part}/heads", perm=order))
        q, k, v = parts
        scores = node("Div", [node("MatMul", [q, k], f"{name}/scores"), "root"], f"{name}/scaled")
        mixed = node("MatMul", [node("Softmax", [scores], f"{name}/softmax", axis=-1), v], f"{name}/mix")
        back = node("Transpose", [mixed], f"{name}/back", perm=[0, 2, 1, 3])
        attended = linear(node("Reshape", [back, joined], f"{name}/join"), f"{name}/out", width, width)
        x = node("Add", [x, attended], f"{name}/residual1")
        wide = linear(norm(x, f"{name}/norm2"), f"{name}/up", width, 4 * width)
        narrow = linear(node("Gelu", [wide], f"{name}/gelu"), f"{name}/down", 4 * width, width)
        x = node("Add", [x, narrow], f"{name}/residual2")
    node("Identity", [x], "y")
    borders = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, length, width])] for n in "xy"]
    graph = helper.make_graph(nodes, "encoder", *borders, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
