"""Resize and Upsample: every mode, coordinate transformation, ROI and antialiasing of the standard.

Interpolation is separable, so each axis is a weighted sum of a few source elements. Where sizes are known, their places
and weights are computed here, once, in float64, and what TVM's own resize2d does the same way stays that operator.
Along an axis of open size a small kernel computes them in each call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from tvmopt.dims import Dim, OpenSize, Size, is_open
from tvmopt.importer.converters.common import Build, const, dtype_of, is_float, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least
from tvmopt.importer.converters.resize_open import crop_and_resize, resize_open, whole
from tvmopt.importer.converters.resize_places import Axis, nearest_index, source_positions
from tvmopt.importer.fractions import floor_product
from tvmopt.importer.opset import nearest_before
from tvmopt.operators.interpolate import Taps, interpolate, unchanged, weighted_sum

Array = npt.NDArray[Any]
MANY = 16
"""Taps along one axis from which on a kernel of planes does better than plain loops, which write all of them out."""


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
            x = resize_open(b, x, axis, mode, transform, attrs, guard)
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
    x = whole(b, x, dtype) if mode == "cubic" and np.dtype(dtype).kind in "iu" else b.cast(x, dtype)
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
    known = ctx.output_types[0]
    if cropped and inputs[1] is not None and ctx.array(inputs[1]) is None and known is not None:
        axes = [int(n) % len(shape_of(x)) for n in attrs.get("axes", range(len(shape_of(x))))]
        return crop_and_resize(b, ctx, x, inputs[1], known[1], axes, attrs)
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
