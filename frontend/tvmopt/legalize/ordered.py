"""Scans and top-k on a CPU: legalized before TVM's DispatchSortScan, which knows only kernels of its own."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.legalize.scan import SCANS, scan
from tvmopt.legalize.topk import topk
from tvmopt.targets import Machine

LEGALIZERS: dict[str, Any] = {**dict.fromkeys(SCANS, scan), "relax.topk": topk}


def lower_ordered(module: tvm.IRModule, machine: Machine) -> tvm.IRModule:
    """`module` with its scans and top-k as kernels of ours, where one of them takes the case."""
    main = module["main"]
    bound = (b.value for block in main.body.blocks for b in block.bindings)
    names = {getattr(value.op, "name", "") for value in bound if isinstance(value, relax.Call)}
    if machine.kind != "llvm" or not names & LEGALIZERS.keys():
        return module

    @mutator
    class Lower(PyExprMutator):  # type: ignore[misc]  # TVM has no types
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            call = self.visit_expr_post_order(call)
            fn = LEGALIZERS.get(getattr(call.op, "name", ""))
            found = fn(self.builder_, call, machine) if fn is not None else None
            return call if found is None else found

    work = Lower(module)
    work.builder_.update_func(module.get_global_var("main"), work.visit_expr(main))
    return work.builder_.get()
