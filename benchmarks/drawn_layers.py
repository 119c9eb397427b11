"""Random single layers of the kinds that real models have - for layers.py.

Convolutions have a bias and a Relu; every other operator stands alone, as a model of one node whose first inputs are
tensors and whose weights, sizes and indices are constants.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Layer:
    """One node as a model.

    Attributes:
        title: its operator, shapes and attributes.
        model: the serialised ONNX model.
        flops: multiplications and additions; 0 where they do not say anything.
    """

    title: str
    model: bytes
    flops: float = 0.0


def distinct(draw: Callable[[random.Random], Layer | None], count: int, seed: int) -> list[Layer]:
    """So many layers with different titles."""
    source = random.Random(seed)
    found: dict[str, Layer] = {}
    while len(found) < count:
        layer = draw(source)
        if layer is not None:
            found.setdefault(layer.title, layer)
    return list(found.values())


# -- convolutions ------------------------------------------------------------------------------------------------------

CHANNELS = (1, 3, 8, 16, 20, 24, 32, 48, 64, 72, 96, 128, 192, 256, 384, 512)
SIZES = (7, 10, 13, 14, 20, 26, 28, 40, 52, 56, 80, 112)


def convolution(draw: random.Random) -> Layer | None:
    """A convolution with a bias and a Relu, of 2 MFLOP to 1.5 GFLOP."""
    layer = _convolution(draw)
    return layer if 2e6 < layer.flops < 1.5e9 else None


def _convolution(draw: random.Random) -> Layer:
    kind = draw.choice(("signal", "square", "square", "thin", "grouped", "dilated", "large", "depthwise", "pointwise"))
    channels, outputs = draw.choice(CHANNELS), draw.choice(CHANNELS[2:])
    groups, dilation, stride = 1, 1, 2 if kind not in ("thin", "pointwise") and draw.random() < 0.3 else 1
    space, kernel = [draw.choice(SIZES)] * 2, [3, 3]
    if kind == "signal":
        space, kernel = [draw.choice((50, 100, 400, 1000, 3000))], [draw.choice((3, 5, 7, 9, 11, 25))]
    elif kind == "thin":
        space, kernel = (
            [draw.choice((1, 2, 3, 6, 12, 24)), draw.choice((80, 160, 320))],
            [draw.choice((1, 3)), draw.choice((3, 5))],
        )
    elif kind == "pointwise":
        kernel = [1, 1]
    elif kind == "large":
        kernel = [draw.choice((5, 7, 9, 11))] * 2
    elif kind == "dilated":
        dilation = draw.choice((2, 4, 6))
    elif kind == "grouped":
        groups = draw.choice((2, 4, 8, 16, 32))
        channels, outputs = (max(c // groups, 1) * groups for c in (channels, outputs))
    elif kind == "depthwise":
        groups = outputs = channels = draw.choice((16, 40, 72, 96, 144, 240, 480))
        kernel = [draw.choice((3, 5, 7))] * 2
    rng = np.random.default_rng(draw.randrange(1 << 30))
    weights = rng.standard_normal((outputs, channels // groups, *kernel), np.float32)
    weights /= math.sqrt(weights[0].size)
    pads = [(k - 1) * dilation // 2 for k in kernel]
    nodes = [
        helper.make_node(
            "Conv",
            ["x", "w", "b"],
            ["c"],
            strides=[stride] * len(space),
            dilations=[dilation] * len(space),
            group=groups,
            pads=pads * 2,
        ),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", 1, [1, channels, *space])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(rng.standard_normal(outputs, np.float32), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    places = math.prod(-(-s // stride) for s in space)
    title = f"{kind} {channels}->{outputs} of {'x'.join(map(str, space))} by {'x'.join(map(str, kernel))}"
    title += "".join(
        f" {name} {value}"
        for name, value in (("stride", stride), ("dilation", dilation), ("groups", groups))
        if value > 1
    )
    return Layer(title, model.SerializeToString(), 2.0 * places * weights.size)


# -- other operators ---------------------------------------------------------------------------------------------------

LARGEST = 2_000_000
"""Numbers of a tensor at most: 8 MB."""
FEATURES = (10, 32, 37, 64, 96, 128, 256, 300, 333, 384, 512, 768, 1000, 1024, 2048, 3072, 4096)
ROWS = (1, 2, 3, 7, 16, 17, 49, 50, 64, 100, 128, 197, 256, 400, 577, 1000, 1500, 3136, 5000)
MAPS = (7, 14, 20, 28, 33, 40, 56, 64, 80, 112, 128, 160, 200)
WIDTHS = (3, 8, 16, 21, 24, 32, 64, 80, 96, 128, 150, 192, 240, 256, 320, 480, 512)
LENGTHS = (5, 7, 10, 30, 33, 49, 50, 64, 77, 100, 128, 197, 256, 400, 513, 1000, 2000, 3000)
UNARY = ("Gelu", "Erf", "Sigmoid", "Tanh", "Exp", "HardSwish", "Softplus", "Sqrt", "Sin", "Cos", "Log", "Relu", "Elu",
         "LeakyRelu", "Mish", "Reciprocal", "Neg", "Abs", "Floor", "Softsign", "HardSigmoid", "Selu")  # fmt: skip

Shape = tuple[int, ...]


def operator(draw: random.Random) -> Layer | None:
    """An operator that is no convolution; every kind is as likely as every other."""
    return draw.choice(_KINDS)(draw)


def _model(op: str, inputs: Sequence[Shape], constants: Sequence[np.ndarray] = (), seed: int = 0, outputs: int = 1,
           **attributes: Any) -> Layer | None:  # fmt: skip
    """A model of one node; None where one of its inputs is larger than LARGEST.

    Args:
        constants: they follow the inputs; an empty one of float32 stands for an input that is left out.
    """
    if max(math.prod(shape) for shape in inputs) > LARGEST:
        return None
    places = [f"x{i}" for i in range(len(inputs))]
    names = [f"w{i}" if value.size else "" for i, value in enumerate(constants)]
    results = [f"y{i}" for i in range(outputs)]
    types = {"ArgMax": [TensorProto.INT64], "TopK": [TensorProto.FLOAT, TensorProto.INT64]}.get(op, [TensorProto.FLOAT])
    graph = helper.make_graph(
        [helper.make_node(op, [*places, *names], results, **attributes)],
        "layer",
        [helper.make_tensor_value_info(p, TensorProto.FLOAT, s) for p, s in zip(places, inputs, strict=True)],
        [helper.make_tensor_value_info(r, t, None) for r, t in zip(results, types, strict=True)],
        [numpy_helper.from_array(v, n) for n, v in zip(names, constants, strict=True) if n],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    words = ["x".join(map(str, shape)) for shape in inputs]
    words += ["w" + ("x".join(map(str, v.shape)) if v.size > 8 else ",".join(map(str, v.flat)))
              for v in constants if v.size]  # fmt: skip
    words += [f"{name}={value}".replace(" ", "") for name, value in attributes.items()]
    return Layer(" ".join([op, *words]), model.SerializeToString())


def _floats(draw: random.Random, *shape: int) -> np.ndarray:
    made = np.random.default_rng(draw.randrange(1 << 30)).standard_normal(shape, np.float32)
    return (made / math.sqrt(max(1, shape[0]))).astype(np.float32)


def _image(draw: random.Random) -> Shape:
    side = draw.choice(MAPS)
    return (1, draw.choice(WIDTHS), side, side)


def _tensor(draw: random.Random, *ranks: int) -> Shape:
    """A tensor of one of these ranks: of four axes an image."""
    rank = draw.choice(ranks)
    return _image(draw) if rank == 4 else tuple(draw.choice(LENGTHS) for _ in range(rank))


def _product(draw: random.Random) -> Layer | None:
    m, k, n = draw.choice(ROWS), draw.choice(FEATURES), draw.choice(FEATURES)
    return _model("MatMul", [(m, k)], [_floats(draw, k, n)]) if 2e4 < m * k * n < 8e8 else None


def _batched(draw: random.Random) -> Layer | None:
    b, m, n = draw.choice((1, 3, 8, 12, 16, 64)), draw.choice(ROWS), draw.choice((1, 5, 17, 49, 64, 128, 197, 300))
    k = draw.choice((17, 32, 64, 80, 128, 300, 900))
    return _model("MatMul", [(b, m, k), (b, k, n)]) if 2e4 < b * m * k * n < 4e8 else None


def _softmax(draw: random.Random) -> Layer | None:
    shape = _tensor(draw, 2, 3, 4)
    return _model("Softmax", [shape], axis=draw.choice((-1, -1, 1)))


def _norm(draw: random.Random) -> Layer | None:
    if draw.random() < 0.4:
        shape = _image(draw)
        return _model("InstanceNormalization", [shape], [_floats(draw, shape[1]), _floats(draw, shape[1])])
    shape = (1, draw.choice(ROWS), draw.choice(FEATURES))
    return _model("LayerNormalization", [shape], [_floats(draw, shape[-1]), _floats(draw, shape[-1])], axis=-1)


def _reduction(draw: random.Random) -> Layer | None:
    shape = _tensor(draw, 2, 3, 4)
    axes = sorted(draw.sample(range(len(shape)), draw.randint(1, len(shape) - 1)))
    return _model(draw.choice(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2")), [shape], [np.array(axes)])


def _transpose(draw: random.Random) -> Layer | None:
    shape = _tensor(draw, 2, 3, 4)
    if draw.random() < 0.3:
        shape = (1, draw.choice(ROWS), draw.choice((4, 8, 12)), draw.choice((32, 64, 80)))
    order = draw.sample(range(len(shape)), len(shape))
    return _model("Transpose", [shape], perm=order) if order != sorted(order) else None


def _pool(draw: random.Random) -> Layer | None:
    kernel, stride = draw.choice((2, 3, 3, 5, 7)), draw.choice((1, 2, 2))
    shape, op = _image(draw), draw.choice(("MaxPool", "AveragePool"))
    if shape[2] < 2 * kernel:
        return None
    pads = draw.choice((0, kernel // 2))
    return _model(op, [shape], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pads] * 4)


def _conv_transpose(draw: random.Random) -> Layer | None:
    shape, outputs = _image(draw), draw.choice((8, 16, 32, 64, 128))
    kernel = draw.choice((2, 3, 4))
    layer = _model("ConvTranspose", [shape], [_floats(draw, shape[1], outputs, kernel, kernel)], strides=[2, 2])
    return layer if shape[1] * shape[2] * shape[3] * outputs * kernel * kernel < 5e8 else None


def _resize(draw: random.Random) -> Layer | None:
    shape, scale = _image(draw), draw.choice((0.5, 2.0, 2.0, 3.0))
    scales = np.array([1, 1, scale, scale], np.float32)
    fits = math.prod(shape) * scale * scale < LARGEST
    mode = draw.choice(("nearest", "linear", "cubic"))
    return _model("Resize", [shape], [np.zeros(0, np.float32), scales], mode=mode) if fits else None


def _unary(draw: random.Random) -> Layer | None:
    return _model(draw.choice(UNARY), [_tensor(draw, 2, 3, 4)])


def _binary(draw: random.Random) -> Layer | None:
    shape = _tensor(draw, 2, 3, 4)
    other = tuple(d if draw.random() < 0.6 else 1 for d in shape)
    return _model(draw.choice(("Add", "Sub", "Mul", "Div", "Max", "PRelu")), [shape, other])


def _moving(draw: random.Random) -> Layer | None:
    """Gathers, concatenations, pads, slices, and the turns of depth and space."""
    kind, shape = draw.choice(("Gather", "Concat", "Pad", "Slice", "DepthToSpace", "SpaceToDepth")), _image(draw)
    _, channels, side, _ = shape
    if kind == "Gather":
        rows, count = draw.choice((1000, 5000, 30000)), draw.choice((1, 16, 128, 400))
        picked = np.random.default_rng(draw.randrange(1 << 30)).integers(0, rows, count)
        return _model(kind, [(rows, draw.choice((32, 64)))], [picked])
    if kind == "Concat":
        axis = draw.choice((1, 1, 3))
        return _model(kind, [shape, (1, draw.choice(WIDTHS) if axis == 1 else channels, side, side)], axis=axis)
    if kind == "Pad":
        before, after = draw.randint(0, 3), draw.randint(1, 3)
        pads = np.array([0, 0, before, before, 0, 0, after, after])
        return _model(kind, [shape], [pads], mode=draw.choice(("reflect", "constant", "edge")))
    if kind == "Slice":
        step, start = draw.choice((1, 2)), draw.randint(0, 3)
        axes = draw.choice(([2, 3], [1], [3]))
        ends = [shape[a] - draw.randint(0, 1) for a in axes]
        values = ([start] * len(axes), ends, axes, [step] * len(axes))
        return _model(kind, [shape], [np.array(v) for v in values])
    if kind == "DepthToSpace":
        return _model(kind, [shape], blocksize=2) if channels % 4 == 0 else None
    return _model(kind, [shape], blocksize=2) if side % 2 == 0 else None


def _order(draw: random.Random) -> Layer | None:
    """ArgMax, TopK and CumSum."""
    kind = draw.choice(("ArgMax", "TopK", "CumSum"))
    if kind == "TopK":
        return _model(kind, [(draw.choice((1, 10, 100)), draw.choice((100, 1000, 8400)))],
                      [np.array([draw.choice((1, 5, 100))])], outputs=2)  # fmt: skip
    shape = _tensor(draw, 2, 3, 4)
    axis = draw.randrange(len(shape))
    return _model(kind, [shape], axis=axis) if kind == "ArgMax" else _model(kind, [shape], [np.array(axis)])


def _recurrent(draw: random.Random) -> Layer | None:
    op, steps, batch = draw.choice(("LSTM", "GRU")), draw.choice((10, 50, 100)), draw.choice((1, 1, 4))
    size, hidden = draw.choice((32, 64, 80, 128, 256)), draw.choice((32, 64, 128, 256))
    gates = 4 if op == "LSTM" else 3
    weights = [_floats(draw, 1, gates * hidden, size) / 8, _floats(draw, 1, gates * hidden, hidden) / 8]
    return _model(op, [(steps, batch, size)], weights, hidden_size=hidden)


_KINDS = (_product, _product, _batched, _softmax, _norm, _reduction, _reduction, _transpose, _pool, _pool,
          _conv_transpose, _resize, _unary, _unary, _binary, _moving, _moving, _order, _recurrent)  # fmt: skip
