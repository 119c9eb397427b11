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

from tvm import relax

from tvmopt.lowering.common import constant, flat, static_shape
from tvmopt.lowering.loops import load, store, vector
from tvmopt.lowering.overlap import vector_for
from tvmopt.schedules._operators.take import RUNS, runs_of
from tvmopt.schedules.cpu._permuted import PARTS, WRITTEN, begins_of, permuted, starts_of
from tvmopt.schedules.cpu.rows.norm import row_kernel
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.targets import Machine

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
    width, rows = shape[-1], prod(shape[:-1])
    if known.size < SHORTEST or width < 2 or known.min() < 0 or known.max() >= width or len(runs_of(known)) <= RUNS:
        return None
    wide, narrow = (vector_for(n, machine.lanes()) for n in (width, known.size))
    starts = starts_of(known.size, narrow)
    picks = [known[start : start + narrow] for start in starts]
    begins = [begins_of(columns, width, wide) for columns in picks]
    if len(starts) > WRITTEN or max(map(len, begins)) > PARTS:
        return None

    def program(row: Row, buffers: list[Any], at: tuple[Any, ...]) -> None:
        source, to = buffers
        for start, columns, parts in zip(starts, picks, begins, strict=True):
            value = permuted(lambda begin: load(source, *at, vector(begin, wide)), parts, wide, columns)
            row.statements.append(store(to, value, *at, vector(start, narrow)))

    result = (rows, known.size)
    func = row_kernel([(rows, width)], result, (rows,), width, wide, program, "take", (dtype, dtype))
    y = relax.call_tir(bb.add_func(func, "take"), [flat(bb, x, (rows, width))], relax.TensorType(list(result), dtype))
    return flat(bb, bb.emit(y), (*shape[:-1], known.size))


LOWERS = {"relax.take": take}
