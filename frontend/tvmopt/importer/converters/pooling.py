"""Pooling: every window is a full one for TVM, whatever `auto_pad` and `ceil_mode` say."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.dims import is_open
from tvmopt.importer.converters.common import Build, dtype_of, in_float32, is_float, like, shape_of, stock
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.padding import pad_open
from tvmopt.importer.sizes import shape_to_tvm
from tvmopt.importer.windows import Windows, windows

_MAX = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
_AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}


def _found(ctx: Context, x: Any, attrs: dict[str, Any]) -> Windows:
    """The windows of this node over `x`."""
    kernel = attrs["kernel_shape"]
    if len(kernel) not in _MAX:
        raise ctx.unsupported(f"{len(kernel)} spatial dimensions; 1 to 3 are supported")
    return windows(attrs, shape_of(x)[2:], kernel)


def _common(attrs: dict[str, Any]) -> dict[str, Any]:
    n = len(attrs["kernel_shape"])
    return {
        "pool_size": list(attrs["kernel_shape"]),
        "strides": list(attrs.get("strides") or [1] * n),
        "dilation": list(attrs.get("dilations") or [1] * n),
    }


def _padding(found: Windows) -> list[int]:
    """Begin pads, then end pads with what the last window needs beyond them (ceil_mode)."""
    return [*found.begin, *(int(e + o) for e, o in zip(found.end, found.over, strict=True))]


def _is_open(found: Windows) -> bool:
    """Whether an amount of padding depends on an open size."""
    return is_open((*found.begin, *found.end, *found.over))


def _padded(b: Build, x: Any, found: Windows, fill: float) -> tuple[Any, Windows]:
    """The image with open amounts of padding as a part of it, and the windows over that."""
    if not _is_open(found):
        return x, found
    after = [e + o for e, o in zip(found.end, found.over, strict=True)]
    none = (0,) * len(found.out)
    return pad_open(b, x, [0, 0, *found.begin], [0, 0, *after], fill), Windows(none, none, found.out, none)


def max_pool(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MaxPool; the flat index of each maximum is computed only where somebody reads it."""
    x, b = inputs[0], Build(bb, ctx.name)
    found = _found(ctx, x, attrs)
    image, inside = _padded(b, x, found, _lowest(dtype_of(x)))
    value = _MAX[len(found.out)](image, **_common(attrs), padding=_padding(inside))
    if not ctx.wants(1):
        return value
    return value, _indices(b, x, attrs, found)


def _lowest(dtype: str) -> float:
    return float("-inf") if is_float(dtype) else int(np.iinfo(dtype).min)


def _indices(b: Build, x: Any, attrs: dict[str, Any], found: Windows) -> Any:
    """The flat index of each window's maximum, the first of equal ones; NaN is larger than every number; -1 where a
    window has no number."""
    if dtype_of(x) == "bfloat16":  # TVM knows no isnan of it; float32 has the same order
        x = b.cast(x, "float32")
    n, common = len(found.out), _common(attrs)
    column_major, real = bool(attrs.get("storage_order", 0)), is_float(dtype_of(x))

    def max_pool_index(data: Any, windows: Any, begin: Any) -> Any:
        shape = data.shape
        axes = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(common["pool_size"])]

        def pick(a: Any, c: Any) -> Any:
            sooner = a[0] < c[0]
            first = tirx.any(a[1] > c[1], tirx.all(a[1] == c[1], sooner))
            if real:
                nan, other = tirx.isnan(a[1]), tirx.isnan(c[1])
                first = tirx.any(tirx.all(nan, tirx.any(tirx.Not(other), sooner)), tirx.all(tirx.Not(other), first))
            return tirx.Select(first, a[0], c[0]), tirx.Select(first, a[1], c[1])

        def nothing(index: Any, element: Any) -> Any:
            return tirx.const(2**62, index), lowest(element)

        def lowest(element: Any) -> Any:
            return tirx.const(float("-inf"), element) if real else te.min_value(element)

        best = te.comm_reducer(pick, nothing, name="argmax")

        def one(*place: Any) -> Any:
            steps = zip(place[2:], common["strides"], axes, common["dilation"], begin, strict=True)
            where = [p * s + k * d - pad for p, s, k, d, pad in steps]
            inside = tirx.all(*[c for w, size in zip(where, shape[2:], strict=True) for c in (w >= 0, w < size)])
            order = range(n - 1, -1, -1) if column_major else range(n)
            flat = place[0] * shape[1] + place[1]
            for i in order:
                flat = flat * shape[2 + i] + where[i]
            index = tirx.if_then_else(inside, tirx.Cast("int64", flat), tirx.const(2**62, "int64"))
            element = tirx.if_then_else(inside, data(*place[:2], *where), lowest(data.dtype))
            return best((index, element), axis=axes)

        return te.compute((*shape[:2], *windows), one, name="max_pool_index")

    index = relax.TupleGetItem(b.te(max_pool_index, x, shape_to_tvm(found.out), shape_to_tvm(found.begin)), 0)
    if max(common["dilation"]) == 1:
        return index
    index = b.emit(index)  # between its taps a window may have nothing but padding
    none = b.equal(index, relax.const(2**62, "int64"))
    return b.emit(relax.op.where(none, relax.const(-1, "int64"), index))


def average_pool(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """AveragePool; taps in the padding count with `count_include_pad`, taps beyond the padding never do."""
    b = Build(bb, ctx.name)
    x, found = inputs[0], _found(ctx, inputs[0], attrs)
    include = bool(attrs.get("count_include_pad", 0))
    if _is_open(found):
        return _open_average(b, x, attrs, found, include)
    if include and any(found.over):  # padding that counts becomes part of the image, what lies beyond is padding
        x = b.pad(x, [0, 0, *found.begin], [0, 0, *found.end])
        none = (0,) * len(found.out)
        found, include = Windows(none, none, found.out, found.over), False
    dtype = dtype_of(x)
    pooled = _AVERAGE[len(found.out)](b.wide(x), **_common(attrs), padding=_padding(found), count_include_pad=include)
    return b.cast(b.emit(pooled), dtype)


def _open_average(b: Build, x: Any, attrs: dict[str, Any], found: Windows, include: bool) -> Any:
    """AveragePool with padding of an open size: the average with zeros over the share of taps that count."""
    average, dtype = _AVERAGE[len(found.out)], dtype_of(x)
    image, _ = _padded(b, b.wide(x), found, 0.0)
    spatial = shape_of(x)[2:]
    if include:
        spatial = tuple(lo + d + hi for lo, d, hi in zip(found.begin, spatial, found.end, strict=True))
        none = (0,) * len(found.out)
        found = Windows(none, none, found.out, found.over)
    ones = b.emit(relax.op.ones(shape_to_tvm((1, 1, *spatial)), dtype_of(image)))
    counted, _ = _padded(b, ones, found, 0.0)
    total, share = (b.emit(average(part, **_common(attrs))) for part in (image, counted))
    return b.cast(b.div(total, share), dtype)


def lp_pool(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LpPool: the p-th root of the sum of ``|x|^p``, the sum being an average over full windows times their taps.

    Powers above the second are float64: float32 has no ``x^3`` beyond 7e12, though it has the root.
    """
    b = Build(bb, ctx.name)
    found = _found(ctx, inputs[0], attrs)
    p, dtype = int(attrs.get("p", 2)), dtype_of(inputs[0])
    image, found = _padded(b, b.wide(inputs[0]) if p < 3 else b.cast(inputs[0], "float64"), found, 0.0)
    x = b.emit(relax.op.abs(image))
    raised = x if p == 1 else b.mul(x, x) if p == 2 else b.emit(relax.op.power(x, like(p, x)))
    pooled = _AVERAGE[len(found.out)](raised, **_common(attrs), padding=_padding(found), count_include_pad=True)
    total = b.mul(b.emit(pooled), float(prod(attrs["kernel_shape"])))
    if p > 1:
        total = b.emit(relax.op.sqrt(total) if p == 2 else relax.op.power(total, like(1 / p, x)))
    return b.cast(total, dtype)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "MaxPool"): max_pool,
    ("", "AveragePool"): average_pool,
    ("", "LpPool"): lp_pool,
    ("", "GlobalAveragePool"): in_float32(stock),
    ("", "GlobalLpPool"): in_float32(stock),
}
