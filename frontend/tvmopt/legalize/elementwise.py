"""Functions of one element whose form in TVM is wrong somewhere - for every kind of machine.

sign     1, -1, else x where x is 0 or NaN; TVM's is 0 for NaN
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from tvm import relax, te, tirx, topi

from tvmopt.legalize.common import constant
from tvmopt.targets import Machine


def sign(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.sign` of floats."""
    (x,) = call.args
    dtype = str(x.ty.dtype)
    if not dtype.startswith("float") or x.ty.shape is None:
        return None
    zero, one = tirx.const(0.0, dtype), tirx.const(1.0, dtype)

    def compute(data: te.Tensor) -> te.Tensor:
        def value(*index: Any) -> Any:
            v = data(*index)
            return tirx.Select(v > zero, one, tirx.Select(v < zero, zero - one, v))

        return te.compute(data.shape, value, name="sign")

    return bb.call_te(compute, x, primfunc_name_hint="sign")


def logical_not(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.logical_not` of booleans."""
    (x,) = call.args
    if str(x.ty.dtype) != "bool" or x.ty.shape is None:
        return None

    def compute(data: te.Tensor) -> te.Tensor:
        one = tirx.const(1, "uint8")
        return te.compute(data.shape, lambda *i: (data(*i).astype("uint8") ^ one).astype("bool"), name="logical_not")

    return bb.call_te(compute, x, primfunc_name_hint="logical_not")


def _from_memory(function: Callable[..., te.Tensor], name: str) -> Any:
    def legalizer(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        if not str(call.ty.dtype).startswith(("float", "bfloat")):
            return None
        values = [constant(bb, a) for a in call.args]
        if not any(v is not None and v.ndim == 0 and (float(v) == 0 or not isfinite(float(v))) for v in values):
            return None
        return bb.call_te(function, *call.args, primfunc_name_hint=name)

    return legalizer


LEGALIZERS = {
    "relax.multiply": _from_memory(topi.multiply, "multiply"), "relax.divide": _from_memory(topi.divide, "divide"),
    "relax.power": _from_memory(topi.power, "power"), "relax.sign": sign, "relax.logical_not": logical_not,
}  # fmt: skip
