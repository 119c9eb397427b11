"""Pictures of bytes resampled along one axis in integers, as Pillow does it, as two Relax operators.

    y = tvmopt.resample_rows(x, places, weights)                            x [n, h, w, c] uint8 -> [n, H, w, c]
    y = tvmopt.resample_columns(x, places, weights, rows, channels)         x [n, h, w, c] uint8 -> [n, R, W, C]

    rows:      y[n, i, j, d] = byte(sum_k weights[i, k] * x[n, places[i, k], j, d])
    columns:   y[n, i, j, d] = byte(sum_k weights[j, k] * x[n, rows[i], places[j, k], channels[d]])
    byte(s)    clip((s + 2^21) >> 22, 0, 255)

    places     int64 [H, k] or [W, k]: places[i, k] = places[i, 0] + k, all of them inside of x
    weights    int32, of the same shape, with 22 fractional bits
    rows       int64 [R], one behind the other: which rows of x the next pass reads
    channels   int64 [C]: the order of the colours, or the one grey for each of them

As operators they reach the family that multiplies by such bands; where no family takes a call, they are plain loops.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvmopt.operators.register import legalize_by, register

ROWS, COLUMNS = "tvmopt.resample_rows", "tvmopt.resample_columns"
BITS = 22
"""Fractional bits of a weight: 8 bits of a pixel and a sign and a bit of room besides make 32."""
HALF = 1 << (BITS - 1)
LARGEST = (1 << 31) // 255 - HALF // 255 - 1
"""The sum of the magnitudes of a pixel's weights is at most this, so that no sum leaves int32."""
Array = np.ndarray[Any, Any]


def resample_rows(x: Any, places: Any, weights: Any) -> Any:
    """The call."""
    _register()
    return relax.Call(tvm.ir.Op.get(ROWS), [x, places, weights])


def resample_columns(x: Any, places: Any, weights: Any, rows: Any, channels: Any) -> Any:
    """The call."""
    _register()
    return relax.Call(tvm.ir.Op.get(COLUMNS), [x, places, weights, rows, channels])


def problem(places: Array, weights: Array, size: int) -> str:
    """Why an axis of `size` pixels cannot be resampled by these numbers; empty if it can."""
    if places.ndim != 2 or places.shape != weights.shape or 0 in places.shape:
        return f"places of shape {list(places.shape)} and weights of shape {list(weights.shape)}"
    if (places != places[:, :1] + np.arange(places.shape[1])).any():
        return "places that do not follow each other"
    if places.min() < 0 or places.max() >= size:
        return f"places outside of {size} pixels"
    if np.abs(weights.astype(np.int64)).sum(1).max() > LARGEST:
        return f"weights whose sum is larger than {LARGEST}"
    return ""


def run_of(values: Array, size: int) -> bool:
    """Whether indices are one behind the other, inside of `size`."""
    first = int(values[0]) if values.ndim == 1 and len(values) else -1
    return first >= 0 and first + len(values) <= size and bool((values == first + np.arange(len(values))).all())


def _rows_type(call: Any, _bb: Any) -> Any:
    n, _, w, c = call.args[0].ty.shape
    return relax.TensorType([n, call.args[1].ty.shape[0], w, c], "uint8")


def _columns_type(call: Any, _bb: Any) -> Any:
    x, places, _, rows, channels = (a.ty.shape for a in call.args)
    return relax.TensorType([x[0], rows[0], places[0], channels[0]], "uint8")


def byte(total: Any) -> Any:
    """What a sum becomes."""
    shifted = tirx.shift_right(total + tirx.const(HALF, "int32"), tirx.const(BITS, "int32"))
    return tirx.max(tirx.min(shifted, tirx.const(255, "int32")), tirx.const(0, "int32")).astype("uint8")


def _row_loops(bb: relax.BlockBuilder, call: Any) -> Any:
    def compute(x: te.Tensor, places: te.Tensor, weights: te.Tensor) -> te.Tensor:
        n, _, w, c = x.shape
        k = te.reduce_axis((0, places.shape[1]), "k")
        sums = te.compute(
            (n, places.shape[0], w, c),
            lambda b, i, j, d: te.sum(x(b, places(i, k), j, d).astype("int32") * weights(i, k), k),
            name="sums",
        )
        return te.compute(sums.shape, lambda *at: byte(sums(*at)), name="bytes")

    return bb.call_te(compute, *call.args, primfunc_name_hint="resample_rows")


def _column_loops(bb: relax.BlockBuilder, call: Any) -> Any:
    def compute(x: te.Tensor, places: te.Tensor, weights: te.Tensor, rows: te.Tensor, channels: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, places.shape[1]), "k")
        sums = te.compute(
            (x.shape[0], rows.shape[0], places.shape[0], channels.shape[0]),
            lambda b, i, j, d: te.sum(x(b, rows(i), places(j, k), channels(d)).astype("int32") * weights(j, k), k),
            name="sums",
        )
        return te.compute(sums.shape, lambda *at: byte(sums(*at)), name="bytes")

    return bb.call_te(compute, *call.args, primfunc_name_hint="resample_columns")


@lru_cache(maxsize=1)
def _register() -> None:
    register(ROWS, _rows_type, __name__)
    register(COLUMNS, _columns_type, __name__)
    legalize_by(ROWS, _row_loops)
    legalize_by(COLUMNS, _column_loops)
