"""Matrix products of two activations as TE, B packed at run time where its rows do not fill vectors."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import batch_index, call_fusable, constant, static_shape
from tvmopt.lowering.pairs import bits, is_bf16, pair
from tvmopt.schedules.cpu._panels import product, unfit
from tvmopt.scheduling.cost_model import common_vector
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.matmul` of two activations, or of a batch of constant matrices, float32 or bfloat16, summed in float32."""
    x, w = call.args
    xs, ws, value = static_shape(x), static_shape(w), constant(bb, w)
    if value is not None and prod(value.shape[:-2]) == 1:
        return None
    if (reason := unfit(call)) is not None:
        return Declined(reason)
    if xs is None or ws is None or min(len(xs), len(ws)) < 2:
        return Declined("a vector")
    return _batched(bb, x, w, xs, ws, machine)


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
