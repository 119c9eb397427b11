"""Functions that CUDA has of float32 and not of 16 bits, computed in float32 - before TVM lowers its intrinsics.

    Before                                  After
    nearbyint(x)        of float16          float16(nearbyint(float32(x)))

TVM 0.27 puts an `h` before the name of a function of 16 bits, so that a Round of float16, or a quantisation of it,
called `hnearbyint`, which CUDA has not; of others, as acos, it has no form of 16 bits at all.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmopt.lowering.intrinsics import called
from tvmopt.lowering.loops import gpu_pass, vector_type

ONLY_WIDE = frozenset({
    *("tirx.nearbyint", "tirx.round", "tirx.fmod", "tirx.cosh", "tirx.sinh", "tirx.log1p", "tirx.acos", "tirx.acosh"),
    *("tirx.asin", "tirx.asinh", "tirx.atanh", "tirx.atan2", "tirx.hypot", "tirx.copysign"),
})  # fmt: skip
HALVES = ("float16", "bfloat16")


def _widened(call: Any) -> Any:
    if called(call) not in ONLY_WIDE or str(call.ty.dtype).split("x")[0] not in HALVES:
        return call
    wide = vector_type("float32", int(call.ty.dtype.lanes))
    arguments = [tirx.Cast(wide, x) for x in call.args]
    return tirx.Cast(call.ty.dtype, ir.Call(call.op, arguments, call.attrs, ret_ty=arguments[0].ty))


WidenIntrinsics = gpu_pass("tvmopt.WidenIntrinsics", ir.Call, _widened)
