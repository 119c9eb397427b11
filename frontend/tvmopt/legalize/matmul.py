"""Matrix products as TE, weights packed in panels at compile time - for the GEMM family.

The product of rows X[..., K] and a constant W[K, N] is computed in panels::

    gemm[..., p, j] = sum_k X[..., k] * Wp[p, k, j]          Wp[p, k, j] = W[k, p*nr + j], zero beyond N
    out[..., n]     = gemm[..., n // nr, n % nr]

`nr` is the width of the register tile (:func:`tvmopt.scheduling.tile.choose_tile`): the inner loop then reads Wp
forwards, one cache line after the other. The second block is the epilogue's entry: bias, activation and residual
are fused into it by TVM's FuseOps.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.legalize.common import call_fusable, constant, static_shape
from tvmopt.scheduling.tile import choose_tile, common_vector
from tvmopt.targets import Machine


def pack_panels(weight: np.ndarray, nr: int) -> np.ndarray:
    """Pack W[..., K, N] into panels [..., ceil(N/nr), K, nr], zeros beyond N.

    >>> pack_panels(np.arange(6.0).reshape(2, 3), 2)[1]
    array([[2., 0.],
           [5., 0.]])
    """
    *lead, k, n = weight.shape
    panels = -(-n // nr)
    padded = np.zeros((*lead, k, panels * nr), weight.dtype)
    padded[..., :n] = weight
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*lead, k, panels, nr), -2, -3))


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.matmul`: rows times a constant matrix as packed GEMM; two activations as batched GEMM."""
    x, w = call.args
    xs, ws = static_shape(x), static_shape(w)
    if xs is None or ws is None:
        return None
    if (
        str(x.ty.dtype) != "float32"
        or str(w.ty.dtype) != "float32"
        or len(xs) < 1
        or len(ws) < 2
        or 0 in xs + ws
    ):
        return None
    value = constant(bb, w)
    if value is not None and prod(ws[:-2]) == 1:
        return _packed(bb, x, value.reshape(ws[-2:]), xs, len(ws), machine)
    if len(xs) >= 2:
        return _batched(bb, x, w, xs, ws, machine)
    return None


def _packed(
    bb: relax.BlockBuilder, x: relax.Expr, value: np.ndarray, xs: tuple[int, ...], wdim: int, machine: Machine
) -> relax.Expr | None:
    rows, (k_len, n_len) = xs[:-1], value.shape
    if not rows or wdim > len(
        xs
    ):  # a vector, or a result with more dimensions than x: rare, TVM's own form does
        return None
    nr = choose_tile(prod(rows), n_len, machine).nr
    panels = relax.const(pack_panels(value, nr), "float32")

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return gemm_te(data, weight, rows, k_len, n_len, nr)

    return call_fusable(bb, compute, [x, panels], "matmul")


def gemm_te(
    data: te.Tensor, weight: te.Tensor, rows: tuple[int, ...], k_len: int, n_len: int, nr: int
) -> te.Tensor:
    """The two blocks of the module's docstring; `data` is [*rows, K], `weight` [P, K, nr]; result [*rows, N]."""
    k = te.reduce_axis((0, k_len), name="k")
    acc = te.compute(
        (*rows, -(-n_len // nr), nr),
        lambda *i: te.sum(data(*i[:-2], k) * weight[i[-2], k, i[-1]], axis=[k]),
        name="gemm",
        attrs={"tvmopt.kernel": "gemm"},
    )
    return te.compute(
        (*rows, n_len),
        lambda *i: acc(*i[:-1], i[-1] // nr, i[-1] % nr),
        name="unpack",
        attrs={"tvmopt.kernel": "unpack"},
    )


def _batched(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: relax.Expr,
    xs: tuple[int, ...],
    ws: tuple[int, ...],
    machine: Machine,
) -> relax.Expr:
    """C[*batch, m, n] of two activations. Where N is no multiple of half a vector, B is packed at run time into
    panels padded with zeros (a block of its own, computed per task): vectors then never straddle a row."""
    batch = tuple(np.broadcast_shapes(xs[:-2], ws[:-2]))
    m_len, k_len, n_len = xs[-2], xs[-1], ws[-1]
    lanes = machine.lanes()
    nr = 2 * lanes if n_len > lanes and 2 * common_vector(n_len, lanes) < lanes else 0

    def pick(index: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
        tail = index[len(index) - (len(shape) - 2) :] if len(shape) > 2 else ()
        return [0 if d == 1 else i for i, d in zip(tail, shape[:-2], strict=True)]

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, k_len), name="k")
        tag = {"name": "batch_gemm", "attrs": {"tvmopt.kernel": "batch_gemm"}}
        if not nr:
            acc = te.compute(
                (*batch, m_len, n_len),
                lambda *i: te.sum(a(*pick(i[:-2], xs), i[-2], k) * b(*pick(i[:-2], ws), k, i[-1]), axis=[k]),
                **tag,
            )
            return te.compute(acc.shape, lambda *i: acc(*i), name="unpack", attrs={"tvmopt.kernel": "unpack"})
        packed = te.compute(
            (*batch, -(-n_len // nr), k_len, nr),
            lambda *i: te.if_then_else(
                i[-3] * nr + i[-1] < n_len,
                b(*pick(i[:-3], ws), i[-2], i[-3] * nr + i[-1]),
                tirx.const(0.0, "float32"),
            ),
            name="pack",
            attrs={"tvmopt.kernel": "pack"},
        )
        acc = te.compute(
            (*batch, m_len, -(-n_len // nr), nr),
            lambda *i: te.sum(a(*pick(i[:-3], xs), i[-3], k) * packed(*i[:-3], i[-2], k, i[-1]), axis=[k]),
            **tag,
        )
        return te.compute(
            (*batch, m_len, n_len),
            lambda *i: acc(*i[:-1], i[-1] // nr, i[-1] % nr),
            name="unpack",
            attrs={"tvmopt.kernel": "unpack"},
        )

    return call_fusable(bb, compute, [x, w], "batch_matmul")


LEGALIZERS = {"relax.matmul": matmul}
