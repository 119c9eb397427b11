"""Compute a softmax of 16-bit numbers in float32: a sum of thousands of them does not fit into 16 bits."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from tvmopt.floats import HALVES
from tvmopt.passes.graph import Call, Expr, Graph, Rewrite, Var, dtype, name_of, op_name, rewrite_pass
from tvmopt.report import DecisionLog


@rewrite_pass("tvmopt.ConvertSoftmax")
class ConvertSoftmax(Rewrite):
    """Widen the operand of a softmax, and round its result once.

        Before                                        After
        y = R.nn.softmax(x, axis)   # 16 bits         w = R.astype(x, "float32")
                                                      s = R.nn.softmax(w, axis)
                                                      y = R.astype(s, "float16")

    Applies when   x is float16 or bfloat16; likewise for log_softmax.
    Declines when  1. a kernel of the machine has sums in float32 already (`summed_wide`)
    Gain           a right result: 20000 equal numbers of float16 along axis 0 were added up to 2048, because 2048 + 1
                   is 2048 there. Exponentials are no longer rounded to 16 bits before they are added.
    Order          after FuseAttention, which looks for softmax between two products.
    """

    def __init__(self, log: DecisionLog | None = None, summed_wide: Callable[[Call], bool] | None = None) -> None:
        super().__init__(log)
        self.summed_wide = summed_wide or (lambda call: False)

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a softmax."""
        name = op_name(value)
        if name not in ("nn.softmax", "nn.log_softmax") or dtype(value) not in HALVES:
            return None
        if self.summed_wide(value):
            self.declined(var, "1: its kernel adds up in float32")  # Decline 1
            return None
        self.applied(var, f"{name} in float32")
        wide = graph.emit(relax.op.astype(value.args[0], "float32"), f"{name_of(var)}_wide")
        result = graph.emit(getattr(relax.op.nn, name[3:])(wide, int(value.attrs.axis)), f"{name_of(var)}_softmax")
        return relax.op.astype(result, dtype(value))
