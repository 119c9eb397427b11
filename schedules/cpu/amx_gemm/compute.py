"""Matrix products of bfloat16 for AMX tiles, as TE.

    gemm[m, p, j] = sum_{t, i} dot2(pair(X[m, s(t) + 2i], X[m, s(t) + 2i + 1]), Wp[p, t, i, j])

s(t) is :class:`tvmopt.schedules.cpu._amx.cost.Steps`' start of a step of up to 32 terms. Wp is uint32 pairs, packed at
compile time; X is read as it lies. lower.py writes the instructions, after scheduling.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te

from tvmopt.lowering.common import call_fusable, constant, is_rows_product, nhwc_convolution, static_shape
from tvmopt.lowering.pairs import dot2, pair
from tvmopt.schedules.cpu._amx.cost import Steps, panel_width, pays
from tvmopt.schedules.cpu._amx.panels import pack_steps, start_of, tag
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.matmul` of bfloat16 rows and a constant matrix, where tiles pay."""
    x, w = call.args
    xs, value = static_shape(x), constant(bb, w)
    if value is None or value.ndim < 2 or prod(value.shape[:-2]) != 1 or str(x.ty.dtype) != "bfloat16":
        return None
    if xs is None or value.ndim > len(xs) or str(call.ty.dtype) != "float32":
        return Declined("an open shape, a result of more dimensions than the rows, or one that is not float32")
    return gemm(bb, x, value.reshape(value.shape[-2:]), xs[:-1], machine, "matmul")


def conv1x1(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` of bfloat16 in NHWC/OHWI that is a product of rows and constant weights, where tiles pay."""
    found, x = nhwc_convolution(bb, call), call.args[0]
    if found is None or not is_rows_product(call) or str(x.ty.dtype) != "bfloat16":
        return None
    (xs, ws, value), out = found, str(call.ty.dtype)
    if out != "float32" or str(value.dtype) != "bfloat16":
        return Declined(f"{value.dtype} weights, a {out} result")
    matrix = np.ascontiguousarray(value.reshape(ws[0], ws[3]).T)
    return gemm(bb, x, matrix, xs[:3], machine, "conv1x1")


def gemm(
    bb: relax.BlockBuilder, x: relax.Expr, value: Array, rows: tuple[int, ...], machine: Machine, name: str
) -> relax.Expr | Declined:
    """Rows of `x` [*rows, K] times W[K, N], where `vdpbf16ps` is not as fast."""
    k_len, n_len = value.shape
    if 0 in (*rows, k_len, n_len) or not pays(prod(rows), n_len, k_len, machine):
        return Declined("vdpbf16ps is as fast")
    steps, width = Steps.of(k_len), panel_width(n_len)
    panels = relax.const(pack_steps(value, steps, width), "uint32")

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        t, i = te.reduce_axis((0, steps.count), name="t"), te.reduce_axis((0, steps.pairs), name="i")

        def term(*at: Any) -> Any:
            *row, p, j = at
            first = start_of(t, steps) + 2 * i
            return te.sum(dot2(pair(data(*row, first), data(*row, first + 1)), weight(p, t, i, j)), axis=[t, i])

        acc = te.compute((*rows, -(-n_len // width), width), term, name="amx_gemm", attrs=tag("amx_gemm"))
        return te.compute(
            (*rows, n_len), lambda *at: acc(*at[:-1], at[-1] // width, at[-1] % width), name="unpack",
            attrs=tag("unpack"),
        )  # fmt: skip

    return call_fusable(bb, compute, [x, panels], name)
