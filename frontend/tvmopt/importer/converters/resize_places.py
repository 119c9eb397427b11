"""Where the elements of a resized axis lie in what it is resized from, as numbers and as expressions - for `resize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx

from tvmopt.dims import OpenSize, Size

Array = npt.NDArray[Any]


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
    assert axis.scale is not None
    single &= mode in SCALED
    kind: Any = np.float32 if single else np.float64
    x, size, scale, half = np.arange(axis.out, dtype=kind), int(axis.size), kind(axis.scale), kind(0.5)
    length = axis.out if single else axis.scale * size
    if mode == "align_corners":
        places = np.zeros_like(x) if length == 1 else x * (size - 1) / (length - 1)
    elif mode == "asymmetric":
        places = x / scale
    elif mode == "tf_crop_and_resize":
        begin, end = axis.roi
        alone = np.full_like(x, (begin + end) * (size - 1) / 2)
        places = alone if length == 1 else begin * (size - 1) + x * (end - begin) * (size - 1) / (length - 1)
    elif mode == "pytorch_half_pixel" and length <= 1:
        places = np.zeros_like(x)
    elif mode == "half_pixel_symmetric":  # in the standard's order: a place may be a whole number
        places = size / 2 * (1 - axis.out / length) + (x + half) / scale - half
    elif mode in ("half_pixel", "pytorch_half_pixel"):
        places = (x + half) / scale - half
    elif mode == "tf_half_pixel_for_nn":
        places = (x + half) / scale
    else:
        raise ValueError(f"coordinate_transformation_mode={mode!r} is none of the standard's")
    return places.astype(np.float64)


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


def open_weight(after: Any, tap: Any, mode: str, a: float) -> Any:
    """What an element counts that lies `tap` elements behind the one before a place, which is `after` behind it."""
    x = tirx.abs(after - tirx.Cast("float64", tap))
    if mode != "cubic":
        return tirx.const(1.0, "float64") - x
    inner = ((a + 2) * x - (a + 3)) * x * x + 1.0
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a  # 0 at 2, the farthest
    return tirx.Select(x <= 1.0, inner, outer)


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
