"""Make one convolution of several that read one tensor and whose results are added, as blocks of RepVGG are trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvmopt.passes.affine import channel_const, channel_vector, find_linear, fits
from tvmopt.passes.graph import (
    Array,
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    ints,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    sizes,
    with_attrs,
)
from tvmopt.report import DecisionLog


@dataclass(frozen=True)
class Branch:
    """One of the two tensors that are added.

    Attributes:
        x: what it reads. bias: one number per output channel, float64.
        conv: its convolution, `weight` its weights; None where it is `x` times `scale`, one number per channel.
    """

    x: Expr
    bias: Array
    conv: Call | None = None
    weight: Array | None = None
    scale: Array | None = None


@rewrite_pass("tvmopt.MergeAddedConvolutions")
class MergeAddedConvolutions(Rewrite):
    """Add the weights of convolutions, and a scale of their input, in place of their results.

        Before                                              After
        a = R.add(R.nn.conv2d(x, W3, padding=[1] * 4), b3)  y = R.add(R.nn.conv2d(x, W, padding=[1] * 4),
        b = R.add(R.nn.conv2d(x, W1), b1)                             b3 + b1 + t)
        c = R.add(R.multiply(x, s), t)                      W = W3 with W1 and diag(s) added to the tap that
        y = R.add(R.add(a, b), c)                           reads a pixel's own place

    Networks of RepVGG, MobileOne and their kind are trained with such branches, and often exported before they
    are merged.

    Applies when   the convolutions have constant weights, equal strides and groups, and no dilation; the window
                   of one lies within the other's; a scale is one number per channel, strides are 1. What is
                   added is read by nobody else.
    Declines when  1. neither window lies within the other's, or groups differ
                   2. a sum of weights would leave their type
                   3. a scale would be rounded to 16 bits, as weights of this precision are.
    Gain           all but one of the convolutions.
    Order          after FoldBatchNorm and FoldScaleShift: the norm of a branch is in its weights, or a scale.

    Args:
        scales: whether scales become weights; not where weights are rounded to 16 bits and a sum is not.
    """

    rounds = 6

    def __init__(self, log: DecisionLog | None = None, scales: bool = True) -> None:
        super().__init__(log)
        self.scales = scales

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite ``add`` of two branches."""
        if op_name(value) != "add" or dtype(value) != "float32" or rank(value) != 4:
            return None
        found = [self._branch(graph, arg, value) for arg in value.args]
        if any(branch is None for branch in found):
            return None
        one, other = (branch for branch in found if branch is not None)
        if not one.x.same_as(other.x) or (one.conv is None and other.conv is None):
            return None
        if one.conv is None or (other.conv is not None and _window(one) < _window(other)):
            one, other = other, one
        assert one.conv is not None and one.weight is not None
        if other.conv is None and not self.scales:
            self.declined(var, "3: weights are rounded to 16 bits")
            return None
        merged = _merged(one.conv, one.weight, other)
        if isinstance(merged, str):
            self.declined(var, f"1: {merged}")
            return None
        parts = [part for part in (one.weight, other.weight, other.scale) if part is not None]
        if not all(np.isfinite(part).all() for part in parts) or not fits(merged, one.conv.args[1]):
            self.declined(var, "2: a sum of weights would leave their type")
            return None
        self.applied(var, "two convolutions" if other.conv is not None else "a convolution and a scale")
        y: Expr = with_attrs(one.conv, [one.x, const(merged, like=one.conv.args[1])])
        bias = one.bias + other.bias
        return relax.op.add(graph.emit(y, name_of(var)), channel_const(bias, 4, 1, value)) if bias.any() else y

    def _branch(self, graph: Graph, expr: Expr, total: Expr) -> Branch | None:
        """A tensor of the sum's shape as one that can be merged; None where it is none, or somebody else reads it."""
        dims = sizes(total)
        if dims is None or sizes(expr) != dims or not isinstance(dims[1], int) or not graph.single(expr):
            return None
        linear = find_linear(graph, expr)
        if not isinstance(linear, str):
            conv, plain = linear.call, op_name(linear.call) == "nn.conv2d" and _is_plain(linear.call)
            return Branch(conv.args[0], linear.bias, conv, linear.weight.astype(np.float64)) if plain else None
        bias: Array | None = np.zeros(dims[1])
        for data, other in graph.binary(expr, "add"):
            if graph.is_const(other) and graph.op(data) == "multiply" and graph.single(data):
                expr, bias = data, channel_vector(graph, other, 4, 1, dims[1])
        for data, other in graph.binary(expr, "multiply"):
            vector = channel_vector(graph, other, 4, 1, dims[1]) if graph.is_const(other) else None
            if vector is not None and bias is not None and sizes(data) == dims:
                return Branch(data, bias, scale=vector)
        return None


def _is_plain(conv: Call) -> bool:
    """Whether a 2-d convolution is channels-first and not dilated."""
    attrs = conv.attrs
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout) or "NCHW"
    return layouts == ("NCHW", "OIHW", "NCHW") and ints(attrs.dilation) == [1, 1]


def _window(branch: Branch) -> int:
    """The places of a convolution's window."""
    return 0 if branch.weight is None else int(branch.weight.shape[2] * branch.weight.shape[3])


def _merged(conv: Call, weight: Array, other: Branch) -> Array | str:
    """The weights of `conv` with another branch's added at the taps that read the same places, or why there are none.

    Tap `i` of a window with `p` rows of padding above reads row ``i - p``, counted from the place that it writes.
    """
    top, left, *_ = ints(conv.attrs.padding)
    groups, strides = int(conv.attrs.groups), ints(conv.attrs.strides)
    merged = weight.copy()
    if other.conv is None:
        assert other.scale is not None
        if strides != [1, 1] or not (0 <= top < weight.shape[2] and 0 <= left < weight.shape[3]):
            return "a scale is no tap of the window"
        each = np.arange(len(merged))
        merged[each, each % weight.shape[1], top, left] += other.scale
        return merged
    assert other.weight is not None
    if int(other.conv.attrs.groups) != groups or ints(other.conv.attrs.strides) != strides:
        return "groups or strides differ"
    above, before, *_ = ints(other.conv.attrs.padding)
    first, second = top - above, left - before
    rows, columns = other.weight.shape[2:]
    if min(first, second) < 0 or first + rows > weight.shape[2] or second + columns > weight.shape[3]:
        return "neither window lies within the other's"
    merged[:, :, first : first + rows, second : second + columns] += other.weight
    return merged
