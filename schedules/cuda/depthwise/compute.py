"""Depthwise convolution for GPUs, NHWC, as TE over weights packed [kh, kw, c] - for the `depthwise` family.

    y[n, y, x, o] = sum_{ky, kx} src[n, y*s + ky*d, x*s + kx*d, o / m] * Wp[ky, kx, o]       m outputs a channel

Products and sums are float32, of float64 float64, whatever the type of the tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, nhwc_convolution, nhwc_shapes
from tvmopt.lowering.window import Window
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def depthwise(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI with one input channel a group and constant weights; anything else is not ours."""
    shapes, found, attrs, (x, w) = nhwc_shapes(call), nhwc_convolution(bb, call), call.attrs, call.args
    groups = int(attrs.groups)
    if shapes is None or groups != shapes[0][3] or shapes[1][3] != 1 or groups == 1:
        return None
    if found is None:
        return Declined("a weight that is no constant")
    xs, ws, value = found
    window = Window.of(attrs, (ws[1], ws[2]), (xs[1], xs[2]))
    packed = relax.const(pack(value), str(w.ty.dtype))
    dtype = str(call.ty.dtype)
    return call_fusable(bb, lambda data, weight: depthwise_te(data, weight, window, dtype), [x, packed], "depthwise")


def keeps_fp32(name: str, call: relax.Call, machine: Machine, precision: str) -> str | None:
    """Why a depthwise convolution stays in fp32 with a 16-bit precision: how fast it is then has not been measured."""
    if name != "nn.conv2d" or int(call.attrs.groups) == 1:
        return None
    channels = call.args[1].ty.shape.values[str(call.attrs.kernel_layout).find("I")]
    return "a depthwise convolution has no product of pairs" if int(channels) == 1 else None


def pack(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[O, KH, KW, 1] -> [KH, KW, O]."""
    return np.ascontiguousarray(np.moveaxis(weight[..., 0], 0, 2))


def depthwise_te(data: te.Tensor, weight: te.Tensor, window: Window, dtype: str) -> te.Tensor:
    """The loops; `weight` as :func:`pack` leaves it."""
    kh, kw, out = (int(d) for d in weight.shape)
    n, height, width, channels = (int(d) for d in data.shape)
    (sy, sx), (dy, dx), (top, left) = window.strides, window.dilation, window.padding[:2]
    ky, kx = te.reduce_axis((0, kh), name="ky"), te.reduce_axis((0, kw), name="kx")
    kind = "float64" if str(data.dtype) == "float64" else "float32"

    def tap(b: Any, y: Any, x: Any, o: Any) -> Any:
        row, column = y * sy + ky * dy - top, x * sx + kx * dx - left
        value = data(b, row, column, o if out == channels else o // (out // channels)).astype(kind)
        if any(window.padding):
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            value = tirx.if_then_else(inside, value, tirx.const(0, kind))
        return value * weight(ky, kx, o).astype(kind)

    total = te.compute(
        (n, *window.out, out), lambda b, y, x, o: te.sum(tap(b, y, x, o), axis=[ky, kx]), name="depthwise"
    )
    if dtype == kind:
        return total
    return te.compute(total.shape, lambda *i: total(*i).astype(dtype), name="narrow")
