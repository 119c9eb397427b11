"""Group and instance norm of [N, ..., C]: sums over the pixels by channel, whose vectors no group cuts; small kernels
that join the channels of a group; one pass that applies both. Three kernels read x from end to end.

    p = the first element of a group;  m = sum (x - p) / count
    h = p + m,  r = m - (h - p)                         h + r is the mean, r what the format of h has rounded off
    v = sum (h - x)^2 / count - r^2;  s = gamma / sqrt(v + eps)
    y = (x - h) * s + (beta - r * s)

Without p and r the result of values around 1e5 would have an error of 1 %.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import OPAQUE, call_with_pattern

Expr = Any


def variance_of(mean_square: Expr, mean: Expr) -> Expr:
    """The variance of values by the mean of their squares and their mean, which is small: not below 0, and infinite
    (the square of the mean may be, too) where the squares overflow."""
    zero, infinite = tirx.const(0.0, "float32"), tirx.const(float("inf"), "float32")
    return tirx.Select(mean_square < infinite, tirx.max(mean_square - mean * mean, zero), mean_square)


def channels_last(bb: relax.BlockBuilder, call: relax.Call, shape: tuple[int, ...], groups: int) -> Any:
    """`R.nn.group_norm` or `instance_norm` of a float32 tensor of this shape."""
    op, attrs, (x, gamma, beta) = relax.op, call.attrs, call.args
    rank, pixels, each = len(shape), list(range(1, len(shape) - 1)), shape[-1] // groups
    by_channel = (shape[0], *[1] * len(pixels), shape[-1])
    inverse = tirx.const(1.0 / (prod(shape[1:-1]) * each), "float32")

    def small(name: str, args: list[Any], value: Callable[..., Any]) -> Any:
        """`value(n, c, *args)` for every channel; never fused, so never computed for every pixel."""

        def compute(*tensors: te.Tensor) -> te.Tensor:
            return te.compute(by_channel, lambda *i: value(i[0], i[-1], *tensors), name=name)

        return bb.emit(call_with_pattern(bb, compute, args, name, OPAQUE))

    def by_group(name: str, value: Any, args: list[Any], finish: Callable[..., Any]) -> Any:
        """`finish(mean of the group, n, c, *args)` for every channel."""

        def compute(sums: te.Tensor, *tensors: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, each), name="k")
            ones = [0] * len(pixels)
            total = te.compute(
                (shape[0], groups), lambda n, g: te.sum(sums(n, *ones, g * each + k), axis=k), name="total"
            )
            return te.compute(
                by_channel, lambda *i: finish(total(i[0], i[-1] // each) * inverse, i[0], i[-1], *tensors), name=name
            )

        return bb.emit(call_with_pattern(bb, compute, [bb.emit(op.sum(value, pixels, True)), *args], name, OPAQUE))

    def at(tensor: te.Tensor, n: Expr, c: Expr) -> Expr:
        return tensor(n, *[0] * (rank - 2), c)

    def factor(mean_square: Expr, n: Expr, c: Expr, low: te.Tensor, *gammas: te.Tensor) -> Expr:
        root = tirx.sqrt(variance_of(mean_square, at(low, n, c)) + tirx.const(float(attrs.epsilon), "float32"))
        return (gammas[0](c) if gammas else tirx.const(1.0, "float32")) / root

    def shifted(n: Expr, c: Expr, low: te.Tensor, scale: te.Tensor, *betas: te.Tensor) -> Expr:
        product = at(low, n, c) * at(scale, n, c)
        return (betas[0](c) if betas else tirx.const(0.0, "float32")) - product

    pivot = small("group_pivot", [x], lambda n, c, data: at(data, n, c // each * each))
    mean = by_group("group_mean", bb.emit(op.subtract(x, pivot)), [], lambda m, n, c: m)
    high = bb.emit(call_with_pattern(bb, _sum, [pivot, mean], "group_high", OPAQUE))
    low = small("group_low", [pivot, mean, high], lambda n, c, p, m, h: at(m, n, c) - (at(h, n, c) - at(p, n, c)))
    # the other way round than below: two equal differences would be one, kept in memory
    centred = bb.emit(op.subtract(high, x))
    scales = [gamma] if attrs.scale else []
    scale = by_group("group_factor", bb.emit(op.multiply(centred, centred)), [low, *scales], factor)
    shift = small("group_shift", [low, scale, *([beta] if attrs.center else [])], shifted)
    return op.add(bb.emit(op.multiply(bb.emit(op.subtract(x, high)), scale)), shift)


def _sum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda *i: a(*i) + b(*i), name="sum")
