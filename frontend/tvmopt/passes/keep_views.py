"""Which reshapes are views: those between open sizes stay apart while kernels are fused, those of checked values are
none."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.lowering import between_expressions
from tvmopt.operators.checks import CHECKS
from tvmopt.operators.view import OP, view
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass, shape


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


def reshapes_to_views(module: tvm.IRModule) -> tvm.IRModule:
    """TVM's RewriteDataflowReshape, but for kernels that read a value which another one checks.

        Before                                                 After TVM's alone
        i = R.call_tir(check, (at,))                           y = R.reshape(x, (4, 3))
        y = R.call_tir(take, (x [4, 1, 3], i))                 the check has no reader, and goes

    An axis of one element has one index, so TVM sees a reshape. Without the check a call whose index is out of range
    would be answered. Kernels of tensors with 2**31 elements or more are left as they are.
    """
    if _has_empty(module):  # TVM's reshape takes a size of 0 for the one that stood there
        return module
    kept = [*_readers_of_checks(module), *_of_large_tensors(module)]
    if not kept:
        return relax.transform.RewriteDataflowReshape()(module)
    hidden = module.clone()
    for name in kept:
        hidden.update_func(name, module[name].with_body(tirx.Evaluate(tirx.const(0, "int32"))))
    done = relax.transform.RewriteDataflowReshape()(hidden)
    for name in kept:
        done.update_func(done.get_global_var(name.name_hint), module[name])
    return done


def _has_empty(module: tvm.IRModule) -> bool:
    """Whether a tensor of `main` has no elements."""
    bound = [binding.var for block in module["main"].body.blocks for binding in block.bindings]
    return any(0 in (shape(var) or ()) for var in (*module["main"].params, *bound))


def _of_large_tensors(module: tvm.IRModule) -> list[Any]:
    """The kernels whose tensors have more elements than 32 bits count: TVM's pass ends with an error at them."""
    return [
        name
        for name, f in module.functions_items()
        if isinstance(f, tirx.PrimFunc) and any(_elements(p) >= 1 << 31 for p in f.params)
    ]


def _elements(param: Any) -> int:
    """Of a kernel's parameter, where an open size counts as one."""
    return math.prod(int(n) if isinstance(n, tirx.IntImm) else 1 for n in getattr(param.ty, "shape", None) or ())


def _readers_of_checks(module: tvm.IRModule) -> list[Any]:
    """The kernels of `main` that read what one that checks wrote."""
    checks = {name for name, f in module.functions_items() if f.attrs is not None and CHECKS in f.attrs}
    checked: set[Any] = set()
    readers: dict[Any, None] = {}
    for block in module["main"].body.blocks if checks else ():
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or op_name(call) != "call_tir":
                continue
            name, given = call.args[0], call.args[1]
            if name in checks:
                checked.add(binding.var)
            elif any(one in checked for one in getattr(given, "fields", ())):
                readers[name] = None
    return list(readers)
