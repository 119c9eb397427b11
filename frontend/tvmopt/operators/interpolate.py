"""Planes resized by weighted sums of a few rows and of a few columns, as one Relax operator.

    y = tvmopt.interpolate(x, rows, down, columns, across)              x [n, c, h, w] -> y [n, c, H, W]

    y[n, c, i, j] = sum over k of down[i, k] * sum over l of across[j, l] * x[n, c, rows[i, k], columns[j, l]]

    rows, columns      int64 [H, k] and [W, l]: places inside of x
    down, across       their weights, of the type of x

Every separable interpolation between places that are known is this: linear, cubic, smoothed by the scale, of a region.
As an operator it reaches the family that resizes planes; where no family takes a call, it is two sums of plain loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.interpolate"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Taps:
    """What each element along an axis reads: `places` and `weights`, [elements, taps]."""

    places: Array
    weights: Array

    @property
    def count(self) -> int:
        """Elements that one reads."""
        return int(self.places.shape[1])


def interpolate(x: Any, rows: Taps, columns: Taps) -> Any:
    """The call."""
    _register()
    dtype = str(x.ty.dtype)
    tables = [
        relax.const(value, kind)
        for taps in (rows, columns)
        for value, kind in ((taps.places.astype(np.int64), "int64"), (taps.weights.astype(dtype), dtype))
    ]
    return relax.Call(tvm.ir.Op.get(OP), [x, *tables])


def weighted_sum(data: Any, places: Any, weights: Any, axis: int) -> Any:
    """Along one axis the sum of the elements at `places` [elements, taps], times `weights`, in TE."""
    shape = [places.shape[0] if i == axis else size for i, size in enumerate(data.shape)]

    def one(*i: Any) -> Any:
        place, total = list(i), None
        for t in range(int(places.shape[1])):
            place[axis] = places(i[axis], t)
            term = data(*place) * weights(i[axis], t)
            total = term if total is None else total + term
        return total

    return te.compute(shape, one, name="resize")


def _type(call: Any, _bb: Any) -> Any:
    x, rows, _, columns, _ = (arg.ty for arg in call.args)
    return relax.TensorType([*list(x.shape)[:2], rows.shape[0], columns.shape[0]], x.dtype)


def _loops(bb: relax.BlockBuilder, call: Any) -> Any:
    x, rows, down, columns, across = call.args
    x = bb.emit(bb.call_te(weighted_sum, x, rows, down, 2, primfunc_name_hint="resize_rows"))
    return bb.call_te(weighted_sum, x, columns, across, 3, primfunc_name_hint="resize_columns")


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
    legalize_by(OP, _loops)
