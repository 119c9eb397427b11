"""Two small networks as ONNX files, seeded - for the tests of AMX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(3)

    def weight(self, *dims: int, fan: int = 0) -> str:
        name = f"w{len(self.weights)}"
        value = self.random.standard_normal(dims) / np.sqrt(fan or 1)
        value = value if fan else np.abs(value)
        self.weights.append(numpy_helper.from_array(value.astype("float32"), name))
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], f"{op}_{len(self.nodes)}", **attrs))
        return name

    def conv(self, x: str, i: int, o: int, k: int, stride: int = 1) -> str:
        w = self.weight(o, i, k, k, fan=i * k * k)
        return self("Conv", x, w, self.weight(o, fan=4), pads=[k // 2] * 4, strides=[stride] * 2, kernel_shape=[k, k])

    def linear(self, x: str, i: int, o: int) -> str:
        return self("Add", self("MatMul", x, self.weight(i, o, fan=i)), self.weight(o, fan=4))

    def save(self, path: Path, shape: list[int], out: str, out_shape: list[int]) -> Path:
        graph = helper.make_graph(
            self.nodes, path.stem, [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, out_shape)], self.weights,
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), str(path))
        return path


def save_cnn(path: Path) -> Path:
    """A residual network in small: a stem, two stages, a step of DenseNet's, a classifier."""
    g = _Graph()
    x = g("Relu", g.conv("x", 3, 32, 7, 2))
    x = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = g.conv(g("Relu", g.conv(x, 32, 32, 3)), 32, 32, 3)
    x = g("Relu", g("Add", x, y))
    y = g("Relu", g.conv(x, 32, 48, 1))
    y = g.conv(g("Relu", g.conv(y, 48, 48, 3, 2)), 48, 96, 1)
    x = g("Relu", g("Add", g.conv(x, 32, 96, 1, 2), y))
    for width in (96, 128):  # tiles write what they add into the concatenation
        y = g("Relu", g.conv(g("Relu", g("Mul", x, g.weight(1, width, 1, 1))), width, 64, 1))
        x = g("Concat", x, g.conv(y, 64, 32, 3), axis=1)
    x = g("Flatten", g("GlobalAveragePool", x))
    return g.save(path, [1, 3, 58, 58], g.linear(x, 160, 10), [1, 10])


def save_transformer(path: Path) -> Path:
    """Two layers of a transformer encoder: 49 tokens, two heads of 32."""
    g = _Graph()
    width, heads, tokens = 64, 2, 49
    x = "x"
    split = g.constant(np.array([1, tokens, heads, width // heads], "int64"))
    joined = g.constant(np.array([1, tokens, width], "int64"))
    scale = g.constant(np.float32((width // heads) ** -0.5))

    def normed(x: str) -> str:
        return g("LayerNormalization", x, g.weight(width), g.weight(width, fan=4), axis=-1)

    for _ in range(2):
        h = normed(x)
        q, k, v = (g("Reshape", g.linear(h, width, width), split) for _ in range(3))
        q, v = (g("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        s = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 2, 3, 1])), scale)
        o = g("Transpose", g("MatMul", g("Softmax", s, axis=-1), v), perm=[0, 2, 1, 3])
        x = g("Add", x, g.linear(g("Reshape", o, joined), width, width))
        h = g("Gelu", g.linear(normed(x), width, 4 * width))
        x = g("Add", x, g.linear(h, 4 * width, width))
    return g.save(path, [1, tokens, width], normed(x), [1, tokens, width])
