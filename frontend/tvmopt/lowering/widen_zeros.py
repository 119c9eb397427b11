"""Give both operands of an operation one type - behind TVM's LoopPartition.

    Before                                            After
    out[(0 + int64(2)) * int64(16) + j] = ...         out[(int64(0) + int64(2)) * int64(16) + j] = ...

Of a loop that has one trip left LoopPartition keeps the body, with a zero of 32 bits for its variable. Indices beside
values of 64 bits, such as a Cast to int64, count in 64 bits, and what follows refuses operands of different types.

Applies when   a loop counts in 64 bits.
Gain           none; such kernels did not compile.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

from tvmopt.lowering.loops import with_body

OPERATIONS = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)
NARROW, WIDE = "int32", "int64"


def widen_zeros(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    counts: set[str] = set()
    structural_walk(func.body, ((tirx.For, lambda loop: counts.add(str(loop.loop_var.ty.dtype))),))
    if WIDE not in counts:
        return func
    body = structural_map(func.body, ((OPERATIONS, _widened),))
    return func if body.same_as(func.body) else with_body(func, body)


WidenZeros = tirx.transform.prim_func_pass(widen_zeros, opt_level=0, name="tvmopt.WidenZeros")


def _widened(operation: Any) -> Any:
    a, b = operation.a, operation.b
    if {str(a.ty.dtype), str(b.ty.dtype)} != {NARROW, WIDE}:
        return operation
    return type(operation)(_wide(a), _wide(b))


def _wide(value: Any) -> Any:
    return tirx.const(int(value), WIDE) if isinstance(value, tirx.IntImm) else tirx.Cast(WIDE, value)
