"""Which ONNX nodes each binding of `main` computes, followed through every pass by comparing before and after.

No pass has to say what it replaced. After each one the old `main` and the new one are compared:

* where all variables have the names that they had, in the same order, each keeps its nodes;
* a variable that is still there keeps its nodes;
* a new one has those of the variable that it is named after: passes name what they emit after what they rewrite;
* nodes whose last variable is gone go to what took over their work: the value that readers read instead, else the
  reader that was rewritten (a BatchNorm that holds a convolution now; a MatMul whose weight was transposed);
* a new one without a known name (TVM's builder calls it ``lv7``) is a step towards its readers, and has their nodes.

So no node is lost unless nothing reads what it computes. FuseOps makes functions of bindings and renames them: there
the operators inside are looked up by callee and arguments instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvmopt.dims import Size, replaced, symbols_of
from tvmopt.importer.provenance import BUILT
from tvmopt.importer.sizes import sizes_of
from tvmopt.passes.graph import RESULT, Constant, Expr, Var, op_name, variables
from tvmopt.report import DecisionLog

Nodes = tuple[str, ...]
Transform = Callable[[tvm.IRModule], tvm.IRModule]
Ident = Any  # what an expression is, wherever it stands: nested tuples of strings and numbers


class Provenance:
    """The ONNX nodes of each binding of `main`.

    Args:
        module: as imported; its bindings are named after their nodes.
        names: the ONNX name of each binding's name, in the order of the model; a binding that it lacks is its own node.
    """

    def __init__(self, module: tvm.IRModule, names: Mapping[str, str]) -> None:
        self.names = names
        self._rank = {name: i for i, name in enumerate(names.values())}
        self._nodes: dict[Var, Nodes] = {
            var: (names.get(str(var.name), str(var.name)),) for var, _ in _bindings(module["main"])
        }

    def of(self, var: Var) -> Nodes:
        """The nodes that this binding computes, in the order of the model."""
        return self._nodes.get(var) or (str(var.name),)

    # ---- passes

    def through(self, transforms: Iterable[Transform], module: tvm.IRModule, log: DecisionLog) -> tvm.IRModule:
        """The module after these passes, followed; what they log is about ONNX nodes, not about bindings."""
        for transform in transforms:
            before, logged = module["main"], len(log.decisions)
            module = transform(module)
            self.follow(before, module["main"])
            told = [replace(d, node=self.names.get(d.node, d.node)) for d in log.decisions[logged:]]
            log.decisions[logged:] = told
        return module

    def follow(self, before: Any, after: Any) -> None:
        """What a pass made of `main`."""
        if before.same_as(after):
            return
        bindings = list(_bindings(after))
        then = [var for var, _ in _bindings(before)]
        if [str(var.name) for var in then] == [str(var.name) for var, _ in bindings]:
            self._nodes = {new: self._nodes[old] for old, (new, _) in zip(then, bindings, strict=True)}
            return
        now = dict(bindings)
        nodes, nameless = self._kept(var for var, _ in bindings)
        kept = {name for held in nodes.values() for name in held}
        lost = {v: left for v, held in self._nodes.items() if v not in nodes and (left := set(held) - kept)}
        if lost:
            heirs = _heirs(before, after, now)
            for var, left in lost.items():
                for heir in heirs.get(var, ()):
                    self._add(nodes, heir, left)
        if nameless:
            users = _users(after)
            for var in reversed(nameless):
                if var not in nodes:
                    nodes[var] = self._merged(*(nodes.get(user, ()) for user in users[var]))
        for var, value in reversed(bindings):  # an item of a tuple is no work: its nodes are those of the whole
            whole = value.tuple_value if isinstance(value, relax.TupleGetItem) else None
            if whole in now and whole not in self._nodes:
                self._add(nodes, whole, nodes[var])
                if op_name(now[whole]) == "split" and now[whole].args[0] not in self._nodes:
                    self._add(nodes, now[whole].args[0], nodes[var])
        self._nodes = {var: nodes[var] for var, _ in bindings}

    def _kept(self, variables: Iterable[Var]) -> tuple[dict[Var, Nodes], list[Var]]:
        """The nodes of those variables that were there, or are named after one that was; and the other variables."""
        nodes: dict[Var, Nodes] = {}
        new = []
        for var in variables:
            held = self._nodes.get(var)
            if held is None:
                new.append(var)
            else:
                nodes[var] = held
        if not new:
            return nodes, []
        by_name: dict[str, Nodes] = {}
        for var, held in self._nodes.items():
            name = str(var.name)
            if not BUILT.fullmatch(name):
                by_name[name] = self._merged(by_name[name], held) if name in by_name else held
        nodes |= {var: by_name[str(var.name)] for var in new if str(var.name) in by_name}
        return nodes, [var for var in new if var not in nodes]

    def _add(self, nodes: dict[Var, Nodes], var: Var, more: Iterable[str]) -> None:
        nodes[var] = self._merged(nodes.get(var, ()), more)

    def _merged(self, *several: Iterable[str]) -> Nodes:
        found = {name for names in several for name in names}
        return tuple(sorted(found, key=lambda name: (self._rank.get(name, -1), name)))

    # ---- fusion

    def fused(self, before: Any, module: tvm.IRModule) -> None:
        """What FuseOps made of `before`: a call of a function has the nodes of the operators inside."""
        known = _Operators(before)
        main, nodes = module["main"], dict[Var, Nodes]()
        env: dict[Var, Ident] = {p: ("parameter", i) for i, p in enumerate(main.params)}
        for var, value in _bindings(main):
            callee = value.op if isinstance(value, relax.Call) else None
            if isinstance(callee, tvm.ir.GlobalVar):
                func = module[callee]
                inner = dict(zip(func.params, (_ident(a, env) for a in value.args), strict=True))
                inside = [known.find(v, e, inner) for v, e in _bindings(func)]
                env[var] = _ident(func.body.body, inner)
            else:
                inside = [known.find(var, value, env)]
            held = [self.of(old) for old in inside if old is not None]
            nodes[var] = self._merged(*held) if held else self.of(var)
        self._nodes = nodes

    def joined(self, bindings: Mapping[Var, Iterable[Var]]) -> None:
        """Some bindings do the work of several: the new variable -> those whose work it does."""
        self._nodes |= {var: self._merged(*(self.of(one) for one in several)) for var, several in bindings.items()}

    def calls(self, module: tvm.IRModule) -> dict[str, list[Nodes]]:
        """PrimFunc name -> the ONNX nodes of each call site, in order of the first call (after FuseTIR)."""
        found: dict[str, list[Nodes]] = defaultdict(list)
        for var, value in _bindings(module["main"]):
            if _calls_tir(value):
                found[value.args[0].name_hint].append(self.of(var))
        return dict(found)


def shapes_of_calls(module: tvm.IRModule, named: Mapping[str, int]) -> dict[str, list[tuple[int, ...]]]:
    """PrimFunc name -> the shapes of the tensors that its first call gives it, results last (after FuseTIR).

    Args:
        named: open sizes by symbol; one that is not named is 1. What values decide leaves a kernel out.
    """

    def number(size: Size) -> int:
        return int(replaced(size, {name: named.get(name, 1) for name in symbols_of([size])}))

    found: dict[str, list[tuple[int, ...]]] = {}
    for var, value in _bindings(module["main"]):
        if _calls_tir(value) and value.args[0].name_hint not in found:
            results = getattr(var.ty, "fields", None) or [var.ty]
            shapes = [sizes_of(kind) for kind in (*(a.ty for a in value.args[1].fields), *results)]
            known = [tuple(map(number, shape)) for shape in shapes if shape is not None]
            if len(known) == len(shapes):
                found[value.args[0].name_hint] = known
    return found


def _heirs(before: Any, after: Any, now: Mapping[Var, Expr]) -> dict[Var, list[Var]]:
    """For each variable that is gone: what took over its work."""
    then = dict(_bindings(before))
    users, heirs = _users(before), dict[Var, list[Var]]()
    emitted: dict[str, list[Var]] = defaultdict(list)
    for var in now:
        if var not in then and not BUILT.fullmatch(str(var.name)):
            emitted[str(var.name)].append(var)
    for var in reversed(then):
        if var in now:
            continue
        found: dict[Var, None] = {}
        for user in users[var]:
            if user is RESULT or user in now:
                old, new = (before.body.body, after.body.body) if user is RESULT else (then[user], now[user])
                instead = _instead(var, old, new, now)
                same = [] if user is RESULT else [user, *emitted.get(str(user.name), ())]
                found |= dict.fromkeys(same if instead is None else [instead])
            else:
                found |= dict.fromkeys(emitted.get(str(user.name)) or heirs[user])
        heirs[var] = list(found)
    return heirs


def _instead(var: Var, old: Expr, new: Expr, now: Mapping[Var, Expr]) -> Var | None:
    """The binding that a reader reads in place of `var`, if that is all that changed of the reader."""
    if _form(old) != _form(new):
        return None
    pairs = list(zip(_operands(old), _operands(new), strict=True))
    changed = [(a, b) for a, b in pairs if not a.same_as(b)]
    if not all(isinstance(a, relax.Var) and a not in now for a, _ in changed):
        return None
    found = next((b for a, b in changed if a.same_as(var)), None)
    return found if isinstance(found, relax.Var) and found in now else None


def _form(value: Expr) -> Any:
    """All of a value but its operands, as something to compare."""
    count = len(_operands(value))
    if isinstance(value, relax.Call):
        return ("call", value.op, tvm_ffi.structural_hash(value.attrs) if value.attrs is not None else 0, count)
    return (type(value).__name__, int(value.index) if isinstance(value, relax.TupleGetItem) else 0, count)


def _operands(value: Expr) -> list[Expr]:
    if isinstance(value, relax.Call):
        return [field for arg in value.args for field in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    return list(value.fields) if isinstance(value, relax.Tuple) else [value]


def _users(func: Any) -> dict[Var, list[Any]]:
    """The variables that read each variable, and RESULT for the function's result."""
    users: dict[Var, list[Any]] = defaultdict(list)
    for var, value in _bindings(func):
        for used in variables(value):
            users[used].append(var)
    for used in variables(func.body.body):
        users[used].append(RESULT)
    return users


class _Operators:
    """The operator calls of `main` before fusion, by callee and arguments."""

    def __init__(self, main: Any) -> None:
        env: dict[Var, Ident] = {p: ("parameter", i) for i, p in enumerate(main.params)}
        self._left: dict[Ident, list[tuple[Var, Ident]]] = defaultdict(list)
        for number, (var, value) in enumerate(_bindings(main)):
            if isinstance(value, relax.Call):
                self._left[_call(value, env)].append((var, ("call", number)))
                env[var] = ("call", number)
            else:
                env[var] = _ident(value, env)

    def find(self, var: Var, value: Expr, env: dict[Var, Ident]) -> Var | None:
        """The old variable of this binding; tells `env` what the new one is."""
        if not isinstance(value, relax.Call):
            env[var] = _ident(value, env)
            return None
        same = self._left.get(_call(value, env))
        old, env[var] = same.pop(0) if same else (None, ("new", str(var.name)))
        return old


def _call(call: relax.Call, env: Mapping[Var, Ident]) -> Ident:
    if _calls_tir(call):
        callee = call.args[0].name_hint
        return (callee, *(_ident(a, env) for a in call.args[1:]))
    callee = getattr(call.op, "name", getattr(call.op, "name_hint", "?"))
    return (callee, *(_ident(a, env) for a in call.args))


def _ident(expr: Expr, env: Mapping[Var, Ident]) -> Ident:
    if isinstance(expr, relax.Var):
        return env.get(expr, ("variable", str(expr.name)))
    if isinstance(expr, relax.Tuple):
        return ("tuple", tuple(_ident(field, env) for field in expr.fields))
    if isinstance(expr, relax.TupleGetItem):
        whole = _ident(expr.tuple_value, env)
        return whole[1][expr.index] if whole[0] == "tuple" else ("item", whole, int(expr.index))
    if isinstance(expr, Constant):
        return ("constant", int(expr.value.data_ptr()))
    return ("other",)


def _calls_tir(value: Expr) -> bool:
    return isinstance(value, relax.Call) and str(getattr(value.op, "name", "")).startswith("relax.call_tir")


def _bindings(func: Any) -> Iterator[tuple[Var, Expr]]:
    """All bindings in order, those of an If's branches before the If itself."""
    if isinstance(func, relax.Function):
        yield from _bindings(func.body)
    if not isinstance(func, relax.SeqExpr):
        return
    for block in func.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from _bindings(binding.value.true_branch)
                yield from _bindings(binding.value.false_branch)
            yield binding.var, binding.value
