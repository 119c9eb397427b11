"""Put softmax together again from its exponentials and their sum."""

from __future__ import annotations

from tvm import relax

from tvmopt.passes.fuse_layer_norm import mean_of
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass


@rewrite_pass("tvmopt.FuseSoftmax")
class FuseSoftmax(Rewrite):
    """Recognise softmax.

        Before                                              After
        e = R.exp(R.subtract(x, R.max(x, axis, True)))      y = R.nn.softmax(x, axis)
        y = R.divide(e, R.sum(e, axis, keepdims=True))

    Applies when   maximum and sum are over one and the same axis.
    Declines when  1. no maximum is subtracted: large inputs overflow then, and softmax would not
                   2. maximum and sum are over different axes, or over several
    Gain           4 passes over x become one kernel.
    Order          before FuseAttention, which looks for softmax.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the quotient."""
        if op_name(value) != "divide":
            return None
        exp, total = graph.call(value.args[0], "exp"), mean_of(graph, value.args[1], "sum")
        if exp is None or total is None or not total[0].same_as(value.args[0]):
            return None
        difference = graph.call(exp.args[0], "subtract")
        largest = mean_of(graph, difference.args[1], "max") if difference is not None else None
        if difference is None or largest is None or not largest[0].same_as(difference.args[0]):
            self.declined(var, "1: no maximum is subtracted before the exponential")
            return None
        if largest[1] != total[1] or len(total[1]) != 1:
            self.declined(var, "2: maximum and sum are over different axes, or over several")
            return None
        self.applied(var)
        return relax.op.nn.softmax(difference.args[0], axis=total[1][0])
