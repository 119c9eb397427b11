"""GELU as loops of one element - for CPUs.

    gelu         x * normal_cdf(x)                                  TVM's own: 0.5 x (1 + erf(x / sqrt 2))
    gelu_tanh    x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)         0.5 x (1 + tanh(u))

Both are the same functions. The first takes one polynomial where erf takes two and an exp; the second leaves out what
tanh does for small numbers, and keeps the digits of small results that 1 + tanh loses. Like 1 + erf, the first has an
absolute error, 1e-7 of x, so that few digits are left of results below x = -4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.math import NORMAL_CDF
from tvmopt.targets import Machine


def gelu(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.gelu` of float32."""
    return _each(bb, call, lambda x: x * tirx.call_intrin("float32", NORMAL_CDF, x), "gelu")


def gelu_tanh(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.gelu_tanh` of float32."""
    factor, cubic = (tirx.const(2 * math.sqrt(2 / math.pi) * f, "float32") for f in (1.0, 0.044715))
    return _each(bb, call, lambda x: x * tirx.sigmoid(x * (factor + cubic * (x * x))), "gelu_tanh")


def _each(bb: relax.BlockBuilder, call: relax.Call, function: Callable[[Any], Any], name: str) -> Any:
    if str(call.args[0].ty.dtype) != "float32":
        return None

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *i: function(data(*i)), name=name)

    return bb.call_te(compute, call.args[0], primfunc_name_hint=name)


LOWERS = {"relax.nn.gelu": gelu, "relax.nn.gelu_tanh": gelu_tanh}
