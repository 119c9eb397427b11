"""Leave reshapes between open sizes alone while kernels are fused."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.lowering import between_expressions
from tvmopt.operators.view import OP, view
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass


@rewrite_pass("tvmopt.KeepViews")
class KeepViews(Rewrite):
    """Make reshapes views, which no pass lowers, until :func:`views_again`.

        Before                                                 After
        y = R.reshape(x, (n, h*w + (h//2)*(w//2), 64))         y = tvmopt.view(x, (n, h*w + (h//2)*(w//2), 64))

    Applies when   a size on either side is an expression, and the result is no output of the model, which has memory
                   of its own.
    Gain           a copy that divides by open sizes for each number, and up to a minute in TVM and LLVM.
    Order          behind the lowering, which leaves such reshapes and emits some; what stays one is lowered then.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a reshape."""
        if op_name(value) != "reshape" or not isinstance(var, relax.DataflowVar) or not between_expressions(value):
            return None
        self.applied(var, "reshape")
        return view(value.args[0], value.ty.shape)


def views_again(module: tvm.IRModule) -> tvm.IRModule:
    """The fused module with reshapes in the place of views: memory planning knows them."""

    @mutator
    class Reshapes(PyExprMutator):  # type: ignore[misc]  # TVM has no types
        def visit_call_(self, call: relax.Call) -> Any:
            call = self.visit_expr_post_order(call)
            return relax.op.reshape(*call.args) if op_name(call) == OP else call

    main = module["main"]
    if not any(op_name(b.value) == OP for block in main.body.blocks for b in block.bindings):
        return module
    work = Reshapes(module)
    work.builder_.update_func(module.get_global_var("main"), work.visit_expr(main))
    return work.builder_.get()
