"""Cast, CastLike and BitCast, to and from every element type that TVM can hold (float8 and smaller by their codes)."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from tvmopt.importer.converters.common import Build, const, dtype_of, is_float
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.lowbits import (
    CODED,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    SmallFloat,
    decode_table,
    storage_dtype,
)


def _bits(x: Any) -> Any:
    return tirx.reinterpret("uint32", x)


def _u32(value: int) -> Any:
    return tirx.const(value, "uint32")


def _small_code(x: Any, form: SmallFloat, saturate: bool) -> Any:
    """The code of one float32, rounded to nearest even.

    Normal: the float32's exponent and mantissa, rounded to `form.mantissa` bits, rebiased. Subnormal (below
    2^(1-bias)): the multiple of 2^(1-bias-mantissa), which is its own code. Past `form.top`: saturated or special.
    """
    u = _bits(x)
    magnitude = u & _u32(0x7FFFFFFF)
    shift = 23 - form.mantissa
    even = (magnitude >> _u32(shift)) & _u32(1)
    rounded = (magnitude + _u32((1 << (shift - 1)) - 1) + even) >> _u32(shift)
    smallest = _u32((127 + 1 - form.bias) << 23)
    normal = rounded - _u32((127 - form.bias) << form.mantissa)
    unit = float(2.0 ** (form.bias - 1 + form.mantissa))
    value = tirx.reinterpret("float32", magnitude)
    tiny = tirx.Cast(
        "uint32", tirx.nearbyint(tirx.min(value, tirx.const(1.0, "float32")) * tirx.const(unit, "float32"))
    )
    code = tirx.Select(magnitude < smallest, tiny, normal)
    infinite = magnitude >= _u32(0x7F800000)
    beyond = tirx.any(tirx.all(magnitude >= smallest, code > _u32(form.top)), infinite)
    special = form.top if saturate or form.overflow is None else form.overflow
    code = tirx.Select(beyond, _u32(special), code)
    sign = (u >> _u32(31)) << _u32(form.exponent + form.mantissa)
    unsigned = code == _u32(0) if form.unsigned_zero else tirx.const(False, "bool")
    if form.unsigned_zero and special == form.overflow:
        unsigned = tirx.any(unsigned, beyond)
    code = code | tirx.Select(unsigned, _u32(0), sign)
    code = tirx.Select(magnitude > _u32(0x7F800000), _u32(form.nan), code)
    return tirx.Cast("uint8", code)


def _e8m0_code(x: Any, saturate: bool, mode: str) -> Any:
    """The exponent of one float32, rounded up (default), down or to nearest; not finite gives NaN."""
    u = _bits(x)
    exponent, fraction = (u >> _u32(23)) & _u32(0xFF), u & _u32(0x7FFFFF)
    if mode == "down":
        up = tirx.const(False, "bool")
    elif mode == "nearest":
        half = fraction >= _u32(0x400000)
        up = tirx.all(half, tirx.any(fraction > _u32(0x400000), exponent > _u32(0)))
    else:
        up = fraction > _u32(0)
    if saturate:
        up = tirx.all(up, exponent != _u32(0xFE))
    code = exponent + tirx.Select(up, _u32(1), _u32(0))
    return tirx.Cast("uint8", tirx.Select(exponent == _u32(0xFF), _u32(0xFF), code))


def encode(b: Build, x: Any, elem: int, saturate: bool, mode: str = "up") -> Any:
    """A float tensor as codes of a small float."""

    def encode_float(data: Any) -> Any:
        def one(*index: Any) -> Any:
            value = data(*index)
            if elem == TensorProto.FLOAT8E8M0:
                return _e8m0_code(value, saturate, mode)
            return _small_code(value, SMALL_FLOATS[elem], saturate)

        return te.compute(data.shape, one, name="encode")

    return b.te(encode_float, b.cast(x, "float32"))


def decode(b: Build, x: Any, elem: int) -> Any:
    """Codes of a small float as float32."""
    return b.take(const(decode_table(elem), "float32"), b.cast(x, "int32"), 0)


def _to_integer(b: Build, x: Any, elem: int) -> Any:
    """To a 2- or 4-bit integer: towards zero, then its low bits (as NumPy and ml_dtypes do)."""
    low, high = SMALL_INTEGERS[elem]
    bits = (high - low + 1).bit_length() - 1
    whole = b.cast(x, "int32")
    if low == 0:
        kept = b.emit(relax.op.bitwise_and(whole, const(high, "int32")))
    else:
        shift = const(32 - bits, "int32")
        kept = b.emit(relax.op.right_shift(relax.op.left_shift(whole, shift), shift))
    return b.cast(kept, storage_dtype(str(helper.tensor_dtype_to_np_dtype(elem))))


NARROW = ("int8", "uint8", "int16", "uint16")
"""Integers that floats become by way of 32 bits: a number out of range wraps, as in NumPy and onnxruntime. LLVM leaves
it open, and its vectors saturate where its scalars wrap."""


def convert_type(b: Build, x: Any, source: int, target: int, saturate: bool = True, mode: str = "up") -> Any:
    """Cast between two ONNX element types; `x` is stored as :mod:`tvmopt.importer.lowbits` says."""
    if source == target:
        return x
    if source in CODED:
        x = decode(b, x, source)
    if target in CODED:
        return encode(b, x, target, saturate, mode)
    if target in SMALL_INTEGERS:
        return _to_integer(b, x, target)
    dtype = str(helper.tensor_dtype_to_np_dtype(target))
    if dtype == "bool":
        return b.emit(relax.op.not_equal(x, const(0, dtype_of(x)))) if dtype_of(x) != "bool" else x
    if dtype_of(x) == "bfloat16" and not is_float(dtype):
        x = b.cast(x, "float32")
    if dtype == "uint64" and is_float(dtype_of(x)):
        return _to_uint64(b, x)
    if dtype in NARROW and is_float(dtype_of(x)):
        x = b.cast(x, "int32")
    return b.cast(x, dtype)


def _to_uint64(b: Build, x: Any) -> Any:
    """A float as uint64: a negative one wraps around, as it does in NumPy, onnxruntime and all narrower types.

    LLVM leaves it open, and AVX-512's instruction gives the largest integer for all of them.
    """
    middle = const(2.0**63 if dtype_of(x) != "float16" else np.inf, dtype_of(x))
    signed = b.cast(b.cast(x, "int64"), "uint64")
    return b.emit(relax.op.where(b.emit(relax.op.less(x, middle)), signed, b.cast(x, "uint64")))


def _source(ctx: Context, x: Any, index: int = 0) -> int:
    """The element type of an input: from the model, else from what it is stored in."""
    known = ctx.input_elem_types[index] if index < len(ctx.input_elem_types) else 0
    return (
        known or int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype_of(x))))
        if dtype_of(x) != "bfloat16"
        else TensorProto.BFLOAT16
    )


def _to(ctx: Context, x: Any, target: int, attrs: dict[str, Any], bb: relax.BlockBuilder) -> Result:
    if TensorProto.STRING in (target, _source(ctx, x)):
        raise ctx.unsupported("TVM has no strings")
    b = Build(bb, ctx.name)
    saturate, mode = bool(attrs.get("saturate", 1)), attrs.get("round_mode", "up")
    return convert_type(b, x, _source(ctx, x), target, saturate, mode)


def cast(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Cast to the type the attribute names."""
    return _to(ctx, inputs[0], attrs["to"], attrs, bb)


def cast_like(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Cast to the type of the second input."""
    return _to(ctx, inputs[0], _source(ctx, inputs[1], 1), attrs, bb)


def bit_cast(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """BitCast between types of one width: the same bits, read as another type."""
    x = inputs[0]
    target = storage_dtype(str(helper.tensor_dtype_to_np_dtype(attrs["to"])))
    source = dtype_of(x)
    if source == target:
        return x
    b = Build(bb, ctx.name)
    if "bool" in (source, target):  # stored in a byte, 0 or 1
        return b.cast(x, target)

    def bit_cast(data: Any) -> Any:
        return te.compute(data.shape, lambda *i: tirx.reinterpret(target, data(*i)), name="bit_cast")

    return b.te(bit_cast, x)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
    ("", "BitCast"): bit_cast,
}
