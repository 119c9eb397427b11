"""Matrix products as TE for tensor cores - for the CUDA gemm and gemv families.

    gemm[..., m, n] = sum_k float(X[..., m, k]) * float(W[n, k])      constant weights: [N, K]
    gemm[b, m, n]   = sum_k float(A[b, m, k]) * float(B[b, k, n])     two activations, as they lie
    out[..., m, n]  = cast(gemm[..., m, n])                           the epilogue's entry

Where M*N is too small for all SMs, K is cut in parts (:func:`tvmopt.scheduling.cuda_tile.plan`): the product
is then a batch of partial sums in fp32, and a second kernel adds them, with the epilogue.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import (
    batch_index,
    call_fusable,
    constant,
    is_rows_product,
    nhwc_convolution,
    operand_types,
    static_shape,
)
from tvmopt.schedules.cuda._product import FLOATS, ROWS_BY_CONSTANT, add_parts, notes, product_type, unpack, wide
from tvmopt.scheduling.cuda_tile import plan, split_length
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.matmul` of one of FLOATS: rows times a constant matrix, or two activations."""
    x, w = call.args
    xs, ws = static_shape(x), static_shape(w)
    dtype, out = str(x.ty.dtype), str(call.ty.dtype)
    if xs is None or ws is None or len(xs) < 2 or len(ws) < 2 or 0 in xs + ws:
        return Declined("a vector, or an open or empty shape")
    if dtype != str(w.ty.dtype) or dtype not in FLOATS or out not in FLOATS:
        return Declined(operand_types(call))
    value = constant(bb, w)
    if value is not None and prod(ws[:-2]) == 1 and len(ws) <= len(xs):
        return rows_times_constant(bb, x, value.reshape(ws[-2:]).T, xs[:-1], out, machine)
    return _batched(bb, x, w, xs, ws, out, machine)


def conv1x1(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` in NHWC/OHWI that is a product of rows and constant weights."""
    found, x, out = nhwc_convolution(bb, call), call.args[0], str(call.ty.dtype)
    if found is None or not is_rows_product(call):
        return None
    xs, ws, value = found
    if str(x.ty.dtype) not in FLOATS or str(x.ty.dtype) != str(call.args[1].ty.dtype) or out not in FLOATS:
        return Declined(operand_types(call))
    return rows_times_constant(bb, x, value.reshape(ws[0], ws[3]), xs[:3], out, machine)


def rows_times_constant(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weight: np.ndarray,
    rows: tuple[int, ...],
    out: str,
    machine: Machine,
) -> relax.Expr:
    """X[*rows, K] (of any shape with those elements in that order) times weight[N, K], as [*rows, N]."""
    n, k = weight.shape
    dtype = str(x.ty.dtype)
    pitch = -(-k // 8) * 8
    packed = np.zeros((n, pitch), weight.dtype)
    packed[:, :k] = weight
    w = relax.const(packed, dtype)
    m = prod(rows)
    kind = product_type(dtype, machine)
    _, parts = plan(m, n, k, 1, kind, machine)
    if parts > 1 and m > 8:
        return _split(bb, x, w, rows, (m, n, k, pitch), parts, out, kind)

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        kk = te.reduce_axis((0, k), name="k")
        acc = te.compute(
            (*rows, n),
            lambda *i: te.sum(wide(a(*i[:-1], kk)) * wide(b(i[-1], kk)), axis=[kk]),
            name=ROWS_BY_CONSTANT,
            attrs=notes(ROWS_BY_CONSTANT, k, kind, pitch=pitch),
        )
        return unpack(acc, out)

    return call_fusable(bb, compute, [x, w], "matmul")


def _split(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: relax.Expr,
    rows: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    parts: int,
    out: str,
    kind: str,
) -> relax.Expr:
    m, n, k, pitch = sizes
    part = split_length(k, parts)
    parts = -(-k // part)
    flat = x if len(rows) == 1 else bb.emit(relax.op.reshape(x, (m, k)))

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        kk = te.reduce_axis((0, part), name="k")
        acc = te.compute(
            (parts, m, n),
            lambda p, i, j: te.sum(
                te.if_then_else(
                    p * part + kk < k,
                    wide(a(i, p * part + kk)) * wide(b(j, p * part + kk)),
                    tirx.const(0.0, "float32"),
                ),
                axis=[kk],
            ),
            name="batch_gemm",
            attrs=notes("batch_gemm", k, kind, pitch=pitch, parts=parts),
        )
        return unpack(acc, "float32")

    return add_parts(bb, bb.emit(call_fusable(bb, compute, [flat, w], "matmul_parts")), (*rows, n), out)


def _batched(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: relax.Expr,
    xs: tuple[int, ...],
    ws: tuple[int, ...],
    out: str,
    machine: Machine,
) -> relax.Expr | Declined:
    """C[*batch, m, n] of two activations; a batch that only one of them has is shared by the other."""
    batch = tuple(np.broadcast_shapes(xs[:-2], ws[:-2]))
    for side in (xs[:-2], ws[:-2]):
        if prod(side) not in (1, prod(batch)):
            return Declined("a batch that is broadcast in part")
    (m, k), n = xs[-2:], ws[-1]
    across = str(x.ty.dtype) != "float32"
    if not across:  # ldmatrix transposes 16-bit elements only
        order = [*range(len(ws) - 2), len(ws) - 1, len(ws) - 2]
        w = bb.emit(relax.op.permute_dims(w, order))
    count = prod(batch)
    shared = (int(prod(xs[:-2]) == 1 and count > 1), int(prod(ws[:-2]) == 1))

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        kk = te.reduce_axis((0, k), name="k")

        def right(i: tuple[Any, ...]) -> Any:
            return b(*batch_index(i[:-2], ws), kk, i[-1]) if across else b(*batch_index(i[:-2], ws), i[-1], kk)

        acc = te.compute(
            (*batch, m, n),
            lambda *i: te.sum(wide(a(*batch_index(i[:-2], xs), i[-2], kk)) * wide(right(i)), axis=[kk]),
            name="batch_gemm",
            attrs=notes(
                "batch_gemm",
                k,
                product_type(str(x.ty.dtype), machine),
                pitch=n if across else k,
                across=int(across),
                shared_a=shared[0],
                shared_b=shared[1],
            ),
        )
        return unpack(acc, out)

    return call_fusable(bb, compute, [x, w], "batch_matmul")
