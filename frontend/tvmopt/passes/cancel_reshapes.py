"""Cancel reshapes: chains become one, identities none; a transpose that moves no data is a reshape."""

from __future__ import annotations

from tvm import relax

from tvmopt.dims import is_open
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass, shape, sizes
from tvmopt.passes.permute import moves_data
from tvmopt.passes.propagate_transposes import RESHAPES, axes_of


@rewrite_pass("tvmopt.CancelReshapes")
class CancelReshapes(Rewrite):
    """Make one reshape of a chain, and none of an identity.

        Before                                       After
        a = R.reshape(x, (1, 64, 1, 1))              b = R.reshape(x, (1, 64))
        b = R.squeeze(a, axis=[2, 3])

    Reshape, squeeze, expand_dims and flatten are one family; a permute_dims that moves only axes of size 1 joins it.

    Applies when   the shapes are static, or open and the last of them is such a permute_dims: it would be a copy.
    Declines when  1. another shape is open (nothing is recorded: the reshape stays).
    Gain           a copy each where memory planning does not make it a view; and fusion across it.
    Order          after PropagateTransposes, for which a transpose should stay one as long as it travels.
    """

    names = (*RESHAPES, "permute_dims")

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a reshape of any spelling."""
        if not self._reshapes(graph, value):
            return self._open(graph, var, value)
        target, x = shape(value), value.args[0]
        if 0 in (target or ()):  # which TVM's reshape takes for the size that stood there
            return None
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

    def _open(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """A permute_dims that moves no data of open sizes, behind reshapes or not."""
        if op_name(value) != "permute_dims":
            return None
        dims = sizes(value.args[0])
        if dims is None or not is_open(dims) or moves_data(axes_of(value), dims):
            return None
        x = value.args[0]
        while (inner := graph.call(x, "reshape")) is not None:
            x = inner.args[0]
        self.applied(var, "chain")
        return relax.op.reshape(x, value.ty.shape)

    @staticmethod
    def _reshapes(graph: Graph, expr: Expr) -> bool:
        call = graph.call(expr, *RESHAPES, "permute_dims")
        if call is None or shape(call) is None:
            return False
        dims = shape(call.args[0])
        return dims is not None and (op_name(call) != "permute_dims" or not moves_data(axes_of(call), dims))
