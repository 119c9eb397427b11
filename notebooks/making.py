"""Small ONNX models for the notebooks, made here: no download, no training framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from matplotlib import font_manager
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont

SIDE = 48
"""Pixels of a drawn digit."""


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


def digits(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Drawn digits, float32[count, 1, 48, 48] from 0 to 1, turned, moved and noisy; and what they are."""
    rng = np.random.default_rng(seed)
    fonts = {size: ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size) for size in range(26, 36, 2)}
    pictures, labels = np.empty((count, 1, SIDE, SIDE), "float32"), rng.integers(0, 10, count)
    for picture, label in zip(pictures, labels, strict=True):
        image = Image.new("L", (SIDE, SIDE))
        place = tuple(SIDE / 2 + rng.uniform(-3, 3, 2))
        font = fonts[int(rng.choice(list(fonts)))]
        ImageDraw.Draw(image).text(place, str(label), fill=int(rng.integers(90, 256)), font=font, anchor="mm")
        image = image.rotate(float(rng.uniform(-12, 12)))
        picture[0] = np.clip(np.asarray(image) / 255 + rng.normal(0, 0.06, (SIDE, SIDE)), 0, 1)
    return pictures, labels


def reader(pictures: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], seed: int = 0) -> onnx.ModelProto:
    """A network that reads digits: picture[1, 1, 48, 48] -> scores[1, 10].

    Three convolutions with random weights, and a last layer that is fitted to the pictures by least squares.
    """
    rng = np.random.default_rng(seed)
    nodes, weights, x = [], [], "picture"
    for i, (before, after, stride) in enumerate(((1, 64, 1), (64, 128, 2), (128, 256, 2))):
        w = rng.standard_normal((after, before, 3, 3)) * (2 / (9 * before)) ** 0.5
        w -= w.mean((2, 3), keepdims=True) if i == 0 else 0  # edges, not brightness
        weights += [numpy_helper.from_array(w.astype("float32"), f"conv{i}.w")]
        weights += [numpy_helper.from_array((rng.standard_normal(after) * 0.1).astype("float32"), f"conv{i}.b")]
        own = {"pads": [1] * 4, "strides": [stride] * 2, "kernel_shape": [3, 3]}
        nodes += [helper.make_node("Conv", [x, f"conv{i}.w", f"conv{i}.b"], [f"c{i}"], f"conv{i}", **own)]
        nodes += [helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}")]
        x = f"r{i}"
    nodes += [helper.make_node("MaxPool", [x], ["pooled"], "pool", kernel_shape=[6, 6], strides=[6, 6])]
    nodes += [helper.make_node("Flatten", ["pooled"], ["features"], "flatten")]
    features = _features(_model(nodes, weights, "features", [None, 1024]), pictures)
    wanted = np.eye(10)[labels] - 0.1
    center = features.mean(0)
    power = (features - center).T @ (features - center)
    last = np.linalg.solve(
        power + 0.3 * np.trace(power) / len(power) * np.eye(len(power)), (features - center).T @ wanted
    )
    weights += [numpy_helper.from_array(last.astype("float32"), "last.w")]
    weights += [numpy_helper.from_array((-center @ last).astype("float32"), "last.b")]
    nodes += [helper.make_node("Gemm", ["features", "last.w", "last.b"], ["scores"], "last")]
    return _model(nodes, weights, "scores", [1, 10])


def _model(nodes: list[Any], weights: list[Any], output: str, shape: list[Any]) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("picture", TensorProto.FLOAT, [shape[0], 1, SIDE, SIDE])
    graph = helper.make_graph(
        nodes, "reader", [given], [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _features(model: onnx.ModelProto, pictures: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    parts = np.split(pictures, range(100, len(pictures), 100))
    return np.concatenate([session.run(None, {"picture": part})[0] for part in parts]).astype("float64")
