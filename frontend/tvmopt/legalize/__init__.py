"""From Relax operators to loops: one file an operator group; what none of them takes is TVM's own legalization.

A legalizer is `fn(bb, call, machine) -> Expr | None`; None means: not this one, use TVM's. It never schedules; it
only chooses a form of the loops that a family schedules well, and packs constant weights for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from tvmopt.legalize import (
    amx,
    any_norm,
    attention,
    checked,
    conv,
    cuda,
    depthwise,
    elementwise,
    extremes,
    math,
    matmul,
    norm,
    pool,
    positions,
    recurrent,
    take,
    winograd,
)
from tvmopt.targets import Machine

Legalizer = Callable[[relax.BlockBuilder, relax.Call, Machine], "relax.Expr | None"]

# an operator that two groups know: the first that does not return None
_GROUPS = (depthwise, winograd, amx, conv, matmul, pool, norm, any_norm, attention, recurrent, take, extremes,
           positions, elementwise, checked)  # fmt: skip
_APPROXIMATE = (winograd,)  # other roundings than the operator's definition; `exact` leaves them out


def legalize(module: tvm.IRModule, machine: Machine, exact: bool = False, precision: str = "fp32") -> tvm.IRModule:
    """Every Relax operator of `module` as a call of a PrimFunc.

    Args:
        exact: only forms that add and multiply as the operator's definition does: no Winograd.
        precision: with "tf32" legalizers see a machine with that feature: it may round the operands of fp32
            products. Other precisions are in the module's types already.
    """
    if precision == "tf32":
        machine = replace(machine, features=(*machine.features, "tf32"))
    math.install()
    groups = cuda.GROUPS if machine.kind == "cuda" else _GROUPS
    return relax.transform.LegalizeOps(_table(groups, machine, exact))(module)


def _table(groups: tuple[Any, ...], machine: Machine, exact: bool) -> dict[str, Any]:
    by_op: dict[str, list[Legalizer]] = {}
    for group in groups:
        if exact and group in _APPROXIMATE:
            continue
        for op, fn in group.LEGALIZERS.items():
            by_op.setdefault(op, []).append(fn)

    def entry(op: str, fns: list[Legalizer]) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
        def run(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            for fn in fns:
                result = fn(bb, call, machine)
                if result is not None:
                    return result
            stock = tvm.ir.Op.get(op).get_attr("FLegalize")
            return stock(bb, call) if stock is not None else call

        return run

    return {op: entry(op, fns) for op, fns in by_op.items()}
