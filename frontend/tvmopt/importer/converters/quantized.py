"""Quantised operators: QuantizeLinear and DequantizeLinear in all forms, QLinearConv, QLinearMatMul, the
integer products.

QLinear operators become what they stand for, an operator between dequantizations and a quantization: the graph passes
then make integers of it as of any other quantised model. Where scales are not constants they are written out in int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te

from tvmopt.dims import is_open
from tvmopt.importer.converters.casts import convert_type, encode
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.convolution import convolve
from tvmopt.importer.lowbits import CODED, SMALL_INTEGERS, storage_dtype
from tvmopt.importer.windows import windows

Numbers = np.ndarray[Any, Any]

_RANGES = {
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767),
    **SMALL_INTEGERS,
}
ELEMENT_TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
}


def spread(b: Build, value: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """A scale or zero point, shaped to broadcast against a tensor of `shape`: per tensor, per axis or per block."""
    own = shape_of(value)
    if int(np.prod(own)) == 1 and not block:
        return b.reshape(value, ())
    axis %= len(shape)
    if len(own) == 1:
        return b.reshape(value, tuple(own[0] if i == axis else 1 for i in range(len(shape))))
    repeated = b.emit(relax.op.repeat(value, block, axis))
    return b.slice(repeated, axis, 0, shape[axis])


def saturate(b: Build, x: Any, elem: int) -> Any:
    """Clip to the range of an integer type and convert to what stores it."""
    low, high = _RANGES[elem]
    return b.cast(b.minimum(b.maximum(x, low), high), storage_dtype(str(helper.tensor_dtype_to_np_dtype(elem))))


def quantize(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """QuantizeLinear: ``saturate(round_half_even(x / scale) + zero_point)``; floats have no zero point to add."""
    b = Build(bb, ctx.name)
    x, scale, zero = inputs[0], inputs[1], inputs[2]
    elem = ctx.input_elem_types[2] if zero is not None else attrs.get("output_dtype", 0) or TensorProto.UINT8
    axis, block = attrs.get("axis", 1), attrs.get("block_size", 0)
    precision = attrs.get("precision", 0)
    if (
        not block
        and not precision
        and elem in ELEMENT_TYPES.values()
        and len(shape_of(scale)) <= 1
        and dtype_of(x) == "float32"
    ):
        return ctx.stock(inputs, attrs)  # stays R.quantize, which the precision passes know
    shape = shape_of(x)
    work = str(helper.tensor_dtype_to_np_dtype(precision)) if precision else dtype_of(scale)
    x = b.div(b.cast(x, work), b.cast(spread(b, scale, shape, axis, block), work))
    if elem in CODED:
        return encode(b, x, elem, bool(attrs.get("saturate", 1)))
    x = b.emit(relax.op.round(b.cast(x, "float32")))
    x = b.where(b.emit(relax.op.isnan(x)), 0.0, x)  # what a conversion makes of NaN is left to the processor
    if zero is not None:
        x = b.add(x, b.cast(spread(b, zero, shape, axis, block), "float32"))
    return saturate(b, x, elem)


def dequantize(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """DequantizeLinear: ``(x - zero_point) * scale``, in float32, then the scale's type or `output_dtype`."""
    b = Build(bb, ctx.name)
    x, scale, zero = inputs[0], inputs[1], inputs[2]
    elem = ctx.input_elem_types[0] or ELEMENT_TYPES.get(dtype_of(x), TensorProto.INT32)
    axis, block = attrs.get("axis", 1), attrs.get("block_size", 0)
    plain = elem in (TensorProto.INT8, TensorProto.UINT8) and len(shape_of(scale)) <= 1
    if plain and not block and dtype_of(scale) == "float32" and not attrs.get("output_dtype"):
        return ctx.stock(inputs, attrs)
    shape = shape_of(x)
    value = convert_type(b, x, elem, TensorProto.FLOAT)
    if zero is not None and not (elem in CODED and _is_zero(zero)):
        zero = convert_type(b, zero, elem, TensorProto.FLOAT) if elem in CODED else zero
        value = b.sub(value, b.cast(spread(b, zero, shape, axis, block), "float32"))
    out = b.mul(value, b.cast(spread(b, scale, shape, axis, block), "float32"))
    target = attrs.get("output_dtype", 0)
    return b.cast(out, str(helper.tensor_dtype_to_np_dtype(target)) if target else dtype_of(scale))


def _is_zero(point: Any) -> bool:
    """Whether a zero point of float8 is the usual one: its bits are 0."""
    known = value_of(point)
    return known is not None and not known.view(np.uint8).any()


def dynamic_quantize(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """DynamicQuantizeLinear: uint8 with the range of the data itself, zero included; of zeros only, the scale is 1."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    if 0 in shape_of(x):  # no kernel finds the largest of no numbers
        scale, zero = const(np.float32(1), "float32"), const(np.uint8(0), "uint8")
        return b.zeros(shape_of(x), "uint8"), scale, zero
    safe, zero = step_and_zero(b, _extreme(b, relax.op.max, x), _extreme(b, relax.op.min, x))
    value = saturate(b, b.add(b.emit(relax.op.round(b.div(x, safe))), zero), TensorProto.UINT8)
    return value, safe, b.cast(zero, "uint8")


def step_and_zero(b: Build, high: Any, low: Any) -> tuple[Any, Any]:
    """The step and the zero point, both float32, of codes from 0 to 255 for numbers from `low` to `high`, and 0."""
    high, low = b.maximum(high, 0.0), b.minimum(low, 0.0)
    step = b.div(b.sub(high, low), 255.0)
    safe = b.where(b.equal(step, 0.0), 1.0, step)
    zero = b.emit(relax.op.round(b.div(b.sub(0.0, low), safe)))
    return safe, b.where(b.greater(zero, 0.0), b.minimum(zero, 255.0), 0.0)  # 0 where it is NaN: an infinite range


def _extreme(b: Build, op: Any, x: Any) -> Any:
    """The largest or the smallest number of a tensor. Of open sizes that of the longest known axis first, which has
    vectors: numbers of an open length are looked at one by one."""
    shape = shape_of(x)
    known = [axis for axis, size in enumerate(shape) if not is_open([size]) and size > 1]
    if is_open(shape) and known:
        x = b.emit(op(x, max(known, key=lambda axis: shape[axis])))
    return b.emit(op(x))


def _centred(b: Build, x: Any, zero: Any, shape: tuple[int, ...] | None = None) -> Any:
    """``x - zero_point`` in int32."""
    x = b.cast(x, "int32")
    if zero is None:
        return x
    zero = b.cast(zero, "int32")
    return b.sub(x, b.reshape(zero, shape) if shape is not None else zero)


def _operand(b: Build, x: Any, zero: Any, rows: bool) -> Any:
    """A matrix minus its zero point: one, or one per row (left operand) or column (right operand)."""
    if zero is None or len(shape_of(zero)) != 1 or shape_of(zero)[0] == 1:
        return _centred(b, x, zero, () if zero is not None and int(np.prod(shape_of(zero))) == 1 else None)
    n = shape_of(zero)[0]
    return _centred(b, x, zero, (n, 1) if rows else (n,))


def _requantize(b: Build, total: Any, factor: Any, zero: Any, dtype: str) -> Any:
    """``saturate(round(total * factor) + zero)``."""
    value = b.emit(relax.op.round(b.mul(b.cast(total, "float32"), factor)))
    if zero is not None:
        value = b.add(value, b.cast(b.reshape(zero, ()) if int(np.prod(shape_of(zero))) == 1 else zero, "float32"))
    return saturate(b, value, ELEMENT_TYPES[dtype])


def _scalar(b: Build, x: Any) -> Any:
    x = b.cast(x, "float32")
    return b.reshape(x, ()) if int(np.prod(shape_of(x))) == 1 else x


def value_of(x: Any) -> np.ndarray[Any, Any] | None:
    """The number or numbers of a constant, a single one without axes; None for anything else, and for no input."""
    if not hasattr(getattr(x, "value", None), "numpy"):
        return None
    array: np.ndarray[Any, Any] = x.value.numpy()
    return array.reshape(()) if array.size == 1 else array


def real(b: Build, x: Any, scale: Any, zero: Any, axis: int = -1) -> Any | None:
    """`x`, of 8 bits, dequantized by `R.dequantize`; None where scale or zero point are no constants. An axis is only
    meant where there are several."""
    s, kind = value_of(scale), dtype_of(x)
    z = np.zeros((), kind) if zero is None else value_of(zero)
    if s is None or z is None or kind not in ("uint8", "int8") or max(s.ndim, z.ndim) > 1 or s.dtype != np.float32:
        return None
    if z.shape not in ((), s.shape):
        return None
    z = np.full(s.shape, z) if z.ndim == 0 else z
    return b.emit(relax.op.dequantize(x, const(s, "float32"), const(z, kind), axis=axis, out_dtype="float32"))


def stepped(b: Build, x: Any, scale: Any, zero: Any, kind: str) -> Any | None:
    """float32 `x` quantized per tensor by `R.quantize`; None where scale or zero point are no constants."""
    s, z = value_of(scale), np.zeros((), kind) if zero is None else value_of(zero)
    if s is None or z is None or s.ndim or z.ndim or kind not in ("uint8", "int8") or s.dtype != np.float32:
        return None
    return relax.op.quantize(x, const(s, "float32"), const(z, kind), axis=-1, out_dtype=kind)


def qlinear_matmul(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """QLinearMatMul: the product of the dequantized operands, quantized; else in int32."""
    b = Build(bb, ctx.name)
    a, a_scale, a_zero, w, w_scale, w_zero, y_scale, y_zero = (inputs[i] for i in range(8))
    kind = dtype_of(y_zero) if y_zero is not None else dtype_of(a)
    if (s := value_of(a_scale)) is not None and s.ndim == 0:
        left, right = real(b, a, a_scale, a_zero), real(b, w, w_scale, w_zero)
        if left is not None and right is not None:
            found = stepped(b, b.emit(relax.op.matmul(left, right)), y_scale, y_zero, kind)
            if found is not None:
                return found
    total = b.emit(relax.op.matmul(_operand(b, a, a_zero, True), _operand(b, w, w_zero, False)))
    a_scale = _scalar(b, a_scale)
    if len(shape_of(a_scale)) == 1:
        a_scale = b.reshape(a_scale, (shape_of(a_scale)[0], 1))
    factor = b.div(b.mul(a_scale, _scalar(b, w_scale)), _scalar(b, y_scale))
    return _requantize(b, total, factor, y_zero, kind)


def matmul_integer(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MatMulInteger: an int32 product of the centred operands. Of uint8 and constant bytes it is a product of bytes,
    from which the shares of the zero points are taken off."""
    b = Build(bb, ctx.name)
    a, a_zero, w = inputs[0], inputs[2], value_of(inputs[1])
    found = _signed_weight(w, inputs[3], -1) if w is not None and w.ndim == 2 else None
    if found is not None and dtype_of(a) == "uint8" and len(shape_of(a)) > 1:
        weight, rest = found
        total = b.emit(relax.op.matmul(a, const(weight, "int8"), out_dtype="int32"))
        return _without_zeros(b, total, a, a_zero, weight.sum(axis=0, dtype=np.int32), rest)
    return relax.op.matmul(_operand(b, inputs[0], inputs[2], True), _operand(b, inputs[1], inputs[3], False))


def _without_zeros(b: Build, total: Any, a: Any, zero: Any, sums: Numbers, rest: Numbers) -> Any:
    """A product less the shares of the data's zero point, one or one per row, and of what is left of the weight's: one
    operator, which fuses into the product's kernel as a whole.

        sum_k (a - z) * (w - r) = sum_k a * w  -  z * sum_k w  -  r * (sum_k a - K * z)
    """
    if zero is None and not rest.any():
        return total
    length, zero = shape_of(a)[-1], const(np.zeros((), "uint8"), "uint8") if zero is None else zero
    single = int(np.prod(shape_of(zero))) == 1
    rows = [b.emit(relax.op.sum(b.cast(a, "int32"), -1, True)), const(rest, "int32")] if rest.any() else []

    def without_zeros(product: te.Tensor, z: te.Tensor, s: te.Tensor, *more: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            own = z(*[0] * len(z.shape)) if single else z(at[-2])
            value = product(*at) - own.astype("int32") * s(at[-1])
            if not more:
                return value
            return value - more[1](at[-1]) * (more[0](*at[:-1], 0) - own.astype("int32") * length)

        return te.compute(product.shape, element, name="without_zeros")

    return b.te(without_zeros, total, zero, const(sums, "int32"), *rows)


def _signed_weight(values: Numbers | None, zero: Any, axis: int) -> tuple[Numbers, Numbers] | None:
    """Constant bytes as int8, and what is left of their zero points, one a slice of `axis`: it is 0 where the bytes
    less their zero points fit into int8. None where they are no such constants, or where a sum of products with uint8
    can leave int32."""
    zeros = np.zeros((), np.int8) if zero is None else value_of(zero)
    if values is None or zeros is None or values.dtype not in (np.int8, np.uint8) or zeros.ndim > 1:
        return None
    axis %= values.ndim
    if zeros.ndim and len(zeros) != values.shape[axis]:
        return None
    spread = [1] * values.ndim
    spread[axis] = values.shape[axis]
    rest = np.broadcast_to(zeros.astype(np.int64), spread[axis : axis + 1])
    wide = values.astype(np.int64) - rest.reshape(spread)
    if wide.min(initial=0) < -128 or wide.max(initial=0) > 127:
        middle = 128 if values.dtype == np.uint8 else 0
        wide, rest = values.astype(np.int64) - middle, rest - middle
    else:
        rest = np.zeros_like(rest)
    others = tuple(i for i in range(values.ndim) if i != axis)
    if np.abs(wide).sum(axis=others).max(initial=0) * 255 >= 2**31:
        return None
    return wide.astype(np.int8), np.ascontiguousarray(rest.astype(np.int32))


def _channel(b: Build, value: Any, rank: int, axis: int) -> Any:
    """A scalar, or a vector of channels shaped for a rank-`rank` tensor."""
    if value is None or int(np.prod(shape_of(value))) == 1:
        return None if value is None else b.reshape(value, ())
    return b.reshape(value, tuple(shape_of(value)[0] if i == axis else 1 for i in range(rank)))


def conv_integer(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ConvInteger: an int32 convolution of the centred operands (padding is the zero point, so zero)."""
    b = Build(bb, ctx.name)
    x, w = inputs[0], inputs[1]
    rank = len(shape_of(x))
    found = _conv_of_bytes(b, inputs, attrs)
    if found is not None:
        return found
    left = _centred(b, x, _channel(b, inputs[2], rank, 1))
    return convolve(b, ctx, left, _centred(b, w, _channel(b, inputs[3], rank, 0)), attrs)


def _conv_of_bytes(b: Build, inputs: Inputs, attrs: dict[str, Any]) -> Any | None:
    """ConvInteger of uint8 and constant bytes as a convolution of bytes, less the zero points' shares; None for others.

    The data's zero point is known when the model runs only: it becomes the border, so that each sum has all its taps.
    Sums of whole windows, for what is left of the weight's zero points, are a convolution with ones.
    """
    x, x_zero, groups = inputs[0], inputs[2], int(attrs.get("group", 1))
    values, rank = value_of(inputs[1]), len(shape_of(x))
    if values is None or dtype_of(x) != "uint8" or rank not in (3, 4) or values.ndim != rank or 0 in values.shape:
        return None
    split, each = _signed_weight(values, inputs[3], 0), values.shape[1]
    if split is None or is_open(shape_of(x)[:2]) or (groups > 1 and each > 1 and each % 4):
        return None
    weight, rest = split
    if (rest.any() and groups > 1) or (x_zero is not None and int(np.prod(shape_of(x_zero))) != 1):
        return None
    places = windows(attrs, shape_of(x)[2:], values.shape[2:])
    borders = (*places.begin, *places.end)
    if is_open(borders) or min(borders) < 0 or 0 in places.out:
        return None
    zero = None if x_zero is None else b.cast(b.reshape(x_zero, ()), "int32")
    if any(borders):
        width = [0, 0, 0, 0, *(n for pair in zip(places.begin, places.end, strict=True) for n in pair)]
        centred = b.cast(x, "int32") if zero is None else b.sub(b.cast(x, "int32"), zero)
        bordered = b.emit(relax.op.nn.pad(centred, width))
        x = b.cast(bordered if zero is None else b.add(bordered, zero), "uint8")
    n = rank - 2
    kind = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d}[n]
    own = dict(strides=attrs.get("strides", [1] * n), dilation=attrs.get("dilations", [1] * n), out_dtype="int32")
    total = b.emit(kind(x, const(weight, "int8"), groups=groups, **own))
    channel = (1, -1, *[1] * n)
    others = tuple(range(1, rank))
    if zero is not None:
        shares = weight.sum(axis=others, dtype=np.int32) - rest * np.int32(weight[0].size)
        total = b.sub(total, b.mul(zero, const(shares.reshape(channel), "int32")))
    if rest.any():
        windows_of = b.emit(kind(x, const(np.ones_like(weight[:1]), "int8"), **own))
        total = b.sub(total, b.mul(windows_of, const(rest.reshape(channel), "int32")))
    return total


def qlinear_conv(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """QLinearConv: the convolution of the dequantized operands plus the bias, quantized; else in int32."""
    b = Build(bb, ctx.name)
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (inputs[i] for i in range(9))
    rank = len(shape_of(x))
    found = _dequantized_conv(b, inputs, attrs, ctx)
    if found is not None:
        return found
    left = _centred(b, x, _channel(b, x_zero, rank, 1))
    total = convolve(b, ctx, left, _centred(b, w, _channel(b, w_zero, rank, 0)), attrs)
    if bias is not None:
        total = b.add(total, b.reshape(bias, (1, shape_of(bias)[0], *[1] * (rank - 2))))
    factor = b.div(b.mul(_scalar(b, x_scale), _channel(b, w_scale, rank, 1)), _scalar(b, y_scale))
    return _requantize(b, total, factor, y_zero, dtype_of(y_zero) if y_zero is not None else dtype_of(x))


def _dequantized_conv(b: Build, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Any | None:
    """QLinearConv by `R.dequantize` and `R.quantize`; None where a scale is no constant."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (inputs[i] for i in range(9))
    if (s := value_of(x_scale)) is None or s.ndim or value_of(y_scale) is None or (own := value_of(w_scale)) is None:
        return None
    left, right = real(b, x, x_scale, x_zero), real(b, w, w_scale, w_zero, axis=0)
    if left is None or right is None:
        return None
    total = convolve(b, ctx, left, right, attrs)
    if bias is not None:
        scale = np.broadcast_to((s.astype(np.float64) * own).astype(np.float32), shape_of(bias))
        offset = b.mul(b.cast(bias, "float32"), const(np.ascontiguousarray(scale), "float32"))
        total = b.add(total, b.reshape(offset, (1, shape_of(bias)[0], *[1] * (len(shape_of(x)) - 2))))
    return stepped(b, b.emit(total), y_scale, y_zero, dtype_of(y_zero) if y_zero is not None else dtype_of(x))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "QuantizeLinear"): quantize,
    ("", "DequantizeLinear"): dequantize,
    ("com.microsoft", "QuantizeLinear"): quantize,
    ("com.microsoft", "DequantizeLinear"): dequantize,
    ("", "DynamicQuantizeLinear"): dynamic_quantize,
    ("", "QLinearMatMul"): qlinear_matmul,
    ("", "MatMulInteger"): matmul_integer,
    ("", "ConvInteger"): conv_integer,
    ("", "QLinearConv"): qlinear_conv,
}
