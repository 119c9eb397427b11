"""Write an unrolled loop out with only the arm that each copy takes of a choice by the loop's number - before TVM does.

    Before                                            After
    for i in unroll(4):                               y[0] = x[0] + x[1]
      y[i] = select(i == 3, x[1] - x[3],              y[1] = x[1] - x[2]
             select(i == 2, x[2] * 4,                 y[2] = x[2] * 4
             select(i == 1, x[1] - x[2],              y[3] = x[1] - x[3]
                            x[0] + x[1])))

TVM would copy all arms four times, and simplify all of them before it drops three of four: a transform of Winograd has
36 copies of six arms.

Applies when   a choice in an unrolled loop compares its variable with a number, on a CPU.
Gain           code generation of ResNet-50's four Winograd kernels, one core: 0.72 -> 0.53 s; the code is the same
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_mutate, structural_walk

from tvmopt.lowering.loops import seq, with_body


def choose_arms(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""

    def loop(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if int(node.kind) != int(tirx.ForKind.UNROLLED) or not _chooses(node):
            return node
        first = int(node.min)
        return seq([_copy(node, first + step) for step in range(int(node.extent))])

    body = structural_mutate(func.body, ((tirx.For, loop),))
    return func if body.same_as(func.body) else with_body(func, body)


ChooseArms = tirx.transform.prim_func_pass(choose_arms, opt_level=0, name="tvmopt.ChooseArms")


def _chooses(loop: Any) -> bool:
    """Whether a choice in a loop asks for its number."""
    found: list[bool] = []
    structural_walk(
        loop.body, ((tirx.Select, lambda node: found.append(_asked(node.condition, loop.loop_var) is not None)),)
    )
    return any(found) and isinstance(loop.min, tirx.IntImm)


def _asked(condition: Any, var: Any) -> int | None:
    """The number that a condition compares a variable with; None for another condition."""
    if isinstance(condition, tirx.Broadcast):
        condition = condition.value
    if isinstance(condition, tirx.EQ) and condition.a.same_as(var) and isinstance(condition.b, tirx.IntImm):
        return int(condition.b)
    return None


def _copy(loop: Any, number: int) -> Any:
    """The loop with one of its numbers alone; TVM puts it in the place of the variable."""
    var = loop.loop_var

    def choice(node: Any, mutator: Any) -> Any:
        asked = _asked(node.condition, var)
        if asked is None:
            return mutator.default_mutate(node)
        return mutator.mutate(node.true_value if asked == number else node.false_value)

    first, once = (tirx.const(n, str(var.ty.dtype)) for n in (number, 1))
    return tirx.For(var, first, once, loop.kind, structural_mutate(loop.body, ((tirx.Select, choice),)))
