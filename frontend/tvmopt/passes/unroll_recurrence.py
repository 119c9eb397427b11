"""LSTM, GRU and RNN step by step, where the machine has no kernel for all steps."""

from __future__ import annotations

import tvm
from tvm import relax

from tvmopt.operators.recurrence import OP
from tvmopt.passes.graph import Expr, Graph, Var, name_of, rewrite_pass, shape
from tvmopt.passes.without_kernel import WithoutKernel


@rewrite_pass("tvmopt.UnrollRecurrence")
class UnrollRecurrence(WithoutKernel):
    """Write a recurrence that the machine has no kernel for as operators of its steps.

        Before                                       After
        y = tvmopt.recurrent(projected, R, ...)      h1 = gates(projected[0] + R.matmul(h0, R^T))
                                                     h2 = gates(projected[1] + R.matmul(h1, R^T))
                                                     ...
                                                     y = (R.concat(h1, h2, ...), ...)

    Applies when   `unsupported` gives a reason: no kernel for GPUs, another type than float32, an open or empty shape.
    Declines when  the machine has a kernel: then the operator stays, and is legalized as one.
    Gain           none: code, kernels and compile time grow with the number of steps. It is the form that always works.
    Order          before FoldConstant, which transposes R then; and so before everything that looks for products.
    """

    operator = OP

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """The tuple of outputs for the call; for a reader of that tuple, its field."""
        if isinstance(value, relax.TupleGetItem):
            whole = graph.value(value.tuple_value)
            return whole.fields[value.index] if isinstance(whole, relax.Tuple) else None
        if (reason := self.reason(value)) is None:
            return None
        self.applied(var, f"unrolled over {(shape(value.args[0]) or ('?',))[0]} steps: {reason}")
        return tvm.ir.Op.get(OP).get_attr("FLegalize")(_Emitter(graph, name_of(var)), value)


class _Emitter:
    """The one word of a BlockBuilder that the step-by-step form needs, with every binding named after the node."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def emit(self, expr: Expr, _hint: str = "") -> Expr:
        return self.graph.emit(expr, self.name)
