"""Functions of one element whose form in TVM is wrong somewhere - for every kind of machine.

sign       1, -1, else x where x is 0 or NaN; TVM's is 0 for NaN
subtract   a + (-1) b, which LLVM makes a subtraction again: TVM's simplifier takes (a + b) - b of floats for a, also
           where b is NaN, or has rounded digits of a away on purpose
add, subtract, multiply, negative
           of int32 and int64 in twice the bits, and cut to the type, which LLVM makes one operation of the type again:
           TVM and LLVM both take for granted that its sums and products stay within it. x + 1 > 0 was x >= 0, and
           |x + x| kept the sign of what had wrapped around
compare    int32 with -2^31 in int64: TVM's simplifier takes x == -2^31 for false, and x <= -2^31 for x < -2^31
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from tvm import relax, te, tirx, topi
from tvm_ffi import structural_map

from tvmopt.lowering.common import constant, static_shape
from tvmopt.targets import Machine

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
WIDER = {"int32": "int64", "int64": "int128"}


def sign(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.sign` of floats."""
    (x,) = call.args
    dtype = str(x.ty.dtype)
    if not dtype.startswith(("float", "bfloat")) or x.ty.shape is None:
        return None
    zero, one = tirx.const(0.0, dtype), tirx.const(1.0, dtype)

    def compute(data: te.Tensor) -> te.Tensor:
        def value(*index: Any) -> Any:
            v = data(*index)
            return tirx.Select(v > zero, one, tirx.Select(v < zero, zero - one, v))

        return te.compute(data.shape, value, name="sign")

    return bb.call_te(compute, x, primfunc_name_hint="sign")


def subtract(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.subtract`."""
    dtype = str(call.ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        return _wrapped(topi.subtract, "subtract")(bb, call, machine)

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return topi.add(a, topi.multiply(b, tirx.const(-1.0, dtype)))

    return bb.call_te(compute, *call.args, primfunc_name_hint="subtract")


def _wrapped(function: Callable[..., te.Tensor], name: str) -> Any:
    """Integers with a sign that wrap around; those without are the importer's (converters/unsigned.py)."""

    def compute(*tensors: te.Tensor) -> te.Tensor:
        narrow = function(*tensors)
        value = narrow.op.body[0]
        if not isinstance(value, (tirx.Add, tirx.Sub, tirx.Mul)):
            return narrow  # nothing is left to compute
        kind = str(narrow.dtype)
        whole = type(value)(*(tirx.Cast(WIDER[kind], side) for side in (value.a, value.b)))

        def element(*at: Any) -> Any:
            place = {axis.var: index for axis, index in zip(narrow.op.axis, at, strict=True)}
            return tirx.Cast(kind, structural_map(whole, (tirx.Var, lambda v: place.get(v, v))))

        return te.compute(narrow.shape, element, name=name)

    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        if machine.kind != "llvm" or str(call.ty.dtype) not in WIDER:
            return None
        return bb.call_te(compute, *call.args, primfunc_name_hint=name)

    return lowering


def logical_not(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.logical_not` of booleans."""
    (x,) = call.args
    if str(x.ty.dtype) != "bool" or x.ty.shape is None:
        return None

    def compute(data: te.Tensor) -> te.Tensor:
        one = tirx.const(1, "uint8")
        return te.compute(data.shape, lambda *i: (data(*i).astype("uint8") ^ one).astype("bool"), name="logical_not")

    return bb.call_te(compute, x, primfunc_name_hint="logical_not")


def _compared(function: Callable[..., te.Tensor], name: str) -> Any:
    """A comparison of int32 with its lowest number."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return function(topi.cast(a, "int64"), topi.cast(b, "int64"))

    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        values = [constant(bb, a) for a in call.args]
        lowest = any(v is not None and v.size == 1 and v.dtype == "int32" and int(v.min()) == -(2**31) for v in values)
        return bb.call_te(compute, *call.args, primfunc_name_hint=name) if lowest else None

    return lowering


def _from_memory(function: Callable[..., te.Tensor], name: str) -> Any:
    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        if not str(call.ty.dtype).startswith(("float", "bfloat")):
            return _wrapped(function, name)(bb, call, machine) if function is topi.multiply else None
        values = [constant(bb, a) for a in call.args]
        if not any(v is not None and v.ndim == 0 and (float(v) == 0 or not isfinite(float(v))) for v in values):
            return None
        return bb.call_te(function, *call.args, primfunc_name_hint=name)

    return lowering


def _roots(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.power(x, c)` for c a positive multiple of 1/4 up to 4: products of x, sqrt(x) and sqrt(sqrt(x)).

    x**0.75 (local response normalisation) is sqrt(x) * sqrt(sqrt(x)): two vector instructions where libm's `powf` is a
    call an element. For x < 0 both are NaN unless c is whole, when no root is taken; sqrt's error is half an ulp each.
    """
    x, exponent = call.args
    value = constant(bb, exponent)
    if value is None or value.size != 1 or str(x.ty.dtype) != "float32":
        return None
    quarters = float(value.reshape(())) * 4
    if not 1 <= quarters <= 16 or quarters != int(quarters) or static_shape(x) != static_shape(call):
        return None
    whole, half, quarter = int(quarters) // 4, int(quarters) // 2 % 2, int(quarters) % 2

    def compute(a: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> tirx.Expr:
            root = tirx.sqrt(a(*i))
            factors = [a(*i)] * whole + [root] * half + [tirx.sqrt(root)] * quarter
            product = factors[0]
            for factor in factors[1:]:
                product = product * factor
            return product

        return te.compute(a.shape, element, name="power")

    return bb.call_te(compute, x, primfunc_name_hint="power")


def power(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.power`."""
    found = _roots(bb, call, machine)
    return found if found is not None else _from_memory(topi.power, "power")(bb, call, machine)


LOWERS = {
    "relax.add": _wrapped(topi.add, "add"),
    "relax.negative": _wrapped(lambda x: topi.subtract(tirx.const(0, x.dtype), x), "negative"),
    "relax.multiply": _from_memory(topi.multiply, "multiply"),
    "relax.divide": _from_memory(topi.divide, "divide"),
    "relax.power": power,
    "relax.sign": sign,
    "relax.subtract": subtract,
    "relax.logical_not": logical_not,
    **{f"relax.{name}": _compared(getattr(topi, name), name) for name in COMPARISONS},
}
