"""Rounding to integers in one instruction, and no bytes between two steps of one kernel - behind TVM's vectorizer.

    Before                                             After
    int32(round(x))                                    lrint(x)                   vcvtps2dq for vrndscaleps, vcvttps2dq
    float32(uint8(int32(round(bounded(x))) + z))       float32(lrint(bounded(x))) + z
                                                       without vpmovdb, vpaddb, vpmovzxbd

The second one is what a residual does with the quantised result of its own kernel: bounds keep the number within the
byte, so that writing it as one and reading it again changes nothing. Both round to even, as `round` does here. A NaN
becomes the zero point by both.

x86 only: there the processor's rounding is that of the conversion. Elsewhere rounding is an instruction of its own.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target
from tvm_ffi import structural_map

from tvmopt.lowering.intrinsics import called
from tvmopt.lowering.loops import vector_type, with_body
from tvmopt.targets.detect import host_arch

ROUND = ("tirx.round", "tirx.nearbyint")
SPARE = 8
"""Bits that a sum of two bytes, or of two 16-bit integers, leaves free in an int32."""
RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
Expr = Any


def lower_rounding(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    if not _for_x86(func.attrs.get("target", None)):
        return func
    body = structural_map(func.body, (tirx.Cast, _cast))
    return func if body.same_as(func.body) else with_body(func, body)


LowerRounding = tirx.transform.prim_func_pass(lower_rounding, opt_level=0, name="tvmopt.LowerRounding")


def _for_x86(target: Target | None) -> bool:
    if target is None or target.kind.name != "llvm":
        return False
    triple = str(target.attrs.get("mtriple", ""))
    return (triple.split("-")[0] or host_arch()) == "x86_64"


def _cast(node: Any) -> Expr:
    """A conversion whose operand has been rewritten already."""
    kind, lanes = _kind(node), int(node.ty.dtype.lanes)
    if kind == "int32" and called(node.value) in ROUND and _kind(node.value) == "float32":
        return tirx.call_llvm_pure_intrin(vector_type("int32", lanes), "llvm.lrint", node.value.args[0])
    if kind == "float32" and isinstance(node.value, tirx.Cast) and _kind(node.value) in RANGES:
        whole, zero = _sum(node.value.value)
        if _within(whole, zero, *RANGES[_kind(node.value)]):
            number = tirx.Cast(node.ty.dtype, _none_of_a_nan(whole, lanes))
            return number + _constant(float(zero), lanes) if zero else number
    return node


def _kind(value: Expr) -> str:
    return str(value.ty.dtype).split("x")[0]


def _constant(value: float, lanes: int) -> Expr:
    one = tirx.const(value, "float32")
    return one if lanes == 1 else tirx.Broadcast(one, lanes)


def _number(value: Expr) -> float | None:
    """A constant that all lanes have."""
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return value.value if isinstance(value, tirx.IntImm | tirx.FloatImm) else None


def _sum(value: Expr) -> tuple[Expr, int]:
    """An integer as another one and a constant that is added."""
    if isinstance(value, tirx.Add):
        constant = _number(value.b)
        return (value.a, int(constant)) if constant is not None else (value, 0)
    return value, 0


def _none_of_a_nan(whole: Expr, lanes: int) -> Expr:
    """A rounded number of a few bits, and 0 where it was none: of a NaN the conversion makes -2^31, and its lower bits
    are 0."""
    bits = tirx.const(SPARE, "int32")
    bits = bits if lanes == 1 else tirx.Broadcast(bits, lanes)
    return tirx.shift_right(tirx.shift_left(whole, bits), bits)


def _within(value: Expr, zero: int, low: int, high: int) -> bool:
    """Whether a rounded number and `zero` are between two bounds, because the number itself is."""
    if called(value) != "tirx.call_llvm_pure_intrin" or _kind(value) != "int32":
        return False
    bounds: list[float] = []
    value = value.args[-1]
    for kind in (tirx.Max, tirx.Min):
        constants = [_number(side) for side in (value.a, value.b)] if isinstance(value, kind) else []
        found = [at for at, constant in enumerate(constants) if constant is not None]
        if len(found) != 1:
            return False
        bounds.append(float(constants[found[0]] or 0.0))
        value = (value.a, value.b)[1 - found[0]]
    return low <= bounds[0] + zero and bounds[1] + zero <= high
