"""GridSample: a tensor read between its elements, at coordinates that a grid gives."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result

CUBIC = -0.75
"""The coefficient of the cubic kernel."""


def _reflected(x: Array, low: float, high: float) -> Array:
    """Mirrored at both borders until it lies between them."""
    span = high - low
    if not span:
        return np.full_like(x, low)
    t = np.mod(x - low, 2 * span)
    return low + np.minimum(t, 2 * span - t)


def _weights(mode: str, t: Array) -> list[tuple[int, Array]]:
    """(Offset, weight) of the elements around a coordinate that lies `t` behind an element."""
    if mode == "nearest":
        return [(0, np.ones_like(t))]
    if mode == "linear":
        return [(0, 1 - t), (1, t)]
    a = CUBIC
    far = [((a * s - 5 * a) * s + 8 * a) * s - 4 * a for s in (1 + t, 2 - t)]
    near = [((a + 2) * s - (a + 3)) * s * s + 1 for s in (t, 1 - t)]
    return list(zip((-1, 0, 1, 2), (far[0], near[0], near[1], far[1]), strict=True))


def grid_sample(call: Call, x: Array, grid: Array) -> Result:
    """x (N, C, spatial), grid (N, out, axes), whose last axis counts the spatial ones from behind.

    With cubic interpolation at a border the elements are clamped, not the coordinate, as in PyTorch and onnxruntime
    (onnx.reference clamps the coordinate).
    """
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(call.get("mode", "linear"), call.get("mode", "linear"))
    padding, corners = call.get("padding_mode", "zeros"), bool(call.get("align_corners", 0))
    sizes, out = x.shape[2:], grid.shape[1:-1]
    flat = np.zeros((x.shape[0], 1, int(np.prod(out))), np.int64)
    taps: list[list[tuple[Array, Array, Array]]] = []  # an axis: indices, weights, whether they are inside
    for axis, size in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - axis].reshape(flat.shape)
        place = (g + 1) / 2 * (size - 1) if corners else ((g + 1) * size - 1) / 2
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if mode == "nearest":
            place = np.rint(place)
        if padding == "border" and mode != "cubic":
            place = np.clip(place, 0, size - 1)
        if padding == "reflection":
            place = _reflected(place, low, high)
        first = np.floor(place)
        taps.append([])
        for offset, weight in _weights(mode, place - first):
            at = first + offset
            if padding == "reflection":
                at = _reflected(at, low, high)
            inside = (at >= 0) & (at <= size - 1) if padding == "zeros" else np.ones(at.shape, bool)
            at = np.clip(np.nan_to_num(at), 0, size - 1).astype(np.int64)
            taps[-1].append((at, weight, inside))
    values = x.reshape(*x.shape[:2], prod(x.shape[2:]))
    result = np.zeros((*x.shape[:2], flat.shape[2]), x.dtype)
    for chosen in product(*taps):
        index, weight, inside = np.zeros_like(flat), np.ones(flat.shape, x.dtype), np.ones(flat.shape, bool)
        for size, (at, w, good) in zip(sizes, chosen, strict=True):
            index, weight, inside = index * size + at, weight * w, inside & good
        read = np.take_along_axis(values, np.broadcast_to(index, result.shape), 2) if values.size else result
        result += weight * np.where(inside, read, 0)
    return result.reshape(*x.shape[:2], *out)


TABLE: dict[str, Operator] = {"GridSample": grid_sample}
