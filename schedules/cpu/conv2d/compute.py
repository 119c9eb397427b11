"""Dense and grouped convolution, NHWC, as TE with panel-packed weights.

    conv[n, y, x, p, j] = sum_{ky, kx, c} pad[n, y*s + ky*d, x*s + kx*d, g*Cg + c] * Wp[p, ky, kx, c, j]
    out[n, y, x, o]     = conv[n, y, x, p(o), j(o)]

Padding is a block of its own, which the schedule computes per task into a copy that stays in L2.

A weight that is computed at run time is packed at run time, by a kernel before the convolution.

Of quantised data (uint8 by int8, sums in int32) four channels are one word of the sum (:mod:`tvmopt.lowering.quads`).
The border is the input's zero point: the graph has it as an `R.nn.pad` before the convolution, which is kept until the
convolution has taken it over. Where a pixel has few channels, words go over
(kx, c) of a row of the image as it lies in memory: 6 words instead of 7 a row for 7x7 over 3 channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import (
    call_fusable,
    constant,
    image_sizes,
    is_open,
    is_rows_product,
    known,
    named_size,
    pictures,
    same_size,
    sizes,
    static_shape,
)
from tvmopt.lowering.pairs import bits, pack_pairs
from tvmopt.lowering.quads import WORD, pack_quads
from tvmopt.lowering.repeats import packed_once
from tvmopt.lowering.window import Border, border_marks, with_pad
from tvmopt.schedules.cpu._inside import COLUMNS, column_marks, row_marks
from tvmopt.schedules.cpu._panels import pack_panels, packed_at_run_time, product, unfit
from tvmopt.scheduling.cost_model import HIGHEST_OPEN, choose_tile, shared_panels
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

DILATION = "tvmopt.dilation"
"""The annotation of a convolution: how many rows a tap lies behind the one before, where they are no neighbours."""
APART = "tvmopt.apart"
"""The annotation of a convolution: by how many numbers more than its channels the pixels of its copy are apart."""


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI; the weight is constant, or float32."""
    found, attrs, (x, w) = image_sizes(call), call.attrs, call.args
    if found is None:
        return Declined("another layout than NHWC, or an empty image")
    xs, ws = found
    groups = int(attrs.groups)
    if is_rows_product(call) or (groups > 1 and ws[3] == 1):  # a product, a depthwise convolution
        return None
    if (reason := unfit(call)) is not None:
        return Declined(reason)
    kind, value = str(x.ty.dtype), constant(bb, w)
    if value is None and kind != "float32":
        return Declined(f"{w.ty.dtype} weights that are no constants")
    if kind == "uint8" and groups > 1 and ws[3] % WORD:
        return Declined(f"{ws[3]} channels a group of uint8")
    strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
    border = Border(*(int(v) for v in attrs.padding))
    if kind == "uint8":
        x, border = with_pad(bb, x, border)
        xs = pictures(x) or xs
    out_c, kh, kw, in_g = ws
    out = (sizes(call) or ())[1:3]
    out_g = out_c // groups
    nr = _panel_width(bb, known(xs[0]), out, out_g, machine)
    if groups > 1 and out_g < machine.lanes():
        nr = group_panel(out_g, machine.lanes())
    along_row = kind == "uint8" and not is_open(xs[1:3]) and _words_along_row(in_g, kw, dilation[1])
    if value is None:
        panels = packed_at_run_time(bb, w, groups, nr)
    else:
        panels = _packed(value.reshape(out_c, kh, 1, kw * in_g) if along_row else value, groups, nr)
    dims = static_shape(panels) or ()
    steps, panels_g = dims[3], dims[0] // groups  # channels, pairs or words of them
    together = {"float32": 1, "bfloat16": 2, "uint8": WORD}[kind]
    more = -in_g % together if groups == 1 else 0  # channels of zeros that make whole pairs and words

    marks = {} if is_open((*xs[1:3], *out)) else _outside(kind, value, border, xs[1:3], out, strides, dilation)

    if kind == "float32" and _collide(strides[1] * xs[3], out, machine):
        marks |= {APART: machine.line // 4}
    if dilation[0] > 1:
        marks |= {DILATION: dilation[0]}

    def compute(data: te.Tensor, weight: te.Tensor, out_h: tirx.Expr, out_w: tirx.Expr) -> te.Tensor:
        source, batch = data, data.shape[0]
        if along_row:
            source = _rows(data, border, (kw * in_g, WORD * steps))
        elif border or more:
            source = _padded(data, border, more)
        ky, kx = te.reduce_axis((0, kh), name="ky"), te.reduce_axis((0, 1 if along_row else kw), name="kx")
        c = te.reduce_axis((0, steps), name="c")

        def term(n: tirx.Expr, y: tirx.Expr, x_: tirx.Expr, p: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
            def channel(*place: tirx.Expr) -> tirx.Expr:
                *pixel, at = place
                if along_row:
                    return source(*pixel[:2], 0, x_ * (strides[1] * in_g) + at)
                return source(*pixel, at if groups == 1 else (p // panels_g) * in_g + at)

            pixel = (y * strides[0] + ky * dilation[0], x_ * strides[1] + kx * dilation[1])
            return product(channel, (n, *pixel, c), weight(p, ky, kx, c, j), in_g + more)

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
            attrs={"tvmopt.kernel": "conv2d", "tvmopt.groups": groups, **marks},
        )

        return te.compute(
            (batch, out_h, out_w, out_c),
            lambda n, y, x_, o: acc(n, y, x_, *place(o)),
            name="unpack",
            attrs={"tvmopt.kernel": "unpack"},
        )

    return call_fusable(bb, compute, [x, panels], "conv2d", wanted=out)


def _panel_width(bb: relax.BlockBuilder, batch: int, out: Sequence[Any], columns: int, machine: Machine) -> int:
    """The width of the register tile; for pictures of open size that of a tile as wide as theirs."""
    if not is_open(out):
        return choose_tile(batch * out[0] * out[1], columns, machine, rows=out[1]).nr
    nr = choose_tile(batch * named_size(bb, out), columns, machine, rows=HIGHEST_OPEN).nr
    return shared_panels(nr, columns, machine) if batch == 1 and same_size(out[0], 1) else nr


# -- the border ---------------------------------------------------------------------------------------------------


def _padded(data: te.Tensor, border: Border, more: int) -> te.Tensor:
    """The image with its border, and with `more` channels of zeros."""
    batch, height, width, channels = data.shape
    kind = str(data.dtype)

    def value(n: Any, y: Any, x: Any, c: Any) -> Any:
        at = data(n, y - border.top, x - border.left, c)
        return te.if_then_else(
            te.all(
                y >= border.top, y < height + border.top, x >= border.left, x < width + border.left,
                *([c < channels] if more else []),
            ),
            bits(at) if kind == "bfloat16" else at,
            tirx.const(border.fill, "uint16" if kind == "bfloat16" else kind),
        )  # fmt: skip

    extent = (height + border.top + border.bottom, width + border.left + border.right)
    marks = {"tvmopt.kernel": "pad", **border_marks(border.top, border.left, int(channels))}
    return te.compute((batch, *extent, int(channels) + more), value, name="pad", attrs=marks)


def _collide(distance: int, out: Sequence[Any], machine: Machine) -> bool:
    """Whether the pixels of a tile, `distance` numbers apart, share more lines of a set of L1 than it has: 26 pixels of
    512 channels at a stride of 2 were all read from L2, in 3.5 times the time."""
    way = machine.l1d // machine.l1_ways // 4
    sets = way // gcd(distance, way)
    return not is_open(out) and min(out[1], machine.vector_registers - 4) > machine.l1_ways * sets


def _words_along_row(channels: int, kw: int, dilation: int) -> bool:
    """Whether words over (kx, c) of a row are fewer than words over the channels of each of its pixels.

    >>> _words_along_row(3, 7, 1), _words_along_row(3, 3, 1), _words_along_row(1, 5, 1), _words_along_row(64, 3, 1)
    (True, False, True, False)
    """
    return dilation == 1 and -(-kw * channels // WORD) < kw * -(-channels // WORD)


def _rows(data: te.Tensor, border: Border, taps: tuple[int, int]) -> te.Tensor:
    """The image with its border, pixels and channels as one axis; behind it what the last of a row's whole words read
    beyond its taps (taps: numbers that count, numbers read)."""
    batch, (height, width, channels) = data.shape[0], (int(d) for d in data.shape[1:])
    wide = (width + border.left + border.right) * channels + taps[1] - taps[0]
    first, last = border.left * channels, (border.left + width) * channels

    def value(n: Any, y: Any, _: Any, at: Any) -> Any:
        inside = te.all(y >= border.top, y < height + border.top, at >= first, at < last)
        here = data(n, y - border.top, (at - first) // channels, at % channels)
        return te.if_then_else(inside, here, tirx.const(border.fill, data.dtype))

    extent = (batch, height + border.top + border.bottom, 1, wide)
    return te.compute(extent, value, name="pad", attrs={"tvmopt.kernel": "pad"})


def _outside(
    kind: str, weight: np.ndarray | None, border: Border, size: Sequence[int], out: Sequence[int],
    strides: Sequence[int], dilation: Sequence[int],
) -> dict[str, int]:  # fmt: skip
    """The marks of the block whose taps are left out where they lie outside. Zeros of the border times weights that are
    not finite are no zeros."""
    if kind != "float32" or border.fill or weight is None or not np.isfinite(weight).all():
        return {}
    _, high, wide, channels = weight.shape
    rows = row_marks(high, strides[0], dilation[0], border.top, size[0], out[0], channels)
    columns = column_marks(wide, strides[1], dilation[1], border.left, size[1], out[1], channels)
    return rows | columns | ({COLUMNS: out[1]} if columns else {})


def _packed(value: np.ndarray, groups: int, nr: int) -> relax.Expr:
    """A constant [G*Og, KH, KW, Cg] as panels [G*P, KH, KW, Cg, nr]: float32, float16, uint32 pairs of bfloat16, or
    int32 words of int8."""
    return packed_once(value, ("window", groups, nr), lambda: _panels(value, groups, nr))


def _panels(value: np.ndarray, groups: int, nr: int) -> relax.Expr:
    out_c, kh, kw, in_g = value.shape
    matrix = np.moveaxis(value.reshape(groups, out_c // groups, kh * kw, in_g), 1, 3)  # [G, KH*KW, Cg, Og]
    if value.dtype == np.int8:
        matrix = pack_quads(matrix)
    elif value.dtype not in (np.float32, np.float16):
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
