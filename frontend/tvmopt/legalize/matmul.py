"""Matrix products as TE, weights packed in panels at compile time - for the GEMM family.

The product of rows X[..., K] and a constant W[K, N] is computed in panels::

    gemm[..., p, j] = sum_k X[..., k] * Wp[p, k, j]          Wp[p, k, j] = W[k, p*nr + j], zero beyond N
    out[..., n]     = gemm[..., n // nr, n % nr]

`nr` is the width of the register tile (:func:`tvmopt.scheduling.tile.choose_tile`): the inner loop then reads Wp
forwards, one cache line after the other. The second block is the epilogue's entry: bias, activation and residual
are fused into it by TVM's FuseOps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.legalize.common import batch_index, call_fusable, constant, static_shape
from tvmopt.legalize.pairs import bits, dot2, is_bf16, pack_pairs, pair
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
        (str(x.ty.dtype), str(w.ty.dtype)) not in (("float32", "float32"), ("bfloat16", "bfloat16"))
        or str(call.ty.dtype) != "float32"
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
    if not rows or wdim > len(xs):  # a vector, or a result with more dimensions than x: rare, TVM's own form does
        return None
    nr = choose_tile(prod(rows), n_len, machine).nr
    panels = weight_panels(value, nr)

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return gemm_te(data, weight, rows, k_len, n_len, nr)

    return call_fusable(bb, compute, [x, panels], "matmul")


def weight_panels(value: np.ndarray, nr: int) -> relax.Expr:
    """W[..., K, N] as packed panels: float32, or uint32 pairs of bfloat16."""
    if value.dtype == np.float32:
        return relax.const(pack_panels(value, nr), "float32")
    return relax.const(pack_panels(pack_pairs(value), nr), "uint32")


def product(data: Callable[..., Any], index: tuple[Any, ...], weight: Any, length: int) -> Any:
    """One term of the sum over k = index[-1]: data * weight, or two terms where the weight is a pair of bfloat16.

    Args:
        index: the place in `data`; its last element counts numbers, or pairs of them.
        length: numbers along the last axis; behind an odd one stands a zero.
    """
    if str(weight.ty.dtype) == "float32":
        return data(*index) * weight
    *rows, k = index
    low, high = bits(data(*rows, 2 * k)), bits(data(*rows, 2 * k + 1))
    if length % 2:
        high = te.if_then_else(2 * k + 1 < length, high, tirx.const(0, "uint16"))
    return dot2(pair(low, high), weight)


def gemm_te(data: te.Tensor, weight: te.Tensor, rows: tuple[int, ...], k_len: int, n_len: int, nr: int) -> te.Tensor:
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
    half = is_bf16(x)
    nr = 2 * lanes if half or (n_len > lanes and 2 * common_vector(n_len, lanes) < lanes) else 0
    steps = -(-k_len // 2) if half else k_len

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, steps), name="k")
        tag = {"name": "batch_gemm", "attrs": {"tvmopt.kernel": "batch_gemm"}}
        if not nr:
            acc = te.compute(
                (*batch, m_len, n_len),
                lambda *i: te.sum(
                    a(*batch_index(i[:-2], xs), i[-2], k) * b(*batch_index(i[:-2], ws), k, i[-1]), axis=[k]
                ),
                **tag,
            )
            return te.compute(acc.shape, lambda *i: acc(*i), name="unpack", attrs={"tvmopt.kernel": "unpack"})

        def entry(*i: Any) -> Any:
            lead, column = batch_index(i[:-3], ws), i[-3] * nr + i[-1]
            if not half:
                return te.if_then_else(column < n_len, b(*lead, i[-2], column), tirx.const(0.0, "float32"))
            low, high = bits(b(*lead, 2 * i[-2], column)), bits(b(*lead, 2 * i[-2] + 1, column))
            if k_len % 2:
                high = te.if_then_else(2 * i[-2] + 1 < k_len, high, tirx.const(0, "uint16"))
            return te.if_then_else(column < n_len, pair(low, high), tirx.const(0, "uint32"))

        packed = te.compute(
            (*batch, -(-n_len // nr), steps, nr),
            entry,
            name="pack",
            attrs={"tvmopt.kernel": "pack"},
        )
        acc = te.compute(
            (*batch, m_len, -(-n_len // nr), nr),
            lambda *i: te.sum(
                product(a, (*batch_index(i[:-3], xs), i[-3], k), packed(*i[:-3], i[-2], k, i[-1]), k_len), axis=[k]
            ),
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
