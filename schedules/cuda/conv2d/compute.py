"""Dense 2-d convolution, NHWC, as an implicit GEMM in TE - for the CUDA conv2d family.

    conv2d[n, y, x, o] = sum_{ky, kx, c} in(n, y*s - top + ky*d, x*s - left + kx*d, c) * W[o, t*C + c]
    t = ky*KW + kx

`in` is zero outside the image: nothing is padded in memory but channels that no copy of 8 bytes divides (the three of a
photograph become four; the copy joins the transpose that makes NHWC). A 1x1 convolution without stride is a GEMM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, is_rows_product, nhwc_convolution, operand_types
from tvmopt.schedules.cuda._product import FLOATS, add_parts, notes, product_type, unpack, wide
from tvmopt.scheduling.cuda_tile import plan, split_length
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI with constant weights; depthwise is not for tensor cores."""
    found, attrs, (x, w) = nhwc_convolution(bb, call), call.attrs, call.args
    if found is None:
        return Declined("another layout than NHWC, an open or empty shape, or a weight that is no constant")
    xs, ws, value = found
    groups = int(attrs.groups)
    if is_rows_product(call) or (groups > 1 and ws[3] == 1):  # a product, a depthwise convolution
        return None
    dtype, out = str(x.ty.dtype), str(call.ty.dtype)
    if dtype not in FLOATS or dtype != str(w.ty.dtype) or out not in FLOATS:
        return Declined(operand_types(call))
    strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
    top, left = (int(v) for v in attrs.padding[:2])
    channels = padded_channels(xs[3]) if groups == 1 else xs[3]
    if channels != xs[3]:
        x = bb.emit(relax.op.nn.pad(x, [0, 0, 0, 0, 0, 0, 0, channels - xs[3]]))
        value = np.pad(value, ((0, 0), (0, 0), (0, 0), (0, channels - xs[3])))
    _, out_h, out_w, _ = (int(v) for v in call.ty.shape.values)
    window = (*xs[1:3], channels, out_h, out_w, *ws[1:3], *strides, *dilation, top, left)
    return _implicit_gemm(bb, x, value, xs[0], window, groups, out, machine)


def padded_channels(channels: int) -> int:
    """Channels of the copy that is convolved: a multiple of 4, what one copy of 8 bytes moves; of 8 above that.

    >>> [padded_channels(c) for c in (1, 3, 4, 7, 12, 17, 64)]
    [4, 4, 4, 8, 12, 24, 64]
    """
    if channels % 4 == 0:
        return channels
    return 4 if channels < 4 else -(-channels // 8) * 8


def _implicit_gemm(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    value: np.ndarray,
    batch: int,
    window: tuple[int, ...],
    groups: int,
    out: str,
    machine: Machine,
) -> relax.Expr:
    height, width, channels, out_h, out_w, kh, kw, sy, sx, dy, dx, top, left = window
    filters = value.shape[0]
    each = channels // groups
    k, m, dtype = kh * kw * each, batch * out_h * out_w, str(x.ty.dtype)
    pitch = -(-k // 8) * 8
    packed = np.zeros((filters, pitch), value.dtype)
    packed[:, :k] = value.reshape(filters, k)
    weight = relax.const(packed, dtype)
    zero = tirx.const(0.0, "float32")

    def term(a: te.Tensor, b: te.Tensor, place: tuple[Any, Any, Any], o: Any, tap: tuple[Any, Any, Any]) -> Any:
        (n, oy, ox), (ky, kx, c) = place, tap
        y, x_ = oy * sy - top + ky * dy, ox * sx - left + kx * dx
        first = 0 if groups == 1 else o // (filters // groups) * each
        inside = te.all(y >= 0, y < height, x_ >= 0, x_ < width)
        product = wide(a(n, y, x_, first + c)) * wide(b(o, (ky * kw + kx) * each + c))
        return te.if_then_else(inside, product, zero)

    kind = product_type(dtype, machine)
    marks = {**notes("conv2d", k, kind, pitch=pitch), "tvmopt.window": list(window), "tvmopt.pieces": groups}
    _, parts = plan(m, filters, k, 1, kind, machine)
    if parts > 1 and groups == 1:
        part = split_length(k, parts)
        parts = -(-k // part)
        marks["tvmopt.parts"] = parts

        def compute_parts(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            kk = te.reduce_axis((0, part), name="k")

            def one(p: Any, i: Any, j: Any) -> Any:
                at = p * part + kk
                tap = (at // (channels * kw), at // channels % kw, at % channels)
                place = (i // (out_h * out_w), i // out_w % out_h, i % out_w)
                return te.sum(te.if_then_else(at < k, term(a, b, place, j, tap), zero), axis=[kk])

            acc = te.compute((parts, m, filters), one, name="conv2d", attrs=marks)
            return unpack(acc, "float32")

        sums = bb.emit(call_fusable(bb, compute_parts, [x, weight], "conv2d_parts"))
        return add_parts(bb, sums, (batch, out_h, out_w, filters), out)

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        taps = tuple(te.reduce_axis((0, e), name=s) for e, s in ((kh, "ky"), (kw, "kx"), (each, "c")))
        acc = te.compute(
            (batch, out_h, out_w, filters),
            lambda n, y, x_, o: te.sum(term(a, b, (n, y, x_), o, taps), axis=list(taps)),
            name="conv2d",
            attrs=marks,
        )
        return unpack(acc, out)

    return call_fusable(bb, compute, [x, weight], "conv2d")
