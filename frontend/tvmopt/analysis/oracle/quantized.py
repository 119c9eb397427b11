"""Casts and quantisation: where rounding to steps is the operator's meaning."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis.oracle.products import integer_product
from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported, Value, is_real, limit
from tvmopt.analysis.oracle.windows import integer_conv

_INT4 = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))


def number_type(number: int) -> np.dtype[Any]:
    """NumPy's type of an ONNX data type."""
    from onnx import helper

    found: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(number))
    return found


def _cast(call: Call, x: Array) -> Result:
    return _cast_to(call, x, number_type(int(call.get("to"))))


def _cast_like(call: Call, x: Array, like: Array) -> Result:
    kind = call.kinds[1]
    assert kind is not None
    return _cast_to(call, x, kind if is_real(kind) else like.dtype)


def _cast_to(call: Call, x: Array, to: np.dtype[Any]) -> Result:
    if x.dtype.kind in "OUS" or to.kind in "OUS":
        raise Unsupported("a Cast of strings")
    if is_real(to):
        wide = np.dtype(np.float64) if to == np.float64 else np.dtype(call.work)
        same = call.kinds[0] == to  # an engine that keeps a wider number leaves such a cast out
        return [Value(x.astype(wide) if same else limit(x.astype(wide), to), to)]
    if to.kind == "b":
        return x.astype(bool) if x.dtype.kind in "iufb" else x.astype(np.float32).astype(bool)
    if is_real(x.dtype) and to.kind in "iu":
        return _undefined(call, x, _truncated(x, to))
    if to.kind not in "iu":  # float8, float4: their rules of saturation are onnx's
        return _narrowed(call, x, to)
    return x.astype(to)


def _narrowed(call: Call, x: Array, to: np.dtype[Any]) -> Array:
    from onnx import helper
    from onnx.reference.ops.op_cast import cast_to

    saturates = bool(call.get("saturate", 1))
    return np.asarray(cast_to(x.astype(np.float32), helper.np_dtype_to_tensor_dtype(to), saturates))


def _undefined(call: Call, x: Array, whole: Array) -> Array:
    """The integers; in a run that rounds down those of NaN and of numbers out of range are what x86 makes of them, the
    lowest, or of types for which it has no instruction the end that is farther: engines differ there. Those of 8 and
    16 bits are taken from 32 bits, and wrap."""
    if call.arithmetic.edge >= 0:
        return whole
    own = np.iinfo(whole.dtype)
    ends = own if own.bits >= 32 else np.iinfo(np.int32)
    outside = ~((x > float(ends.min) - 1) & (x < float(ends.max) + 1))
    middle = (float(own.max) + own.min) / 2
    other: Any = own.min if whole.dtype in (np.int32, np.int64) else np.where(whole > middle, own.min, own.max)
    return np.where(outside, np.asarray(other, whole.dtype), whole)


def _truncated(x: Array, to: np.dtype[Any]) -> Result:
    """Towards zero, and modulo 2^bits where the number is in the range of int64; what lies outside is undefined."""
    bounded = np.clip(np.nan_to_num(np.trunc(x.astype(np.float64))), -(2.0**63), 2.0**64)
    if to == np.uint64:
        return np.where(
            bounded >= 2.0**63,
            (bounded - 2.0**63).astype(np.int64).astype(to) + to.type(1 << 63),
            bounded.astype(np.int64).astype(to),
        )
    low, high = np.iinfo(to).min, np.iinfo(to).max
    if to.itemsize >= 4:
        bounded = np.clip(bounded, float(low), float(high) if to.itemsize < 8 else 2.0**63 - 1024)
    return np.clip(bounded, -(2.0**63), 2.0**63 - 1024).astype(np.int64).astype(to)


def along(v: Array, x: Array, axis: int, block: int = 0) -> Array:
    """A scale or zero point in the shape of what it scales: one number, one per slice of `axis`, or one per block."""
    if v.ndim == 0 or (v.size == 1 and v.ndim < 2):
        return v.reshape(())
    if v.ndim == 1 and not block:
        return v.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    repeated = np.repeat(v, block or -(-x.shape[axis] // v.shape[axis]), axis)
    return repeated[tuple(slice(0, n) for n in x.shape)]


def steps(x: Array, scale: Array, zero: Array | None, to: np.dtype[Any]) -> Result:
    """round-half-even(x / scale) + zero, saturated; divided in float32 as the standard says, so that a tie is a tie.

    Of NaN the standard says nothing; onnxruntime makes the lowest number of it, and compiled code, as here, zero.
    """
    whole = np.rint((x.astype(np.float32) / scale.astype(np.float32)).astype(np.float64))
    moved = np.where(np.isnan(whole), 0.0, whole)
    if zero is not None:
        moved = moved + zero.astype(np.float64)
    low, high = (-8, 7) if to == _INT4[0] else (0, 15) if to == _INT4[1] else (np.iinfo(to).min, np.iinfo(to).max)
    return np.clip(moved, low, high).astype(np.int64 if to in _INT4 else to).astype(to)


def _quantize(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Result:
    to = zero.dtype if zero is not None else number_type(int(call.get("output_dtype", 0) or 2))
    if to.kind not in "iu" and to not in _INT4:
        raise Unsupported("quantisation to floats")
    axis, block = int(call.get("axis", 1)), int(call.get("block_size", 0))
    wide = x.astype(np.float64)
    s = along(scale, x, axis, block).astype(np.float64)
    return steps(wide, s, None if zero is None else along(zero, x, axis, block), to)


def _dequantize(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Result:
    axis, block = int(call.get("axis", 1)), int(call.get("block_size", 0))
    wide = x.astype(np.float64)
    if zero is not None:
        wide = wide - along(zero, x, axis, block).astype(np.float64)
    kind = call.kinds[1]
    assert kind is not None
    if call.get("output_dtype", 0):
        kind = number_type(int(call.get("output_dtype")))
    return [Value((wide * along(scale, x, axis, block)).astype(call.work), kind)]


def _dynamic(call: Call, x: Array) -> Result:
    codes, scale, zero = dynamic(x)
    return [codes, scale, zero]


def dynamic(x: Array) -> tuple[Array, Array, Array]:
    """uint8 of the range of the data and 0, its scale and its zero point."""
    low, high = float(x.min(initial=0)), float(x.max(initial=0))  # NaN where one element is: so ONNX defines it
    # An engine rounds the scale to its type, and uses that.
    scale = np.float32(np.float32(high - low) / np.float32(255))
    scale = scale if scale else np.float32(1)  # what onnxruntime has for zeros; the standard would divide by zero
    zero = np.asarray(np.uint8(np.clip(np.nan_to_num(np.rint(-low / scale)), 0, 255)))
    wide = x.astype(np.float64)
    codes: Array = steps(wide, np.asarray(scale, np.float64), zero, np.dtype(np.uint8))
    return codes, np.asarray(scale, np.float32), zero


def rounded(x: Array) -> Array:
    """Numbers as the integers of :func:`dynamic` stand for them."""
    codes, scale, zero = dynamic(x)
    found: Array = (codes.astype(x.dtype) - zero.astype(x.dtype)) * scale.astype(x.dtype)
    return found


def _qlinear_matmul(
    call: Call, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array,
    y_scale: Array, y_zero: Array,
) -> Result:  # fmt: skip
    total = integer_product(a, b, a_zero, b_zero)
    rows = a_scale[:, None] if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    factor = rows.astype(np.float64) * b_scale.astype(np.float64) / y_scale.astype(np.float64)
    return steps(call.arithmetic.moved(total * factor), np.asarray(1.0), y_zero, y_zero.dtype)


def _qlinear_conv(
    call: Call, x: Array, x_scale: Array, x_zero: Array, w: Array, w_scale: Array, w_zero: Array,
    y_scale: Array, y_zero: Array,
    bias: Array | None = None,
) -> Result:  # fmt: skip
    total = integer_conv(call, x, w, x_zero, w_zero)
    tail = (1,) * (x.ndim - 2)
    sizes = np.abs(total)
    if bias is not None:  # one engine adds it to the integers, another to the product with the scales, in float32
        added = bias.astype(np.float64).reshape(1, -1, *tail)
        total, sizes = total + added, sizes + np.abs(added)
    factor = x_scale.astype(np.float64) * w_scale.astype(np.float64).reshape(-1, *tail) / y_scale.astype(np.float64)
    moved = call.arithmetic.moved(total * factor, sizes * factor)
    return steps(moved, np.asarray(1.0), y_zero, y_zero.dtype)


TABLE: dict[str, Operator] = {
    "Cast": _cast,
    "CastLike": _cast_like,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}
