"""Spread the bits of one bfloat16 over a vector, and read them there - before TVM's BF16StorageLegalize.

    Before                                       After
    broadcast(reinterpret("bfloat16", w), 16)    reinterpret("bfloat16x16", broadcast(w, 16))

BF16StorageLegalize stores the words of a bfloat16, and leaves what is broadcast as it is: "buffer's dtype is uint16,
but RHS's dtype is bfloat16x16". TVM's simplifier makes such of every vector with one number in it, as `x <= x` of
integers is.

Applies when   one rounded bfloat16 fills a vector.
Gain           none; such kernels did not compile.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvmopt.lowering.loops import with_body

REINTERPRET = tvm.ir.Op.get("tirx.reinterpret")


def spread_bits(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    body = structural_map(func.body, (tirx.Broadcast, _spread))
    return func if body.same_as(func.body) else with_body(func, body)


SpreadBits = tirx.transform.prim_func_pass(spread_bits, opt_level=0, name="tvmopt.SpreadBits")


def _spread(broadcast: Any) -> Any:
    value = broadcast.value
    if str(value.ty.dtype) != "bfloat16" or getattr(value, "op", None) != REINTERPRET:
        return broadcast
    return tirx.reinterpret(str(broadcast.ty.dtype), tirx.Broadcast(value.args[0], broadcast.lanes))
