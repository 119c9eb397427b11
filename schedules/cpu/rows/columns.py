"""Products with few columns, as sums of rows: C[..., m, n] = sum_k A[..., m, k] * B[..., k, n] with N of 1 to 4.

A register tile of so few columns is one vector of which most lanes are zeros. Here a row of A is read once, in vectors
along k, and multiplied with each column of B, which lies along k too: a vector as it is, a constant turned when it is
compiled. A column costs a row K / lanes multiplications and one sum across lanes.

Measured   Zen 5, one core, us, in brackets the better of onnxruntime and OpenVINO: 577x900 by 900x1 25 (27), eight of
           5000x32 by 32x1 56 (60), 384x768 by a constant 768x2 14 (49), 5000x128 by 128x3 30 (91); tiles took 76, 183,
           45 and 88
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.lowering.common import batch_index, constant, flat, is_rows_product, static_shape
from tvmopt.lowering.loops import load, store
from tvmopt.lowering.repeats import packed_once
from tvmopt.schedules.cpu.rows.norm import row_kernel
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.targets import Machine

MOST = 4
"""Columns of a constant matrix."""
ACROSS = 12
"""Cycles of a sum across the lanes of a vector, roughly."""


def product(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.matmul` of float32 with one column, or with a constant matrix of few columns."""
    x, w = call.args
    xs, ws, value = static_shape(x), static_shape(w), constant(bb, w)
    if xs is None or ws is None or min(len(xs), len(ws)) < 2 or 0 in xs + ws or not _fits(call):
        return None
    k, n = ws[-2:]
    if value is None:
        fits = n == 1 and k >= machine.lanes()
        return _columns(bb, x, flat(bb, w, (*ws[:-2], 1, 1, k)), machine) if fits else None
    return _columns(bb, x, _constant(np.swapaxes(value, -1, -2)), machine) if pays(k, n, machine) else None


def conv1x1(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.nn.conv2d` in NHWC/OHWI of float32 that is a product of rows and a constant matrix of few columns."""
    x, w = call.args
    xs, value = static_shape(x), constant(bb, w)
    if xs is None or value is None or 0 in xs or not is_rows_product(call) or not _fits(call):
        return None
    n, *_, k = value.shape
    return _columns(bb, x, _constant(value.reshape(n, k)), machine) if pays(k, n, machine) else None


def _fits(call: relax.Call) -> bool:
    return {str(e.ty.dtype) for e in (*call.args, call)} == {"float32"}


def _constant(value: np.ndarray) -> relax.Expr:
    """Columns [..., n, k] as [..., 1, n, k]."""
    return packed_once(value, "columns", lambda: relax.const(np.expand_dims(value, -3).copy(), "float32"))


def _columns(bb: relax.BlockBuilder, x: relax.Expr, columns: relax.Expr, machine: Machine) -> relax.Expr:
    """The product of x [..., m, k] and the columns [..., 1, n, k]. Both have an axis for each loop over rows: another
    one would be taken for it where it is as long."""
    xs, ws = static_shape(x) or (), static_shape(columns) or ()
    n, k = ws[-2:]
    rows = (*np.broadcast_shapes(xs[:-2], ws[:-3]), xs[-2])
    xs = (*[1] * (len(rows) + 1 - len(xs)), *xs)

    def program(row: Row, buffers: list[Any], at: tuple[Any, ...]) -> None:
        a, b, c = buffers
        mine, theirs = (*batch_index(at[:-1], xs), at[-1]), (*batch_index(at[:-1], ws[:-1]), 0)
        terms = [lambda i, j=j: load(a, *mine, i) * load(b, *theirs, j, i) for j in range(n)]
        for j, total in enumerate(row.sums(*terms)):
            row.statements.append(store(c, total, *at, j))

    func = row_kernel([xs, ws], (*rows, n), rows, k, machine.lanes(), program, "columns")
    return relax.call_tir(
        bb.add_func(func, "columns"), [flat(bb, x, xs), columns], relax.TensorType([*rows, n], "float32")
    )


def pays(k: int, n: int, machine: Machine) -> bool:
    """Whether sums of rows of `k` are faster than a tile of one vector, which takes K / 2 cycles a row.

    One column and vectors of 16: from 26 numbers on; four columns: from 128 on.
    """
    return n <= MOST and k >= machine.lanes() and n * (k / (2 * machine.lanes()) + ACROSS) < k / 2


LOWERS = {"relax.matmul": product, "relax.nn.conv2d": conv1x1}
