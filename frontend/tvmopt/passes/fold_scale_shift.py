"""Fold a per-channel multiply or add by constants into the convolution, GEMM, multiply or add before it."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.floats import HALVES
from tvmopt.passes.affine import LINEAR, channel_vector, find_linear, fits, may_scale, scaled
from tvmopt.passes.graph import (
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    is_float,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    sizes,
)


@rewrite_pass("tvmopt.FoldScaleShift")
class FoldScaleShift(Rewrite):
    """Fold constant multiplies, divides, adds and subtracts into the constants of their producer.

        Before                              After
        c = R.nn.conv2d(x, W)               c = R.nn.conv2d(x, W * s)
        b = R.add(c, b0)                    y = R.add(c, b0 * s + t)
        m = R.multiply(b, s)
        y = R.add(m, t)

        Before                              After
        a = R.multiply(x, s)                c = R.multiply(x, s * u)
        b = R.add(a, t)                     y = R.add(c, t * u)
        y = R.multiply(b, u)

    Caffe's BatchNorm + Scale pairs, and what FoldBatchNorm leaves.

    Applies when   the operand is a constant; for a linear producer, one number per output channel.
    Declines when  1. the producer's result has other users, or its weights are not constants
                   2. the constant is not one number per channel
                   3. merging two constants would broadcast to more elements than they have together
                   4. two numbers added one after the other cancel, as in log1p's (1 + x) - 1: that is a trick
                   5. a constant would leave its type, or a factor is infinite.
                   6. weights of 16 bits would be rounded again: where a sum cancels that costs its digits. The
                      factor costs nothing in the kernel of the product
    Gain           a read and a write of the tensor an operator, where fusion would not hide it.
    Order          after FoldBatchNorm.
    """

    rounds = 6

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite ``op(data, constant)``."""
        name = op_name(value)
        if name not in ("multiply", "divide", "add", "subtract") or not is_float(value):
            return None
        data, other = value.args
        if graph.is_const(data) and name in ("multiply", "add"):
            data, other = other, data
        if not graph.is_const(other) or graph.is_const(data) or not _same(data, value):
            return None
        new = self._into_linear(graph, var, name, data, other)
        return new if new is not None else self._chain(graph, var, name, data, other)

    def _into_linear(self, graph: Graph, var: Var, name: str, data: Expr, other: Expr) -> Expr | None:
        if name == "add" and graph.op(data) in LINEAR:
            return None  # a bias: already in its normal form
        linear = find_linear(graph, data)
        if isinstance(linear, str):
            if (producer := graph.call(data, *LINEAR)) is not None and graph.is_const(producer.args[1]):
                self.declined(var, f"1: {linear}")
            return None
        vector = channel_vector(graph, other, rank(data), linear.channel, linear.channels)
        if vector is None:
            self.declined(var, "2: the constant is not one number per output channel")
            return None
        one, zero = np.ones(linear.channels), np.zeros(linear.channels)
        if name == "divide" and not vector.all():
            return None
        scale = {"multiply": vector, "divide": 1 / np.where(vector == 0, 1, vector)}.get(name, one)
        shift = {"add": vector, "subtract": -vector}.get(name, zero)
        if not may_scale(linear, scale):
            self.declined(var, "5: the weights would leave their type")
            return None
        if dtype(linear.call.args[1]) in HALVES and (np.frexp(scale)[0] != np.copysign(0.5, scale)).any():
            self.declined(var, "6: weights of 16 bits would be rounded again")
            return None
        self.applied(var, f"{name} into {graph.op(linear.call)}")
        return scaled(linear, scale, shift, name_of(var), graph)

    def _chain(self, graph: Graph, var: Var, name: str, data: Expr, other: Expr) -> Expr | None:
        inner = graph.call(data, "multiply", "add")
        if inner is None:
            return None
        for x, first in graph.binary(data, "multiply", "add"):
            a, b = graph.array(first), graph.array(other)
            if a is None or b is None or graph.is_const(x) or not _same(x, data):
                continue
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            size = np.broadcast(a, b).size
            if size > max(a.size, b.size):
                self.declined(var, f"3: the merged constant would have {size} elements")
                return None
            outer, inner_op = name, op_name(inner)
            if outer in ("add", "subtract") and inner_op == "add":
                total = wide_a + (wide_b if outer == "add" else -wide_b)
                if total.size == 1 and abs(total.item()) < 0.5 * max(abs(wide_a.item()), abs(wide_b.item())):
                    self.declined(var, "4: the two numbers cancel; their rounding is part of the model")
                    return None
                if not fits(total, x, a, b):
                    self._leaves(var)
                    return None
                self.applied(var, "add into add")
                return relax.op.add(x, const(total, like=x))
            if outer in ("multiply", "divide") and inner_op == "multiply" and (outer == "multiply" or b.all()):
                factor = wide_a * wide_b if outer == "multiply" else wide_a / wide_b
                if not fits(factor, x, a, b, product=True):
                    self._leaves(var)
                    return None
                self.applied(var, "multiply into multiply")
                return relax.op.multiply(x, const(factor, like=x))
            if outer == "multiply" and inner_op == "add" and graph.op(x) == "multiply" and graph.single(data):
                if not any(graph.is_const(o) for o in graph.value(x).args):
                    return None
                if not (np.isfinite(wide_b).all() and fits(wide_a * wide_b, x, a)):
                    self._leaves(var)
                    return None
                self.applied(var, "multiply moved before add, towards its like")
                return relax.op.add(relax.op.multiply(x, other), const(wide_a * wide_b, like=x))
        return None

    def _leaves(self, var: Var) -> None:
        self.declined(var, "5: the merged constant would leave its type")


def _same(a: Expr, b: Expr) -> bool:
    """Whether two tensors have one shape, which may be open."""
    return sizes(a) is not None and sizes(a) == sizes(b)
