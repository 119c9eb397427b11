"""Floating point operations of one ONNX operator, from its shapes - for `inspect`, `bench` and the roofline.

A multiply-add counts as two operations. What is counted for each operator is written in one table, so that a
figure can be checked by hand; transcendental functions count as one operation each, data movement as none.

Sources: Conv and GEMM counts are the usual ones (He et al. 2015, table 1, gives multiply-adds: half of ours);
softmax 5 and layer normalization 8 an element follow TensorFlow's profiler and DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from tvmopt.importer.pictures import FILTER_OF

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OpShapes:
    """What a cost rule sees of one node.

    Attributes:
        op_type: ONNX operator.
        inputs, outputs: static shapes, in the node's order; ``()`` also for an input that is absent.
        attributes: the node's attributes as Python values.
    """

    op_type: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    attributes: Mapping[str, Any]

    def input(self, index: int) -> Shape:
        """Shape of an input; ``()`` when absent."""
        return self.inputs[index] if index < len(self.inputs) else ()


VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Shape", "Size"})
"""Operators that move no data at inference: their output is the input's memory, or known at compile time."""

MATRIX = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "ConvInteger",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
    }
    | {
        "FusedConv",
        "FusedMatMul",
        "FusedGemm",
        "MatMulNBits",
        "MatMulBnb4",
        "Attention",
        "MultiHeadAttention",
        "LSTM",
        "DynamicQuantizeLSTM",
        "GRU",
        "RNN",
        "Einsum",
    }
)
"""Operators made of multiply-adds: what published "MACs" of a network count."""

_MOVES = """
    Cast CastLike Concat Constant ConstantOfShape DepthToSpace EyeLike Expand Gather GatherElements GatherND
    If Loop Pad Range ScatterElements ScatterND Scatter Slice SpaceToDepth Split Tile Transpose Where
    Upsample OneHot NonZero ReverseSequence Trilu Compress Unique
"""

_PER_ELEMENT: dict[str, float] = {
    **dict.fromkeys(_MOVES.split(), 0.0),
    # more than one operation an output element
    "BatchNormalization": 2.0,  # folded statistics: one multiply-add
    "LayerNormalization": 8.0,  # mean 1, variance 3, normalise 2, scale and shift 2
    "RMSNormalization": 4.0,
    "SimplifiedLayerNormalization": 4.0,
    "GroupNormalization": 8.0,
    "InstanceNormalization": 8.0,
    "MeanVarianceNormalization": 6.0,
    "LpNormalization": 3.0,
    "Softmax": 5.0,  # max, subtract, exp, sum, divide
    "LogSoftmax": 5.0,
    "Hardmax": 2.0,
    "Gelu": 5.0,
    "FastGelu": 8.0,
    "BiasGelu": 6.0,
    "Swish": 4.0,
    "Sigmoid": 3.0,
    "HardSigmoid": 3.0,
    "HardSwish": 4.0,
    "Elu": 3.0,
    "Selu": 4.0,
    "Mish": 5.0,
    "Softplus": 3.0,
    "Softsign": 3.0,
    "LeakyRelu": 2.0,
    "PRelu": 2.0,
    "Clip": 2.0,
    "QuantizeLinear": 3.0,
    "DequantizeLinear": 2.0,
    "Resize": 1.0,
}


def flops(op: OpShapes) -> float:
    """Floating point operations of one call; a multiply-add is two.

    >>> flops(OpShapes("MatMul", ((2, 3, 4), (4, 5)), ((2, 3, 5),), {}))
    240.0
    >>> flops(OpShapes("Conv", ((1, 3, 224, 224), (64, 3, 7, 7)), ((1, 64, 112, 112),), {"group": 1})) / 2
    118013952.0
    """
    rule = _RULES.get(op.op_type)
    if rule is not None:
        return float(rule(op))
    if op.op_type in VIEWS:
        return 0.0
    if op.op_type.startswith("Reduce") or op.op_type in ("ArgMax", "ArgMin", "CumSum", "TopK"):
        return float(prod(op.input(0)))
    per_element = _PER_ELEMENT.get(op.op_type, 1.0)
    size = prod(op.outputs[0]) if op.outputs else 0
    if op.op_type in ("Sum", "Mean", "Max", "Min"):
        per_element = max(len(op.inputs) - 1, 1)
    return float(per_element * size)


def _conv(op: OpShapes) -> float:
    """Each output element: one multiply-add a tap, IC/group * kernel taps; one addition for the bias."""
    weight = op.input(_weight_index(op))
    bias = 1 if len(op.inputs) > 2 and op.op_type in ("Conv", "FusedConv") else 0
    return prod(op.outputs[0]) * (2.0 * prod(weight[1:]) + bias)


def _weight_index(op: OpShapes) -> int:
    return 3 if op.op_type == "QLinearConv" else 1


def _resample(op: OpShapes) -> float:
    """Each byte of a resampled picture: a multiply-add a tap, of integers."""
    return 2.0 * prod(op.outputs[0]) * op.input(1)[1]


def _scale_picture(op: OpShapes) -> float:
    """Each byte of both pictures is a part of two sums, as by a bilinear filter; others have more."""
    return 4.0 * prod(op.input(0)) + 4.0 * prod(op.outputs[0])


def _conv_transpose(op: OpShapes) -> float:
    """Each input element is spread over OC/group * kernel taps."""
    bias = prod(op.outputs[0]) if len(op.inputs) > 2 else 0
    return 2.0 * prod(op.input(0)) * prod(op.input(1)[1:]) + bias


def _matmul(op: OpShapes) -> float:
    return 2.0 * prod(op.outputs[0]) * (op.input(0)[-1] if op.input(0) else 1)


def _gemm(op: OpShapes) -> float:
    inner = op.input(0)[0 if op.attributes.get("transA") else 1]
    return prod(op.outputs[0]) * (2.0 * inner + (1 if len(op.inputs) > 2 else 0))


def _pool(op: OpShapes) -> float:
    """One comparison or addition a tap, padding counted as data; a window larger than its input is clipped.

    (EfficientNet of `transformers` exports its global pooling as a 1280 x 1280 window over 7 x 7.)
    """
    kernel = op.attributes.get("kernel_shape") or [1]
    return float(prod(op.outputs[0]) * prod(min(k, n) for k, n in zip(kernel, op.input(0)[2:], strict=False)))


def _lrn(op: OpShapes) -> float:
    """Square and sum over `size` channels, then scale, add, power, divide."""
    return float(prod(op.outputs[0]) * (2 * int(op.attributes.get("size", 5)) + 4))


def _attention(op: OpShapes) -> float:
    """Two GEMMs and a softmax over [batch, heads, q, k]; ONNX `Attention` with 4-D or 3-D inputs."""
    q, k, v = op.input(0), op.input(1), op.input(2)
    if len(q) == 4:
        batch, heads, length, width = q
        keys, value_width = k[-2], v[-1]
    elif len(q) == 3 and len(k) == 3:
        batch, length, total = q
        heads = int(op.attributes.get("q_num_heads") or op.attributes.get("num_heads") or 1)
        kv_heads = int(op.attributes.get("kv_num_heads") or heads)
        width, keys, value_width = total // heads, k[1], v[2] // kv_heads
    else:
        return float(prod(op.outputs[0]))
    return batch * heads * length * keys * (2.0 * width + 2.0 * value_width + 5.0)


def _recurrent(op: OpShapes) -> float:
    """`gates` GEMVs with the input and with the state, each step."""
    steps_batch = prod(op.input(0)[:2])
    return 2.0 * steps_batch * (prod(op.input(1)) + prod(op.input(2)))


def _einsum(op: OpShapes) -> float:
    """Product of all index extents, one multiply-add each (two operands)."""
    equation = op.attributes.get("equation", b"")
    text = equation.decode() if isinstance(equation, bytes) else str(equation)
    extents: dict[str, int] = {}
    for term, shape in zip(text.replace(" ", "").split("->")[0].split(","), op.inputs, strict=False):
        if "..." in term:
            return 2.0 * prod(op.outputs[0])
        extents.update(zip(term, shape, strict=False))
    return 2.0 * prod(extents.values())


def _trees(op: OpShapes) -> float:
    """A comparison a level, as deep as trees of as many nodes are that are even."""
    nodes, ids = (op.attributes.get(f"nodes_{key}") or () for key in ("featureids", "treeids"))
    trees = max(1, len(op.attributes.get("tree_roots") or set(ids)))
    return float(prod(op.input(0)[:-1])) * trees * log2(max(2, len(nodes) / trees))


_RULES: dict[str, Callable[[OpShapes], float]] = {
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _trees),
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "MatMulNBits": _matmul,
    "MatMulBnb4": _matmul,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    **dict.fromkeys(("ResampleRows", "ResampleColumns"), _resample),
    **dict.fromkeys(FILTER_OF, _scale_picture),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": lambda op: float(prod(op.input(0))),
    "GlobalMaxPool": lambda op: float(prod(op.input(0))),
    "LRN": _lrn,
    "Attention": _attention,
    "MultiHeadAttention": _attention,
    "LSTM": _recurrent,
    "DynamicQuantizeLSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Einsum": _einsum,
}
