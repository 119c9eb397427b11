"""Resize along axes of open size, and of regions that a run computes: small kernels compute places and weights in each
call - for `resize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.dims import OpenSize, is_open
from tvmopt.importer.converters.common import Build, dtype_of, shape_of
from tvmopt.importer.converters.context import Context
from tvmopt.importer.converters.resize_places import SCALED, Axis, open_nearest, open_position, open_weight
from tvmopt.importer.converters.sized import shape_as_data
from tvmopt.importer.sizes import to_tvm
from tvmopt.operators.interpolate import weighted_sum


def resize_open(
    b: Build, x: Any, axis: Axis, mode: str, transform: str, attrs: dict[str, Any], guard: Callable[[Any], Any]
) -> Any:
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

    return _taken(b, x, axis.axis, sizes, lambda known: (to_tvm(axis.out), known(0)), place, attrs, guard)


def _taken(
    b: Build, x: Any, axis: int, data: Any, extents: Callable[[Any], tuple[Any, Any]], place: Callable[[Any, Any], Any],
    attrs: dict[str, Any], guard: Callable[[Any], Any] = lambda at: at,
) -> Any:  # fmt: skip
    """What a tensor has at some places of an axis: the nearest elements, or weighted sums.

    Args:
        data: a tensor that tells the places, in TE what the next two are given.
        extents: how many places there are, and the size of the axis.
        place: where the one of some number lies, in float64.
        guard: checks which elements are read.
    """
    mode, nearest = attrs.get("mode", "nearest"), attrs.get("nearest_mode", "round_prefer_floor")
    a, (before, count) = float(attrs.get("cubic_coeff_a", -0.75)), (1, 4) if mode == "cubic" else (0, 2)

    def inside(size: Any, at: Any) -> Any:
        within = tirx.max(
            tirx.min(at, tirx.Cast("float64", size)), tirx.const(-1.0, "float64")
        )  # of a region any place
        return tirx.max(tirx.min(tirx.Cast("int64", within), size - 1), tirx.const(0, "int64"))

    def resize_places(known: Any) -> Any:
        out, size = extents(known)
        return te.compute([out], lambda i: inside(size, open_nearest(place(known, i), nearest)))

    def resize_taps(known: Any) -> Any:
        out, size = extents(known)

        def tap(i: Any, t: Any) -> Any:
            return inside(size, tirx.floor(place(known, i)) + tirx.Cast("float64", t - before))

        return te.compute([out, count], tap)

    def resize_weights(known: Any) -> Any:
        def weight(i: Any, t: Any) -> Any:
            after = place(known, i) - tirx.floor(place(known, i))
            return tirx.Cast(dtype_of(x), open_weight(after, t - before, mode, a))

        return te.compute([extents(known)[0], count], weight)

    if mode == "nearest":
        return b.take(x, guard(b.te(resize_places, data)), axis)
    return b.te(weighted_sum, x, guard(b.te(resize_taps, data)), b.te(resize_weights, data), axis)


def crop_and_resize(
    b: Build, ctx: Context, x: Any, roi: Any, shape: Sequence[int], axes: Sequence[int], attrs: dict[str, Any]
) -> Any:
    """Resize of tf_crop_and_resize whose regions a run computes, to a known shape: detectors of TensorFlow cut out what
    their boxes say."""
    own, dtype, mode = shape_of(x), dtype_of(x), attrs.get("mode", "nearest")
    if is_open((*own, *shape)):
        raise OpenSize("regions that are computed at run time need the sizes of what they are cut out of")
    if attrs.get("antialias", 0) or attrs.get("exclude_outside", 0) or 0 in own:
        raise ctx.unsupported("its roi is computed at run time, and antialias or exclude_outside is set")
    y, outside = x, None
    if mode != "nearest":
        y = b.cast(x, "float64" if dtype == "float64" else "float32")
    for k, axis in enumerate(axes):
        if own[axis] == shape[axis] == 1:  # wherever the region is
            continue
        y, beyond = _cut_out(b, y, axis, shape[axis], roi, (k, len(axes) + k), attrs)
        beyond = b.reshape(beyond, [shape[axis] if i == axis else 1 for i in range(len(own))])
        outside = beyond if outside is None else b.emit(relax.op.logical_or(outside, beyond))
    y = whole(b, y, dtype) if mode == "cubic" and np.dtype(dtype).kind in "iu" else b.cast(y, dtype)
    return y if outside is None else b.where(outside, float(attrs.get("extrapolation_value", 0.0)), y)


def _cut_out(
    b: Build, x: Any, axis: int, out: int, roi: Any, ends: tuple[int, int], attrs: dict[str, Any]
) -> tuple[Any, Any]:
    """(`out` elements of a region of an axis, which of these are beyond it); `roi` has the region's `ends`."""
    size = shape_of(x)[axis]

    def resize_region(region: Any) -> Any:
        first, last = (tirx.Cast("float64", region[n]) for n in ends)
        if out == 1:
            return te.compute([1], lambda i: (first + last) * (0.5 * (size - 1)))
        step = (last - first) * float(size - 1) / float(out - 1)
        return te.compute([out], lambda i: first * float(size - 1) + tirx.Cast("float64", i) * step)

    def resize_beyond(at: Any) -> Any:
        return te.compute(at.shape, lambda i: tirx.Not(tirx.And(at[i] >= 0.0, at[i] <= size - 1.0)))

    places = b.te(resize_region, roi)
    extents = out, tirx.const(size, "int64")
    return _taken(b, x, axis, places, lambda _: extents, lambda at, i: at[i], attrs), b.te(resize_beyond, places)


def whole(b: Build, x: Any, dtype: str) -> Any:
    """Floats as integers of a type, rounded and saturated: a cubic curve goes beyond the numbers that it joins."""
    range_ = np.iinfo(dtype)
    most = range_.max if range_.bits < 32 else float(np.nextafter(np.float32(range_.max), np.float32(0)))
    return b.cast(b.minimum(b.maximum(b.emit(relax.op.round(x)), float(range_.min)), float(most)), dtype)
