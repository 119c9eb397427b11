"""Resize and Upsample: the weighted sums of a few elements, one axis after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported
from tvmopt.importer.opset import nearest_before

SMALL = 1 << 22
"""Elements of a matrix that says what each element of an axis counts for each one of its result."""


def _coordinates(mode: str, length: int, number: int, scale: float, region: tuple[float, float], single: bool) -> Array:
    """Where each of `number` outputs lies on an axis of `length`.

    Args:
        single: engines compute places in float32, which decides about the nearest element.
    """
    x = np.arange(number, dtype=np.float64)
    if single and mode in ("asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn"):
        shift = np.float32(0 if mode == "asymmetric" else 0.5)
        places = (x.astype(np.float32) + shift) / np.float32(scale)
        places -= shift if mode.endswith("half_pixel") else np.float32(0)
        return np.zeros(1) if mode == "pytorch_half_pixel" and number <= 1 else places.astype(np.float64)
    exact = scale * length
    if mode == "align_corners":
        return np.zeros(number) if exact == 1 else x * (length - 1) / (exact - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        low, high = region
        if exact == 1:
            return np.full(1, (high + low) * (length - 1) / 2)
        return low * (length - 1) + x * (high - low) * (length - 1) / (exact - 1)
    if mode == "pytorch_half_pixel" and exact <= 1:
        return np.zeros(number)
    if mode == "half_pixel_symmetric":
        return length / 2 * (1 - number / exact) + (x + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    return (x + 0.5) / scale - 0.5


def _nearest(mode: str, x: Array) -> Array:
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    half = 0.5 + 1e-6  # what engines take for halfway
    return np.floor(x + half) if mode == "round_prefer_ceil" else np.ceil(x - half)


def _cubic(x: Array, a: float) -> Array:
    x = np.abs(x)
    near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _taps(call: Call, x: Array, length: int, scale: float) -> tuple[Array, Array]:
    """(Which inputs count for each output of an axis, what each of them counts), both of shape (outputs, taps)."""
    mode = call.get("mode", "nearest")
    if mode == "nearest":
        picks = np.clip(_nearest(call.get("nearest_mode", "round_prefer_floor"), x), 0, length - 1).astype(int)
        return picks[:, None], np.ones((len(x), 1))
    shrink = min(1.0, scale) if call.get("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / shrink)) + 1
    taps = np.arange(first, 2 - first)
    base = np.floor(x)
    distance = shrink * (taps[None] - (x - base)[:, None])
    if mode == "linear":
        values = np.clip(1 - np.abs(distance), 0, 1)
    else:
        values = _cubic(distance, float(call.get("cubic_coeff_a", -0.75)))
    at = base[:, None].astype(int) + taps[None]
    if call.get("exclude_outside", 0):
        values = np.where((at < 0) | (at >= length), 0, values)
        values = values / values.sum(1, keepdims=True)
    elif shrink < 1:
        values = values / values.sum(1, keepdims=True)
    return np.clip(at, 0, length - 1), values


def _apply(x: Array, at: Array, values: Array, axis: int) -> Array:
    """The weighted sums along an axis: one product with a matrix, where that is small and all numbers are finite."""
    if at.shape[1] == 1:
        return x.take(at[:, 0], axis)
    if len(at) * x.shape[axis] <= SMALL and np.isfinite(x).all():
        matrix = np.zeros((len(at), x.shape[axis]))
        np.add.at(matrix, (np.arange(len(at))[:, None], at), values)
        return np.moveaxis(np.tensordot(matrix.astype(x.dtype), x, (1, axis)), 0, axis)
    total = np.zeros((*x.shape[:axis], len(at), *x.shape[axis + 1 :]), x.dtype)
    for places, counts in zip(at.T, values.astype(x.dtype).T, strict=True):
        weights = counts.reshape(-1, *(1,) * (x.ndim - axis - 1))
        total += np.where(weights != 0, weights * x.take(places, axis), 0)  # a weight of zero hides what it is of
    return total


def _frame(
    call: Call, x: Array, axes: list[int], scales: Array | None, sizes: Array | None
) -> tuple[list[int], list[float]]:
    """(extents, scales) of the axes."""
    lengths = [x.shape[a] for a in axes]
    if sizes is not None and np.size(sizes):
        wanted = [int(n) for n in sizes]
        factors = [w / n for w, n in zip(wanted, lengths, strict=True)]
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        if policy == "stretch":
            return wanted, factors
        one = min(factors) if policy == "not_larger" else max(factors)
        return [int(np.floor(one * n + 0.5)) for n in lengths], [one] * len(lengths)
    if scales is None or not np.size(scales):
        raise Unsupported("Resize without scales or sizes")
    factors = [float(s) for s in np.asarray(scales).reshape(-1)]
    # runtimes multiply in float32: 10 by 0.7 is 7, though that float32 is less than 0.7
    return [int(np.floor(np.float32(n) * np.float32(s))) for n, s in zip(lengths, factors, strict=True)], factors


def _resize(call: Call, x: Array, *rest: Any) -> Result:
    if call.version < 11:
        roi, scales, sizes = None, rest[0], None
    else:
        roi, scales, sizes = (*rest, None, None, None)[:3]
    axes = [a % x.ndim for a in call.ints("axes") or range(x.ndim)]
    extents, factors = _frame(call, x, axes, scales, sizes)
    mode = call.get("coordinate_transformation_mode", "half_pixel" if call.version >= 11 else "asymmetric")
    if call.version < 11 and call.get("mode", "nearest") == "nearest":
        call.attributes = {**call.attributes, "nearest_mode": nearest_before(scales)}
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if mode == "tf_crop_and_resize" and roi is not None and np.size(roi):  # else it is not read
        region = [float(v) for v in roi]
    whole = x.dtype
    y = x if whole.kind == "f" else x.astype(np.float64)
    outside = []
    for i, (axis, number, scale) in enumerate(zip(axes, extents, factors, strict=True)):
        length = x.shape[axis]
        single = call.get("mode", "nearest") == "nearest"
        at = _coordinates(mode, length, number, scale, (region[i], region[len(axes) + i]), single)
        if mode == "tf_crop_and_resize":
            beyond = (at < 0) | (at > length - 1)
            outside.append(beyond.reshape([-1 if a == axis else 1 for a in range(x.ndim)]))
        if number == length and np.array_equal(at, np.arange(length)):
            continue
        y = _apply(y, *_taps(call, at, length, scale), axis)
    for beyond in outside:
        y = np.where(beyond, np.asarray(call.get("extrapolation_value", 0.0), y.dtype), y)
    if whole.kind == "f":
        return y
    # an error of a sum is relative to its terms
    info, y = np.iinfo(whole), y + 4 * call.arithmetic.edge * np.sign(y) * np.abs(x.astype(np.float64)).max(initial=0)
    return np.clip(np.rint(y) if call.get("mode") == "cubic" else np.trunc(y), info.min, info.max).astype(whole)


def _upsample(call: Call, x: Array, scales: Array | None = None) -> Result:
    if scales is None:
        given = call.get("scales")
        scales = np.asarray(given if given else [1.0, 1.0, call.get("height_scale"), call.get("width_scale")])
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(call.get("mode", "nearest"), call.get("mode", "nearest"))
    call.attributes = {**call.attributes, "nearest_mode": "floor", "mode": mode}
    call.attributes |= {"coordinate_transformation_mode": "asymmetric"}
    call.version = 11
    return _resize(call, x, None, scales)


TABLE: dict[str, Operator] = {"Resize": _resize, "Upsample": _upsample}
