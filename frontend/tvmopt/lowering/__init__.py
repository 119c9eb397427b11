"""From Relax operators to loops: the families are asked in their order, what each declines is recorded, and what none
of them takes gets TVM's own legalization.

Which families there are, and which operators each of them lowers, stands in their folders
(:mod:`tvmopt.scheduling.family`); this file knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.lowering import arms, clamp, math, max_pool, repeats, truths
from tvmopt.lowering.common import is_open, sizes
from tvmopt.lowering.extremes import Extremes
from tvmopt.report import DecisionLog
from tvmopt.scheduling.byte_cost import Product, byte_cycles, float_cycles
from tvmopt.scheduling.discover import families
from tvmopt.scheduling.family import Declined, Family, Lowering
from tvmopt.targets import Machine

STAGE = "tvmopt.LowerOperators"


def lower_operators(
    module: tvm.IRModule,
    machine: Machine,
    exact: bool = False,
    precision: str = "fp32",
    log: DecisionLog | None = None,
) -> tvm.IRModule:
    """Every Relax operator of `module` as a call of a PrimFunc, but for reshapes between sizes that are expressions:
    most are views, which KeepViews tells from those that are not.

    Args:
        exact: only forms that add and multiply as the operator's definition does: no Winograd.
        precision: with "tf32" families see a machine with that feature: they may round the operands of fp32 products.
            Other precisions are in the module's types already.
        log: hears of each family that declined a call, and of each such call that TVM's own form was left with.
    """
    math.install()
    clamp.install()
    max_pool.install()
    arms.install()
    truths.install()
    machine, log = _with_precision(machine, precision), log or DecisionLog()
    asked = _Asked(module["main"], machine, exact, log)
    with repeats.remembered():
        module = relax.transform.LegalizeOps(asked.legalizers(_used(module["main"])))(module)
    again = asked.keeps.keys() - {"relax.reshape"}
    if not _used(module["main"]) & again:
        return module
    module = relax.transform.DeadCodeElimination()(module)  # what has been taken over
    asked = _Asked(module["main"], machine, exact, log, keep=False)
    with repeats.remembered():
        return relax.transform.LegalizeOps(asked.legalizers(_used(module["main"])))(module)


def _used(main: Any) -> set[str]:
    """The operators of `main`."""
    return {_name(binding.value) for block in main.body.blocks for binding in block.bindings}


def lower_ordered(
    module: tvm.IRModule,
    machine: Machine,
    exact: bool = False,
    log: DecisionLog | None = None,
) -> tvm.IRModule:
    """`module` with the operators that TVM has no legalization of (scans, top-k) as kernels of the families that take
    them. It runs before TVM's DispatchSortScan, which puts kernels of its own in the place of all the others."""
    asked = _Asked(module["main"], machine, exact, log or DecisionLog())
    main = module["main"]
    used = _used(main) & asked.lowerings.keys()
    ours = {op for op in used if tvm.ir.Op.get(op).get_attr("FLegalize") is None}
    if not ours:
        return module

    @mutator
    class Lower(PyExprMutator):  # type: ignore[misc]  # TVM has no types
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            call = self.visit_expr_post_order(call)
            found = asked.lowered(_name(call), self.builder_, call) if _name(call) in ours else None
            return call if found is None else found

    work = Lower(module)
    work.builder_.update_func(module.get_global_var("main"), work.visit_expr(main))
    return work.builder_.get()


def between_expressions(reshape: relax.Call) -> bool:
    """Whether a size on either side of a reshape is an expression of the model's symbols."""
    shapes = [sizes(x) for x in (reshape.args[0], reshape)]
    known = [d for shape in shapes if shape is not None for d in shape]
    return None not in shapes and not all(isinstance(d, int | tirx.Var) for d in known)


def why_unrolled(call: relax.Call, machine: Machine) -> str | None:
    """Why no family of this machine takes a call of an operator that a graph pass can write out; None if one does."""
    reasons = [
        family.UNROLLED[_name(call)](call, machine)
        for family in families(machine.kind)
        if _name(call) in family.UNROLLED
    ]
    if not reasons:
        return "no kernel for GPUs" if machine.kind == "cuda" else f"no family lowers {_name(call)}"
    return None if None in reasons else reasons[0]


def faster_as_it_lies(call: relax.Call, machine: Machine, precision: str, exact: bool) -> bool:
    """Whether some family computes a call in channels-first faster than others do in channels-last, with the transposes
    around them."""
    if precision != "fp32":
        return False
    name = _name(call)
    return any(family.STAYS[name](call, machine, exact) for family in _asked(machine, exact) if name in family.STAYS)


def keeps_fp32(name: str, call: relax.Call, machine: Machine, precision: str, exact: bool) -> str | None:
    """Why a family computes a call in fp32 although the precision has 16 bits; None if none does.

    Args:
        name: of the operator, without "relax.".
    """
    if machine.kind == "cuda" and any(is_open(sizes(operand) or ()) for operand in call.args[:2]):
        return "kernels for GPUs take no 16-bit operands of open sizes"
    for family in _asked(machine, exact):
        reason = family.keeps_fp32(name, call, machine, precision) if family.keeps_fp32 else None
        if reason is not None:
            return reason
    return None


def predicted(product: Product, machine: Machine, exact: bool = False) -> tuple[float, float]:
    """Nanoseconds of one core for a product of quantised numbers: in bytes, and in floats by the fastest family."""
    floats = [float_cycles(product, machine)]
    for family in _asked(machine, exact):
        cycles = family.float_cycles(product, machine) if family.float_cycles else None
        floats += [] if cycles is None else [cycles]
    return byte_cycles(product, machine) / machine.ghz, min(floats) / machine.ghz


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled kernel for a CPU with what its family rewrites behind the schedule."""
    for family in families("llvm"):
        if family.finish is not None:
            func = family.finish(func)
    return func


STOCK = "its loops are TVM's, which a family may still schedule"
"""What becomes of an operator that no family lowers."""


class _Asked:
    """Asks the families of a machine, in order, and records what they decline.

    Attributes:
        lowerings: operator -> the families that may lower it, each with its function.
        keeps: operator -> whether a call stays as it is in this round.
        extremes: tells which convolutions a family that rounds differently must not take.
        node, result: the name and the variable of the call at hand; the latter None for what a lowering emitted.
    """

    def __init__(self, main: Any, machine: Machine, exact: bool, log: DecisionLog, keep: bool = True) -> None:
        self.machine, self.log = machine, log
        self.lowerings: dict[str, list[tuple[Family, Lowering]]] = {}
        self.keeps: dict[str, Callable[[relax.Call], bool]] = {}
        self.keeps["relax.reshape"] = between_expressions
        self.lowerings["relax.reshape"] = []
        for family in _asked(machine, exact):
            if keep:
                self.keeps.update(family.KEEPS)
                self.lowerings.update({op: self.lowerings.get(op, []) for op in family.KEEPS})
            for op, function in family.LOWERS.items():
                self.lowerings.setdefault(op, []).append((family, function))
        self.bindings = [(b.var, b.value) for block in main.body.blocks for b in block.bindings]
        self.extremes = Extremes(main)
        self.node, self.result = "", None

    def lowered(self, op: str, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
        """What the first family that takes the call makes of it; None where none does."""
        self._find(call)
        declined = []
        for family, function in self.lowerings[op]:
            why = self.extremes.why_exact(self.result) if family.ROUNDS_DIFFERENTLY and self.result is not None else ""
            result = Declined(why) if why else function(bb, call, self.machine)
            if isinstance(result, Declined):
                declined.append(family.NAME)
                self.log.declined(STAGE, self.node, f"{family.NAME}: {result.reason}")
            elif result is not None:
                return result
        if declined:
            self.log.declined(STAGE, self.node, f"no other family lowers {op.removeprefix('relax.')}: {STOCK}")
        return None

    def legalizer(self, op: str) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
        """The families' answer, else TVM's, as LegalizeOps calls for it."""

        def run(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            if op in self.keeps and self.keeps[op](call):
                return call
            result = self.lowered(op, bb, call)
            if result is not None:
                return result
            stock = tvm.ir.Op.get(op).get_attr("FLegalize")
            return repeats.legalized(op, stock, bb, call) if stock is not None else call

        return run

    def legalizers(self, used: Collection[str]) -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
        """Those of all operators that families lower, and of those used ones that TVM lowers."""
        others = [op for op in used - self.lowerings.keys() if op.startswith("relax.")]
        stock = {op: tvm.ir.Op.get(op).get_attr("FLegalize") for op in others}
        plain = {op: partial(repeats.legalized, op, function) for op, function in stock.items() if function is not None}
        return plain | {op: self.legalizer(op) for op in self.lowerings}

    def _find(self, call: relax.Call) -> None:
        """Note which binding a call is of: it has the name of its node. Calls come in the bindings' order, perhaps
        built again; what a lowering emits is asked about right after it, and is of the same node."""
        self.result = None
        for place, (var, value) in enumerate(self.bindings):
            if _same(call, value):
                self.node, self.result = str(var.name), var
                del self.bindings[: place + 1]
                return


def _asked(machine: Machine, exact: bool) -> list[Family]:
    """The families of a machine, those that round differently left out for `exact`."""
    found = [f for f in families(machine.kind) if f.runs_on(machine)]
    return [f for f in found if not (exact and f.ROUNDS_DIFFERENTLY)]


def _with_precision(machine: Machine, precision: str) -> Machine:
    return replace(machine, features=(*machine.features, "tf32")) if precision == "tf32" else machine


def _same(call: relax.Call, value: Any) -> bool:
    """Whether a call is this bound value, or it with equal arguments built again."""
    if not isinstance(value, relax.Call) or not value.op.same_as(call.op) or len(value.args) != len(call.args):
        return False
    return all(a.same_as(b) for a, b in zip(value.args, call.args, strict=True) if isinstance(b, relax.Var))


def _name(value: Any) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""
