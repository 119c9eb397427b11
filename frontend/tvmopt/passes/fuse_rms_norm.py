"""Put RMSNorm together again from its square, mean and root."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.passes.fuse_layer_norm import mean_of, normalised_vector, over_root
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, const, is_float, rewrite_pass, shape, with_attrs


@rewrite_pass("tvmopt.FuseRmsNorm")
class FuseRmsNorm(Rewrite):
    """Recognise RMSNorm, then its scale.

        Before                                              After
        s = R.mean(R.multiply(x, x), axis, keepdims=True)   y = R.nn.rms_norm(x, gamma, axes=axis)
        n = R.multiply(x, R.rsqrt(R.add(s, eps)))
        y = R.multiply(n, gamma)

    (Zhang and Sennrich 2019; Llama, T5.)

    Applies when   the mean keeps its dimensions, is over the innermost axes, and eps is one number.
    Declines when  1. the mean is not over the innermost axes, or over all (TVM 0.27 cannot legalise that)
                   2. the scale does not have the shape of the normalised axes
    Gain           3 to 4 passes over x become one kernel.
    Order          after FuseLayerNorm, whose centred half has the same form.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the normalisation, or absorb a scale into one already recognised."""
        if not is_float(value):
            return None
        for x, mean_eps in over_root(graph, value):
            for mean, eps_expr in graph.binary(mean_eps, "add"):
                eps, found = graph.scalar(eps_expr), mean_of(graph, mean)
                square = graph.call(found[0], "multiply") if found is not None else None
                if eps is None or found is None or square is None:
                    continue
                if not (square.args[0].same_as(x) and square.args[1].same_as(x)):
                    continue
                dims, axes = shape(x) or (), found[1]
                if axes != list(range(len(dims) - len(axes), len(dims))) or len(axes) == len(dims):
                    self.declined(var, "1: the mean is not over the innermost axes, or over all of them")
                    return None
                self.applied(var)
                one = const(np.ones([dims[a] for a in axes]), like=x)
                return relax.op.nn.rms_norm(x, one, axes=[a - len(dims) for a in axes], epsilon=eps)
        return self._scale(graph, var, value)

    def _scale(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        for norm_var, factor in graph.binary(value, "multiply"):
            norm = graph.call(norm_var, "nn.rms_norm")
            if norm is None or not graph.single(norm_var) or graph.scalar(norm.args[1]) != 1.0:
                continue
            vector = normalised_vector(graph, norm, factor)
            if vector is not None:
                self.applied(var, "scale")
                return with_attrs(norm, [norm.args[0], vector])
            if graph.is_const(factor):
                self.declined(var, "2: the scale does not have the shape of the normalised axes")
        return None
