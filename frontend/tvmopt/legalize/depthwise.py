"""Depthwise convolution, NHWC, as TE with weights packed by vectors of channels - for the depthwise family.

    acc[n, y, x, b, v] = sum_{ky, kx} src[n, y*s + ky*d, x*s + kx*d, b*V + v] * Wp[b, ky, kx, v]
    out[n, y, x, c]    = acc[n, y, x, c / V, c mod V]

`src` is the padded input. Where the channels fill whole (or half) vectors it stays an expression - zero
outside the image - which the family resolves at compile time: no copy. Elsewhere (58 channels; or m > 1
outputs a channel, where output o reads channel o / m) it is a buffer of ceil(C/V)*V channels that the family
fills per task.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.legalize.common import call_fusable, constant, static_shape
from tvmopt.targets import Machine


def channel_vector(channels: int, multiplier: int, lanes: int) -> tuple[int, bool]:
    """(V, copied): channels of one vector, and whether the input is copied into whole vectors first.

    Half-filled vectors cost as many instructions as full ones, so a common divisor of at least half a vector
    is used as it is; below that the copy (one move for K*K multiply-adds) is cheaper.

    >>> [channel_vector(c, 1, 16) for c in (96, 24, 58, 3)]
    [(16, False), (8, False), (16, True), (16, True)]
    >>> channel_vector(96, 2, 16), channel_vector(24, 1, 8)
    ((16, True), (8, False))
    """
    common = gcd(channels, lanes)
    return (lanes, True) if multiplier > 1 or 2 * common < lanes else (common, False)


def depthwise(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.nn.conv2d` in NHWC/OHWI with one input channel a group and constant weights; anything else is not
    ours.
    """
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NHWC", "OHWI", "NHWC"):
        return None
    x, w = call.args
    xs, ws, value = static_shape(x), static_shape(w), constant(bb, w)
    if xs is None or ws is None or value is None or 0 in xs + ws:
        return None
    groups = int(attrs.groups)
    if groups != xs[3] or ws[3] != 1 or groups == 1 or {str(x.ty.dtype), str(value.dtype)} != {"float32"}:
        return None
    strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
    padding = [int(v) for v in attrs.padding]
    multiplier = ws[0] // groups
    vector, copied = channel_vector(ws[0], multiplier, machine.lanes())
    packed = relax.const(pack(value, vector), "float32")

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return depthwise_te(data, weight, ws[0], strides, padding, dilation, copied)

    return call_fusable(bb, compute, [x, packed], "depthwise")


def pack(weight: np.ndarray[Any, Any], vector: int) -> np.ndarray[Any, Any]:
    """[O, KH, KW, 1] -> [ceil(O/V), KH, KW, V], zeros beyond O."""
    out, kh, kw, _ = weight.shape
    blocks = -(-out // vector)
    full = np.zeros((blocks * vector, kh, kw), weight.dtype)
    full[:out] = weight[..., 0]
    return np.ascontiguousarray(np.moveaxis(full.reshape(blocks, vector, kh, kw), 1, 3))


def depthwise_te(
    data: te.Tensor,
    weight: te.Tensor,
    out_c: int,
    strides: list[int],
    padding: list[int],
    dilation: list[int],
    copied: bool,
) -> te.Tensor:
    """The loops; `padding` is top, left, bottom, right."""
    batch, height, width, in_c = (int(d) for d in data.shape)
    blocks, kh, kw, vector = (int(d) for d in weight.shape)
    top, left, bottom, right = padding
    padded_h, padded_w = height + top + bottom, width + left + right
    out_h = (padded_h - dilation[0] * (kh - 1) - 1) // strides[0] + 1
    out_w = (padded_w - dilation[1] * (kw - 1) - 1) // strides[1] + 1
    multiplier = out_c // in_c

    def inside(n: Any, y: Any, x: Any, c: Any) -> Any:
        conditions = []
        if top or bottom:
            conditions += [y >= top, y < height + top]
        if left or right:
            conditions += [x >= left, x < width + left]
        if blocks * vector != out_c:
            conditions.append(c < out_c)
        value = data(n, y - top, x - left, c // multiplier if multiplier > 1 else c)
        return (
            te.if_then_else(te.all(*conditions), value, tirx.const(0.0, "float32")) if conditions else value
        )

    source = data
    if copied or any(padding):
        shape = (batch, padded_h, padded_w, blocks * vector)
        kind = "depthwise_copy" if copied else "depthwise_pad"
        source = te.compute(shape, inside, name="pad", attrs={"tvmopt.kernel": kind})
    ky, kx = te.reduce_axis((0, kh), name="ky"), te.reduce_axis((0, kw), name="kx")
    acc = te.compute(
        (batch, out_h, out_w, blocks, vector),
        lambda n, y, x, b, v: te.sum(
            source(n, y * strides[0] + ky * dilation[0], x * strides[1] + kx * dilation[1], b * vector + v)
            * weight(b, ky, kx, v),
            axis=[ky, kx],
        ),
        name="depthwise",
        attrs={"tvmopt.kernel": "depthwise"},
    )
    return te.compute(
        (batch, out_h, out_w, out_c),
        lambda n, y, x, c: acc(n, y, x, c // vector, c % vector),
        name="unpack",
        attrs={"tvmopt.kernel": "depthwise_out"},
    )


LEGALIZERS = {"relax.nn.conv2d": depthwise}
