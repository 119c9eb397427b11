"""Per-channel scale and shift of convolutions and GEMMs - the arithmetic shared by the folding passes.

For a linear producer ``y = conv(x, W) + b`` and per-output-channel constants ``s`` and ``t``::

    y * s + t  =  conv(x, W * s) + (b * s + t)

with ``W * s`` scaling each output channel's weights. All in float64, rounded once to the weights' type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.passes.graph import Array, Call, Expr, Graph, const, dtype, numpy_dtype, op_name, rank, sizes

LINEAR = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "matmul")
MODERATE = 2.0**64
"""The root of the largest number of float32."""


@dataclass(frozen=True)
class Linear:
    """A convolution or GEMM with constant weights, and its bias if it has one.

    Attributes:
        call: the convolution or matmul.
        weight: its weights.
        bias: one number per output channel, float64.
        channel: axis of the output that holds the channels.
        channels: how many.
    """

    call: Call
    weight: Array
    bias: Array
    channel: int
    channels: int


def find_linear(graph: Graph, expr: Expr) -> Linear | str:
    """The linear producer of `expr` (through one constant bias), or the reason why there is none."""
    bias: Expr | None = None
    node = expr
    for data, other in graph.binary(expr, "add"):
        if graph.op(data) in LINEAR and graph.is_const(other):
            if not graph.single(expr):
                return "the producer's result has other users"
            node, bias = data, other
    call = graph.call(node, *LINEAR)
    if call is None:
        return f"the producer is {graph.op(expr) or 'not a convolution or GEMM'}"
    if not graph.single(node):
        return "the producer's result has other users"
    weight, dims = graph.array(call.args[1]), sizes(call)
    if weight is None or dims is None:
        return "the producer's weights are not constant, or its shape is not known"
    if op_name(call) == "matmul":
        if weight.ndim != 2:
            return "a batched GEMM has no output channels"
        channel = len(dims) - 1
    else:
        channel = str(call.attrs.data_layout if not call.attrs.out_layout else call.attrs.out_layout).find("C")
    if not isinstance(dims[channel], int):
        return "the producer's number of channels is open"
    zero = np.zeros(dims[channel])
    per_channel = zero if bias is None else channel_vector(graph, bias, len(dims), channel, dims[channel])
    if per_channel is None:
        return "the producer's bias is not one number per channel"
    return Linear(call, weight, per_channel, channel, dims[channel])


def channel_vector(graph: Graph, expr: Expr, ndim: int, channel: int, size: int) -> Array | None:
    """A constant that broadcasts against axis `channel` only, as `size` float64 numbers; else None."""
    data = graph.array(expr)
    if data is None or data.dtype.kind not in "fV" or data.ndim > ndim:
        return None
    full = (1,) * (ndim - data.ndim) + data.shape
    if any(n != 1 for i, n in enumerate(full) if i != channel) or full[channel] not in (1, size):
        return None
    return np.broadcast_to(data.astype(np.float64).reshape(-1), (size,))


def channel_const(values: Array, ndim: int, channel: int, like: Expr) -> Expr:
    """One number per channel as a constant that broadcasts against a tensor of `ndim` axes."""
    full = [1] * ndim
    full[channel] = len(values)
    return const(values.reshape(full), like=like)


def scaled(linear: Linear, scale: Array, shift: Array, name: str, graph: Graph) -> Expr:
    """``linear * scale + shift`` as one linear operator and one bias add."""
    call = linear.call
    weight = _scale_weight(call, linear.weight, scale)
    node: Any = relax.Call(call.op, [call.args[0], const(weight, like=call.args[1])], call.attrs, call.ty_args)
    bias = linear.bias * scale + shift
    if not bias.any():
        return node
    node = graph.emit(node, name)
    return relax.op.add(node, channel_const(bias, rank(call), linear.channel, call))


def fits(merged: Array, like: Expr, *parts: Array, product: bool = False) -> bool:
    """Whether constants may become one: no number of `merged` leaves the type of `like` where its `parts` are in it.

    Two factors whose product does has to meet the data one after the other: `x * 1e30 * 1e30` is 1 for x of 1e-60.

    Args:
        product: it does not become 0 either, where no factor is.
    """
    wide = [np.asarray(part).astype(np.float64) for part in parts]
    with np.errstate(all="ignore"):
        kept = np.asarray(merged).astype(numpy_dtype(dtype(like))).astype(np.float64)
    inside = np.isfinite(kept) | ~np.all(np.broadcast_arrays(*map(np.isfinite, wide)), axis=0)
    if product:
        inside &= (kept != 0) | np.any(np.broadcast_arrays(*(part == 0 for part in wide)), axis=0)
    return bool(np.all(inside))


def moderate(numbers: Array) -> bool:
    """Whether all are so far from the largest number that sums of products with them stay in the type if their results
    do."""
    return bool((np.abs(numbers.astype(np.float64)) < MODERATE).all())


def may_scale(linear: Linear, scale: Array) -> bool:
    """Whether sums of products with what :func:`scaled` makes of the weights stay in their type: with an infinite
    scale, `inf * a - inf * b` is NaN where `inf * (a - b)` is none."""
    call = linear.call
    with np.errstate(all="ignore"):
        weight = _scale_weight(call, linear.weight, scale)
    return moderate(scale) and moderate(weight) and fits(weight, call.args[1], linear.weight)


def _scale_weight(call: Call, weight: Array, scale: Array) -> Array:
    """The weights with output channel o multiplied by ``scale[o]``, in float64."""
    wide = weight.astype(np.float64)
    if op_name(call) == "matmul":
        return wide * scale
    layout = str(call.attrs.kernel_layout)
    if not op_name(call).endswith("_transpose"):
        shape_ = [1] * wide.ndim
        shape_[layout.find("O")] = len(scale)
        return wide * scale.reshape(shape_)
    # Transposed: input channel i of group g meets output channels g * (O/groups) + o.
    groups, i, o = int(call.attrs.groups), layout.find("I"), layout.find("O")
    moved = np.moveaxis(wide, (i, o), (0, 1))
    grouped = moved.reshape(groups, moved.shape[0] // groups, *moved.shape[1:])
    factors = scale.reshape(groups, 1, moved.shape[1], *[1] * (moved.ndim - 2))
    return np.moveaxis((grouped * factors).reshape(moved.shape), (0, 1), (i, o))
