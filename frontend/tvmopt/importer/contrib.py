"""Operators of com.microsoft that onnxruntime's optimizer and quantizer put into files, as the standard operators that
they stand for - for the folding walk.

Everything behind the walk (shape inference, converters, the oracle) then needs to know the standard operators only. An
operator is left alone, and is refused later by name, where something it depends on is not known: a rank, a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.dims import OpenSize
from tvmopt.errors import ModelError
from tvmopt.importer.contrib_schemas import DOMAIN
from tvmopt.importer.protos import attributes, node_name, operator, words
from tvmopt.importer.walk import Array, Nodes, Rule, Walk


@dataclass
class Expansion:
    """The nodes that stand for one node, as they are written.

    Attributes:
        walk: what is known of the graph.
        node: the node that is replaced; attributes: its attributes, by name.
        nodes: those written so far.
    """

    walk: Walk
    node: onnx.NodeProto

    def __post_init__(self) -> None:
        self.attributes = attributes(self.node)
        self.nodes: Nodes = []
        self.name = node_name(self.node)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def without(self, prefix: str) -> dict[str, Any]:
        """The attributes whose names do not begin so."""
        return {name: value for name, value in self.attributes.items() if not name.startswith(prefix)}

    def input(self, index: int) -> str:
        """The name of an input, "" for one left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def inputs(self, count: int) -> list[str]:
        """The names of the first `count` inputs, "" for those left out."""
        return [self.input(i) for i in range(count)]

    def rank(self, name: str) -> int:
        """The number of dimensions of a value.

        Raises:
            Unknown: it is not known.
        """
        found = self.walk.open_shape(name)
        if found is None:
            raise Unknown(name)
        return len(found)

    def axis(self, axis: int, rank: int) -> int:
        """An axis, counted from the first.

        Raises:
            ValueError: there is no such axis.
        """
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} is outside its {rank} dimensions")
        return axis % rank

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value of the graph.

        Raises:
            Unknown: it is not known.
        """
        found = self.walk.shape(name)
        if found is None:
            raise Unknown(name)
        return found

    def array(self, name: str) -> Array:
        """The value of a constant.

        Raises:
            Unknown: it is computed at run time.
        """
        found = self.walk.array(name)
        if found is None:
            raise Unknown(name)
        return found

    def element_type(self, name: str) -> int:
        """The ONNX element type of a value, 0 where unknown."""
        kind = self.walk.types.get(name)
        return int(kind.tensor_type.elem_type) if kind is not None else 0

    def constant(self, array: Any) -> str:
        """The name of a new constant."""
        name = self.walk.fresh(f"{self.name}/constant")
        self.walk.set_constant(name, np.asarray(array))
        return name

    def op(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **given: Any) -> str:
        """Write one node; the name of its first output."""
        names = [self.walk.fresh(f"{self.name}/{op_type}") for _ in range(outputs)]
        return self.named(names, op_type, *inputs, domain=domain, **given)[0]

    def named(self, names: Sequence[str], op_type: str, *inputs: str, domain: str = "", **given: Any) -> Sequence[str]:
        """Write one node whose outputs are called `names`; an attribute that is None is left out."""
        label = f"{self.name}/{op_type}"
        kept = list(inputs)
        while kept and not kept[-1]:
            kept.pop()
        given = {key: value for key, value in given.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, kept, list(names), name=label, domain=domain, **given))
        return names

    def result(self, name: str, index: int = 0) -> Nodes:
        """The nodes, `name` being output `index` of the node that is replaced."""
        if index < len(self.node.output) and self.node.output[index]:
            self.named([self.node.output[index]], "Identity", name)
        return self.nodes

    def scalar(self, name: str) -> str:
        """A value of one element, without axes."""
        return name if self.shape(name) == () else self.op("Reshape", name, self.constant(np.zeros(0, np.int64)))

    def zero_point(self, name: str) -> str:
        """A zero point, or "" for one left out; that of a whole tensor without its axis of one."""
        return self.scalar(name) if name and self.shape(name) == (1,) else name

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """A value in another shape."""
        return self.op("Reshape", name, self.constant(np.array(shape, np.int64)))

    def with_axis(self, name: str, axis: int) -> str:
        """A value, of sizes that may be open, with an additional axis of one."""
        if self.walk.opsets.get("", 1) >= 13:
            return self.op("Unsqueeze", name, self.constant(np.array([axis], np.int64)))
        return self.op("Unsqueeze", name, axes=[axis])

    def reduced(self, op_type: str, name: str, axes: Sequence[int], keepdims: int, since: int = 18) -> str:
        """A reduction, whose axes are an input from opset `since` on."""
        if self.walk.opsets.get("", 1) >= since:
            return self.op(op_type, name, self.constant(np.array(axes, np.int64)), keepdims=keepdims)
        return self.op(op_type, name, axes=[int(a) for a in axes], keepdims=keepdims)

    def channels_first(self, name: str, rank: int) -> str:
        """NHWC as NCHW."""
        return self.op("Transpose", name, perm=[0, rank - 1, *range(1, rank - 1)])

    def channels_last(self, name: str, rank: int) -> str:
        """NCHW as NHWC."""
        return self.op("Transpose", name, perm=[0, *range(2, rank), 1])

    def real(self, x: str, scale: str, zero: str, axis: int | None = None) -> str:
        """Dequantized, per tensor, or per slice of `axis` where there are several scales."""
        if int(np.prod(self.shape(scale))) == 1:
            return self.op("DequantizeLinear", x, self.scalar(scale), self.scalar(zero) if zero else "")
        return self.op("DequantizeLinear", x, scale, zero, axis=axis)

    def stepped(self, x: str, scale: str, zero: str, like: str) -> str:
        """Quantized per tensor, to the type of `zero`, or of the value `like`."""
        if not zero:
            zero = self.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(self.element_type(like))))
        return self.op("QuantizeLinear", x, self.scalar(scale), self.scalar(zero))


class Unknown(Exception):
    """What an expansion depends on is not known at compile time."""


Writer = Callable[[Expansion], Nodes]


def _binary(op_type: str) -> Writer:
    """QLinearAdd and QLinearMul."""

    def write(x: Expansion) -> Nodes:
        a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = x.inputs(8)
        value = x.op(op_type, x.real(a, a_scale, a_zero), x.real(b, b_scale, b_zero))
        return x.result(x.stepped(value, scale, zero, a))

    return write


def _unary(function: Callable[[Expansion, str, str], str]) -> Writer:
    """QLinear operators of one tensor; `function` gets the name of its real values and its own name."""

    def write(x: Expansion) -> Nodes:
        data, data_scale, data_zero, scale, zero = x.inputs(5)
        value = function(x, x.real(data, data_scale, data_zero), data)
        return x.result(x.stepped(value, scale, zero, data))

    return write


def _global_average(x: Expansion, value: str, data: str) -> str:
    rank = x.rank(data)
    if rank < 3:
        raise ValueError(f"its input has {rank} dimensions, and pictures have 3 or more")
    axes = range(1, rank - 1) if x.get("channels_last", 0) else range(2, rank)
    return x.reduced("ReduceMean", value, list(axes), 1)


def _average(x: Expansion, value: str, data: str) -> str:
    kept = x.without("channels_last")
    if not x.get("channels_last", 0):
        return x.op("AveragePool", value, **kept)
    rank = x.rank(data)
    return x.channels_last(x.op("AveragePool", x.channels_first(value, rank), **kept), rank)


def _mean(x: Expansion, value: str, data: str) -> str:
    return x.reduced("ReduceMean", value, x.get("axes"), x.get("keepdims", 1))


def _softmax(x: Expansion, value: str, data: str) -> str:
    """Along one axis from opset 13 on, before over all axes from `axis` on."""
    rank = x.rank(data)
    axis = x.axis(x.get("axis", -1), rank)
    if x.get("opset") < 13:
        shape = x.shape(data)
        rows = int(np.prod(shape[:axis]))
        return x.reshape(x.op("Softmax", x.reshape(value, (rows, -1)), axis=1), shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    moved = x.op("Softmax", x.op("Transpose", value, perm=order), axis=rank - 1)
    return x.op("Transpose", moved, perm=[int(i) for i in np.argsort(order)])


def _where(x: Expansion) -> Nodes:
    condition, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = x.inputs(9)
    value = x.op("Where", condition, x.real(a, a_scale, a_zero), x.real(b, b_scale, b_zero))
    return x.result(x.stepped(value, scale, zero, a))


def _concat(x: Expansion) -> Nodes:
    """Each part is brought to the output's scale, then they are joined as bytes."""
    names = x.inputs(len(x.node.input))
    groups = zip(*[iter(names[2:])] * 3, strict=True)
    parts = [x.stepped(x.real(*group), names[0], names[1], group[0]) for group in groups]
    return x.result(x.op("Concat", *parts, axis=x.get("axis")))


def _conv(x: Expansion) -> Nodes:
    """QLinearConv, whose data may have its channels last; the weights have them first."""
    kept = x.without("channels_last")
    names = x.inputs(9)
    if not x.get("channels_last", 0):
        return x.result(x.op("QLinearConv", *names, **kept))
    rank = x.rank(names[0])
    y = x.op("QLinearConv", x.channels_first(names[0], rank), *names[1:], **kept)
    return x.result(x.channels_last(y, rank))


def _qgemm(x: Expansion) -> Nodes:
    """QGemm: the product of the dequantized matrices; the int32 bias has the product's scale."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, scale, zero = x.inputs(9)
    left, right = x.real(a, a_scale, a_zero), x.real(b, b_scale, b_zero, axis=0 if x.get("transB", 0) else 1)
    alpha, added = x.get("alpha", 1.0), ""
    if c:
        both = x.op("Mul", x.scalar(a_scale), b_scale)
        if alpha != 1:
            both = x.op("Mul", both, x.constant(np.float32(alpha)))
        added = x.op("Mul", x.op("Cast", c, to=TensorProto.FLOAT), both)
    sides = {"transA": x.get("transA", 0), "transB": x.get("transB", 0)}
    y = x.op("Gemm", left, right, added, alpha=alpha, **sides)
    return x.result(x.stepped(y, scale, zero, a) if scale else y)


def _scaled(x: Expansion, total: str, left: str, right: str, bias: str) -> Nodes:
    """An int32 product times its two scales, plus a bias."""
    value = x.op("Mul", x.op("Cast", total, to=TensorProto.FLOAT), x.op("Mul", left, right))
    return x.result(x.op("Add", value, bias) if bias else value)


def _integer_to_float(x: Expansion) -> Nodes:
    """MatMulIntegerToFloat."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = x.inputs(7)
    if any(len(x.shape(name)) > 1 for name in (b_scale, bias) if name):
        raise ValueError("its scales of B and its bias are a number, or one for each column")
    total = x.op("MatMulInteger", a, b, x.zero_point(a_zero), x.zero_point(b_zero))
    rows = x.shape(a_scale)
    if int(np.prod(rows)) > 1:
        a_scale = x.reshape(a_scale, (rows[-1], 1))
    return _scaled(x, total, a_scale, b_scale, bias)


def _dynamic_matmul(x: Expansion) -> Nodes:
    """DynamicQuantizeMatMul: the data gets its scale when the model runs."""
    a, b, b_scale, b_zero, bias = x.inputs(5)
    names = [x.walk.fresh(f"{x.name}/{part}") for part in ("quantized", "scale", "zero_point")]
    data, scale, zero = x.named(names, "DynamicQuantizeLinear", a)
    return _scaled(x, x.op("MatMulInteger", data, b, zero, x.zero_point(b_zero)), scale, b_scale, bias)


def _embed(x: Expansion) -> Nodes:
    """QEmbedLayerNormalization: EmbedLayerNormalization of dequantized tables."""
    ids, segments, *tables = x.inputs(7)
    scales, zeros = [x.input(i) for i in range(8, 13)], [x.input(i) for i in range(13, 18)]
    values = [x.real(*group) if group[0] else "" for group in zip(tables, scales, zeros, strict=True)]
    inputs, epsilon = [ids, segments, *values, x.input(7)], x.get("epsilon", 1e-12)
    x.named(x.node.output, "EmbedLayerNormalization", *inputs, domain=DOMAIN, epsilon=epsilon)
    return x.nodes


_FROM_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
_PLAIN = words("Relu Tanh Sigmoid Elu Selu Softplus Softsign ThresholdedRelu LeakyRelu HardSigmoid")


def _activated(x: Expansion, value: str, parameters: dict[str, Any]) -> str:
    """The activation that the node names, of `value`.

    Raises:
        Unknown: it is none that a fused operator of onnxruntime has.
    """
    name = x.get("activation", "")
    if not name:
        return value
    if name not in _PLAIN:
        raise Unknown(name)
    return x.op(name, value, **parameters)


def _fused_conv(x: Expansion) -> Nodes:
    """FusedConv: a convolution, a residual, an activation."""
    kept = x.without("activation")
    data, weight, bias, residual = x.inputs(4)
    value = x.op("Conv", data, weight, bias, **kept)
    if residual:
        value = x.op("Add", value, residual)
    name, given = x.get("activation", ""), [float(p) for p in x.get("activation_params", ())]
    if name == "Clip":
        low, high = (x.constant(np.float32(p)) for p in given)
        return x.result(x.op("Min", x.op("Max", value, low), high))
    names = _FROM_PARAMETERS.get(name, ())
    return x.result(_activated(x, value, dict(zip(names, given if names else (), strict=True))))


def _fused_gemm(x: Expansion) -> Nodes:
    """FusedGemm: a Gemm and an activation."""
    kept = x.without("activation")
    parameters = {name: x.get(f"activation_{name}") for name in ("alpha", "beta", "gamma")}
    return x.result(_activated(x, x.op("Gemm", *x.inputs(3), **kept), parameters))


def _renamed(op_type: str, domain: str = "", **given: Any) -> Writer:
    """An operator that has another name elsewhere; `given` are attributes that differ there."""

    def write(x: Expansion) -> Nodes:
        x.named(x.node.output, op_type, *x.node.input, domain=domain, **{**given, **x.attributes})
        return x.nodes

    return write


def _standard(op_type: str) -> Writer:
    """QuantizeLinear and DequantizeLinear: the standard ones, where those have the types."""

    def write(x: Expansion) -> Nodes:
        codes = x.input(0) if op_type == "DequantizeLinear" else x.input(2)
        plain = x.element_type(x.input(1)) == TensorProto.FLOAT and (
            not codes or x.element_type(codes) in (TensorProto.UINT8, TensorProto.INT8)
        )
        if not plain and x.walk.opsets.get("", 1) < 21:
            raise Unknown(codes)
        return _renamed(op_type)(x)

    return write


def _max_pool(x: Expansion) -> Nodes:
    """NhwcMaxPool."""
    rank = x.rank(x.input(0))
    value = x.op("MaxPool", x.channels_first(x.input(0), rank), **x.attributes)
    return x.result(x.channels_last(value, rank))


def _bias_softmax(x: Expansion) -> Nodes:
    """BiasSoftmax: over all axes from `axis` on. A bias lacks the axes it is repeated along: the first ones, or with
    `is_inner_broadcast` those between its own first axes and `axis`."""
    data, bias = x.inputs(2)
    shape, own = x.shape(data), x.shape(bias)
    axis = x.axis(x.get("axis", 1), len(shape))
    if x.get("is_inner_broadcast") and len(own) < len(shape):
        inner = len(shape) - axis
        own = (*own[: len(own) - inner], *[1] * (len(shape) - len(own)), *own[len(own) - inner :])
        bias = x.reshape(bias, own)
    rows = int(np.prod(shape[:axis]))
    flat = x.reshape(x.op("Add", data, bias), (rows, int(np.prod(shape[axis:]))))
    return x.result(x.reshape(x.op("Softmax", flat, axis=1), shape))


def _group_norm(x: Expansion) -> Nodes:
    """GroupNorm and SkipGroupNorm, whose sum of the inputs is the second output."""
    data, gamma, beta, skip, bias = x.inputs(5)
    shape, last = x.shape(data), bool(x.get("channels_last", 1))
    if skip:
        channels = shape[-1] if last else shape[1]
        wide = (1, 1, 1, channels) if last else (1, channels, 1, 1)
        if len(x.shape(skip)) == 2:
            skip = x.reshape(skip, (shape[0], *wide[1:]))
        data = x.op("Add", data, skip)
        if bias:
            data = x.op("Add", data, x.reshape(bias, wide))
        x.result(data, 1)
    first = x.channels_first(data, 4) if last else data
    groups, size = x.get("groups"), (shape[0], shape[3], *shape[1:3]) if last else shape
    one = x.constant(np.ones(groups, np.float32)), x.constant(np.zeros(groups, np.float32))
    joined = x.reshape(first, (size[0], groups, -1))
    element = x.element_type(x.input(0))
    if element != TensorProto.FLOAT:
        joined = x.op("Cast", joined, to=TensorProto.FLOAT)
    even = x.op("InstanceNormalization", joined, *one, epsilon=x.get("epsilon", 1e-5))
    wide = (1, size[1], 1, 1)
    scale, shift = (x.op("Cast", x.reshape(v, wide), to=TensorProto.FLOAT) for v in (gamma, beta))
    y = x.op("Add", x.op("Mul", x.reshape(even, size), scale), shift)
    if x.get("activation", 0):
        y = x.op("Mul", y, x.op("Sigmoid", y))
    if element != TensorProto.FLOAT:
        y = x.op("Cast", y, to=element)
    return x.result(x.channels_last(y, 4) if last else y)


def _bias_split_gelu(x: Expansion) -> Nodes:
    """BiasSplitGelu: the left half times the GELU of the right one."""
    value = x.op("Add", *x.inputs(2))
    shape = x.shape(x.input(0))
    if shape[-1] % 2:
        raise ValueError(f"its {shape[-1]} columns have no halves")
    half, axis = shape[-1] // 2, x.constant(np.array([len(shape) - 1]))
    edges = [x.constant(np.array([n])) for n in (0, half, 2 * half)]
    left, right = (x.op("Slice", value, edges[i], edges[i + 1], axis) for i in range(2))
    return x.result(x.op("Mul", left, x.op("Gelu", right, domain=DOMAIN)))


def _expand_dims(x: Expansion) -> Nodes:
    """ExpandDims: Unsqueeze at one axis."""
    shape = list(x.shape(x.input(0)))
    shape.insert(x.axis(int(x.array(x.input(1)).reshape(())), len(shape) + 1), 1)
    return x.result(x.reshape(x.input(0), shape))


def _pad(x: Expansion) -> Nodes:
    """Pad, whose pads may have a leading axis of one."""
    data, pads, value = x.inputs(3)
    if x.rank(pads) == 2:
        pads = x.reshape(pads, (-1,))
    return x.result(x.op("Pad", data, pads, x.scalar(value) if value else "", mode=x.get("mode", "constant")))


def _range(x: Expansion) -> Nodes:
    """Range, whose step may be left out and whose numbers may have an axis of one."""
    start, limit, delta = x.inputs(3)
    kind = helper.tensor_dtype_to_np_dtype(x.element_type(start))
    step = x.scalar(delta) if delta else x.constant(np.ones((), kind))
    return x.result(x.op("Range", x.scalar(start), x.scalar(limit), step))


def _grid_sample(x: Expansion) -> Nodes:
    """GridSample, whose modes have other names from opset 20 on."""
    mode = x.get("mode", "bilinear")
    if x.walk.opsets.get("", 1) >= 20:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return x.result(x.op("GridSample", *x.inputs(2), **{**x.attributes, "mode": mode}))


def _distances(x: Expansion) -> Nodes:
    """CDist, squared Euclidean or Euclidean: [M, N] and [K, N] give [M, K]."""
    metric = x.get("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise Unknown(metric)
    if any(x.rank(name) != 2 for name in x.inputs(2)):
        raise ValueError("a table of rows is a matrix")
    apart = x.op("Sub", x.with_axis(x.input(0), 1), x.with_axis(x.input(1), 0))
    total = x.reduced("ReduceSum", x.op("Mul", apart, apart), [2], 0, since=13)
    return x.result(x.op("Sqrt", total) if metric == "euclidean" else total)


def _unfold(x: Expansion) -> Nodes:
    """UnfoldTensor: all slices of a size along one axis, the size being the last axis."""
    shape = x.shape(x.input(0))
    axis, size, step = x.axis(x.get("dim", -1), len(shape)), x.get("size"), x.get("step", 1)
    if not 1 <= size <= shape[axis] or step < 1:
        raise ValueError(f"slices of {size} in steps of {step} do not fit an axis of {shape[axis]}")
    at = np.arange(0, shape[axis] - size + 1, step)[:, None] + np.arange(size)
    taken = x.op("Gather", x.input(0), x.constant(at), axis=axis)
    order = [i for i in range(len(shape) + 1) if i != axis + 1] + [axis + 1]
    return x.result(x.op("Transpose", taken, perm=order))


def _wide_product(x: Expansion) -> Nodes:
    """MatMulInteger16: an int32 or uint32 product."""
    kinds = {x.element_type(n) for n in x.inputs(2)}
    to = TensorProto.UINT32 if kinds == {TensorProto.UINT16} else TensorProto.INT32
    return x.result(x.op("MatMul", *(x.op("Cast", n, to=to) for n in x.inputs(2))))


def _transposed(x: Expansion) -> Nodes:
    """ConvTransposeWithDynamicPads of known pads."""
    data, weight, pads, bias = x.inputs(4)
    own = [int(p) for p in x.array(pads)] if pads else None
    return x.result(x.op("ConvTranspose", data, weight, bias, **{**x.attributes, "pads": own}))


def _gated_add(x: Expansion) -> Nodes:
    """GatedAdd: x + y * gate."""
    a, b, gate, weight = x.inputs(4)
    if weight:
        raise Unknown(weight)
    return x.result(x.op("Add", a, x.op("Mul", b, gate)))


def _gather_nd(x: Expansion) -> Nodes:
    """GatherND, whose indices may be int32."""
    return x.result(x.op("GatherND", x.input(0), x.op("Cast", x.input(1), to=TensorProto.INT64)))


WRITERS: dict[str, Writer] = {
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary(lambda x, value, data: x.op("Sigmoid", value)),
    "QLinearLeakyRelu": _unary(lambda x, value, data: x.op("LeakyRelu", value, alpha=x.get("alpha", 0.01))),
    "QLinearGlobalAveragePool": _unary(_global_average),
    "QLinearAveragePool": _unary(_average),
    "QLinearReduceMean": _unary(_mean),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearWhere": _where,
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QGemm": _qgemm,
    "MatMulIntegerToFloat": _integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "QEmbedLayerNormalization": _embed,
    "QuantizeLinear": _standard("QuantizeLinear"),
    "DequantizeLinear": _standard("DequantizeLinear"),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "TransposeMatMul": _renamed("FusedMatMul", DOMAIN),
    "NhwcMaxPool": _max_pool,
    "BiasSoftmax": _bias_softmax,
    "GroupNorm": _group_norm,
    "SkipGroupNorm": _group_norm,
    "BiasSplitGelu": _bias_split_gelu,
    "ExpandDims": _expand_dims,
    "Pad": _pad,
    "Trilu": _renamed("Trilu"),
    "GatherND": _gather_nd,
    "Range": _range,
    "GridSample": _grid_sample,
    "CDist": _distances,
    "UnfoldTensor": _unfold,
    "MatMulInteger16": _wide_product,
    "ConvTransposeWithDynamicPads": _transposed,
    "GatedAdd": _gated_add,
}
"""Operators of com.microsoft -> what writes the nodes that stand for them."""


def _rule(write: Writer) -> Rule:
    def expand(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
        try:
            return write(Expansion(walk, node))
        except Unknown:
            return None
        except OpenSize:
            raise
        except (ValueError, LookupError, ArithmeticError, TypeError) as error:
            raise ModelError(
                f"{operator(node)} does not fit its inputs: {error}.",
                where=f"node '{node_name(node)}'",
                fix="if you gave --shape, check it; else the model contradicts itself",
            ) from error

    return expand


HANDLERS: dict[tuple[str, str], Rule] = {(DOMAIN, name): _rule(write) for name, write in WRITERS.items()}
