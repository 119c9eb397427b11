"""ResampleRows and ResampleColumns of our own domain: weighted sums of bytes, exact in 64-bit integers."""

from __future__ import annotations

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result
from tvmopt.importer.pixels import BITS, COLUMNS, ROWS


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


TABLE: dict[str, Operator] = {ROWS: _rows, COLUMNS: _columns}
