"""Infinities of bfloat16 for a GPU - a rewrite of loops before code generation.

    Before                      After
    bfloat16(-inf)              bfloat16(float32(-inf))

TVM 0.27 writes the first one as `__float2bfloat16_rn(-inff)`, which is no C++: a max pool of bfloat16, which begins
with minus infinity, did not compile.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map


def lower_infinities(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    body = structural_map(func.body, (tirx.FloatImm, _wide))
    return func if body.same_as(func.body) else func.with_body(body)


LowerInfinities = tirx.transform.prim_func_pass(lower_infinities, opt_level=0, name="tvmopt.LowerInfinities")


def _wide(number: Any) -> Any:
    dtype = str(number.ty.dtype)
    if dtype != "bfloat16" or math.isfinite(number.value):
        return number
    return tirx.Cast(dtype, tirx.const(number.value, "float32"))
