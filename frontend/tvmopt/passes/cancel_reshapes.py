"""Cancel reshapes: chains become one, identities none; a transpose that moves no data is a reshape."""

from __future__ import annotations

from tvm import relax

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass, shape
from tvmopt.passes.permute import moves_data
from tvmopt.passes.propagate_transposes import RESHAPES, axes_of


@rewrite_pass("tvmopt.CancelReshapes")
class CancelReshapes(Rewrite):
    """Make one reshape of a chain, and none of an identity.

        Before                                       After
        a = R.reshape(x, (1, 64, 1, 1))              b = R.reshape(x, (1, 64))
        b = R.squeeze(a, axis=[2, 3])

    Reshape, squeeze, expand_dims and flatten are one family; a permute_dims that moves only axes of size 1 joins it.

    Applies when   the shapes are static.
    Declines when  1. a shape is not static (nothing is recorded: the reshape stays).
    Gain           a copy each where memory planning does not make it a view; and fusion across it.
    Order          after PropagateTransposes, for which a transpose should stay one as long as it travels.
    """

    names = (*RESHAPES, "permute_dims")

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a reshape of any spelling."""
        if not self._reshapes(graph, value):
            return None
        target, x = shape(value), value.args[0]
        while self._reshapes(graph, x):
            x = graph.value(x).args[0]
        if shape(x) == target:
            self.applied(var, "identity")
            return x
        if x is value.args[0] and op_name(value) == "reshape":
            return None
        if x is not value.args[0]:
            self.applied(var, "chain")
        return relax.op.reshape(x, target)

    @staticmethod
    def _reshapes(graph: Graph, expr: Expr) -> bool:
        call = graph.call(expr, *RESHAPES, "permute_dims")
        if call is None or shape(call) is None:
            return False
        dims = shape(call.args[0])
        return dims is not None and (op_name(call) != "permute_dims" or not moves_data(axes_of(call), dims))
