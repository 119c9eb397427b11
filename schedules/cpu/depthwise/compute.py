"""Depthwise convolution, NHWC, as TE with weights packed by vectors of channels - for the depthwise family.

    acc[n, y, x, b, v] = sum_{ky, kx} src[n, y*s + ky*d, x*s + kx*d, b*V + v] * Wp[b, ky, kx, v]
    out[n, y, x, c]    = acc[n, y, x, c / V, c mod V]

With m > 1 outputs a channel, output o reads channel o / m.

Of quantised data (uint8 by int8, the sum in int32) `src` and `Wp` are the same numbers as fp32, whose products and sums
are exact up to 2^24: 518 taps. bfloat16 data is widened as it is loaded, and multiplied in fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, constant, image_sizes, operand_types, pictures, sizes
from tvmopt.lowering.repeats import packed_once
from tvmopt.lowering.window import Border, Window, channel_vector, padded_source, with_pad
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def depthwise(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI with one input channel a group; anything else is not ours. A weight that is no
    constant is packed by a kernel of its own.
    """
    found, attrs, (x, w) = image_sizes(call), call.attrs, call.args
    if found is None:
        return None
    xs, ws = found
    groups = int(attrs.groups)
    if groups != xs[3] or ws[3] != 1 or groups == 1:
        return None
    types = (str(x.ty.dtype), str(w.ty.dtype), str(call.ty.dtype))
    value, quantized = constant(bb, w), types == QUANTIZED
    real = types in (("float32",) * 3, HALVES)
    if not real and not (quantized and value is not None and exact(ws[1] * ws[2])):
        return Declined(operand_types(call))
    border = Border(*(int(v) for v in attrs.padding))
    if quantized:
        x, border = with_pad(bb, x, border)
        xs = pictures(x) or xs
    window = Window.of(attrs, (ws[1], ws[2]), (xs[1], xs[2]), border)
    vector, copied = channel_vector(ws[0], ws[0] // groups, machine.lanes())
    if value is None:
        packed, finite = _packed_at_run_time(bb, w, vector), False
    else:
        finite = bool(np.isfinite(value).all())
        packed = packed_once(
            value, ("depthwise", vector), lambda: relax.const(pack(value.astype("float32"), vector), "float32")
        )

    def compute(data: te.Tensor, weight: te.Tensor, *out: tirx.Expr) -> te.Tensor:
        return depthwise_te(data, weight, ws[0], window.at(*out), copied, border.fill, finite)

    return call_fusable(bb, compute, [x, packed], "depthwise", wanted=(sizes(call) or ())[1:3])


QUANTIZED = ("uint8", "int8", "int32")
"""Types of data, weight and result."""
HALVES = ("bfloat16", "bfloat16", "float32")
"""Of `--precision bf16`."""


def exact(taps: int) -> bool:
    """Whether sums of so many products of uint8 and int8 are exact in fp32.

    >>> exact(7 * 7), exact(23 * 23)
    (True, False)
    """
    return taps * 255 * 128 <= 1 << 24


def pack(weight: np.ndarray[Any, Any], vector: int) -> np.ndarray[Any, Any]:
    """[O, KH, KW, 1] -> [ceil(O/V), KH, KW, V], zeros beyond O."""
    out, kh, kw, _ = weight.shape
    blocks = -(-out // vector)
    full = np.zeros((blocks * vector, kh, kw), weight.dtype)
    full[:out] = weight[..., 0]
    return np.ascontiguousarray(np.moveaxis(full.reshape(blocks, vector, kh, kw), 1, 3))


def _packed_at_run_time(bb: relax.BlockBuilder, weight: relax.Expr, vector: int) -> relax.Expr:
    """What :func:`pack` does, by a kernel."""

    def compute(w: te.Tensor) -> te.Tensor:
        out, kh, kw, _ = (int(d) for d in w.shape)

        def entry(b: tirx.Expr, ky: tirx.Expr, kx: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
            o = b * vector + v
            value = w(o, ky, kx, 0).astype("float32")
            return value if out % vector == 0 else te.if_then_else(o < out, value, tirx.const(0.0, "float32"))

        return te.compute((-(-out // vector), kh, kw, vector), entry, name="pack_weight")

    return bb.emit(bb.call_te(compute, weight, primfunc_name_hint="pack_weight"))


def depthwise_te(
    data: te.Tensor,
    weight: te.Tensor,
    out_c: int,
    window: Window,
    copied: bool,
    fill: float = 0.0,
    finite: bool = False,
) -> te.Tensor:
    """The loops; `weight` as :func:`pack` leaves it; `finite`: known to be."""
    blocks, kh, kw, vector = (int(d) for d in weight.shape)
    source = padded_source(data, window, out_c, copied, vector, fill, "depthwise", finite and not fill)
    kind = "int32" if str(data.dtype) == "uint8" else "float32"
    ky, kx = te.reduce_axis((0, kh), name="ky"), te.reduce_axis((0, kw), name="kx")
    (sy, sx), (dy, dx) = window.strides, window.dilation
    acc = te.compute(
        (data.shape[0], *window.out, blocks, vector),
        lambda n, y, x, b, v: te.sum(
            source(n, y * sy + ky * dy, x * sx + kx * dx, b * vector + v).astype("float32") * weight(b, ky, kx, v),
            axis=[ky, kx],
        ),
        name="depthwise",
        attrs={"tvmopt.kernel": "depthwise"},
    )
    return te.compute(
        (data.shape[0], *window.out, out_c),
        lambda n, y, x, c: acc(n, y, x, c // vector, c % vector).astype(kind),
        name="unpack",
        attrs={"tvmopt.kernel": "depthwise_out"},
    )
