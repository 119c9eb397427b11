"""Convolutions of bfloat16 or bytes for AMX tiles, as TE.

    conv[y, x, p, j] = sum_{ky, t, i} dot2(pair(row[s(t) + 2i], row[s(t) + 2i + 1]), Wp[p, ky, t, i, j])
                       row = the kw * C numbers under the window's row ky, which lie side by side in NHWC

s(t) is :class:`tvmopt.schedules.cpu._amx.cost.Steps`' start of a step of up to 32 terms. Wp is uint32 pairs, packed at
compile time. Of uint8 by int8, words of four terms take the place of pairs, 64 a step, sums are int32, and the border
is filled with the data's zero point. The rows lie at a constant distance, s*C numbers, also from one output row to the
next, if the padded image is as wide as a multiple of the stride says and its rows are apart by phase::

    pad[n, f, Y, X, c] = x[n, Y*s + f - top, X - left, c]     f < s rows' phase;  X < q*s,  q = ow + ceil((kw - s) / s)

so that all output pixels of a task are rows of one product, y*q + x, of which the last q - ow a line are of no use.
lower.py writes the instructions, after scheduling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, constant, image_sizes, is_open, is_rows_product, known, samples, sizes
from tvmopt.lowering.pairs import bits
from tvmopt.lowering.repeats import packed_once
from tvmopt.lowering.window import Border, with_pad
from tvmopt.schedules.cpu._amx.cost import TERMS, Steps, panel_width, pays
from tvmopt.schedules.cpu._amx.panels import SUMS, pack_steps, product, tag
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI, bfloat16 or uint8, one group, constant weights, where tiles pay."""
    found, attrs, x, value = image_sizes(call), call.attrs, call.args[0], constant(bb, call.args[1])
    if (
        found is None
        or value is None
        or int(attrs.groups) != 1
        or str(x.ty.dtype) not in TERMS
        or is_rows_product(call)
    ):
        return None
    (xs, ws), out, word = found, str(call.ty.dtype), TERMS[str(x.ty.dtype)]
    if is_open(xs[1:]):
        return Declined("an open height or width")
    if (str(value.dtype), out) != SUMS[str(x.ty.dtype)]:
        return Declined(f"{value.dtype} weights, a {out} result")
    strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
    border = Border(*(int(v) for v in attrs.padding))
    out_c, kh, kw, in_c = ws
    if kw > 1 and dilation[1] > 1:
        return Declined("dilated columns: the numbers under a row of the window do not lie side by side")
    channels = in_c + -in_c % word
    batch, out_h, out_w, _ = sizes(call) or ()
    if not pays(known(batch) * out_h * out_w, out_c, kh * kw * channels, machine, word):
        return Declined("vectors are as fast as tiles")
    x, border = with_pad(bb, x, border)
    steps, width = Steps.of(kw * channels, word), panel_width(out_c)

    def pack() -> relax.Expr:
        weight = np.zeros((kh, kw, channels, out_c), value.dtype)
        weight[:, :, :in_c] = np.moveaxis(value, 0, -1)
        return relax.const(pack_steps(weight.reshape(kh, kw * channels, out_c), steps, width))

    packed = packed_once(value, ("window in steps", width), pack)
    form = _Window(samples(x) or xs, (batch, out_h, out_w, out_c), (kh, kw), strides, dilation[0], border, channels)
    return call_fusable(bb, lambda data, w: form.compute(data, w, steps, width), [x, packed], "conv2d")


class _Window:
    """The sizes of one convolution, and its blocks."""

    def __init__(
        self, xs: Any, out: tuple[Any, int, int, int], kernel: tuple[int, int], strides: list[int], dilation: int,
        border: Border, channels: int,
    ) -> None:  # fmt: skip
        self.xs, self.out, self.kernel, self.dilation, self.channels = xs, out, kernel, dilation, channels
        self.border = border
        self.row_stride = strides[0]
        self.decimated = strides[1] if kernel[1] == 1 else 1  # columns that no window reads are not copied
        self.column_stride = strides[1] // self.decimated
        self.pitch = out[2] + -(-max(0, kernel[1] - self.column_stride) // self.column_stride)

    def source(self, data: te.Tensor) -> te.Tensor:
        """`pad` of the module's docstring, uint16 or uint8."""
        batch, (height, width, in_c) = data.shape[0], self.xs[1:]
        top, left, kind = self.border.top, self.border.left, "uint8" if data.dtype == "uint8" else "uint16"
        reach = (self.kernel[0] - 1) * self.dilation
        phases = sorted({ky * self.dilation % self.row_stride for ky in range(self.kernel[0])})
        self.phases = len(phases) if phases == list(range(len(phases))) else self.row_stride
        shape = (batch, self.phases, self.out[1] + reach // self.row_stride, self.pitch * self.column_stride)

        def at(n: Any, f: Any, row: Any, column: Any, c: Any) -> Any:
            y, x = row * self.row_stride + f, column * self.decimated
            inside = [y >= top, y < height + top, x >= left, x < width + left]
            inside += [c < in_c] if in_c != self.channels else []
            value = data(n, y - top, x - left, c)
            value = value if kind == "uint8" else bits(value)
            return te.if_then_else(te.all(*inside), value, tirx.const(self.border.fill, kind))

        return te.compute((*shape, self.channels), at, name="pad", attrs=tag("pad"))

    def compute(self, data: te.Tensor, weight: te.Tensor, steps: Steps, width: int) -> te.Tensor:
        batch, (out_h, out_w, out_c) = data.shape[0], self.out[1:]
        pad, c = self.source(data), self.channels
        ky = te.reduce_axis((0, self.kernel[0]), name="ky")
        t, i = te.reduce_axis((0, steps.count), name="t"), te.reduce_axis((0, steps.words), name="i")

        def number(n: Any, y: Any, x: Any, at: Any) -> Any:
            row = ky * self.dilation
            phase, down = (row % self.row_stride, row // self.row_stride) if self.row_stride > 1 else (0, row)
            return pad(n, phase, y + down, x * self.column_stride + at // c, at % c)

        def term(n: Any, y: Any, x: Any, p: Any, j: Any) -> Any:
            word = product(lambda at: number(n, y, x, at), steps, t, i, weight(p, ky, t, i, j))
            return te.sum(word, axis=[ky, t, i])

        acc = te.compute(
            (batch, out_h, out_w, -(-out_c // width), width), term, name="amx_conv2d",
            attrs=tag(
                "amx_conv2d", pitch=self.pitch, stride=self.column_stride, terms=steps.length,
                row_stride=self.row_stride, dilation=self.dilation,
            ),
        )  # fmt: skip
        return te.compute(
            (batch, *self.out[1:]),
            lambda n, y, x, o: acc(n, y, x, o // width, o % width),
            name="unpack",
            attrs=tag("unpack"),
        )  # fmt: skip
