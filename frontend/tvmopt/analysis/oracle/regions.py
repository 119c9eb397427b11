"""RoiAlign by its definition: places in float32, as every engine has them, and what is read there in the work's type.

A region is cut into bins, and a bin holds rows by columns of samples, each interpolated from four pixels. One outside
the picture is its first pixel by 0. Of a bin of a million samples a row, those are computed that are inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator

MANY = 1 << 12
"""Samples of a bin along an axis from which on only those near the picture are looked at."""


@dataclass(frozen=True)
class Axis:
    """The samples of all bins along an axis that are inside, bin after bin.

    Attributes:
        count: samples of each bin, those outside as well; 0 for a region without extent.
        sizes: of each bin, how many are inside. first: of each bin, whether its first sample is.
        low, high: pixels, and `part` the weight of `high`.
    """

    count: int
    sizes: list[int]
    first: Array
    low: Array
    high: Array
    part: Array

    @classmethod
    def of(cls, begin: Array, extent: Array, bins: int, ratio: int, size: int) -> Axis:
        """Along an axis of `size` pixels.

        Args:
            begin, extent: scalars of the type in which places are computed.
            ratio: samples of a bin; 0 for one a pixel.
        """
        kind = begin.dtype.type
        step = extent / kind(bins)
        count = ratio if ratio > 0 else int(np.ceil(step)) if np.isfinite(step) and step > 0 else 0
        places, sizes, first = [], [], []
        for place in range(bins):
            start = begin + kind(place) * step
            samples = _near(float(start), float(step), count, size)
            at = start + (samples.astype(kind) + kind(0.5)) * step / kind(max(count, 1))
            inside = ~((at < -1) | (at > size))
            places.append(at[inside])
            sizes.append(len(places[-1]))
            first.append(bool(count) and bool(inside[0]) and samples[0] == 0)
        at = np.concatenate(places)
        low = np.minimum(np.where((at > 0) & (at <= size), at, 0).astype(np.int64), size - 1)
        part = np.where(low >= size - 1, 0, np.maximum(at, 0) - low)
        return cls(count, sizes, np.array(first), low, np.minimum(low + 1, size - 1), part)

    @property
    def begins(self) -> list[int]:
        """Where the samples of each bin begin."""
        return [sum(self.sizes[:bin]) for bin in range(len(self.sizes))]

    def reduced(self, pool: np.ufunc, values: Array, axis: int) -> Array:
        """One number of each bin: of none inside it is 0, or nothing to the largest."""
        initial = 0 if pool is np.add else -np.inf
        parts = np.split(values, self.begins[1:], axis)
        return np.stack([pool.reduce(part, axis, initial=initial) for part in parts], axis)


def _near(start: float, step: float, count: int, size: int) -> Array:
    """The numbers of the samples of a bin: of very many, those near the picture."""
    if count <= MANY:
        return np.arange(count)
    middle = np.clip(-start / step * count, 0, count)
    return np.unique(np.clip(np.floor(middle) + np.arange(-2, size + 3), 0, count - 1))


def _corners(picture: Array, down: Axis, across: Axis) -> list[Array]:
    """The four weighted pixels of each sample that is inside: arrays [channels, rows, columns]."""
    fy, fx = down.part.astype(picture.dtype)[:, None], across.part.astype(picture.dtype)
    columns = [(across.low, 1 - fx), (across.high, fx)]
    return [
        picture[:, y][:, :, x] * weight * other
        for y, weight in ((down.low, 1 - fy), (down.high, fy))
        for x, other in columns
    ]


def _mean(picture: Array, down: Axis, across: Axis) -> Array:
    total = across.reduced(np.add, down.reduced(np.add, np.add.reduce(_corners(picture, down, across)), 1), 2)
    return np.asarray(np.where(_partly(down, across), total + _beyond(picture), total) / (down.count * across.count))


def _largest(picture: Array, down: Axis, across: Axis) -> Array:
    """A corner that is not a number counts only where it is the first of its sample, and such a sample only where it is
    the first of its bin: that is what comparisons leave."""
    corners = _corners(picture, down, across)
    values = np.maximum.reduce([np.where(np.isnan(c), -np.inf, c) for c in corners])
    values = np.where(np.isnan(corners[0]), -np.inf, values)
    values = across.reduced(np.maximum, down.reduced(np.maximum, values, 1), 2)
    beyond = _beyond(picture)
    outside = np.where(np.isnan(beyond), -np.inf, beyond)
    values = np.where(_partly(down, across), np.maximum(values, outside), values)
    lost = np.isnan(np.pad(corners[0], ((0, 0), (0, 1), (0, 1))))[:, down.begins][:, :, across.begins]
    inside = down.first[:, None] & across.first
    return np.where(np.where(inside, lost, np.isnan(beyond)), np.nan, values)


def _partly(down: Axis, across: Axis) -> Array:
    """Whether some samples of a bin are outside: [rows, columns]."""
    return np.outer(down.sizes, across.sizes) < down.count * across.count


def _beyond(picture: Array) -> Array:
    """What a sample outside is: the first pixel by 0, [channels, 1, 1]."""
    return np.asarray(picture[:, :1, :1] * 0)


def roi_align(call: Call, x: Array, regions: Array, batch: Array) -> Array:
    """RoiAlign of every opset: [regions, channels, rows, columns]."""
    kind = np.float64 if call.kinds[1] == np.float64 else np.float32
    half = call.version >= 16 and call.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    bins = call.get("output_height", 1), call.get("output_width", 1)
    scale, shift = kind(call.single("spatial_scale", 1.0)), kind(0.5 if half else 0)
    pool = _largest if call.get("mode", "avg") == "max" else _mean
    found = np.zeros((len(regions), x.shape[1], *bins), x.dtype)
    with np.errstate(all="ignore"):
        for r, region in enumerate(np.asarray(regions).astype(kind)):
            begin, end = (region[at : at + 2][::-1] * scale - shift for at in (0, 2))
            extent = end - begin if half else np.maximum(end - begin, kind(1))
            ratio = call.get("sampling_ratio", 0)
            down, across = (Axis.of(begin[a], extent[a], bins[a], ratio, x.shape[2 + a]) for a in (0, 1))
            if down.count and across.count:
                found[r] = pool(x[batch[r]], down, across)
    return found


TABLE: dict[str, Operator] = {"RoiAlign": roi_align}
