"""Compute a size before what has it - behind FuseOps, which orders kernels by the tensors that they read alone.

    Before                                            After
    y = R.call_tir(fused, (x, c), shape[n])           z = R.call_tir(length, (x,), shape[1])
    z = R.call_tir(length, (x,), shape[1])            n = R.match_cast(R.tensor_to_shape(z), shape[n])
    n = R.match_cast(R.tensor_to_shape(z), shape[n])  y = R.call_tir(fused, (x, c), shape[n])

A Range whose length a run computes reads no tensor: fused with what was before its length, it goes there.

Applies when   a binding has a size that a later one defines.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_walk

from tvmopt.passes.graph import variables


def order_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """See the module's text."""
    main = module["main"]
    if not any(isinstance(b, relax.MatchCast) for block in main.body.blocks for b in block.bindings):
        return module
    known = {size for p in main.params for size in _sizes(p.ty)}
    blocks = []
    for block in main.body.blocks:
        ordered = _ordered(list(block.bindings), known)
        same = all(a.same_as(b) for a, b in zip(ordered, block.bindings, strict=True))
        blocks.append(block if same else type(block)(ordered))
    if all(a.same_as(b) for a, b in zip(blocks, main.body.blocks, strict=True)):
        return module
    body = relax.SeqExpr(blocks, main.body.body)
    made = relax.Function(main.params, body, main.ret_ty, bool(main.is_pure), main.attrs)
    functions = {g: made if g.name_hint == "main" else f for g, f in module.functions_items()}
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _ordered(bindings: list[Any], known: set[Any]) -> list[Any]:
    """The bindings, each behind those of its tensors and sizes; `known` gets the sizes that these define."""
    makers = {b.var: b for b in bindings}
    sizes: dict[Any, Any] = {}
    for binding in bindings:
        if isinstance(binding, relax.MatchCast):
            for size in _sizes(binding.ty):
                if size not in known:
                    sizes[size] = binding
                    known.add(size)
    ordered: dict[Any, Any] = {}
    for first in bindings:
        stack = [(first, False)]
        while stack:
            binding, ready = stack.pop()
            if ready:
                ordered.setdefault(binding.var, binding)
            elif binding.var not in ordered:
                stack.append((binding, True))
                needed = [makers[v] for v in variables(binding.value) if v in makers]
                used = [sizes[s] for s in (*_sizes(binding.value), *_sizes(binding.var.ty)) if s in sizes]
                waiting = {b.var for b, started in stack if started}
                stack += [(b, False) for b in (*used, *needed) if b.var not in waiting]
    return list(ordered.values())


def _sizes(expr: Any) -> list[Any]:
    """The variables of sizes in an expression or a type."""
    found: list[Any] = []
    structural_walk(expr, (tirx.Var, found.append))
    return found
