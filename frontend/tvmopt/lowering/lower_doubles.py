"""Constants of float64 to the last bit, for a GPU - a rewrite of loops before code generation.

    Before              After
    1e-17               __longlong_as_double(4352464011202442589)
    0.5                 0.5

TVM 0.27 writes 15 digits behind the point of a float64: 0 for the first one, and an epsilon of 1e-5 that came from
float32 to 10 digits. float32 and the types of 16 bits are written in hexadecimal, which is exact.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map


def lower_doubles(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    target = func.attrs.get("target", None)
    if target is None or target.kind.name != "cuda":
        return func
    body = structural_map(func.body, (tirx.FloatImm, _exact))
    return func if body.same_as(func.body) else func.with_body(body)


LowerDoubles = tirx.transform.prim_func_pass(lower_doubles, opt_level=0, name="tvmopt.LowerDoubles")


def _exact(number: Any) -> Any:
    value = float(number.value)
    if str(number.ty.dtype) != "float64" or not math.isfinite(value) or float(f"{value:.15f}") == value:
        return number
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))
