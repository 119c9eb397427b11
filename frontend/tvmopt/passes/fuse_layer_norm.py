"""Put LayerNorm together again from the means, differences and roots that exporters leave of it."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvmopt.passes.graph import (
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    ints,
    is_float,
    op_name,
    rewrite_pass,
    shape,
    with_attrs,
)

Axes = list[int]


@rewrite_pass("tvmopt.FuseLayerNorm")
class FuseLayerNorm(Rewrite):
    """Recognise LayerNorm, then its scale and its shift.

        Before                                              After
        m = R.mean(x, axis, keepdims=True)                  y = R.nn.layer_norm(x, gamma, beta, axes=axis)
        d = R.subtract(x, m)
        v = R.mean(R.multiply(d, d), axis, keepdims=True)
        n = R.divide(d, R.sqrt(R.add(v, eps)))
        y = R.add(R.multiply(n, gamma), beta)

    Over all axes behind the batch it is R.nn.group_norm of one group, unless gamma or beta has a number for each place.

    Also with R.rsqrt, R.power(.., -0.5), R.variance, the difference computed twice, and without gamma or beta
    (Ba, Kiros and Hinton 2016).

    Applies when   both means are over the same axes, with keepdims, and eps is one number.
    Declines when  1. the two means are over different axes
                   2. gamma or beta has not exactly the shape of the normalised axes
    Gain           4 to 7 passes over x become one kernel: some 8 * |x| * itemsize bytes.
    Order          after EliminateIdentities (powers, constant divisions), before FuseRmsNorm: d *
                   rsqrt(mean(d * d)) looks like an RMSNorm of d.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the normalisation, or absorb a scale or a shift into one already recognised."""
        if not is_float(value):
            return None
        new = self._absorb(graph, var, value)
        return new if new is not None else self._normalise(graph, var, value)

    def _normalise(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        for d, variance_eps in over_root(graph, value):
            for variance, eps_expr in graph.binary(variance_eps, "add"):
                eps, centred = graph.scalar(eps_expr), centre(graph, d)
                if eps is None or centred is None:
                    continue
                x, axes = centred
                other = _variance_axes(graph, variance, x, d)
                if other is None:
                    continue
                if other != axes:
                    self.declined(var, "1: the mean and the variance are over different axes")
                    return None
                self.applied(var)
                if (grouped := _of_one_group(graph, var, x, axes, eps)) is not None:
                    return grouped
                dims = [(shape(x) or ())[a] for a in axes]
                one, zero = const(np.ones(dims), like=x), const(np.zeros(dims), like=x)
                last = [a - len(shape(x) or ()) for a in axes]
                return relax.op.nn.layer_norm(x, one, zero, axes=last, epsilon=eps)
        return None

    def _absorb(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        for norm_var, factor in graph.binary(value, "multiply", "add"):
            norm = graph.call(norm_var, "nn.layer_norm")
            if norm is None or not graph.single(norm_var):
                continue
            gamma, beta = (graph.scalar(a) for a in norm.args[1:3])
            if beta != 0.0 or (op_name(value) == "multiply" and gamma != 1.0):
                continue
            vector = normalised_vector(graph, norm, factor)
            if vector is None:
                if graph.is_const(factor):
                    self.declined(var, "2: the operand does not have the shape of the normalised axes")
                continue
            x, g, b = norm.args
            self.applied(var, "scale" if op_name(value) == "multiply" else "shift")
            return with_attrs(norm, [x, vector, b] if op_name(value) == "multiply" else [x, g, vector])
        return None


def over_root(graph: Graph, value: Expr) -> list[tuple[Expr, Expr]]:
    """``(a, b)`` for every reading of the value as a / sqrt(b)."""
    found = []
    for a, b in graph.binary(value, "divide", "multiply"):
        if op_name(graph.value(value)) == "divide":
            root = graph.call(b, "sqrt")
        else:
            root = graph.call(b, "rsqrt")
        if root is not None:
            found.append((a, root.args[0]))
    return found


def centre(graph: Graph, expr: Expr) -> tuple[Expr, Axes] | None:
    """``(x, axes)`` if the expression is ``x - mean(x, axes, keepdims=True)``."""
    call = graph.call(expr, "subtract")
    if call is None:
        return None
    mean = mean_of(graph, call.args[1])
    return mean if mean is not None and call.args[0].same_as(mean[0]) else None


def mean_of(graph: Graph, expr: Expr, name: str = "mean") -> tuple[Expr, Axes] | None:
    """``(x, axes)`` if the expression is a mean (or another reduction) of x that keeps its dimensions."""
    call = graph.call(expr, name)
    if call is None or not call.attrs.keepdims or call.attrs.axis is None or shape(call.args[0]) is None:
        return None
    n = len(shape(call.args[0]) or ())
    return call.args[0], sorted(a % n for a in ints(call.attrs.axis))


def _variance_axes(graph: Graph, expr: Expr, x: Expr, d: Expr) -> Axes | None:
    """The axes over which the expression is the variance of x, d being x minus its mean."""
    direct = mean_of(graph, expr, "variance")
    if direct is not None:
        return direct[1] if direct[0].same_as(x) else None
    mean = mean_of(graph, expr)
    square = graph.call(mean[0], "multiply") if mean is not None else None
    if mean is None or square is None or not square.args[0].same_as(square.args[1]):
        return None
    root = square.args[0]
    if root.same_as(d):
        return mean[1]
    again = centre(graph, root)
    return mean[1] if again is not None and again[0].same_as(x) else None


def _of_one_group(graph: Graph, var: Var, x: Expr, axes: Axes, eps: float) -> Call | None:
    """A norm over all axes behind the batch as GroupNorm of one group, which has a scale and a shift for each channel;
    LayerNorm has them for each place (those of ConvTasNet would be 200 MB). None where what follows has them, too."""
    dims = shape(x) or ()
    if len(dims) < 3 or axes != list(range(1, len(dims))):
        return None
    places = math.prod(dims[1:])
    for user in graph.users(var):
        if not isinstance(user, str) and graph.op(user) in ("multiply", "add"):
            arrays = (graph.array(a) for a in graph.value(user).args)
            if any(a is not None and a.size == places for a in arrays):
                return None
    return relax.op.nn.group_norm(
        x, const(np.ones(dims[1]), like=x), const(np.zeros(dims[1]), like=x), num_groups=1, channel_axis=1,
        axes=list(range(2, len(dims))), epsilon=eps,
    )  # fmt: skip


def normalised_vector(graph: Graph, norm: Call, factor: Expr) -> Expr | None:
    """A scale or shift in the shape that the norm wants, if it is one number per normalised element."""
    x = norm.args[0]
    dims, axes, have = shape(x), ints(norm.attrs.axes), shape(factor)
    if dims is None or have is None:
        return None
    axes = sorted(a % len(dims) for a in axes)
    want = [dims[a] for a in axes]
    full = (1,) * (len(dims) - len(have)) + have
    if len(full) != len(dims) or any(n != 1 for i, n in enumerate(full) if i not in axes):
        return None
    parts = [full[a] for a in axes]
    if any(n not in (1, wanted) for n, wanted in zip(parts, want, strict=True)):  # the sum is larger than the norm
        return None
    data = graph.array(factor)
    if data is not None:
        return const(np.broadcast_to(data.reshape(parts), want), like=x)
    if math.prod(full) != math.prod(want):
        return None
    return factor if list(have) == want else relax.op.reshape(factor, want)
