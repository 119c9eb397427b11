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

from tvm import tirx

from tvmopt.lowering.loops import gpu_pass


def _exact(number: Any) -> Any:
    value = float(number.value)
    if str(number.ty.dtype) != "float64" or not math.isfinite(value) or float(f"{value:.15f}") == value:
        return number
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))


LowerDoubles = gpu_pass("tvmopt.LowerDoubles", tirx.FloatImm, _exact)
