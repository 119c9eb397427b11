"""Matrix products as TE, weights packed in panels at compile time.

The product of rows X[..., K] and a constant W[K, N] is computed in panels::

    gemm[..., p, j] = sum_k X[..., k] * Wp[p, k, j]          Wp[p, k, j] = W[k, p*nr + j], zero beyond N
    out[..., n]     = gemm[..., n // nr, n % nr]

`nr` is the width of the register tile (:func:`tvmopt.scheduling.cost_model.choose_tile`). The second block is the
epilogue's entry: bias, activation and residual are fused into it by TVM's FuseOps. A 1x1 convolution without stride or
padding is the product of rows (n, y, x).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te

from tvmopt.lowering.common import call_fusable, constant, image_sizes, is_rows_product, named_size, sizes
from tvmopt.schedules.cpu._panels import packed_at_run_time, product, unfit, weight_panels, whole_words
from tvmopt.scheduling.cost_model import HIGHEST_OPEN, choose_tile, common_vector
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

WIDEST = 4
"""Vectors of a panel that holds all of few columns, which are no whole vectors: four leave registers for six rows."""


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.matmul` of rows and one constant matrix: float32 or bfloat16, summed in float32, or uint8 by int8 in int32, or
    float64."""
    x, w = call.args
    value = constant(bb, w)
    if value is None or value.ndim < 2 or prod(value.shape[:-2]) != 1:
        return None
    if (reason := unfit(call, of_doubles=True)) is not None:
        return Declined(reason)
    machine = machine.of_doubles if value.dtype == np.float64 else machine
    xs, (k_len, n_len) = sizes(x) or (), value.shape[-2:]
    if len(xs) < 2 or value.ndim > len(xs):
        return Declined("a vector, or a result of more dimensions than the rows")
    nr = _panel_width(bb, xs[:-1], n_len, machine)
    x, panels = whole_words(bb, x), weight_panels(value.reshape(k_len, n_len), nr)
    return call_fusable(bb, lambda a, b: gemm_te(a, b, tuple(a.shape[:-1]), k_len, n_len, nr), [x, panels], "matmul")


def conv1x1(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI that is a product of rows; a weight that is computed at run time is packed by a kernel
    of its own, and is float32."""
    x, w = call.args
    shapes = image_sizes(call)
    if shapes is None or not is_rows_product(call):
        return None
    value, (xs, ws) = constant(bb, w), shapes
    if (reason := unfit(call)) is not None:
        return Declined(reason)
    if value is None and str(w.ty.dtype) != "float32":
        return Declined(f"{w.ty.dtype} weights that are no constants")
    out_c, in_c = ws[0], ws[3]
    nr = _panel_width(bb, xs[:3], out_c, machine)
    if value is None:
        panels = bb.emit(relax.op.squeeze(packed_at_run_time(bb, w, 1, nr), [1, 2]))
    else:
        panels = weight_panels(value.reshape(out_c, in_c).T, nr)
    x = whole_words(bb, x)
    return call_fusable(bb, lambda a, b: gemm_te(a, b, tuple(a.shape[:-1]), in_c, out_c, nr), [x, panels], "conv1x1")


def _panel_width(bb: relax.BlockBuilder, rows: tuple[Any, ...], columns: int, machine: Machine) -> int:
    """The width of the register tile: for the rows of one sample, where the number of samples is open; where that of
    rows is, for a tile as low as theirs."""
    each = prod(r for r in rows if isinstance(r, int))
    lanes = machine.lanes()
    if lanes < columns <= WIDEST * lanes and 2 * common_vector(columns, lanes) < lanes:
        return -(-columns // lanes) * lanes  # of one panel the epilogue is whole vectors
    if each >= HIGHEST_OPEN or all(isinstance(r, int) for r in rows):
        return choose_tile(each, columns, machine).nr
    return choose_tile(named_size(bb, rows), columns, machine, rows=HIGHEST_OPEN).nr


def gemm_te(data: te.Tensor, weight: te.Tensor, rows: tuple[Any, ...], k_len: int, n_len: int, nr: int) -> te.Tensor:
    """The two blocks of the module's docstring; `data` is [*rows, K], `weight` [P, K, nr]; result [*rows, N]."""
    steps = int(weight.shape[1])
    k = te.reduce_axis((0, steps), name="k")
    acc = te.compute(
        (*rows, -(-n_len // nr), nr),
        lambda *i: te.sum(product(data, (*i[:-2], k), weight(i[-2], k, i[-1]), k_len), axis=[k]),
        name="gemm",
        attrs={"tvmopt.kernel": "gemm"},
    )
    return te.compute(
        (*rows, n_len),
        lambda *i: acc(*i[:-1], i[-1] // nr, i[-1] % nr),
        name="unpack",
        attrs={"tvmopt.kernel": "unpack"},
    )
