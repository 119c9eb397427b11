"""Names that lead back to the model: identifiers for ONNX names, and bindings named after their nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

NODES = "tvmopt.nodes"
"""Attribute of `main`: the ONNX name of each binding's name, in the order of the model."""

BUILT = re.compile(r"(lv|gv)\d*|main")
"""Names that TVM's builder gives: they say nothing, and no node may have them. It would rename the function `main`."""


def without_names(module: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, str]]:
    """The module without its names of nodes, and these; they are no part of what is compiled."""
    main = module["main"]
    if main.attrs is None or NODES not in main.attrs:
        return module, {}
    names = {str(binding): str(name) for binding, name in main.attrs[NODES].items()}
    order = [str(binding) for binding in main.attrs[NODES]]
    bare = module.clone()
    bare.update_func(bare.get_global_var("main"), main.without_attr(NODES))
    return bare, {binding: names[binding] for binding in order}


class Names:
    """Distinct C identifiers for ONNX names, and the way back."""

    def __init__(self) -> None:
        self.original: dict[str, str] = {}

    def fresh(self, name: str, prefix: str = "v") -> str:
        """An identifier that nobody has yet: ``conv1/relu:0`` becomes ``conv1_relu_0``."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", name) or prefix
        if base[0].isdigit() or BUILT.fullmatch(base):
            base = f"{prefix}_{base}"
        candidate, n = base, 1
        while candidate in self.original:
            n += 1
            candidate = f"{base}_{n}"
        self.original[candidate] = name
        return candidate


@mutator
class _Rename(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Give each binding the name decided for it; TVM's builder has appended numbers to make names unique."""

    def __init__(self, names: dict[Any, str]) -> None:
        super().__init__()
        self.names = names

    def visit_var_def_(self, var: Any) -> Any:
        return relax.Var(self.names[var], var.ty) if var in self.names else var

    def visit_dataflow_var_def_(self, var: Any) -> Any:
        return relax.DataflowVar(self.names[var], var.ty) if var in self.names else var


def _bindings(expr: Any) -> Iterator[Any]:
    """All bindings of a function body in order, those of If branches before the If itself."""
    if not isinstance(expr, relax.SeqExpr):
        return
    for block in expr.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from _bindings(binding.value.true_branch)
                yield from _bindings(binding.value.false_branch)
            yield binding


def named(func: Any, roots: Mapping[Any, str]) -> Any:
    """The function with every binding named after its node.

    Args:
        roots: the name of each variable that holds an output of a node. The bindings before one of them, back
            to the previous, are the steps towards it and get its name.
    """
    names, pending = {}, []
    for binding in _bindings(func.body):
        pending.append(binding.var)
        if binding.var in roots:
            names.update(dict.fromkeys(pending, roots[binding.var]))
            pending = []
    return _Rename(names).visit_expr(func)
