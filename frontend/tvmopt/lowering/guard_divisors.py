"""Divide by 1 where a size is 0 - behind TVM's own passes of loops.

    Before                                            After
    rows = 262144 // columns                          rows = 262144 // (1 if columns == 0 else columns)
    for i in range(height // rows): ...               for i in range(height // rows): ...

A selection that finds nothing makes an axis of no elements. No loop along it runs, but what is computed before loops
does: how many rows a task has, and where they begin. A processor traps a division by zero, which ends the process.

Applies when   the divisor is one integer and no constant.
Gain           none; it costs a comparison beside a division, which takes ten times as long.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvmopt.lowering.loops import with_body

DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def guard_divisors(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    body = structural_map(func.body, tuple((kind, _guarded) for kind in DIVISIONS))
    return func if body.same_as(func.body) else with_body(func, body)


GuardDivisors = tirx.transform.prim_func_pass(guard_divisors, opt_level=0, name="tvmopt.GuardDivisors")


def _guarded(division: Any) -> Any:
    divisor = division.b
    dtype = str(divisor.ty.dtype)
    if dtype not in INTEGERS or isinstance(divisor, tirx.IntImm):
        return division
    safe = tirx.Select(divisor.equal(tirx.const(0, dtype)), tirx.const(1, dtype), divisor)
    return type(division)(division.a, safe)
