"""Matrix products and convolutions of bfloat16 for AMX tiles, as TE - for the families amx_gemm and amx_conv2d.

    gemm[m, p, j]    = sum_{t, i} dot2(pair(X[m, s(t) + 2i], X[m, s(t) + 2i + 1]), Wp[p, t, i, j])
    conv[y, x, p, j] = sum_{ky, t, i} dot2(pair(row[s(t) + 2i], row[s(t) + 2i + 1]), Wp[p, ky, t, i, j])
                       row = the kw * C numbers under the window's row ky, which lie side by side in NHWC

s(t) is :class:`tvmopt.scheduling.amx.Steps`' start of a step of up to 32 terms, which one `tdpbf16ps` adds up. Wp is
uint32 pairs, packed at compile time: 16 pairs x 16 columns are a tile of B as it lies. X is read as it lies.

A convolution's rows lie at a constant distance, s*C numbers, also from one output row to the next, if the padded image
is as wide as a multiple of the stride says and its rows are apart by phase::

    pad[n, f, Y, X, c] = x[n, Y*s + f - top, X - left, c]     f < s rows' phase;  X < q*s,  q = ow + ceil((kw - s) / s)

so that all output pixels of a task are rows of one product, y*q + x, of which the last q - ow a line are of no use.
:mod:`tvmopt.legalize.tiles` writes the instructions, after scheduling.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.legalize.common import call_fusable, constant, nhwc_convolution, static_shape
from tvmopt.legalize.pairs import bits, dot2, pack_pairs, pair
from tvmopt.scheduling.amx import Steps, has_tiles, pairable, panel_width, pays
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]


def pack_steps(weight: Array, steps: Steps, width: int) -> Array:
    """bfloat16 W[..., K, N] as uint32 pairs [P, ..., step, pair, width]: a step's tiles of B as they are loaded.

    Columns beyond N, and terms that an earlier step has summed, are zero.

    >>> import ml_dtypes
    >>> w = np.arange(1.0, 35.0).reshape(34, 1).astype(ml_dtypes.bfloat16)
    >>> packed = pack_steps(w, Steps.of(34), 16)
    >>> packed.shape, [hex(v) for v in packed[0, 1, 14:, 0]]  # the second step holds the last two terms only
    ((1, 2, 16, 16), ['0x0', '0x42084204'])
    """
    *lead, k, n = weight.shape
    padded = np.zeros((*lead, k, -(-n // width) * width), weight.dtype)
    padded[..., :n] = weight
    parts = []
    for step in range(steps.count):
        start = steps.start(step)
        part = padded[..., start : start + 2 * steps.pairs, :].copy()
        part[..., : steps.fresh(step) - start, :] = 0
        parts.append(pack_pairs(part))
    stacked = np.stack(parts, axis=-3)  # [..., step, pair, P * width]
    split = stacked.reshape(*stacked.shape[:-1], -1, width)
    return np.ascontiguousarray(np.moveaxis(split, -2, 0))


def _start(step: Any, steps: Steps) -> Any:
    if steps.length % (2 * steps.pairs) == 0:
        return step * (2 * steps.pairs)
    return te.min(step * (2 * steps.pairs), steps.length - 2 * steps.pairs)


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.matmul` of bfloat16 rows and a constant matrix, where tiles pay."""
    x, w = call.args
    xs, value = static_shape(x), constant(bb, w)
    if not has_tiles(machine) or xs is None or value is None or str(call.ty.dtype) != "float32":
        return None
    if str(x.ty.dtype) != "bfloat16" or value.ndim < 2 or value.ndim > len(xs) or prod(value.shape[:-2]) != 1:
        return None
    return gemm(bb, x, value.reshape(value.shape[-2:]), xs[:-1], machine, "matmul")


def gemm(
    bb: relax.BlockBuilder, x: relax.Expr, value: Array, rows: tuple[int, ...], machine: Machine, name: str
) -> relax.Expr | None:
    """Rows of `x` [*rows, K] times W[K, N], or None where `vdpbf16ps` is as fast."""
    k_len, n_len = value.shape
    if 0 in (*rows, k_len, n_len) or not pays(prod(rows), n_len, k_len, machine):
        return None
    steps, width = Steps.of(k_len), panel_width(n_len)
    panels = relax.const(pack_steps(value, steps, width), "uint32")

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        t, i = te.reduce_axis((0, steps.count), name="t"), te.reduce_axis((0, steps.pairs), name="i")

        def term(*at: Any) -> Any:
            *row, p, j = at
            first = _start(t, steps) + 2 * i
            return te.sum(dot2(pair(data(*row, first), data(*row, first + 1)), weight(p, t, i, j)), axis=[t, i])

        acc = te.compute((*rows, -(-n_len // width), width), term, name="amx_gemm", attrs=_tag("amx_gemm"))
        return te.compute(
            (*rows, n_len), lambda *at: acc(*at[:-1], at[-1] // width, at[-1] % width), name="unpack",
            attrs=_tag("unpack"),
        )  # fmt: skip

    return call_fusable(bb, compute, [x, panels], name)


def _tag(kernel: str, **more: int) -> dict[str, Any]:
    return {"tvmopt.kernel": kernel, **{f"tvmopt.{key}": value for key, value in more.items()}}


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.nn.conv2d` in NHWC/OHWI, bfloat16, one group, constant weights, where tiles pay."""
    found, attrs, x = nhwc_convolution(bb, call), call.attrs, call.args[0]
    if found is None or not has_tiles(machine) or int(attrs.groups) != 1 or str(call.ty.dtype) != "float32":
        return None
    xs, ws, value = found
    if str(x.ty.dtype) != "bfloat16" or str(value.dtype) != "bfloat16":
        return None
    strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
    padding = [int(v) for v in attrs.padding]
    out_c, kh, kw, in_c = ws
    if (kh, kw) == (1, 1) and not any(padding) and strides == [1, 1]:
        return gemm(bb, x, np.ascontiguousarray(value.reshape(out_c, in_c).T), xs[:3], machine, "conv1x1")
    if kw > 1 and dilation[1] > 1:
        return None  # the numbers under a row of the window do not lie side by side
    channels = in_c + in_c % 2
    batch, out_h, out_w, _ = (int(d) for d in call.ty.shape.values)
    if not pairable(kw * channels) or not pays(batch * out_h * out_w, out_c, kh * kw * channels, machine):
        return None
    weight = np.zeros((kh, kw, channels, out_c), value.dtype)
    weight[:, :, :in_c] = np.moveaxis(value, 0, -1)
    steps, width = Steps.of(kw * channels), panel_width(out_c)
    packed = pack_steps(weight.reshape(kh, kw * channels, out_c), steps, width)
    form = _Window(xs, (batch, out_h, out_w, out_c), (kh, kw), strides, dilation[0], padding[:2], channels)
    return call_fusable(
        bb, lambda data, w: form.compute(data, w, steps, width), [x, relax.const(packed, "uint32")], "conv2d"
    )


class _Window:
    """The sizes of one convolution, and its blocks."""

    def __init__(
        self, xs: Any, out: tuple[int, int, int, int], kernel: tuple[int, int], strides: list[int], dilation: int,
        before: list[int], channels: int,
    ) -> None:  # fmt: skip
        self.xs, self.out, self.kernel, self.dilation, self.channels = xs, out, kernel, dilation, channels
        self.before = before
        self.row_stride = strides[0]
        self.decimated = strides[1] if kernel[1] == 1 else 1  # columns that no window reads are not copied
        self.column_stride = strides[1] // self.decimated
        self.pitch = out[2] + -(-max(0, kernel[1] - self.column_stride) // self.column_stride)

    def source(self, data: te.Tensor) -> te.Tensor:
        """`pad` of the module's docstring, uint16."""
        batch, height, width, in_c = self.xs
        top, left = self.before
        reach = (self.kernel[0] - 1) * self.dilation
        phases = sorted({ky * self.dilation % self.row_stride for ky in range(self.kernel[0])})
        self.phases = len(phases) if phases == list(range(len(phases))) else self.row_stride
        shape = (batch, self.phases, self.out[1] + reach // self.row_stride, self.pitch * self.column_stride)

        def at(n: Any, f: Any, row: Any, column: Any, c: Any) -> Any:
            y, x = row * self.row_stride + f, column * self.decimated
            inside = [y >= top, y < height + top, x >= left, x < width + left]
            inside += [c < in_c] if in_c != self.channels else []
            return te.if_then_else(te.all(*inside), bits(data(n, y - top, x - left, c)), tirx.const(0, "uint16"))

        return te.compute((*shape, self.channels), at, name="pad", attrs=_tag("pad"))

    def compute(self, data: te.Tensor, weight: te.Tensor, steps: Steps, width: int) -> te.Tensor:
        batch, out_h, out_w, out_c = self.out
        pad, c = self.source(data), self.channels
        ky = te.reduce_axis((0, self.kernel[0]), name="ky")
        t, i = te.reduce_axis((0, steps.count), name="t"), te.reduce_axis((0, steps.pairs), name="i")

        def number(n: Any, y: Any, x: Any, at: Any) -> Any:
            row = ky * self.dilation
            phase, down = (row % self.row_stride, row // self.row_stride) if self.row_stride > 1 else (0, row)
            return pad(n, phase, y + down, x * self.column_stride + at // c, at % c)

        def term(n: Any, y: Any, x: Any, p: Any, j: Any) -> Any:
            first = _start(t, steps) + 2 * i
            both = pair(number(n, y, x, first), number(n, y, x, first + 1))
            return te.sum(dot2(both, weight(p, ky, t, i, j)), axis=[ky, t, i])

        acc = te.compute(
            (batch, out_h, out_w, -(-out_c // width), width), term, name="amx_conv2d",
            attrs=_tag(
                "amx_conv2d", pitch=self.pitch, stride=self.column_stride, terms=steps.length,
                row_stride=self.row_stride, dilation=self.dilation,
            ),
        )  # fmt: skip
        return te.compute(
            self.out, lambda n, y, x, o: acc(n, y, x, o // width, o % width), name="unpack", attrs=_tag("unpack")
        )


LEGALIZERS = {"relax.matmul": matmul, "relax.nn.conv2d": conv2d}
