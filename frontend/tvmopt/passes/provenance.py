"""Which ONNX nodes each kernel computes: the importer's binding names, followed through operator fusion.

Before fusion every binding of `main` is one operator, named after its ONNX node. FuseOps groups bindings into
functions, shares equal functions between call sites (so the names inside are those of the first site only) and renames
the last binding. The grouping is replayed: a fused call's inner operators are looked up by (callee, argument names).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

Key = tuple[str, tuple[str, ...]]


@dataclass
class Provenance:
    """operators: (callee, argument names) -> names of the bindings that compute it, before fusion."""

    operators: dict[Key, list[str]] = field(default_factory=dict)
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)  # caller's binding -> ONNX nodes

    @classmethod
    def before_fusion(cls, module: tvm.IRModule) -> Provenance:
        """Remember every operator call of `main`."""
        operators: dict[Key, list[str]] = defaultdict(list)
        alias: dict[str, str] = {}
        for var, value in _bindings(module["main"]):
            if isinstance(value, relax.Call):
                operators[_key(value, alias)].append(var)
            elif isinstance(value, relax.Var):
                alias[var] = alias.get(value.name, value.name)
        return cls(dict(operators))

    def after_fusion(self, module: tvm.IRModule) -> Provenance:
        """Follow the calls of the fused `main` (after FuseOps, before FuseTIR)."""
        left = {key: list(names) for key, names in self.operators.items()}
        known: dict[str, str] = {p.name: p.name for p in module["main"].params}
        sites: dict[str, tuple[str, ...]] = {}
        for var, value in _bindings(module["main"]):
            if isinstance(value, relax.Var):
                known[var] = known.get(value.name, value.name)
                continue
            if not isinstance(value, relax.Call):
                known[var] = var
                continue
            if isinstance(value.op, tvm.ir.GlobalVar):
                inner = dict(
                    zip((p.name for p in module[value.op].params), (_name(a, known) for a in value.args), strict=False)
                )
                nodes = []
                for inner_var, inner_value in _bindings(module[value.op]):
                    if isinstance(inner_value, relax.Call):
                        inner[inner_var] = _take(left, _key(inner_value, inner), inner_var)
                        nodes.append(inner[inner_var])
                    elif isinstance(inner_value, relax.Var):
                        inner[inner_var] = inner.get(inner_value.name, inner_value.name)
                sites[var], known[var] = tuple(dict.fromkeys(nodes)), nodes[-1] if nodes else var
            else:
                known[var] = _take(left, _key(value, known), var)
                sites[var] = (known[var],)
        return Provenance(self.operators, sites)

    def joined(self, bindings: dict[str, tuple[str, ...]]) -> Provenance:
        """With the nodes of several bindings at one: binding -> those whose work it does."""
        sites = {
            var: tuple(dict.fromkeys(node for name in names for node in self.sites.get(name, (name,))))
            for var, names in bindings.items()
        }
        return Provenance(self.operators, {**self.sites, **sites})

    def calls(self, module: tvm.IRModule) -> dict[str, list[tuple[str, ...]]]:
        """PrimFunc name -> the ONNX nodes of each call site, in order of the first call (after FuseTIR)."""
        found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for var, value in _bindings(module["main"]):
            if isinstance(value, relax.Call) and getattr(value.op, "name", "").startswith("relax.call_tir"):
                found[value.args[0].name_hint].append(self.sites.get(var, (var,)))
        return dict(found)


def _take(left: dict[Key, list[str]], key: Key, default: str) -> str:
    names = left.get(key)
    return names.pop(0) if names else default


def _bindings(func: relax.Function) -> list[tuple[str, Any]]:
    if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
        return []
    return [
        (b.var.name, b.value) for block in func.body.blocks for b in block.bindings if isinstance(b, relax.VarBinding)
    ]


def _key(call: relax.Call, known: dict[str, str]) -> Key:
    """(callee, names of its tensor arguments); constants have no name, and count by position only."""
    if getattr(call.op, "name", "").startswith("relax.call_tir"):
        callee = call.args[0].name_hint
        args = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else [call.args[1]]
    else:
        callee, args = getattr(call.op, "name", getattr(call.op, "name_hint", "?")), list(call.args)
    return callee, tuple(_name(a, known) for a in args)


def _name(expr: Any, known: dict[str, str]) -> str:
    if isinstance(expr, relax.Var):
        return known.get(str(expr.name), str(expr.name))
    return "" if not isinstance(expr, relax.Tuple) else "(" + ",".join(_name(f, known) for f in expr.fields) + ")"
