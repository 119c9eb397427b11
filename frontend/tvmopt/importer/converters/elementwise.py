"""Element-wise operators that TVM imports in a form its layout and fusion passes cannot use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.floats import HALVES
from tvmopt.importer.converters.common import (
    Build,
    const,
    dtype_of,
    in_float32,
    is_float,
    like,
    shape_of,
    stock,
)
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import integer_ratio


def _chain(binary: Callable[[Any, Any], Any]) -> Converter:
    """Fold a variadic operator into binary ones (TVM stacks and reduces, which ConvertLayout refuses)."""

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        return reduce(lambda a, b: bb.normalize(binary(a, b)), list(inputs))

    return convert


def mean(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Mean of n tensors: their sum times 1/n."""
    total = reduce(lambda a, b: bb.normalize(relax.op.add(a, b)), list(inputs))
    dtype = str(inputs[0].ty.dtype)
    return relax.op.divide(total, relax.const(len(inputs), dtype)) if len(inputs) > 1 else total


def negative(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Neg. The lowest integer is its own negative; LLVM takes it that signed numbers never overflow, and makes of
    ``-x / 3`` what is none of it there, ``x / -3``."""
    x, kind = inputs[0], dtype_of(inputs[0])
    if kind not in ("int32", "int64"):
        return stock(bb, inputs, attrs, ctx)
    b = Build(bb, ctx.name)
    return b.where(b.equal(x, int(np.iinfo(kind).min)), x, b.emit(relax.op.negative(x)))


def clip(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Clip as ``min(max(x, lo), hi)``; a bound that is not given, infinite or NaN does nothing."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    bounds = [inputs[1], inputs[2]]
    for i, key in enumerate(("min", "max")):
        if ctx.opset < 11 and key in attrs:
            bounds[i] = relax.const(attrs[key], dtype)
    steps = ((relax.op.maximum, -np.inf), (relax.op.minimum, np.inf))
    for bound, (op, neutral) in zip(bounds, steps, strict=True):
        value = ctx.array(bound)
        if bound is None or (value is not None and dtype.startswith("float") and value == neutral):
            continue
        if value is not None and np.isnan(value.astype("float64")).any():
            continue
        x = bb.normalize(op(x, relax.op.reshape(bound, ()) if len(bound.ty.shape) else bound))
    return x


def dropout(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Dropout at inference: the input, and a mask of ones."""
    ratio, training = ctx.array(inputs[1]), ctx.array(inputs[2])
    if inputs[2] is not None and (training is None or training.any()) and (ratio is None or ratio.any()):
        told = "is set" if training is not None else "is not known before it runs"
        raise ctx.unsupported(
            f"training_mode {told}",
            "export the model in evaluation mode (model.eval()), or bind it: --value NAME=false",
        )
    if not ctx.wants(1):
        return inputs[0]
    dtype = "bool" if ctx.opset >= 10 else str(inputs[0].ty.dtype)
    return inputs[0], Build(bb, ctx.name).ones(shape_of(inputs[0]), dtype)


def is_inf(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """IsInf, of one sign or both."""
    b, x = Build(bb, ctx.name), inputs[0]
    positive, negative = attrs.get("detect_positive", 1), attrs.get("detect_negative", 1)
    x = b.wide(x)
    if positive and negative:
        return relax.op.isinf(x)
    if not positive and not negative:
        return b.zeros(shape_of(x), "bool")
    return relax.op.equal(x, like(np.inf if positive else -np.inf, x))


def equal(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Equal; of booleans as bytes, because LLVM compares single bits as if they were floats."""
    b = Build(bb, ctx.name)
    x, y = (b.cast(v, "int8") if dtype_of(v) == "bool" else v for v in inputs)
    return ctx.stock(Inputs([x, y]), attrs)


def bit_shift(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """BitShift; by the width or more gives 0 (the sign, for a signed shift to the right), as does a negative amount."""
    b = Build(bb, ctx.name)
    x, amount = inputs[0], inputs[1]
    dtype = dtype_of(x)
    width = np.dtype(dtype).itemsize * 8
    left = attrs["direction"] == "LEFT"
    signed = dtype.startswith("int")
    op = relax.op.left_shift if left else relax.op.right_shift
    over = b.greater_equal(amount, width)
    if signed:
        over = b.emit(relax.op.logical_or(over, b.less(amount, 0)))
    within = b.emit(op(x, b.where(over, 0, amount)))
    if signed and not left:
        rest = b.emit(relax.op.right_shift(x, like(width - 1, x)))
        return b.where(over, rest, within)
    return b.where(over, 0, within)


MOST_EXPONENT = 1 << 53
"""Below it a float64 tells all integers apart."""


BITS = 16
"""Of exponents that a run computes: an integer to the power of a larger one goes by way of float64."""


def power(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Pow, of the base's type; whole exponents of integers are products, so exact, and beyond the type they wrap
    around. A negative one leaves what is whole of the fraction."""
    b = Build(bb, ctx.name)
    x, y = inputs[0], inputs[1]
    dtype, other = dtype_of(x), dtype_of(y)
    if is_float(dtype):
        return b.unary(lambda base: relax.op.power(base, b.cast(y, dtype_of(base))), x)
    known = ctx.array(y)
    if known is not None and known.size and bool(np.all((np.abs(known) < MOST_EXPONENT) & (known % 1 == 0))):
        return _known_power(b, x, known.astype(np.int64))
    if is_float(other):
        return b.cast(b.emit(relax.op.power(b.cast(x, "float64"), b.cast(y, "float64"))), dtype)
    whole_type = np.dtype(other).itemsize * 8 - (not other.startswith("u"))
    exact = _by_bits(b, x, [_bit(b, y, k) for k in range(min(BITS, whole_type))])
    if whole_type > BITS:
        value = b.emit(relax.op.power(b.cast(x, "float64"), b.cast(y, "float64")))
        beyond = b.emit(relax.op.not_equal(_shifted(b, y, BITS), like(0, y)))
        exact = b.where(beyond, b.cast(b.emit(relax.op.round(value)), dtype), exact)
    if other.startswith("u"):
        return exact
    return b.where(b.less(y, 0), _fraction(b, x, _bit(b, y, 0)), exact)


def _known_power(b: Build, x: Any, y: np.ndarray[Any, Any]) -> Any:
    """Integers to the power of constant integers."""
    if int(y.max()) == int(y.min()) >= 1 and y.shape in ((), (1,)):
        return _product(b, x, int(y.max()))
    bits = [const((y >> k & 1).astype(bool), "bool") for k in range(max(1, int(y.max()).bit_length()))]
    exact = _by_bits(b, x, bits)
    if bool(np.all(y >= 0)):
        return exact
    return b.where(const(y < 0, "bool"), _fraction(b, x, bits[0]), exact)


def _fraction(b: Build, x: Any, odd: Any) -> Any:
    """What is whole of integers to the power of a negative one, `odd` or not; zero's is the lowest of the type, to
    which processors and onnxruntime turn its infinity."""
    lowest = like(int(np.iinfo(dtype_of(x)).min), x)
    others = b.where(b.equal(x, 1), 1, b.where(b.equal(x, 0), lowest, 0))
    return b.where(b.equal(x, -1), b.where(odd, like(-1, x), like(1, x)), others)


def _shifted(b: Build, y: Any, by: int) -> Any:
    return b.emit(relax.op.right_shift(y, like(by, y)))


def _bit(b: Build, y: Any, k: int) -> Any:
    """Whether bit number `k` of integers is set."""
    lowest = b.emit(relax.op.bitwise_and(_shifted(b, y, k), like(1, y)))
    return b.emit(relax.op.not_equal(lowest, like(0, y)))


def _by_bits(b: Build, x: Any, bits: Sequence[Any]) -> Any:
    """x to the power of numbers whose binary digits are given, the lowest one first."""
    result = b.where(bits[0], x, 1)
    for bit in bits[1:]:
        x = b.mul(x, x)
        result = b.where(bit, b.mul(result, x), result)
    return result


def _product(b: Build, x: Any, times: int) -> Any:
    """x times itself, by squares."""
    if times == 1:
        return x
    half = _product(b, x, times // 2)
    square = b.mul(half, half)
    return b.mul(square, x) if times % 2 else square


def modulo(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Mod: C's fmod, or Python's ``%`` (sign of the divisor), infinities included."""
    b = Build(bb, ctx.name)
    x, y = inputs[0], inputs[1]
    if not is_float(dtype_of(x)):
        return integer_ratio(bb, ctx, x, y, relax.op.mod if attrs.get("fmod", 0) else relax.op.floor_mod)
    wx, wy = b.wide(x), b.wide(y)
    rest = b.emit(relax.op.mod(wx, wy))
    if not attrs.get("fmod", 0):
        nonzero = b.emit(relax.op.not_equal(rest, like(0, rest)))
        differ = b.emit(relax.op.logical_xor(b.less(rest, 0), b.less(wy, 0)))
        rest = b.where(b.both(nonzero, differ), b.add(rest, wy), rest)
    return b.cast(rest, dtype_of(x))


def _log1p(b: Build, u: Any) -> Any:
    """log(1 + u) without cancellation: ``u * log(w) / (w - 1)`` with w = 1 + u (Kahan), u where w is 1."""
    w = b.add(u, 1.0)
    gap = b.sub(w, 1.0)
    none = b.equal(gap, 0.0)
    ratio = b.div(b.mul(u, b.emit(relax.op.log(w))), b.where(none, 1.0, gap))
    return b.where(none, u, ratio)


def _log1p_of_share(b: Build, u: Any) -> Any:
    """log(1 + u) of float32 numbers from 0 to 1: ``2 atanh(s)`` with ``s = u / (u + 2)``, by the series of atanh up to
    s^13, which errs by 1.5 units in the last place."""
    s = b.div(u, b.add(u, 2.0))
    square = b.mul(s, s)
    series: Any = b.mul(square, 1 / 13)
    for power in (11, 9, 7, 5, 3):
        series = b.mul(b.add(series, 1 / power), square)
    twice = b.add(s, s)
    return b.add(twice, b.mul(twice, series))


def softplus(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Softplus as ``max(x, 0) + log1p(exp(-|x|))``: exact for large and small x, no overflow."""
    b = Build(bb, ctx.name)

    def fn(x: Any) -> Any:
        decay = b.emit(relax.op.exp(b.emit(relax.op.negative(b.emit(relax.op.abs(x))))))
        logarithm = _log1p_of_share if dtype_of(x) == "float32" else _log1p
        return relax.op.add(b.maximum(x, 0.0), logarithm(b, decay))

    return b.unary(fn, inputs[0])


def thresholded_relu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ThresholdedRelu: x above alpha, else 0, also for -inf and NaN, which are not above it."""
    b, x = Build(bb, ctx.name), inputs[0]
    return b.where(b.emit(relax.op.greater(x, like(attrs.get("alpha", 1.0), x))), x, 0.0)


def shrink(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Shrink: x + bias below -lambd, else x - bias above lambd, else 0, also for NaN. With a negative lambd numbers may
    be both. The two are floats: integers are compared and moved as such, but for no bias: a float64 has not all of
    their digits."""
    b, kind = Build(bb, ctx.name), np.dtype(dtype_of(inputs[0]))
    wide = "float64" if kind.itemsize > 2 else "float32"
    x = b.cast(inputs[0], wide) if kind.kind in "iu" else inputs[0]
    lambd, bias = attrs.get("lambd", 0.5), attrs.get("bias", 0.0)
    low, high = (inputs[0], inputs[0]) if not bias else (b.add(x, bias), b.sub(x, bias))
    above = b.where(b.emit(relax.op.greater(x, like(lambd, x))), high, 0)
    return b.cast(b.where(b.emit(relax.op.less(x, like(-lambd, x))), low, above), dtype_of(inputs[0]))


def mish(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Mish, x tanh(log(1 + e)) with e = exp(x), which is ``x n / (n + 2)`` with n = e (e + 2)."""
    b = Build(bb, ctx.name)

    def fn(x: Any) -> Any:
        e = b.emit(relax.op.exp(b.minimum(x, 20.0)))
        n = b.mul(e, b.add(e, 2.0))
        return relax.op.multiply(x, b.div(n, b.add(n, 2.0)))

    return b.unary(fn, inputs[0])


def elu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Elu: ``alpha (exp(x) - 1)`` below zero."""
    b, alpha = Build(bb, ctx.name), attrs.get("alpha", 1.0)

    def fn(x: Any) -> Any:
        low = b.mul(b.sub(b.emit(relax.op.exp(b.minimum(x, 0.0))), 1.0), alpha)
        return relax.op.where(b.less(x, 0.0), low, x)

    return b.unary(fn, inputs[0])


def leaky(b: Build, x: Any, alpha: float) -> Any:
    """LeakyRelu; TVM's operator multiplies zero by alpha, too, which of an infinite alpha is no number."""
    if np.isfinite(alpha):
        return b.emit(relax.op.nn.leakyrelu(x, alpha))
    return b.unary(lambda v: relax.op.where(b.less(v, 0.0), b.mul(v, alpha), v), x)


def leaky_relu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LeakyRelu: ``alpha x`` below zero."""
    return leaky(Build(bb, ctx.name), inputs[0], attrs.get("alpha", 0.01))


def prelu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """PRelu; one constant slope a channel stays `nn.prelu`. A vector as long as the channels means them, if it can."""
    b = Build(bb, ctx.name)
    x, slope = inputs[0], inputs[1]
    shape, own = shape_of(x), shape_of(slope)
    channels = shape[1] if len(shape) > 1 else 1
    by_channel = len(own) == len(shape) - 1 and own == (channels, *[1] * (len(shape) - 2))
    by_channel |= own == (1, channels, *[1] * (len(shape) - 2))
    by_channel |= own == (channels,) and (ctx.opset < 7 or channels != shape[-1]) and len(shape) > 1
    known = ctx.array(slope)
    finite = known is not None and bool(np.isfinite(known).all())  # TVM's operator multiplies zero by a slope, too
    if by_channel and finite and is_float(dtype_of(x)):
        return relax.op.nn.prelu(x, b.reshape(slope, (channels,)), 1)
    if by_channel:
        slope = b.reshape(slope, (channels, *[1] * (len(shape) - 2)))
    return b.where(b.less(x, 0), b.mul(x, slope), x)


def celu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Celu: ``max(0, x) + min(0, alpha (exp(x / alpha) - 1))``."""
    b, alpha = Build(bb, ctx.name), attrs.get("alpha", 1.0)

    def fn(x: Any) -> Any:
        inner = b.div(x, alpha)
        inner = b.minimum(inner, 0.0) if alpha > 0 else inner  # above it nothing is left of the exponential
        low = b.mul(b.sub(b.emit(relax.op.exp(inner)), 1.0), alpha)
        return relax.op.add(b.maximum(x, 0.0), b.minimum(low, 0.0))

    return b.unary(fn, inputs[0])


def _swish(b: Build, x: Any, alpha: float) -> Any:
    if alpha == 1:
        return b.unary(relax.op.nn.silu, x)
    return b.unary(lambda v: relax.op.multiply(v, b.emit(relax.op.sigmoid(b.mul(v, alpha)))), x)


def swish(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Swish (and com.microsoft QuickGelu): ``x sigmoid(alpha x)``."""
    return _swish(Build(bb, ctx.name), inputs[0], attrs.get("alpha", 1.0 if ctx.domain == "" else 1.702))


def swiglu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SwiGLU: ``swish(a) b``."""
    b = Build(bb, ctx.name)
    return relax.op.multiply(_swish(b, inputs[0], attrs.get("alpha", 1.0)), inputs[1])


def selu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Selu: ``gamma (alpha exp(x) - alpha)`` up to zero, ``gamma x`` above (TVM's stock one is float32 only)."""
    b = Build(bb, ctx.name)
    alpha, gamma = attrs.get("alpha", 1.67326319217681884765625), attrs.get("gamma", 1.05070102214813232421875)

    def fn(x: Any) -> Any:
        low = b.mul(b.sub(b.emit(relax.op.exp(b.minimum(x, 0.0))), 1.0), alpha)
        below = b.less(x, 0.0) if np.isfinite(alpha) else b.less_equal(x, 0.0)  # zero times infinity is no number
        return relax.op.multiply(b.where(below, low, x), like(gamma, x))

    return b.unary(fn, inputs[0])


_ATANH = tuple(1 / n for n in range(25, 0, -2))
"""The series of atanh up to x^25: below 1/4 the rest is less than 1e-16."""


def atanh(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Atanh by its logarithm, and near zero, where that cancels, by its series."""
    b = Build(bb, ctx.name)

    def fn(x: Any) -> Any:
        square = b.mul(x, x)
        series = like(_ATANH[0], x)
        for coefficient in _ATANH[1:]:
            series = b.add(b.mul(series, square), coefficient)
        small = b.less(b.emit(relax.op.abs(x)), 0.25)
        return relax.op.where(small, b.mul(series, x), b.emit(relax.op.atanh(x)))

    return b.unary(fn, inputs[0])


def _by_float32(fn: Any) -> Converter:
    """A function that TVM has no code for in 16 bits: those are computed in float32."""

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        return Build(bb, ctx.name).unary(fn, inputs[0])

    return convert


def matmul(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MatMul; float16 and bfloat16 are summed in float32."""
    return Build(bb, ctx.name).matmul(inputs[0], inputs[1])


def gemm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Gemm; of float16 and bfloat16 the sums, alpha and beta C are float32, and the result is rounded once.

    TVM multiplies A by alpha, so that the terms of a sum leave their type where its result does not: an alpha of
    infinity made NaN.
    """
    kind = dtype_of(inputs[0])
    if kind not in HALVES and (not is_float(kind) or attrs.get("alpha", 1.0) == 1):
        return ctx.stock(inputs, attrs)
    b = Build(bb, ctx.name)
    left = b.transpose(inputs[0], (1, 0)) if attrs.get("transA", 0) else inputs[0]
    right = b.transpose(inputs[1], (1, 0)) if attrs.get("transB", 0) else inputs[1]
    total = b.emit(relax.op.matmul(left, right, out_dtype="float32" if kind in HALVES else kind))
    total = total if attrs.get("alpha", 1.0) == 1 else b.mul(total, attrs["alpha"])
    if inputs[2] is not None:
        added = b.wide(inputs[2])
        total = b.add(total, added if attrs.get("beta", 1.0) == 1 else b.mul(added, attrs["beta"]))
    return b.cast(total, kind)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Sum"): _chain(relax.op.add),
    ("", "Max"): _chain(relax.op.maximum),
    ("", "Min"): _chain(relax.op.minimum),
    ("", "Mean"): mean,
    ("", "Clip"): clip,
    ("", "Dropout"): dropout,
    ("", "IsInf"): is_inf,
    ("", "BitShift"): bit_shift,
    ("", "Neg"): negative,
    ("", "Equal"): equal,
    ("", "Pow"): power,
    ("", "Mod"): modulo,
    ("", "Softplus"): softplus,
    ("", "ThresholdedRelu"): thresholded_relu,
    ("", "Shrink"): shrink,
    ("", "Mish"): mish,
    ("", "Elu"): elu,
    ("", "LeakyRelu"): leaky_relu,
    ("", "Celu"): celu,
    ("", "PRelu"): in_float32(prelu),
    ("", "Swish"): swish,
    ("com.microsoft", "QuickGelu"): swish,
    ("", "SwiGLU"): swiglu,
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
    ("", "Selu"): selu,
    ("", "Atanh"): atanh,
    **{("", n): in_float32(stock) for n in ("Gelu", "HardSigmoid", "HardSwish", "IsNaN", "Sigmoid", "Softsign")},
    **{("", n): _by_float32(getattr(relax.op, n.lower())) for n in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Tanh")},
}
