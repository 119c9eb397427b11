"""Dense and grouped convolution, NHWC, as TE with panel-packed weights.

    conv[n, y, x, p, j] = sum_{ky, kx, c} pad[n, y*s + ky*d, x*s + kx*d, g*Cg + c] * Wp[p, ky, kx, c, j]
    out[n, y, x, o]     = conv[n, y, x, p(o), j(o)]

Padding is a block of its own, which the schedule computes per task into a copy that stays in L2.

A weight that is computed at run time is packed at run time, by a kernel before the convolution.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, constant, is_rows_product, nhwc_shapes, static_shape
from tvmopt.lowering.pairs import bits, pack_pairs
from tvmopt.schedules.cpu._panels import pack_panels, packed_at_run_time, product, unfit
from tvmopt.scheduling.family import Declined
from tvmopt.scheduling.tile import choose_tile
from tvmopt.targets import Machine


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI; the weight is constant, or float32."""
    found, attrs, (x, w) = nhwc_shapes(call), call.attrs, call.args
    if found is None:
        return Declined("another layout than NHWC, or a shape that is open or empty")
    xs, ws = found
    groups = int(attrs.groups)
    if is_rows_product(call) or (groups > 1 and ws[3] == 1):  # a product, a depthwise convolution
        return None
    if (reason := unfit(call)) is not None:
        return Declined(reason)
    kind, value = str(w.ty.dtype), constant(bb, w)
    if value is None and kind != "float32":
        return Declined(f"{kind} weights that are no constants")
    strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
    top, left, bottom, right = (int(v) for v in attrs.padding)
    batch, height, width, _ = xs
    out_c, kh, kw, in_g = ws
    _, out_h, out_w, _ = (int(v) for v in call.ty.shape.values)
    out_g = out_c // groups
    nr = choose_tile(batch * out_h * out_w, out_g, machine, rows=out_w).nr
    if groups > 1 and out_g < machine.lanes():
        nr = group_panel(out_g, machine.lanes())
    if value is None:
        panels = packed_at_run_time(bb, w, groups, nr)
    else:
        panels = _packed(value, groups, nr)
    dims = static_shape(panels) or ()
    steps, panels_g = dims[3], dims[0] // groups  # channels, or pairs of them
    odd = kind == "bfloat16" and groups == 1 and in_g % 2  # a channel of zeros makes pairs of all

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        source = data
        if any((top, left, bottom, right)) or odd:
            source = te.compute(
                (batch, height + top + bottom, width + left + right, xs[3] + odd),
                lambda n, y, x_, c: te.if_then_else(
                    te.all(y >= top, y < height + top, x_ >= left, x_ < width + left, *([c < xs[3]] if odd else [])),
                    data(n, y - top, x_ - left, c) if kind == "float32" else bits(data(n, y - top, x_ - left, c)),
                    tirx.const(0.0, kind) if kind == "float32" else tirx.const(0, "uint16"),
                ),
                name="pad",
                attrs={"tvmopt.kernel": "pad"},
            )
        ky, kx = te.reduce_axis((0, kh), name="ky"), te.reduce_axis((0, kw), name="kx")
        c = te.reduce_axis((0, steps), name="c")

        def term(n: tirx.Expr, y: tirx.Expr, x_: tirx.Expr, p: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
            def channel(*place: tirx.Expr) -> tirx.Expr:
                *pixel, at = place
                return source(*pixel, at if groups == 1 else (p // panels_g) * in_g + at)

            pixel = (y * strides[0] + ky * dilation[0], x_ * strides[1] + kx * dilation[1])
            return product(channel, (n, *pixel, c), weight(p, ky, kx, c, j), in_g + odd)

        def place(o: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
            """Panel and column of an output channel. One group is written without its own modulus: `o % 24` would
            hide from TVM that a panel of 32 is computed whole, and each column would be guarded."""
            if groups == 1:
                return o // nr, o % nr
            return (o // out_g) * panels_g + o % out_g // nr, o % out_g % nr

        acc = te.compute(
            (batch, out_h, out_w, groups * panels_g, nr),
            lambda n, y, x_, p, j: te.sum(term(n, y, x_, p, j), axis=[ky, kx, c]),
            name="conv2d",
            attrs={"tvmopt.kernel": "conv2d", "tvmopt.groups": groups},
        )

        return te.compute(
            (batch, out_h, out_w, out_c),
            lambda n, y, x_, o: acc(n, y, x_, *place(o)),
            name="unpack",
            attrs={"tvmopt.kernel": "unpack"},
        )

    return call_fusable(bb, compute, [x, panels], "conv2d")


def _packed(value: np.ndarray, groups: int, nr: int) -> relax.Expr:
    """A constant [G*Og, KH, KW, Cg] as panels [G*P, KH, KW, Cg, nr], float32 or uint32 pairs of bfloat16."""
    out_c, kh, kw, in_g = value.shape
    matrix = np.moveaxis(value.reshape(groups, out_c // groups, kh * kw, in_g), 1, 3)  # [G, KH*KW, Cg, Og]
    if value.dtype != np.float32:
        matrix = pack_pairs(np.ascontiguousarray(matrix))
    steps = matrix.shape[2]
    packed = pack_panels(matrix.reshape(groups, kh * kw * steps, out_c // groups), nr)
    return relax.const(packed.reshape(-1, kh, kw, steps, nr), str(packed.dtype))


def group_panel(out_g: int, lanes: int) -> int:
    """Panel width for groups narrower than a vector: as they are if a register of that width exists, else padded.

    >>> group_panel(8, 16), group_panel(4, 16), group_panel(12, 16), group_panel(3, 8)
    (8, 4, 16, 8)
    """
    return out_g if lanes % out_g == 0 else lanes
