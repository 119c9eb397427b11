"""Resize and Upsample: every mode, coordinate transformation, ROI and antialiasing of the standard.

Interpolation is separable, so each axis is a weighted sum of a few source elements. Where sizes are known, their places
and weights are computed here, once, in float64, and what TVM's own resize2d does the same way stays that operator.
Along an axis of open size a small kernel computes them in each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx

from tvmopt.dims import Dim, OpenSize, Size, is_open
from tvmopt.importer.converters.common import Build, const, dtype_of, is_float, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least
from tvmopt.importer.converters.sized import shape_as_data
from tvmopt.importer.fractions import floor_product
from tvmopt.importer.opset import nearest_before
from tvmopt.importer.sizes import to_tvm
from tvmopt.operators.interpolate import Taps, interpolate, unchanged, weighted_sum

Array = npt.NDArray[Any]
MANY = 16
"""Taps along one axis from which on a kernel of planes does better than plain loops, which write all of them out."""


@dataclass(frozen=True)
class Axis:
    """One resized axis: sizes, scale (``out / in`` before rounding of the size; None: of open sizes) and region of
    interest."""

    axis: int
    size: Size
    out: Size
    scale: float | None
    roi: tuple[float, float]


SCALED = ("asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
"""Coordinate transformations that divide by the scale."""


def source_positions(axis: Axis, mode: str, single: bool = False) -> Array:
    """Where each output element lies in the input, by the standard's table of coordinate transformations.

    Args:
        single: computed in float32, as engines do it, for whoever takes the nearest element: at 0.7, which no float is,
            a place halfway between two elements is in float64 a little behind it, and the next one nearer.
    """
    x = np.arange(axis.out, dtype=np.float64)
    assert axis.scale is not None
    size, scale = int(axis.size), axis.scale
    if single and mode in SCALED:
        shift = np.float32(0.0 if mode == "asymmetric" else 0.5)
        places = (x.astype(np.float32) + shift) / np.float32(scale)
        if mode in ("half_pixel", "pytorch_half_pixel"):
            places -= shift
        return np.zeros(1) if mode == "pytorch_half_pixel" and axis.out == 1 else places.astype(np.float64)
    length = scale * size
    if mode == "align_corners":
        return np.zeros_like(x) if length == 1 else np.asarray(x * (size - 1) / (length - 1))
    if mode == "asymmetric":
        return np.asarray(x / scale)
    if mode == "tf_crop_and_resize":
        begin, end = axis.roi
        if length == 1:
            return np.full_like(x, (begin + end) * (size - 1) / 2)
        return begin * (size - 1) + x * (end - begin) * (size - 1) / (length - 1)
    if mode == "pytorch_half_pixel" and length <= 1:
        return np.zeros_like(x)
    if mode == "half_pixel_symmetric":  # in the standard's order: a place may be a whole number
        return np.asarray(size / 2 * (1 - axis.out / length) + (x + 0.5) / scale - 0.5)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return np.asarray((x + 0.5) / scale - 0.5)
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    raise ValueError(f"coordinate_transformation_mode={mode!r} is none of the standard's")


HALFWAY = 1e-6
"""How far from the middle of two elements a place may be that counts as halfway: float32 rounds places of its size."""


def nearest_index(position: Array, mode: str) -> Array:
    """The element taken for each position."""
    if mode == "floor":
        return np.floor(position)
    if mode == "ceil":
        return np.ceil(position)
    if mode == "round_prefer_ceil":
        return np.floor(position + (0.5 + HALFWAY))
    if mode == "round_prefer_floor":
        return np.ceil(position - (0.5 + HALFWAY))
    raise ValueError(f"nearest_mode={mode!r} is none of the standard's")


def _kernel(mode: str, a: float, distance: Array) -> Array:
    """The weight at a distance: a triangle, or the cubic of Keys with parameter a."""
    x = np.abs(distance)
    if mode == "linear":
        return np.asarray(np.clip(1 - x, 0, None))
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def taps(axis: Axis, mode: str, position: Array, a: float, antialias: bool, exclude: bool) -> Taps:
    """What each element reads; elements past the edge are the edge's, or left out, and no tap is 0 everywhere."""
    shrink = min(axis.scale or 1.0, 1.0) if antialias else 1.0
    reach = (1 if mode == "linear" else 2) / shrink
    first = math.floor(-reach) + 1
    offsets = np.arange(first, 2 - first)
    base = np.where(position == np.floor(position), position - 1, np.floor(position))  # the left one, as the standard
    index = base[:, None] + offsets[None, :]
    weights = _kernel(mode, a, (index - position[:, None]) * shrink)
    if exclude:
        weights = np.where((index < 0) | (index >= axis.size), 0.0, weights)
    if exclude or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    used = (weights != 0).any(0)
    return Taps(np.clip(index, 0, axis.size - 1).astype(np.int64)[:, used], weights[:, used])


def _interpolate(b: Build, x: Any, along: dict[int, Taps]) -> Any:
    """The weighted sums along axes that are known: of the last two axes in one kernel, else one behind the other."""
    shape, work = shape_of(x), dict(along)
    last = len(shape) - 1
    columns = None if is_open(shape[1:]) or (last < 2 and is_open(shape)) else work.pop(last, None)
    rows = None if columns is None else work.pop(last - 1, None)
    for axis, found in work.items():
        if found.count > MANY and not is_open(shape[1:] if axis else shape):
            x = _planes(b, x, axis, found, None)
        else:
            x = b.te(weighted_sum, x, const(found.places, "int32"), const(found.weights, dtype_of(x)), axis)
    return x if columns is None else _planes(b, x, last - 1, rows, columns)


def _planes(b: Build, x: Any, axis: int, rows: Taps | None, columns: Taps | None) -> Any:
    """The weighted sums of a tensor taken for planes: their rows lie along `axis`, their columns along all behind it.

    Args:
        axis: -1 where a tensor of one axis is a row. rows, columns: None where they stay as they are.
    """
    shape = list(shape_of(x))
    lead, size, width = shape[:1] if axis > 0 else [1], shape[axis] if axis >= 0 else 1, math.prod(shape[axis + 1 :])
    planes = b.reshape(x, [*lead, math.prod(shape[1:axis]) if axis > 0 else 1, size, width])
    y = b.emit(interpolate(planes, rows or unchanged(size), columns or unchanged(width)))
    if rows is not None:
        shape[axis] = len(rows.places)
    if columns is not None:
        shape[-1] = len(columns.places)
    return b.reshape(y, shape)


def _resize_open(
    b: Build, x: Any, axis: Axis, mode: str, transform: str, nearest: str, attrs: dict[str, Any],
    guard: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """Resize one axis of open size: one small kernel computes the places, which `guard` checks, one the weights.

    Raises:
        OpenSize: a mode that needs numbers.
    """
    if mode not in ("nearest", "linear", "cubic") or attrs.get("antialias", 0) or attrs.get("exclude_outside", 0):
        raise OpenSize(f"mode {mode!r} with these attributes needs the size {axis.size}, which is open")
    sizes = shape_as_data(b, np.array([axis.size, axis.out], object), "int64")

    def place(known: Any, i: Any) -> Any:
        kind = "float32" if mode == "nearest" and transform in SCALED else "float64"  # as `source_positions` says
        size, out = (tirx.Cast(kind, known(k)) for k in range(2))
        scale = out / size if axis.scale is None else tirx.const(axis.scale, kind)
        length = out if kind == "float32" else scale * size  # likewise
        return tirx.Cast("float64", open_position(tirx.Cast(kind, i), size, scale, length, transform))

    def inside(known: Any, position: Any) -> Any:
        return tirx.max(tirx.min(tirx.Cast("int64", position), known(0) - 1), tirx.const(0, "int64"))

    def resize_places(known: Any) -> Any:
        return te.compute([to_tvm(axis.out)], lambda i: inside(known, open_nearest(place(known, i), nearest)))

    def resize_taps(known: Any) -> Any:
        def tap(i: Any, t: Any) -> Any:
            return inside(known, tirx.floor(place(known, i)) + tirx.Cast("float64", t - before))

        return te.compute([to_tvm(axis.out), count], tap)

    def resize_weights(known: Any) -> Any:
        def weight(i: Any, t: Any) -> Any:
            after = place(known, i) - tirx.floor(place(known, i))
            if mode == "cubic":
                x = tirx.abs(after - tirx.Cast("float64", t - before))
                inner = ((a + 2) * x - (a + 3)) * x * x + 1.0
                outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a  # 0 at 2, the farthest
                return tirx.Cast(dtype, tirx.Select(x <= 1.0, inner, outer))
            return tirx.Cast(dtype, tirx.Select(t == 0, tirx.const(1.0, "float64") - after, after))

        return te.compute([to_tvm(axis.out), count], weight)

    dtype, a = dtype_of(x), float(attrs.get("cubic_coeff_a", -0.75))
    before, count = (1, 4) if mode == "cubic" else (0, 2)
    if mode == "nearest":
        return b.take(x, guard(b.te(resize_places, sizes)), axis.axis)
    return b.te(weighted_sum, x, guard(b.te(resize_taps, sizes)), b.te(resize_weights, sizes), axis.axis)


def open_position(i: Any, size: Any, scale: Any, length: Any, mode: str) -> Any:
    """:func:`source_positions` as an expression in the type of its arguments; `length` is that of the result.

    Raises:
        OpenSize: a transformation that needs numbers.
    """
    one, half = (tirx.const(number, str(i.ty.dtype)) for number in (1.0, 0.5))
    if mode == "align_corners":
        alone = length <= one
        return tirx.Select(alone, one - one, i * (size - one) / tirx.Select(alone, one, length - one))
    if mode == "asymmetric":
        return i / scale
    middle = (i + half) / scale
    if mode == "pytorch_half_pixel":
        return tirx.Select(length <= one, one - one, middle - half)
    if mode == "half_pixel":
        return middle - half
    if mode == "tf_half_pixel_for_nn":
        return middle
    raise OpenSize(f"coordinate_transformation_mode={mode!r} needs sizes that are open")


def open_nearest(position: Any, mode: str) -> Any:
    """:func:`nearest_index` as an expression."""
    whole = {
        "floor": tirx.floor,
        "ceil": tirx.ceil,
        "round_prefer_ceil": lambda p: tirx.floor(p + (0.5 + HALFWAY)),
        "round_prefer_floor": lambda p: tirx.ceil(p - (0.5 + HALFWAY)),
    }
    return whole[mode](position)


def _sizes(ctx: Context, shape: Sequence[Size], roi: Any, scales: Any, sizes: Any, attrs: dict[str, Any]) -> list[Axis]:
    rank = len(shape)
    axes = [int(a) % rank for a in attrs.get("axes", range(rank))]
    regions = np.ravel(roi) if roi is not None and np.size(roi) else np.array([0.0] * len(axes) + [1.0] * len(axes))
    if sizes is not None and np.size(sizes):
        wanted = [s if isinstance(s, Dim) else int(s) for s in np.ravel(sizes)]
        factors: list[Any] = [
            1.0 if w == shape[a] else None if is_open((w, shape[a])) else w / shape[a]
            for w, a in zip(wanted, axes, strict=True)
        ]
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factors = [w / shape[a] for w, a in zip(wanted, axes, strict=True)]
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            wanted = [math.floor(factor * shape[a] + 0.5) for a in axes]
    elif scales is not None and np.size(scales):
        factors = [float(s) for s in np.ravel(scales)]
        if len(axes) != len(factors):
            raise ctx.unsupported(f"{len(factors)} scales for {len(axes)} axes")
        wanted = [_scaled(shape[a], f) for a, f in zip(axes, factors, strict=True)]  # of a region, too, by all engines
    else:
        raise ctx.unsupported("neither scales nor sizes is known at compile time")
    n = len(axes)
    return [
        Axis(a, shape[a], w, f, (float(regions[i]), float(regions[n + i])))
        for i, (a, w, f) in enumerate(zip(axes, wanted, factors, strict=True))
    ]


def _scaled(size: Size, scale: float) -> Size:
    """The size as runtimes resize it."""
    found = floor_product(size, scale)
    if found is None:
        raise OpenSize(f"the scale {scale} of the size {size} is no ratio of small numbers")
    return found[0]


def _stock_form(
    shape: Sequence[Size], work: list[Axis], mode: str, transform: str, nearest: str, attrs: dict[str, Any]
) -> dict[str, str] | None:
    """How relax.image.resize2d, which computes in float32, says the same; None where it computes something else."""
    spatial = {a.axis for a in work} <= {2, 3} and len(shape) == 4
    if not spatial or is_open(d for a in work for d in (a.size, a.out)):
        return None
    exact = all(a.scale is not None and abs(a.scale * a.size - a.out) < 1e-6 for a in work)
    if not exact or attrs.get("antialias", 0) or attrs.get("exclude_outside", 0):
        return None
    if mode == "nearest" and ((transform, nearest) == ("asymmetric", "floor") or _repeats(work, transform, nearest)):
        return {
            "method": "nearest_neighbor",
            "coordinate_transformation_mode": "asymmetric",
            "rounding_method": "floor",
        }
    sizes = {**dict(enumerate(shape)), **{a.axis: a.out for a in work}}
    divides = transform == "align_corners" and 1 in (sizes[2], sizes[3])  # by that size less one
    if mode == "linear" and all(a.out > 1 and _fine(a, transform) for a in work) and not divides:
        if transform in ("half_pixel", "align_corners", "asymmetric"):
            return {"method": "linear", "coordinate_transformation_mode": transform, "rounding_method": ""}
        if transform == "pytorch_half_pixel":
            return {"method": "linear", "coordinate_transformation_mode": "half_pixel", "rounding_method": ""}
    return None


def _repeats(work: list[Axis], transform: str, nearest: str) -> bool:
    """Whether each element is repeated so many times, in order, whatever the rule of rounding is called."""
    if transform == "tf_crop_and_resize" or any(a.out % a.size for a in work):
        return False
    index = [np.clip(nearest_index(source_positions(a, transform, single=True), nearest), 0, a.size - 1) for a in work]
    return all((at == np.arange(a.out) // (a.out // a.size)).all() for at, a in zip(index, work, strict=True))


FINE = 8e-6
"""How far, in elements, a place may be off that is computed in float32: the result is off by as much of the difference
of two neighbours. 240 pixels made 300 are 1.5e-5 off, powers of two times as many are where they should be."""


def _fine(axis: Axis, transform: str) -> bool:
    """Whether float32 says well enough where the elements of an axis of known sizes are from.

    >>> [_fine(Axis(2, 240, out, out / 240, (0.0, 1.0)), "half_pixel") for out in (300, 480)]
    [False, True]
    """
    corners, shift = transform == "align_corners", 0.5 if "half_pixel" in transform else 0.0
    scale = np.float32((axis.size - 1) / (axis.out - 1) if corners else axis.size / axis.out)
    places = (np.arange(axis.out, dtype=np.float32) + np.float32(shift)) * scale - np.float32(shift)
    return bool(np.abs(places - source_positions(axis, transform)).max() <= FINE)


def _whole(b: Build, x: Any, dtype: str) -> Any:
    """Floats as integers of a type, rounded and saturated: a cubic curve goes beyond the numbers that it joins."""
    range_ = np.iinfo(dtype)
    most = range_.max if range_.bits < 32 else float(np.nextafter(np.float32(range_.max), np.float32(0)))
    return b.cast(b.minimum(b.maximum(b.emit(relax.op.round(x)), float(range_.min)), float(most)), dtype)


def resize_to(b: Build, ctx: Context, x: Any, work: list[Axis], attrs: dict[str, Any]) -> Any:
    """Resize the axes of `work`, one after the other."""
    mode = attrs.get("mode", "nearest")
    transform = attrs.get("coordinate_transformation_mode", "half_pixel")
    nearest = attrs.get("nearest_mode", "round_prefer_floor")
    shape = shape_of(x)
    cropped = transform == "tf_crop_and_resize"
    known = next((t[1] for t in ctx.output_types[:1] if t is not None), ())
    if len(known) == len(shape):
        # The size as the model writes it elsewhere, equal by its conditions: no reshape to that.
        work = [replace(a, out=known[a.axis]) if is_open((a.out,)) else a for a in work]
    work = [a for a in work if a.out != a.size or a.scale != 1 or cropped]
    if not work:
        return x
    if any(a.size == 0 for a in work):
        raise ctx.unsupported("an input axis is empty")
    stock = _stock_form(shape, work, mode, transform, nearest, attrs)
    if stock is not None and is_float(dtype_of(x)) and dtype_of(x) != "float64" and not is_open(shape):
        sizes = {2: shape[2], 3: shape[3], **{a.axis: a.out for a in work}}
        return relax.op.image.resize2d(x, relax.ShapeExpr([sizes[2], sizes[3]]), layout="NCHW", **stock)
    dtype, outside = dtype_of(x), None
    along: dict[int, Taps] = {}
    if mode != "nearest":
        x = b.cast(x, "float64" if dtype == "float64" else "float32")
    if mode == "nearest" and all(not is_open((a.size, a.out)) and a.out >= a.size for a in work):
        work = work[::-1]  # rows are copied whole behind it
    for axis in work:
        if is_open((axis.size, axis.out)):
            told = f"axis {axis.axis} is empty, so there is nothing to resize"
            least = 1 if axis.scale is None else 0  # of nothing a scale makes nothing
            guard = partial(at_least, b, ctx, size=axis.size, least=least, what=told)
            x = _resize_open(b, x, axis, mode, transform, nearest, attrs, guard)
            continue
        position = source_positions(axis, transform, single=mode == "nearest")
        if cropped:
            beyond = (position < 0) | (position > axis.size - 1)
            flat = beyond.reshape([-1 if i == axis.axis else 1 for i in range(len(shape))])
            outside = flat if outside is None else outside | flat
        if mode == "nearest":
            index = np.clip(nearest_index(position, nearest), 0, axis.size - 1)
            x = b.take(x, const(index, "int64"), axis.axis)
        else:
            along[axis.axis] = taps(
                axis,
                mode,
                position,
                attrs.get("cubic_coeff_a", -0.75),
                bool(attrs.get("antialias", 0)),
                bool(attrs.get("exclude_outside", 0)),
            )
    x = _interpolate(b, x, along)
    x = _whole(b, x, dtype) if mode == "cubic" and np.dtype(dtype).kind in "iu" else b.cast(x, dtype)
    if outside is not None and outside.any():
        x = b.where(const(outside, "bool"), float(attrs.get("extrapolation_value", 0.0)), x)
    return x


def resize(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Resize, opset 10 and later (10 has no coordinate transformations: asymmetric)."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    if ctx.opset < 11:
        scales = ctx.array(inputs[1], "scales")
        nearest = nearest_before(scales)
        attrs = {**attrs, "coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
        return resize_to(b, ctx, x, _sizes(ctx, shape_of(x), None, scales, None, attrs), attrs)
    cropped = attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = ctx.array(inputs[1], "roi") if cropped else None
    scales, sizes = ctx.array(inputs[2], "scales"), ctx.array(inputs[3], "sizes")
    return resize_to(b, ctx, x, _sizes(ctx, shape_of(x), roi, scales, sizes, attrs), attrs)


def upsample(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Upsample (gone since opset 10): scales as an attribute before opset 9."""
    scales = attrs.get("scales") if ctx.opset < 9 else ctx.array(inputs[1], "scales")
    mode = {"bilinear": "linear"}.get(attrs.get("mode", "nearest"), attrs.get("mode", "nearest"))
    plain = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = inputs[0]
    return resize_to(Build(bb, ctx.name), ctx, x, _sizes(ctx, shape_of(x), None, scales, None, plain), plain)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Resize"): resize,
    ("", "Upsample"): upsample,
}
