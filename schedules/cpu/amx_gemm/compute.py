"""Matrix products of bfloat16 or bytes for AMX tiles, as TE.

    gemm[m, p, j] = sum_{t, i} dot2(pair(X[m, s(t) + 2i], X[m, s(t) + 2i + 1]), Wp[p, t, i, j])

s(t) is :class:`tvmopt.schedules.cpu._amx.cost.Steps`' start of a step of up to 32 terms. Wp is uint32 pairs, packed at
compile time; X is read as it lies. Of uint8 by int8, words of four terms take the place of pairs, 64 a step, and sums
are int32. lower.py writes the instructions, after scheduling.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te

from tvmopt.lowering.common import call_fusable, constant, image_sizes, is_open, is_rows_product, named_size, sizes
from tvmopt.lowering.repeats import packed_once
from tvmopt.schedules.cpu._amx.cost import TERMS, Steps, panel_width, pays
from tvmopt.schedules.cpu._amx.panels import SUMS, pack_steps, product, tag
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.matmul` of rows of bfloat16 or uint8 and a constant matrix, where tiles pay."""
    x, w = call.args
    xs, value = sizes(x), constant(bb, w)
    if value is None or value.ndim < 2 or prod(value.shape[:-2]) != 1 or str(x.ty.dtype) not in TERMS:
        return None
    if not xs or is_open(xs[-1:]) or value.ndim > len(xs):
        return Declined("an open sum, or a result of more dimensions than the rows")
    if (str(value.dtype), str(call.ty.dtype)) != SUMS[str(x.ty.dtype)]:
        return Declined("other sums than tiles have")
    return gemm(bb, x, value.reshape(value.shape[-2:]), xs[:-1], machine, "matmul")


def conv1x1(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` of bfloat16 or uint8 in NHWC/OHWI that is a product of rows and constants, where tiles pay."""
    found, x, value = image_sizes(call), call.args[0], constant(bb, call.args[1])
    if found is None or value is None or not is_rows_product(call) or str(x.ty.dtype) not in TERMS:
        return None
    (xs, ws), out = found, str(call.ty.dtype)
    if (str(value.dtype), out) != SUMS[str(x.ty.dtype)]:
        return Declined(f"{value.dtype} weights, a {out} result")
    matrix = np.ascontiguousarray(value.reshape(ws[0], ws[3]).T)
    return gemm(bb, x, matrix, xs[:3], machine, "conv1x1")


def gemm(
    bb: relax.BlockBuilder, x: relax.Expr, value: Array, rows: tuple[Any, ...], machine: Machine, name: str
) -> relax.Expr | Declined:
    """Rows of `x` [*rows, K] times W[K, N], where vectors are not as fast: at the number of rows that the program is to
    be fastest at, where it is open."""
    (k_len, n_len), word = value.shape, TERMS[str(x.ty.dtype)]
    if 0 in (*rows, k_len, n_len) or not pays(named_size(bb, rows), n_len, k_len, machine, word):
        return Declined("vectors are as fast as tiles")
    first = next((i for i, size in enumerate(rows) if is_open([size])), 0)
    if any(size != 1 for size in rows[:first]):  # a tile is loaded from an address on, at one distance
        return Declined("rows of an open size behind a known one do not lie one behind the other")
    steps, width = Steps.of(k_len, word), panel_width(n_len)
    panels = packed_once(value, ("steps", width), lambda: relax.const(pack_steps(value, steps, width)))

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        t, i = te.reduce_axis((0, steps.count), name="t"), te.reduce_axis((0, steps.words), name="i")

        def term(*at: Any) -> Any:
            *row, p, j = at
            return te.sum(product(lambda k: data(*row, k), steps, t, i, weight(p, t, i, j)), axis=[t, i])

        acc = te.compute((*data.shape[:-1], -(-n_len // width), width), term, name="amx_gemm", attrs=tag("amx_gemm"))
        return te.compute(
            (*data.shape[:-1], n_len), lambda *at: acc(*at[:-1], at[-1] // width, at[-1] % width), name="unpack",
            attrs=tag("unpack"),
        )  # fmt: skip

    return call_fusable(bb, compute, [x, panels], name)
