"""Columns that are known picked from rows, as by the nearest pixels of a picture: each vector is a permutation.

    for a row, for each vector of the result
      out[r, v] = a permutation of the few vectors of x[r] that hold its columns

TVM's loops read an index for each number and then the number. Runs of neighbours are copied instead (take.py).

floor      4*(inputs + outputs) / bandwidth of the cache they live in
Measured   Zen 5, one core: 96x28x28 by 3 with the rows, 51 us beside other work, 169 by TVM's loops
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, constant, flat, static_shape
from tvmopt.lowering.loops import INDEX, const_index, everything, load, nest, new_buffer, prim_func, seq, store, vector
from tvmopt.lowering.overlap import vector_for
from tvmopt.schedules._operators.take import RUNS, runs_of
from tvmopt.targets import Machine

PARTS = 4
"""Vectors of a row at most that hold the columns of one vector."""
WRITTEN = 64
"""Vectors of a result's row at most: all of them are written out."""
SHORTEST = 4
"""Columns of a result from which there are vectors."""
TYPES = ("float32", "int32", "uint32")


def take(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.take` of constant indices along the last axis of numbers of four bytes."""
    x, indices = call.args
    shape, known, dtype = static_shape(x), constant(bb, indices), str(x.ty.dtype)
    if shape is None or len(shape) < 2 or 0 in shape or known is None or known.ndim != 1 or dtype not in TYPES:
        return None
    if call.attrs.axis is None or int(call.attrs.axis) % len(shape) != len(shape) - 1:
        return None
    width, rows, lanes = shape[-1], prod(shape[:-1]), machine.lanes()
    if known.size < SHORTEST or width < 2 or known.min() < 0 or known.max() >= width or len(runs_of(known)) <= RUNS:
        return None
    plan = _plan(known, width, lanes)
    if len(plan) > WRITTEN or max(len(begins) for _, begins in plan) > PARTS:
        return None
    func = _kernel(known, plan, rows, width, lanes, dtype)
    result = relax.TensorType([rows, known.size], dtype)
    y = bb.emit(relax.call_tir(bb.add_func(func, "take"), [flat(bb, x, (rows, width))], result))
    return flat(bb, y, (*shape[:-1], known.size))


def _plan(indices: np.ndarray, width: int, lanes: int) -> list[tuple[int, list[int]]]:
    """For each vector of the result where it begins, and where the vectors of a row begin that hold its columns.

    >>> _plan(np.arange(8).repeat(2), 8, 8)
    [(0, [0]), (8, [0])]
    """
    wide, narrow = vector_for(width, lanes), vector_for(indices.size, lanes)
    found = []
    for v in range(-(-indices.size // narrow)):
        start = min(v * narrow, indices.size - narrow)
        columns = indices[start : start + narrow]
        low, high = int(columns.min()), int(columns.max())
        count = -(-(high - low + 1) // wide)
        found.append((start, [min(low + part * wide, width - wide) for part in range(count)]))
    return found


def _kernel(
    indices: np.ndarray, plan: list[tuple[int, list[int]]], rows: int, width: int, lanes: int, dtype: str
) -> tirx.PrimFunc:
    """PrimFunc(x [rows, width], y [rows, indices])."""
    wide, narrow = vector_for(width, lanes), vector_for(indices.size, lanes)
    x, y = new_buffer("x", rows, width, dtype=dtype), new_buffer("y", rows, indices.size, dtype=dtype)
    row = tirx.Var("row", INDEX)

    def picked(start: int, begins: list[int]) -> Any:
        enough = max(len(begins), narrow // wide)  # a permutation has no more numbers than what it is of
        parts = [load(x, row, vector((begins * enough)[k], wide)) for k in range(enough)]
        places = []
        for column in indices[start : start + narrow].tolist():
            part = next(k for k, begin in enumerate(begins) if begin <= column < begin + wide)
            places.append(part * wide + column - begins[part])
        return store(y, tirx.Shuffle(parts, places), row, vector(start, narrow))

    body = seq([picked(start, begins) for start, begins in plan])
    block = nest(
        "take", [(row, rows)], ["r"], [_of_row(x, row)], [_of_row(y, row)], body, [], {"tvmopt.kernel": "rows"}
    )
    return prim_func([x, y], block, OUT_ELEMENTWISE_FUSABLE)


def _of_row(buffer: Any, row: Any) -> Any:
    return BufferRegion(buffer, [Range.from_min_extent(row, const_index(1)), everything(buffer).region[1]])
