"""Convolutions, pools and blocks of images: a window that moves over padded axes."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tvmopt.analysis.oracle.reductions import in_sequence
from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported

Index: TypeAlias = Any
CHUNK = 1 << 22
"""Bytes of copied windows at a time: they are read again by the product that follows, from a cache."""
NEAR = 1 << 18
"""Bytes of a result that is added to for each tap, in the nearest cache."""


def spans(call: Call, sizes: list[int], kernel: list[int], ceil: bool = False) -> tuple[list[int], ...]:
    """(strides, dilations, pads before, pads after, outputs) of a window over axes of these sizes."""
    count = len(sizes)
    strides = call.ints("strides") or [1] * count
    dilations = call.ints("dilations") or [1] * count
    pads = call.ints("pads") or [0] * (2 * count)
    before, after = pads[:count], pads[count:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    mode = call.get("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        total = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in zip(sizes, strides, reach, strict=True)]
        small = [t // 2 for t in total]
        large = [t - v for t, v in zip(total, small, strict=True)]
        before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode == "VALID":
        before, after = [0] * count, [0] * count
    outputs = []
    for n, s, r, b, a in zip(sizes, strides, reach, before, after, strict=True):
        room = n + b + a - r
        if room < 0 and not (ceil and room > -s):
            raise Unsupported("a window larger than its padded image")
        number = (-(-room // s) if ceil else room // s) + 1
        if ceil and (number - 1) * s >= n + b:  # a window that starts in the padding behind is left out
            number -= 1
        outputs.append(number)
    return strides, dilations, before, after, outputs


def padded(x: Array, before: list[int], after: list[int], fill: float) -> Array:
    """The last axes with `fill` around them."""
    if not any(before) and not any(after):
        return x
    lead = x.ndim - len(before)
    shape = [*x.shape[:lead], *(b + n + a for b, n, a in zip(before, x.shape[lead:], after, strict=True))]
    out = np.full(shape, fill, x.dtype) if fill else np.zeros(shape, x.dtype)
    inner: Index = (..., *(slice(b, b + n) for b, n in zip(before, x.shape[lead:], strict=True)))
    out[inner] = x
    return out


def windows(
    x: Array, kernel: list[int], strides: list[int], dilations: list[int], outputs: list[int]
) -> Array:  # fmt: skip
    """A view of shape (leading axes, kernel, outputs)."""
    lead = x.ndim - len(kernel)
    steps = x.strides[lead:]
    return as_strided(
        x,
        (*x.shape[:lead], *kernel, *outputs),
        (*x.strides[:lead], *(t * d for t, d in zip(steps, dilations, strict=True)),
         *(t * s for t, s in zip(steps, strides, strict=True))),
        writeable=False,
    )  # fmt: skip


def convolve(
    x: Array, w: Array, strides: list[int], dilations: list[int], before: list[int], after: list[int],
    outputs: list[int], groups: int,
) -> Array:  # fmt: skip
    """x (N, C, spatial), w (M, C / groups, kernel) -> (N, M, outputs)."""
    kernel = list(w.shape[2:])
    needed = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(outputs, strides, dilations, kernel, strict=True)]
    behind = [max(a, r - n - b) for a, r, n, b in zip(after, needed, x.shape[2:], before, strict=True)]
    x = padded(np.ascontiguousarray(x), before, behind, 0.0)
    n, c, m = x.shape[0], x.shape[1], w.shape[0]
    dtype = np.result_type(x, w)
    out = np.zeros((n, m, *outputs), dtype)
    if not out.size or not x.size:
        return out
    view = windows(x, kernel, strides, dilations, outputs)
    if groups == c == m and c > 1:  # a channel at a time: a sum over the taps
        step = max(1, NEAR // max(1, n * prod(outputs) * dtype.itemsize))
        for first in range(0, c, step):
            own = slice(first, first + step)
            total, weights = out[:, own], w[own, 0].reshape(1, -1, *kernel, *(1,) * len(kernel))
            term = np.empty_like(total)
            for tap in product(*map(range, kernel)):
                at: Index = (slice(None), own, *tap)
                of: Index = (slice(None), slice(None), *tap)
                np.multiply(view[at], weights[of], out=term)
                np.add(total, term, out=total)
        return out
    rows = w.reshape(groups, m // groups, -1).astype(dtype, copy=False)
    width = w.shape[1] * prod(kernel)
    if prod(kernel) == prod(strides) == 1:  # the picture is its own windows
        pixels = x.reshape(n, groups, width, -1)
        np.matmul(rows[None], pixels, out=out.reshape(n, groups, m // groups, -1))
        return out
    step = max(1, CHUNK // max(1, groups * width * prod(outputs[1:]) * dtype.itemsize)) if outputs else 1
    together = max(1, step // outputs[0])  # small pictures: a product of a few columns takes as long as one of many
    for image, first in product(range(0, n, together), range(0, outputs[0], step)):
        whole: Index = (slice(image, image + together), slice(None), *(slice(None),) * len(kernel))
        part = np.moveaxis(view[(*whole, slice(first, first + step))], 0, 1 + len(kernel))
        made = np.matmul(rows, part.reshape(groups, width, -1))
        found = made.reshape(m, part.shape[1 + len(kernel)], -1, *outputs[1:])
        out[image : image + together, :, first : first + step] = np.moveaxis(found, 0, 1)
    return out


def conv(call: Call, x: Array, w: Array, bias: Array | None = None) -> Result:
    kernel = list(w.shape[2:])
    strides, dilations, before, after, outputs = spans(call, list(x.shape[2:]), kernel)
    y = convolve(
        call.operand(x), call.operand(w), strides, dilations, before, after, outputs, int(call.get("group", 1))
    )
    return y if bias is None else y + bias.reshape(1, -1, *(1,) * len(kernel))


def conv_integer(call: Call, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Result:
    y = integer_conv(call, x, w, x_zero, w_zero)
    return y.astype(np.int64).astype(np.int32)


def integer_conv(call: Call, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    """The sums of a convolution of integers, exactly, as float64 (they are below 2^53)."""
    a = x.astype(np.float64) - (0 if x_zero is None else x_zero.astype(np.float64))
    b = w.astype(np.float64)
    if w_zero is not None:
        b = b - w_zero.astype(np.float64).reshape(-1, *(1,) * (w.ndim - 1))
    strides, dilations, before, after, outputs = spans(call, list(x.shape[2:]), list(w.shape[2:]))
    return convolve(a, b, strides, dilations, before, after, outputs, int(call.get("group", 1)))


def conv_transpose(call: Call, x: Array, w: Array, bias: Array | None = None) -> Result:
    """Each input element adds its weights to the outputs that it reaches."""
    kernel, sizes = list(w.shape[2:]), list(x.shape[2:])
    count, groups = len(kernel), int(call.get("group", 1))
    strides = call.ints("strides") or [1] * count
    dilations = call.ints("dilations") or [1] * count
    extra = call.ints("output_padding") or [0] * count
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    full = [(n - 1) * s + r + e for n, s, r, e in zip(sizes, strides, reach, extra, strict=True)]
    before, outputs = _transposed_frame(call, sizes, strides, full)
    n, c = x.shape[:2]
    m = w.shape[1] * groups
    a = call.operand(x).reshape(n, groups, c // groups, prod(sizes))
    b = call.operand(w).reshape(groups, c // groups, -1)
    parts = np.matmul(b.swapaxes(1, 2)[None], a).reshape(n, m, *kernel, *sizes)
    size = [max(f, b + o) for f, b, o in zip(full, before, outputs, strict=True)]
    inner: Index = (..., *(slice(b, b + o) for b, o in zip(before, outputs, strict=True)))
    y = _put_together(parts, strides, dilations, size)[inner]
    return y if bias is None else y + bias.reshape(1, -1, *(1,) * count)


def col2im(call: Call, x: Array, image: Array, block: Array) -> Result:
    """Columns of blocks (N, C * block, places) -> the image (N, C, ...) in which blocks that overlap are added."""
    kernel, sizes = [int(k) for k in block], [int(n) for n in image]
    strides, dilations, before, after, places = spans(call, sizes, kernel)
    size = [b + n + a for b, n, a in zip(before, sizes, after, strict=True)]
    inner: Index = (..., *(slice(b, b + n) for b, n in zip(before, sizes, strict=True)))
    parts = x.reshape(len(x), x.shape[1] // prod(kernel), *kernel, *places)
    return _put_together(parts, strides, dilations, size)[inner]


def _put_together(parts: Array, strides: list[int], dilations: list[int], size: list[int]) -> Array:
    """Sums of windows: parts (N, M, kernel, places) -> (N, M, *size)."""
    count = len(size)
    kernel, places = parts.shape[2 : 2 + count], parts.shape[2 + count :]
    out = np.zeros((*parts.shape[:2], *size), parts.dtype)
    for tap in product(*map(range, kernel)):
        every = zip(tap, dilations, places, strides, strict=True)
        into: Index = (..., *(slice(t * d, t * d + (k - 1) * s + 1, s) for t, d, k, s in every))
        taken: Index = (slice(None), slice(None), *tap)
        out[into] += parts[taken]
    return out


def _transposed_frame(call: Call, sizes: list[int], strides: list[int], full: list[int]) -> tuple[list[int], list[int]]:
    """(how much is cut off in front, extents) of a transposed convolution."""
    count = len(sizes)
    shape = call.ints("output_shape")
    mode = call.get("auto_pad", "NOTSET")
    if shape is not None:
        outputs = shape[-count:]
        total = [f - o for f, o in zip(full, outputs, strict=True)]
    elif mode.startswith("SAME"):
        outputs = [min(n * s, f) for n, s, f in zip(sizes, strides, full, strict=True)]
        total = [f - o for f, o in zip(full, outputs, strict=True)]
    else:
        pads = call.ints("pads") or [0] * (2 * count)
        if mode == "VALID":
            pads = [0] * (2 * count)
        return pads[:count], [f - b - a for f, b, a in zip(full, pads[:count], pads[count:], strict=True)]
    total = [max(0, t) for t in total]
    if mode == "SAME_UPPER":
        return [t // 2 for t in total], outputs
    return [t - t // 2 for t in total], outputs


def _taps(kernel: int, stride: int, dilation: int, before: int, number: int, size: int) -> range:
    """The places of a window that lie inside the image in one of `number` windows: of a window of 2^20 few do."""
    first = max(0, -(((number - 1) * stride - before) // dilation))
    return range(first, min(kernel, (size - 1 + before) // dilation + 1))


def _slide(x: Array, combine: np.ufunc, fill: float, frame: tuple[list[int], ...]) -> Array:
    """`combine` over the elements of each window that lie inside the image, one axis after the other."""
    for i, (kernel, stride, dilation, before, number) in enumerate(zip(*frame, strict=True)):
        axis = 2 + i
        x = np.moveaxis(x, axis, 0)
        out = np.full((number, *x.shape[1:]), fill, x.dtype)
        at = np.arange(number) * stride - before
        for tap in _taps(kernel, stride, dilation, before, number, x.shape[0]):
            inside = np.nonzero((at + tap * dilation >= 0) & (at + tap * dilation < x.shape[0]))[0]
            if inside.size:
                rows = slice(inside[0], inside[-1] + 1)
                combine(out[rows], x[at[rows] + tap * dilation], out=out[rows])
        x = np.moveaxis(out, 0, axis)
    return x


def _pool_frame(call: Call, x: Array) -> tuple[list[int], ...]:
    """(kernel, strides, dilations, pads before, outputs), and the pads behind."""
    kernel = call.ints("kernel_shape") or list(x.shape[2:])
    strides, dilations, before, after, outputs = spans(call, list(x.shape[2:]), kernel, bool(call.get("ceil_mode", 0)))
    return kernel, strides, dilations, before, outputs, after


def max_pool(call: Call, x: Array) -> Result:
    if call.outputs > 1 and call.node.output[1]:
        return _with_indices(call, x)
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _slide(x, np.maximum, low, _pool_frame(call, x)[:5])


def _with_indices(call: Call, x: Array) -> Result:
    """Maxima and where they stand in the flat tensor: the first of equals, the first NaN; -1 where a window has no
    number, which ONNX does not define."""
    kernel, strides, dilations, before, outputs, _ = _pool_frame(call, x)
    sizes = x.shape[2:]
    steps = np.cumprod([1, *(sizes[:-1] if call.get("storage_order", 0) else sizes[:0:-1])])
    steps = steps if call.get("storage_order", 0) else steps[::-1]
    pictures = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(sizes)) * prod(sizes)
    best = np.full((*x.shape[:2], *outputs), -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min, x.dtype)
    nowhere = np.iinfo(np.int64).max
    place = np.full(best.shape, nowhere)
    every_tap = (_taps(*one) for one in zip(kernel, strides, dilations, before, outputs, sizes, strict=True))
    for tap in product(*every_tap):
        every = zip(outputs, strides, tap, dilations, before, strict=True)
        at = np.meshgrid(*(np.arange(o) * s + t * d - b for o, s, t, d, b in every), indexing="ij")
        inside = np.logical_and.reduce([(a >= 0) & (a < n) for a, n in zip(at, sizes, strict=True)])
        inner: Index = (..., *(np.clip(a, 0, n - 1) for a, n in zip(at, sizes, strict=True)))
        value = x[inner]
        index = pictures + sum(a * s for a, s in zip(at, steps, strict=True))
        same = (value == best) | (np.isnan(value) & np.isnan(best))
        more = np.where(np.isnan(best), False, (value > best) | np.isnan(value))
        take = inside & (more | (same & (index < place)))
        best, place = np.where(take, value, best), np.where(take, index, place)
    return [best, np.where(place == nowhere, -1, place)]


def average_pool(call: Call, x: Array) -> Result:
    *frame, after = _pool_frame(call, x)
    total = _slide(x, np.add, 0.0, tuple(frame))
    number = np.ones([1] * (x.ndim - 2))
    whole = bool(call.get("count_include_pad", 0))
    for i, (k, s, d, b, o) in enumerate(zip(*frame, strict=True)):
        n = x.shape[2 + i]
        at = np.arange(o)[:, None] * s + np.arange(k)[None] * d - b
        low, high = (-b, n + after[i]) if whole else (0, n)
        count = ((at >= low) & (at < high)).sum(1)
        number = number * count.reshape([-1 if j == i else 1 for j in range(x.ndim - 2)])
    return total / number.astype(x.dtype)


def lp_pool(call: Call, x: Array) -> Result:
    p = int(call.get("p", 2))
    return _slide(np.abs(x) ** p, np.add, 0.0, _pool_frame(call, x)[:5]) ** (1.0 / p)


def _global(call: Call, x: Array) -> Result:
    axes = tuple(range(2, x.ndim))
    if call.op == "GlobalMaxPool":
        return x.max(axes, keepdims=True)
    if call.op == "GlobalAveragePool":
        return in_sequence(x, axes).mean(axes, keepdims=True)
    p = int(call.get("p", 2))
    return (np.abs(x) ** p).sum(axes, keepdims=True) ** (1.0 / p)


TABLE: dict[str, Operator] = {
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "Col2Im": col2im,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalMaxPool": _global,
    "GlobalAveragePool": _global,
    "GlobalLpPool": _global,
}
