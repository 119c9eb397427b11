"""Refuse kernels in which a loop's number decides what is chosen and also where the choices are loaded from.

    value = select(k == 3, x[k * 64], x[0])        is computed as       a = x[192], b = x[0]
                                                                        value = select(k == 3, a, b)

Both arms of a choice are computed, and TVM simplifies each of them as if its condition held: a loop that never comes
to 3 reads a number behind the end of `x` all the same. (Where the condition is one truth, and no vector, TVM makes a
branch of the choice, and the load is safe.) The way out is to load in front of the choice, in a Let.

Fuzzing and the tests of tvmopt compile all their kernels with this check.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

BEHIND = "s_tir.RewriteUnsafeSelect"
"""TVM's pass that makes branches of choices between loads."""


def check_arms(func: tirx.PrimFunc, *_: Any) -> tirx.PrimFunc:
    """The function itself.

    Raises:
        RuntimeError: a loop's number decides a choice between numbers that are loaded from places it stands in.
    """
    loops: list[Any] = []
    structural_walk(func.body, ((tirx.For, lambda loop: loops.append(loop.loop_var)),))

    def choice(node: Any) -> None:
        loads = [*_loads(node.true_value), *_loads(node.false_value)]
        used = [var for load in loads for index in load.indices for var in undefined_vars(index)]
        asked = [var for part in _parts(node.condition) if not _loads(part) for var in undefined_vars(part)]
        if any(one.same_as(loop) and two.same_as(loop) for loop in loops for one in asked for two in used):
            raise RuntimeError(f"a loop's number decides a choice, and where it is loaded from: {str(node)[:300]}")

    structural_walk(func.body, ((tirx.Select, choice),))
    return func


def _parts(condition: Any) -> list[Any]:
    """What a condition asks, one by one."""
    if isinstance(condition, tirx.And | tirx.Or):
        return [*_parts(condition.a), *_parts(condition.b)]
    return [condition]


def _loads(value: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(value, ((TensorLoad, found.append),))
    return found


@cache
def install() -> None:
    """Check all kernels that this process compiles from now on."""
    module: Any = import_module("tvmopt.lowering.loop_passes")
    passes = module.loop_passes
    check = tirx.transform.prim_func_pass(check_arms, opt_level=0, name="fuzz.CheckArms")

    def checked() -> list[Any]:
        found = passes()
        found.insert([str(one.info.name) for one in found].index(BEHIND) + 1, check)
        return found

    module.loop_passes = checked
