"""Other rows: each is a weighted sum of a few rows of bytes, whatever their pixels are.

    for a row i of the result, for a block of `VECTORS` vectors of numbers
      for a tap k: sum[v] += weights[i, k] * x[starts[i] + k, v]                32-bit products of widened bytes
      y[i, v] = clip((sum[v] + 2^21) >> 22, 0, 255)

The rows that a row reads are those that the next one reads, too: they stay in L1 or L2.

floor      rows * taps * numbers / lanes products: 224 rows, 5 taps, 672 numbers: 47 thousand
Measured   one thread of a busy Zen 5, us: 480x640 -> 224 rows, bilinear 26, bicubic 43; 1080x1920 61, 91
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmopt.lowering.common import OPAQUE, constant, flat, samples
from tvmopt.lowering.loops import (
    INDEX,
    as_index,
    const_index,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    spread,
    store,
    vector,
    vector_type,
)
from tvmopt.operators.resample import BITS, HALF
from tvmopt.schedules.cpu.resample.columns import clipped
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
VECTORS = 4
"""Vectors of a block: their sums hide the latency of a product."""


def rows(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.resample_rows` of :mod:`tvmopt.operators.resample`."""
    x, *tables = call.args
    shape = samples(x)
    values = [value for table in tables if (value := constant(bb, table)) is not None]
    if shape is None or len(shape) != 4:
        return Declined("an open or empty picture")
    if len(values) < len(tables):
        return Declined("tables that are no constants")
    places, weights = values
    batch, height, width, colours = shape
    numbers = width * colours
    own = batch if isinstance(batch, int) else tirx.Var("n", INDEX)
    func = _func(own, height, numbers, places.shape, machine.lanes("int32"))
    args = [flat(bb, x, (batch, height, numbers)), relax.const(np.ascontiguousarray(places[:, 0]), "int64")]
    out = relax.TensorType([batch, len(places), numbers], "uint8")
    y = bb.emit(relax.call_tir(bb.add_func(func, "resample_rows"), [*args, relax.const(weights, "int32")], out))
    return flat(bb, y, (batch, len(places), width, colours))


def _func(batch: Any, height: int, numbers: int, taps: tuple[int, int], lanes: int) -> Any:
    """PrimFunc(x, starts, weights, y)."""
    while lanes > numbers:
        lanes //= 2
    count, deep = taps
    x = new_buffer("x", batch, height, numbers, dtype="uint8")
    starts = new_buffer("starts", count, dtype="int64")
    weights = new_buffer("weights", count, deep, dtype="int32")
    y = new_buffer("y", batch, count, numbers, dtype="uint8")
    n, row, whole = tirx.Var("vn", INDEX), tirx.Var("vrow", INDEX), vector(0, lanes)
    sums = [new_buffer(f"sum_{v}", lanes, dtype="int32") for v in range(min(VECTORS, -(-numbers // lanes)))]

    def block(begins: list[Expr]) -> Any:
        """Vectors that begin at these numbers."""
        mine = sums[: len(begins)]

        def tap(k: Expr) -> Any:
            factor = spread(load(weights, row, k), lanes)
            return seq(
                [
                    store(part, load(part, whole) + factor * _wide(begin, k), whole)
                    for part, begin in zip(mine, begins, strict=True)
                ]
            )

        def _wide(begin: Expr, k: Expr) -> Expr:
            bytes_ = load(x, n, load(starts, row) + k, vector(begin, lanes))
            return bytes_.astype(vector_type("int32", lanes))

        done = [
            store(y, clipped(load(part, whole) >> splat(BITS, lanes, "int32"), lanes), n, row, vector(begin, lanes))
            for part, begin in zip(mine, begins, strict=True)
        ]
        return seq([*(store(part, splat(HALF, lanes, "int32"), whole) for part in mine), loop(deep, tap, "k"), *done])

    step = len(sums) * lanes
    blocks, rest = divmod(numbers, step)
    parts = []
    if blocks:
        parts.append(loop(blocks, lambda b: block([b * step + v * lanes for v in range(len(sums))]), "b"))
    if rest:  # the last vector begins before its place where vectors do not divide the row
        begins = [min(blocks * step + v * lanes, numbers - lanes) for v in range(-(-rest // lanes))]
        parts.append(block([const_index(begin) for begin in begins]))
    loops = nest(
        "resample", [(n, as_index(batch)), (row, count)], ("n", "row"), [everything(b) for b in (x, starts, weights)],
        [everything(y)], seq(parts), sums,
        {
            "tvmopt.kernel": "resample", "tvmopt.products": deep * -(-numbers // lanes),
            "tvmopt.flops": 2 * deep * numbers,  # of integers of 32 bits, which are not counted otherwise
        },
    )  # fmt: skip
    return prim_func([x, starts, weights, y], loops, OPAQUE)
