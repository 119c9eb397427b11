"""Refuse kernels in which a loop's number decides what is chosen, and from which place, perhaps outside of a tensor.

    value = select(k == 3, x[k * 64], x[0])        is computed as       a = x[192], b = x[0]
                                                                        value = select(k == 3, a, b)

Both arms of a choice are computed, and TVM simplifies each of them as if its condition held: a loop that never comes
to 3 reads a number behind the end of `x` all the same. (Where the condition is one truth, and no vector, TVM makes a
branch of the choice, and the load is safe.) The way out is to load in front of the choice, in a Let.

Fuzzing and the tests of tvmopt compile all their kernels with this check, which looks at tensors of known size.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

BEHIND = "s_tir.RewriteUnsafeSelect"
"""TVM's pass that makes branches of choices between loads."""


def check_arms(func: tirx.PrimFunc, *_: Any) -> tirx.PrimFunc:
    """The function itself.

    Raises:
        RuntimeError: a loop's number decides a choice between numbers that are loaded from places it stands in, and for
            some of its numbers such a place may be outside of the tensor.
    """
    loops: list[Any] = []
    known = Analyzer()

    def loop(node: Any) -> None:
        loops.append(node.loop_var)
        known.bind(node.loop_var, Range.from_min_extent(node.min, node.extent))

    def choice(node: Any) -> None:
        loads = [*_loads(node.true_value), *_loads(node.false_value)]
        used = [var for load in loads if not _inside(load, known) for var in undefined_vars(load.indices[0])]
        asked = [var for part in _parts(node.condition) if not _loads(part) for var in undefined_vars(part)]
        if any(one.same_as(var) and two.same_as(var) for var in loops for one in asked for two in used):
            raise RuntimeError(f"a loop's number decides a choice, and where it is loaded from: {str(node)[:300]}")

    structural_walk(func.body, ((tirx.For, loop),))
    structural_walk(func.body, ((tirx.Select, choice),))
    return func


def _inside(load: Any, known: Any) -> bool:
    """Whether all numbers of a load are the tensor's, whatever the loops' numbers are, or its size is
    open: nothing proves then that an attention's mask, which such a choice reads, ends where its keys do."""
    (place,), (size,) = load.indices, load.source.shape
    if not isinstance(size, tirx.IntImm):
        return True
    ends = [place.base, place.base + place.stride * (place.lanes - 1)] if isinstance(place, tirx.Ramp) else [place]
    bounds = [known.const_int_bound(end) for end in ends]
    least, most = min(bound.min_value for bound in bounds), max(bound.max_value for bound in bounds)
    return least >= 0 and most < int(size)


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
