"""Quantizing and dequantizing as loops of one element - for every kind of machine.

    quantize     saturate(round_half_even(x / scale) + zero)      vmulps or vdivps, vminps, vmaxps, vcvtps2dq, vpmovdb
    dequantize   (q - zero) * scale                               vpmovzxbd, vcvtdq2ps, vsubps, vmulps

x is bounded while it is a float, so that a number beyond int32 saturates as well. A scale of 1 (FoldRequantization) is
no division.

A mean reads the bytes themselves and dequantizes them as it loads them: as an operator of its own, a dequantization is
joined by TVM's FuseOps with the kernel that made the bytes, which then writes four times as much.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from tvmopt.lowering.common import call_fusable, constant, is_open, sizes
from tvmopt.targets import Machine

RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}


def quantize(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.quantize` of float32. NaN becomes an integer of the type, as everything else does: int32 first, which has a
    number for it; a conversion to 8 bits at once may leave anything in a register."""
    found, kind = _params(bb, call), str(call.ty.dtype)
    if kind not in RANGES or str(call.args[0].ty.dtype) != "float32":
        return None
    if found is None:
        return _quantize_along(bb, call, kind)
    scale, zero = found
    low, high = (tirx.const(float(bound - zero), "float32") for bound in RANGES[kind])

    def value(x: Any) -> Any:
        x = x if scale == 1.0 else x / tirx.const(scale, "float32")
        # bounded here and not as integers: of a masked store of those LLVM makes one that saturates and has no mask
        whole = tirx.round(tirx.max(tirx.min(x, high), low)).astype("int32")
        return (whole + tirx.const(zero, "int32") if zero else whole).astype(kind)

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *i: value(data(*i)), name="quantize")

    return bb.call_te(compute, call.args[0], primfunc_name_hint="quantize")


def _quantize_along(bb: relax.BlockBuilder, call: relax.Call, kind: str) -> Any:
    """The same where scale and zero point are tensors: a number for each slice of an axis, or one."""
    shapes = [a.ty.shape for a in call.args]
    if any(s is None for s in shapes) or any(len(s.values) > 1 for s in shapes[1:]):
        return None
    axis = int(call.attrs.axis) % max(1, len(shapes[0].values))
    low, high = (tirx.const(bound, "int32") for bound in RANGES[kind])

    def compute(data: te.Tensor, scales: te.Tensor, zeros: te.Tensor) -> te.Tensor:
        def value(*index: Any) -> Any:
            scale, zero = (
                t(*() if not t.shape else (0,) if t.shape[0] == 1 else (index[axis],)) for t in (scales, zeros)
            )
            zero = zero.astype("int32")
            bounds = [(bound - zero).astype("float32") for bound in (low, high)]
            whole = tirx.round(tirx.max(tirx.min(data(*index) / scale, bounds[1]), bounds[0])).astype("int32")
            return (whole + zero).astype(kind)

        return te.compute(data.shape, value, name="quantize")

    return bb.call_te(compute, *call.args, primfunc_name_hint="quantize")


def dequantize(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.dequantize` to float32 with one constant scale and zero point."""
    found = _params(bb, call)
    if found is None or not _to_float32(call):
        return None
    return bb.call_te(lambda data: _real(data, *found), call.args[0], primfunc_name_hint="dequantize")


def mean(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.mean` of numbers that are dequantized for it."""
    x = bb.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
    if not isinstance(x, relax.Call) or x.op != tvm.ir.Op.get("relax.dequantize") or not _to_float32(x):
        return None
    found, dims = _params(bb, x), sizes(call.args[0])
    if found is None or dims is None or 0 in dims:
        return None
    axes = [int(a) % len(dims) for a in (range(len(dims)) if call.attrs.axis is None else call.attrs.axis)]
    if is_open([dims[a] for a in axes]):
        return None

    def compute(data: te.Tensor) -> te.Tensor:
        total = topi.sum(_real(data, *found), axes, bool(call.attrs.keepdims))
        share = tirx.const(1.0 / prod(dims[a] for a in axes), "float32")
        return te.compute(total.shape, lambda *i: total(*i) * share, name="mean")

    return call_fusable(bb, compute, [x.args[0]], "mean")


def _to_float32(call: relax.Call) -> bool:
    return str(call.args[0].ty.dtype) in RANGES and str(call.ty.dtype) == "float32"


def _real(data: te.Tensor, scale: float, zero: int) -> te.Tensor:
    """What bytes stand for."""

    def value(*index: Any) -> Any:
        number = data(*index).astype("float32")
        return (number - tirx.const(float(zero), "float32") if zero else number) * tirx.const(scale, "float32")

    return te.compute(data.shape, value, name="dequantize")


def _params(bb: relax.BlockBuilder, call: relax.Call) -> tuple[float, int] | None:
    """Scale, as float32 has it, and zero point; None where they are no single constants."""
    scale, zero = (constant(bb, a) for a in call.args[1:3])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or sizes(call.args[0]) is None:
        return None
    return float(np.float32(scale.reshape(-1)[0])), int(zero.reshape(-1)[0])


LEGALIZERS = {"relax.quantize": quantize, "relax.dequantize": dequantize, "relax.mean": mean}
KEEP = {"relax.dequantize": lambda call: True}
