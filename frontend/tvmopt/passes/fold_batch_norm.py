"""Fold inference BatchNorm into the convolution or GEMM before it, else into a multiply and an add."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.passes.affine import channel_const, find_linear, may_scale, scaled
from tvmopt.passes.graph import Array, Call, Expr, Graph, Rewrite, Var, name_of, rank, rewrite_pass


@rewrite_pass("tvmopt.FoldBatchNorm")
class FoldBatchNorm(Rewrite):
    """Fold inference BatchNorm into its producer, or into one scale and one shift.

        Before                                                After
        c = R.nn.conv2d(x, W)                                 c = R.nn.conv2d(x, W')
        n = R.nn.batch_norm(c, gamma, beta, mean, var)        y = R.add(c, b')
        y = n[0]

        Before                                                After
        r = R.nn.relu(x)                                      r = R.nn.relu(x)
        n = R.nn.batch_norm(r, ...)                           m = R.multiply(r, s)
        y = n[0]                                              y = R.add(m, t)

    with  s = gamma / sqrt(var + eps),  t = beta - mean * s,  W' = W * s,  b' = b * s + t  in float64
    (Ioffe and Szegedy 2015, section 3.1). The producer may be a 1-d, 2-d or 3-d convolution (grouped,
    depthwise, transposed) or a matmul with constant weights, with or without a bias.

    Applies when   the statistics are constants and only the normalised result is used.
    Declines when  1. the statistics are not constants, or the batch's own are asked for (training)
                   2. the running mean or variance is used as well
                   It folds into scale and shift, and says so, when
                   3. the producer is no linear operator, is shared, or its channels are not BatchNorm's axis
                   4. the weights would leave their type, or a factor is infinite.
    Gain           2 reads and writes of the producer's result, and the statistics' arithmetic.
    Order          after FoldConstant, which makes the statistics constants; before ConvertLayout.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite item 0 of a batch_norm."""
        if not isinstance(value, relax.TupleGetItem):
            return None
        norm = graph.call(value.tuple_value, "nn.batch_norm")
        if norm is None:
            return None
        factors = self._factors(graph, var, norm)
        if factors is None or int(value.index) != 0:
            return None
        if any(int(graph.value(u).index) != 0 for u in graph.users(value.tuple_value)):
            self.declined(var, "2: the running mean or variance is an output")
            return None
        scale, shift = factors
        data, axis = norm.args[0], int(norm.attrs.axis) % max(rank(norm.args[0]), 1)
        linear = find_linear(graph, data)
        if isinstance(linear, str):
            self.applied(var, f"into scale and shift (3: {linear})")
        elif linear.channel != axis or linear.channels != len(scale):
            self.applied(var, f"into scale and shift (3: BatchNorm is along axis {axis})")
        elif not may_scale(linear, scale):
            self.applied(var, "into scale and shift (4: the weights would leave their type)")
        else:
            self.applied(var, f"into {graph.op(linear.call)}")
            return scaled(linear, scale, shift, name_of(var), graph)
        m = relax.op.multiply(data, channel_const(scale, rank(data), axis, data))
        return relax.op.add(m, channel_const(shift, rank(data), axis, data))

    def _factors(self, graph: Graph, var: Var, norm: Call) -> tuple[Array, Array] | None:
        arrays = [graph.array(a) for a in norm.args[1:5]]
        if bool(norm.attrs.training) or rank(norm.args[0]) < 1:
            self.declined(var, "1: it asks for the batch's own statistics, or the rank is not known")
            return None
        if any(a is None for a in arrays):
            self.declined(var, "1: its statistics are not constants")
            return None
        gamma, beta, mean, variance = (np.asarray(a, dtype=np.float64) for a in arrays)
        scale = (gamma if norm.attrs.scale else 1.0) / np.sqrt(variance + float(norm.attrs.epsilon))
        return scale, (beta if norm.attrs.center else 0.0) - mean * scale
