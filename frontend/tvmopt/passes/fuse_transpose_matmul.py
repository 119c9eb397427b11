"""Take transposes out of GEMMs: that of a flattened image goes into the order of the weight's rows."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvmopt.passes.graph import (
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    op_name,
    rank,
    rewrite_pass,
    shape,
    sizes,
    with_attrs,
)
from tvmopt.passes.permute import inverse, moves_data
from tvmopt.passes.propagate_transposes import source


@rewrite_pass("tvmopt.FuseTransposeMatmul")
class FuseTransposeMatmul(Rewrite):
    """Absorb the transpose before a flatten into the rows of the weight that follows.

        Before                                      After
        t = R.permute_dims(z, [0, 3, 1, 2])         f = R.reshape(z, (1, H * W * C))
        f = R.reshape(t, (1, C * H * W))            y = R.matmul(f, W')      # rows of W in the order H, W, C
        y = R.matmul(f, W)

    Transposed constants are FoldConstant's; TVM's FuseTransposeMatmul writes x @ w.T as a TIR function of its
    own, which no family would know.

    Applies when   the flatten keeps the leading axes and W is a constant [K, N].
    Declines when  1. an activation is transposed: the batched GEMM family reads it with its strides.
    Gain           a read and a write of the flattened tensor.
    Order          after PropagateTransposes, which brings the transpose here.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a matmul."""
        if op_name(value) != "matmul":
            return None
        new = self._flattened(graph, value)
        if new is not None:
            self.applied(var)
            return new
        for arg in value.args:
            found = source(graph, arg)
            if found is not None and moves_data(found[1], sizes(found[0]) or ()):
                self.declined(var, "1: an activation is transposed")
        return None

    @staticmethod
    def _flattened(graph: Graph, value: Expr) -> Expr | None:
        flat, weight = graph.call(value.args[0], "reshape"), graph.array(value.args[1])
        found = source(graph, flat.args[0]) if flat is not None else None
        if found is None or flat is None or weight is None or weight.ndim != 2:
            return None
        z, perm = found
        dims, target = shape(z), shape(flat)
        lead = rank(flat) - 1
        if dims is None or target is None or perm[:lead] != tuple(range(lead)) or target[:lead] != dims[:lead]:
            return None
        tail = [p - lead for p in perm[lead:]]
        sizes = [dims[p] for p in perm[lead:]]  # the weight's rows, in the order of the flattened tensor
        if math.prod(sizes) != target[-1]:
            return None
        rows = weight.reshape(*sizes, -1).transpose(*inverse(tail), len(tail)).reshape(weight.shape)
        x = relax.op.reshape(z, target)
        return with_attrs(value, [x, const(np.ascontiguousarray(rows))])
