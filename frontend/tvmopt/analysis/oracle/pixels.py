"""ResampleRows, ResampleColumns and ScalePicture: weighted sums of bytes, exact in 64-bit integers."""

from __future__ import annotations

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result
from tvmopt.importer.pictures import FILTER_OF
from tvmopt.importer.pixels import BITS, COLUMNS, ROWS
from tvmopt.importer.resampling import taps


def summed(x: Array, places: Array, weights: Array, axis: int) -> Array:
    """One tap after the other: all of them at once would be many copies of a picture."""
    total = np.zeros((*x.shape[:axis], len(places), *x.shape[axis + 1 :]), np.int64)
    for k in range(places.shape[1]):
        factor = weights[:, k].astype(np.int64).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        total += np.take(x, places[:, k], axis).astype(np.int64) * factor
    found: Array = np.clip((total + (1 << (BITS - 1))) >> BITS, 0, 255).astype(np.uint8)
    return found


def _rows(call: Call, x: Array, places: Array, weights: Array) -> Result:
    return summed(x, places, weights, 1)


def _columns(call: Call, x: Array, places: Array, weights: Array, rows: Array, channels: Array) -> Result:
    return summed(x[:, rows][..., channels], places, weights, 2)


def _scaled(call: Call, x: Array, geometry: Array, size: Array, fill: Array) -> Result:
    """Each axis with its pixels of `fill` written out, of rows and columns in Pillow's order."""
    passes = []
    for axis, (_, padded, resized, begin) in enumerate(geometry.T.tolist(), 1):
        found = taps(FILTER_OF[call.op], padded, resized, begin, int(size[axis - 1]))
        at = begin + np.arange(size[axis - 1])
        passes.append((axis, padded, found, (at < 0) | (at >= resized)))
    less = [padded - resized for _, padded, resized, _ in geometry.T.tolist()]
    rows_first = less[0] > max(0, 2 * less[1]) and FILTER_OF[call.op] != "nearest"
    for axis, padded, found, away in passes if rows_first else passes[::-1]:
        around = [(0, 0)] * 4
        around[axis] = (0, padded - x.shape[axis])
        x = summed(np.pad(x, around, constant_values=fill.item()), found.places, found.weights, axis)
        x[(slice(None),) * axis + (away,)] = fill.item()
    return x


TABLE: dict[str, Operator] = {ROWS: _rows, COLUMNS: _columns, **dict.fromkeys(FILTER_OF, _scaled)}
