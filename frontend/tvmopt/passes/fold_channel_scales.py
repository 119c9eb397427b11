"""The scales of channels, one each, of what a depthwise convolution reads go into its weight."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.passes.graph import (
    RESULT,
    Array,
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    shape,
    with_attrs,
)
from tvmopt.passes.quantized import RANGES, Params, dequantize, quantize


@rewrite_pass("tvmopt.FoldChannelScales")
class FoldChannelScales(Rewrite):
    """Quantize with one scale what was quantized per channel for a depthwise convolution.

        Before                                        After
        q = R.quantize(x, s, z, axis=1)               q = R.quantize(R.divide(x, s), 1, z)
        a = R.dequantize(q, s, z, axis=1)             a = R.dequantize(q, 1, z)
        y = R.nn.conv2d(a, R.dequantize(W, t),        y = R.nn.conv2d(a, R.dequantize(W, t * s),
                        groups=C)                                     groups=C)

    NNCF quantizes so. A depthwise convolution adds up numbers of one channel only, whose scale can be taken out of the
    sum. The integers are the same; behind this, the passes that know one scale a tensor keep them, and the division
    goes into the constants of what computes x (FoldRequantization).

    Applies when   scales are constants, one a channel, the zero points are all the same; the convolution has one
                   channel a group and a weight of bytes; nothing else reads the quantized numbers.
    Declines when  1. the zero points of channels differ   2. something else reads the quantized numbers
                   3. a scale is not positive and finite
    Gain           a depthwise convolution of bytes, not of floats: MobileNetV2 as NNCF quantizes it 1.7 times as fast.
    Order          before ConvertSignedQuantization, which knows one scale a tensor.
    """

    rounds = 1

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a depthwise convolution of numbers that were quantized per channel."""
        data = graph.call(value.args[0], "dequantize") if op_name(value) == "nn.conv2d" else None
        own = None if data is None else graph.call(data.args[0], "quantize")
        if data is None or own is None or not _depthwise(value) or rank(own) != 4:
            return None
        scale, zero = (graph.array(a) for a in own.args[1:3])
        weight = graph.call(value.args[1], "dequantize")
        if scale is None or zero is None or scale.size == 1 or scale.ndim != 1 or weight is None:
            return None
        if not _same(graph, data, own) or int(own.attrs.axis) % 4 != 1 or dtype(own) not in RANGES:
            return None
        scaled = _scaled(graph, weight, scale)
        if scaled is None or dtype(own.args[0]) != "float32":
            return None
        if (zero != zero.flat[0]).any():
            self.declined(var, "1: the zero points of channels differ")  # Decline 1
            return None
        if not graph.single(value.args[0], data.args[0]) or RESULT in graph.users(data.args[0]):
            self.declined(var, "2: something else reads the quantized numbers")  # Decline 2
            return None
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            self.declined(var, "3: a scale is not positive and finite")  # Decline 3
            return None
        self.applied(var)
        name, one = name_of(var), Params(1.0, int(zero.flat[0]))
        steps = graph.emit(relax.op.divide(own.args[0], const(scale.reshape(1, -1, 1, 1))), name)
        q = graph.emit(quantize(steps, one, dtype(own)), name_of(data.args[0]))
        return with_attrs(value, [graph.emit(dequantize(q, one), name), graph.emit(scaled, name)])


def _depthwise(call: Call) -> bool:
    """Whether a convolution of pictures, channels first, has groups of one channel."""
    dims = shape(call.args[1])
    images = str(call.attrs.data_layout) == "NCHW" and str(call.attrs.kernel_layout) == "OIHW"
    return images and dims is not None and dims[1] == 1 and int(call.attrs.groups) > 1


def _same(graph: Graph, data: Call, own: Call) -> bool:
    """Whether numbers are dequantized as they were quantized."""
    pairs = [(graph.array(a), graph.array(b)) for a, b in zip(data.args[1:3], own.args[1:3], strict=True)]
    equal = all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)
    return equal and int(data.attrs.axis) % 4 == int(own.attrs.axis) % 4 and dtype(data) == "float32"


def _scaled(graph: Graph, weight: Call, scale: Array) -> Expr | None:
    """The dequantized weight of a depthwise convolution, each output channel times the scale of its input's."""
    values, own, zero = (graph.array(a) for a in weight.args[:3])
    if values is None or own is None or zero is None or str(values.dtype) not in RANGES or max(own.ndim, zero.ndim) > 1:
        return None
    count = values.shape[0]
    if own.size != 1 and int(weight.attrs.axis) % values.ndim != 0:
        return None
    factors = np.repeat(scale.astype("float64"), count // scale.size) * own.astype("float64")
    zeros = np.broadcast_to(zero.reshape(-1), (count,))
    return relax.op.dequantize(
        weight.args[0],
        relax.const(factors.astype("float32"), "float32"),
        relax.const(np.ascontiguousarray(zeros), str(values.dtype)),
        axis=0,
        out_dtype="float32",
    )
