"""Conv, ConvTranspose, DeformConv and Col2Im; a convolution stays one Relax operator, whatever its padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.dims import OpenSize, is_open
from tvmopt.floats import HALVES
from tvmopt.importer.converters.common import Build, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.padding import pad_open
from tvmopt.importer.windows import windows

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def convolve(b: Build, ctx: Context, x: Any, w: Any, attrs: dict[str, Any]) -> Any:
    """The convolution alone, without bias; the sums of low-precision floats, in float32, are not rounded yet."""
    n = len(shape_of(x)) - 2
    if n not in _CONVOLUTIONS:
        raise ctx.unsupported(f"{n} spatial dimensions; 1 to 3 are supported")
    kernel = shape_of(w)[2:]
    if is_open(kernel):
        raise OpenSize("the size of its kernel is open")
    strides, dilations = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    found = windows(attrs, shape_of(x)[2:], kernel)
    if any(isinstance(size, int) and size == 0 for size in found.out):  # which a later node has told
        raise ctx.unsupported(f"a window of {list(kernel)} that is larger than the padded image")
    if 0 in shape_of(w)[1:]:  # no channel: TVM's kernel would not write its sums of nothing
        kind = dtype_of(x)
        return b.zeros((shape_of(x)[0], shape_of(w)[0], *found.out), "float32" if kind in HALVES else kind)
    pads = [*found.begin, *found.end]
    if is_open(pads):
        x, pads = pad_open(b, x, [0, 0, *found.begin], [0, 0, *found.end]), [0] * (2 * n)
    if min(pads) < 0:
        x, pads = _crop(b, x, pads), [max(p, 0) for p in pads]
    dtype = dtype_of(x)
    out = _CONVOLUTIONS[n](
        x,
        w,
        strides=list(strides),
        padding=pads,
        dilation=list(dilations),
        groups=attrs.get("group", 1),
        **({"out_dtype": "float32"} if dtype in HALVES else {}),
    )
    return b.emit(out)


def _crop(b: Build, x: Any, pads: Sequence[int]) -> Any:
    """Apply the negative pads, which cut."""
    n = len(pads) // 2
    for i in range(n):
        size = shape_of(x)[2 + i]
        x = b.slice(x, 2 + i, max(-pads[i], 0), size - max(-pads[n + i], 0))
    return x


def conv(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Conv in one to three dimensions, with bias."""
    b = Build(bb, ctx.name)
    x, w, bias = inputs[0], inputs[1], inputs[2]
    out = convolve(b, ctx, x, w, attrs)
    return _biased(b, out, bias, dtype_of(x))


def _biased(b: Build, out: Any, bias: Any, dtype: str) -> Any:
    """The sums of a convolution plus the bias, rounded once to the type of the result."""
    if bias is not None:
        out = b.add(out, b.reshape(b.wide(bias), (1, shape_of(bias)[0], *[1] * (len(shape_of(out)) - 2))))
    return b.cast(out, dtype)


_TRANSPOSED = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}


def conv_transpose(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ConvTranspose: pads from `output_shape` or `auto_pad` where given; negative pads become output padding."""
    b = Build(bb, ctx.name)
    x, w, bias = inputs[0], inputs[1], inputs[2]
    image, kernel = shape_of(x)[2:], shape_of(w)[2:]
    n = len(image)
    if n not in _TRANSPOSED:
        raise ctx.unsupported(f"{n} spatial dimensions; 1 to 3 are supported")
    if attrs.get("group", 1) > 1 and is_open(shape_of(w)[:1]):
        raise OpenSize("it divides its channels into groups, and their number is open")
    strides, dilations = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    extra = list(attrs.get("output_padding", [0] * n))
    full = [
        s * (i - 1) + e + (k - 1) * d + 1
        for s, i, e, k, d in zip(strides, image, extra, kernel, dilations, strict=True)
    ]
    mode = attrs.get("auto_pad", "NOTSET") or "NOTSET"
    wanted = attrs.get("output_shape")
    if wanted is None and mode.startswith("SAME"):
        wanted = [min(i * s, f) for i, s, f in zip(image, strides, full, strict=True)]  # nothing is added
    if wanted is not None:
        begin, end = [], []
        for size, want in zip(full, list(wanted)[-n:], strict=True):
            total = size - want
            small, large = total // 2, total - total // 2
            if total < 0:  # longer than the whole result: zeros after it
                small, large = 0, total
            upper = mode == "SAME_UPPER"
            begin.append(small if upper or total < 0 else large)
            end.append(large if upper or total < 0 else small)
    else:
        pads = list(attrs.get("pads", [0] * (2 * n))) if mode != "VALID" else [0] * (2 * n)
        begin, end = pads[:n], pads[n:]
    grow = [max(-e, 0) for e in end]
    if 0 in shape_of(w)[:1]:  # no channel: TVM's kernel would not write its sums of nothing
        kind = dtype_of(x)
        sums = [f - s - max(e, 0) for f, s, e in zip(full, begin, end, strict=True)]
        shape = (shape_of(x)[0], shape_of(w)[1] * attrs.get("group", 1), *sums)
        zeros = b.zeros(shape, "float32" if kind in HALVES else kind)
        return _biased(b, b.pad(zeros, [0] * (n + 2), [0, 0, *grow]), bias, kind)
    out = b.emit(
        _TRANSPOSED[n](
            b.wide(x),
            b.wide(w),
            strides=list(strides),
            padding=[0] * (2 * n) if any(extra) and max(extra) >= min(strides) else [*begin, *[max(e, 0) for e in end]],
            output_padding=[0] * n if any(extra) and max(extra) >= min(strides) else extra,
            dilation=list(dilations),
            groups=attrs.get("group", 1),
        )
    )
    if any(extra) and max(extra) >= min(strides):  # more than Relax allows: cut and fill by hand
        shape = shape_of(out)
        out = b.pad(out, [0] * (n + 2), [0, 0, *extra])
        for i in range(n):
            out = b.slice(out, 2 + i, begin[i], shape[2 + i] + extra[i] - max(end[i], 0))
    return _biased(b, b.pad(out, [0] * (n + 2), [0, 0, *grow]), bias, dtype_of(x))


def deform_conv(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """DeformConv (2-D): bilinear samples at shifted taps as columns (one kernel), then a grouped matrix product."""
    b = Build(bb, ctx.name)
    x, w, offset, bias, mask = (inputs[i] for i in range(5))
    if len(shape_of(x)) != 4:
        raise ctx.unsupported("only two spatial dimensions are supported")
    batch, channels, height, width = shape_of(x)
    out_channels, _, kh, kw = shape_of(w)
    rows, columns = shape_of(offset)[2:]
    strides, dilations = attrs.get("strides", (1, 1)), attrs.get("dilations", (1, 1))
    pads = attrs.get("pads", (0, 0, 0, 0))
    groups, offset_groups = attrs.get("group", 1), attrs.get("offset_group", 1)
    per = channels // offset_groups

    def deform_columns(data: Any, shift: Any, *masks: Any) -> Any:
        def one(n: Any, c: Any, tap: Any, i: Any, j: Any) -> Any:
            group = tirx.indexdiv(c, per) * (kh * kw) + tap
            dtype = data.dtype
            y0 = i * strides[0] - pads[0] + tirx.indexdiv(tap, kw) * dilations[0]
            x0 = j * strides[1] - pads[1] + tirx.indexmod(tap, kw) * dilations[1]
            y = tirx.Cast(dtype, y0) + shift(n, group * 2, i, j)
            x = tirx.Cast(dtype, x0) + shift(n, group * 2 + 1, i, j)
            top, left = te.floor(y), te.floor(x)
            dy, dx = y - top, x - left
            it, il = tirx.Cast("int32", top), tirx.Cast("int32", left)

            def part(r: Any, s: Any, share: Any) -> Any:
                inside = tirx.all(r >= 0, r < height, s >= 0, s < width)
                return tirx.if_then_else(inside, data(n, c, r, s) * share, tirx.const(0, dtype))

            one_ = tirx.const(1, dtype)
            value = (
                part(it, il, (one_ - dy) * (one_ - dx))
                + part(it, il + 1, (one_ - dy) * dx)
                + part(it + 1, il, dy * (one_ - dx))
                + part(it + 1, il + 1, dy * dx)
            )
            # an infinite place is outside, one that is no number has no value
            value = tirx.if_then_else(tirx.any(tirx.isnan(y), tirx.isnan(x)), tirx.const(np.nan, dtype), value)
            return value * masks[0](n, group, i, j) if masks else value

        return te.compute((batch, channels, kh * kw, rows, columns), one, name="columns")

    cols = b.te(deform_columns, x, offset, *([mask] if mask is not None else []))
    cols = b.reshape(cols, (batch, groups, channels // groups * kh * kw, rows * columns))
    weight = b.reshape(w, (1, groups, out_channels // groups, channels // groups * kh * kw))
    out = b.reshape(b.matmul(weight, cols), (batch, out_channels, rows, columns))
    return out if bias is None else relax.op.add(out, b.reshape(bias, (1, out_channels, 1, 1)))


def col2im(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Col2Im: the sum of the blocks that cover each pixel, one shifted and dilated pad-and-add a tap."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    image_array, block_array = ctx.array(inputs[1], "image_shape"), ctx.array(inputs[2], "block_shape")
    assert image_array is not None and block_array is not None
    image, block = [int(v) for v in image_array], [int(v) for v in block_array]
    n = len(image)
    strides, dilations = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    pads = attrs.get("pads", [0] * (2 * n))
    batch, taps = shape_of(x)[0], int(np.prod(block))
    channels = shape_of(x)[1] // taps
    counts = [
        (image[i] + pads[i] + pads[n + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(n)
    ]
    cols = b.reshape(x, (batch, channels, *block, *counts))

    def col2im_sum(data: Any) -> Any:
        axes = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(block)]

        def one(nn: Any, c: Any, *pixel: Any) -> Any:
            where, index = [], []
            for i, (p, k) in enumerate(zip(pixel, axes, strict=True)):
                start = p + pads[i] - k * dilations[i]
                at = tirx.floordiv(start, strides[i])
                where += [start >= 0, tirx.floormod(start, strides[i]) == 0, at < counts[i]]
                index.append(at)
            value = tirx.if_then_else(tirx.all(*where), data(nn, c, *axes, *index), tirx.const(0, data.dtype))
            return te.sum(value, axis=axes)

        return te.compute((*data.shape[:2], *image), one, name="col2im")

    return b.te(col2im_sum, cols)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Conv"): conv,
    ("", "ConvTranspose"): conv_transpose,
    ("", "DeformConv"): in_float32(deform_conv),
    ("", "Col2Im"): in_float32(col2im),
}
