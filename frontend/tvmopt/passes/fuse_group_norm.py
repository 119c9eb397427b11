"""Put GroupNorm together again from the instance normalisation that exporters write it as."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, const, ints, op_name, rewrite_pass, shape, with_attrs


@rewrite_pass("tvmopt.FuseGroupNorm")
class FuseGroupNorm(Rewrite):
    """Recognise GroupNorm, then its scale and its shift by channel.

        Before                                                         After
        a = R.reshape(x, (N, G, L))                                    y = R.nn.group_norm(x, gamma, beta, num_groups=G)
        n = R.nn.instance_norm(a, g, b, channel_axis=1, axes=[2])
        r = R.reshape(n, shape of x)
        y = R.add(R.multiply(r, gamma), beta)                          gamma, beta: (C, 1, 1)

    (Wu and He 2018; PyTorch's exporter writes it so up to opset 17.)

    Applies when   the first reshape keeps N and cuts the C channels of x into G runs; g and b are constant.
    Declines when  1. C is no multiple of G, or x has no axis behind its channels
                   2. the scale or the shift is not one number a channel
    Gain           the scale and the shift run in the kernel of the norm, and no reshape stands before a layout.
    Order          after EliminateIdentities; before PropagateReshapes and ConvertLayout, which see one operator.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the norm between two reshapes, or absorb a scale or a shift into one already recognised."""
        if op_name(value) == "reshape":
            return self._grouped(graph, var, value)
        return self._absorb(graph, var, value)

    def _grouped(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        norm = graph.call(value.args[0], "nn.instance_norm")
        inner = graph.call(norm.args[0], "reshape") if norm is not None else None
        if norm is None or inner is None or not graph.single(value.args[0]):
            return None
        x, flat = inner.args[0], shape(norm.args[0])
        dims = shape(x)
        scale, shift = (graph.array(a) for a in norm.args[1:3])
        if dims is None or flat is None or dims != shape(value) or scale is None or shift is None:
            return None
        if len(flat) < 3 or flat[0] != dims[0] or int(norm.attrs.channel_axis) % len(flat) != 1:
            return None
        if sorted(a % len(flat) for a in ints(norm.attrs.axes)) != list(range(2, len(flat))):
            return None
        if len(dims) < 3 or dims[1] % flat[1]:
            self.declined(var, "1: the channels are no multiple of the groups, or stand last")
            return None
        self.applied(var)
        each = dims[1] // flat[1]
        return relax.op.nn.group_norm(
            x, *(const(np.repeat(a, each), like=x) for a in (scale, shift)), num_groups=flat[1], channel_axis=1,
            axes=list(range(2, len(dims))), epsilon=float(norm.attrs.epsilon),
        )  # fmt: skip

    def _absorb(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        for norm_var, factor in graph.binary(value, "multiply", "add"):
            norm = graph.call(norm_var, "nn.group_norm")
            if norm is None or not graph.single(norm_var):
                continue
            scale, shift, new = (graph.array(a) for a in (*norm.args[1:3], factor))
            dims = shape(norm)
            if new is None or scale is None or shift is None or dims is None:
                continue
            column = (dims[1], *[1] * (len(dims) - 2))
            if new.ndim > len(dims) or np.broadcast_shapes(new.shape, (1, *column)) != (1, *column):
                self.declined(var, "2: the operand is not one number a channel")
                continue
            vector = np.broadcast_to(new, (1, *column)).reshape(dims[1])
            times = op_name(value) == "multiply"
            self.applied(var, "scale" if times else "shift")
            pair = (scale * vector, shift * vector) if times else (scale, shift + vector)
            return with_attrs(norm, [norm.args[0], *(const(a, like=norm.args[0]) for a in pair)])
        return None
