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

from tvmopt.legalize.common import batch_index, call_fusable, constant, static_shape
from tvmopt.scheduling.cuda_tile import PLAIN, TF32, plan, split_length
from tvmopt.targets import Machine

FLOATS = ("float16", "bfloat16", "float32")


def product_type(dtype: str, machine: Machine) -> str:
    """What tensor cores multiply: the operands' type, or "tf32" for fp32 where the precision allows it."""
    return "tf32" if dtype == "float32" and machine.has("tf32") else dtype


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.matmul` of one of FLOATS: rows times a constant matrix, or two activations."""
    x, w = call.args
    xs, ws = static_shape(x), static_shape(w)
    dtype, out = str(x.ty.dtype), str(call.ty.dtype)
    if xs is None or ws is None or len(xs) < 2 or len(ws) < 2 or 0 in xs + ws:
        return None
    if dtype != str(w.ty.dtype) or dtype not in FLOATS or out not in FLOATS:
        return None
    value = constant(bb, w)
    if value is not None and prod(ws[:-2]) == 1 and len(ws) <= len(xs):
        return rows_times_constant(bb, x, value.reshape(ws[-2:]).T, xs[:-1], out, machine)
    return _batched(bb, x, w, xs, ws, out, machine)


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
            lambda *i: te.sum(_f32(a(*i[:-1], kk)) * _f32(b(i[-1], kk)), axis=[kk]),
            name="gemm",
            attrs=notes("gemm", k, kind, pitch=pitch),
        )
        return unpack(acc, out)

    return call_fusable(bb, compute, [x, w], "matmul")


def notes(
    kernel: str, k: int, kind: str, *, pitch: int, parts: int = 1, across: int = 0, shared_a: int = 0, shared_b: int = 1
) -> dict[str, Any]:
    """The annotations that the family reads. `kind`: see `product_type`."""
    return {
        "tvmopt.kernel": kernel, "tvmopt.mma": TF32 if kind == "tf32" else PLAIN,
        "tvmopt.k": k, "tvmopt.pitch": pitch, "tvmopt.parts": parts,
        "tvmopt.across": across, "tvmopt.shared_a": shared_a, "tvmopt.shared_b": shared_b,
    }  # fmt: skip


def unpack(acc: te.Tensor, out: str) -> te.Tensor:
    """The block behind a product: its result in the output's type."""
    return te.compute(
        acc.shape,
        lambda *i: acc(*i) if out == "float32" else acc(*i).astype(out),
        name="unpack",
        attrs={"tvmopt.kernel": "unpack"},
    )


def add_parts(bb: relax.BlockBuilder, parts: relax.Expr, shape: tuple[int, ...], out: str) -> relax.Expr:
    """Sum of partial sums [parts, m, n] as [*shape], the entry of the epilogue."""
    count, *_ = (int(d) for d in parts.ty.shape.values)

    def compute(data: te.Tensor) -> te.Tensor:
        p = te.reduce_axis((0, count), name="p")

        def row(index: tuple[Any, ...]) -> Any:
            flat: Any = 0
            for position, extent in zip(index, shape[:-1], strict=True):
                flat = flat * extent + position
            return flat

        acc = te.compute(
            shape,
            lambda *i: te.sum(data(p, row(i[:-1]), i[-1]), axis=[p]),
            name="split_sum",
            attrs={"tvmopt.kernel": "split_sum"},
        )
        return unpack(acc, out)

    return call_fusable(bb, compute, [parts], "split_sum")


def _f32(value: Any) -> Any:
    return value.astype("float32") if str(value.ty.dtype) != "float32" else value


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
                    _f32(a(i, p * part + kk)) * _f32(b(j, p * part + kk)),
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
) -> relax.Expr | None:
    """C[*batch, m, n] of two activations; a batch that only one of them has is shared by the other."""
    batch = tuple(np.broadcast_shapes(xs[:-2], ws[:-2]))
    for side in (xs[:-2], ws[:-2]):
        if prod(side) not in (1, prod(batch)):
            return None  # a batch broadcast in part
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
            lambda *i: te.sum(_f32(a(*batch_index(i[:-2], xs), i[-2], kk)) * _f32(right(i)), axis=[kk]),
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


LEGALIZERS = {"relax.matmul": matmul}
