"""Element by element: activations, arithmetic, comparisons, logic."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported, is_real


def _special(name: str, x: Array) -> Array:
    """A function of `scipy.special`, which takes half as long to import as all of the oracle: when it is first used."""
    from scipy import special

    return np.asarray(getattr(special, name)(x))


def _unary(function: Any) -> Operator:
    def run(call: Call, x: Array) -> Result:
        return np.asarray(function(x))

    return run


def _real(function: Any, **defaults: float) -> Operator:
    """An activation with float attributes, which are float32 numbers in the file."""

    def run(call: Call, x: Array) -> Result:
        given = {name: x.dtype.type(np.float32(call.get(name, value))) for name, value in defaults.items()}
        return np.asarray(function(x, **given))

    return run


def _stepped(function: Any, **defaults: float) -> Operator:
    """The same for a function that jumps: an attribute is the nearest number of the declared type, as the function body
    in the standard casts it, and decides on which side an equal element is."""

    def run(call: Call, x: Array) -> Result:
        kind = call.kinds[0] or x.dtype
        given = {n: x.dtype.type(np.float32(call.get(n, v)).astype(kind)) for n, v in defaults.items()}
        return np.asarray(function(x, **given))

    return run


def sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))  # of what overflows the reciprocal is 0


def _hard_sigmoid(x: Array, alpha: Any, beta: Any) -> Array:
    return np.asarray(np.clip(alpha * x + beta, 0, 1))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x.dtype.type(0), x))


def _gelu(call: Call, x: Array) -> Result:
    return gelu(x, call.get("approximate", "none") == "tanh")


def gelu(x: Array, tanh: bool = False) -> Array:
    if tanh:
        inner = np.float64(np.sqrt(2 / np.pi)).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)
        return np.asarray(x.dtype.type(0.5) * x * (1 + np.tanh(inner)))
    if x.dtype != np.float64:  # as the standard writes it, and engines compute it: of the tail little is left
        root = x.dtype.type(np.sqrt(0.5))
        return np.asarray(x.dtype.type(0.5) * x * (1 + _special("erf", x * root)))
    return np.asarray(x * _special("ndtr", x))


def _selu(x: Array, alpha: Any, gamma: Any) -> Array:
    return np.where(x > 0, gamma * x, np.where(np.isnan(x), x, gamma * alpha * np.expm1(np.minimum(x, 0))))


def _celu(x: Array, alpha: Any) -> Array:
    return np.asarray(np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)))


def _elu(x: Array, alpha: Any) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))  # 0 is 0, also where alpha is infinite


def _shrink(x: Array, bias: Any, lambd: Any) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(
        x.dtype
    )  # NaN becomes 0, as ONNX says


def _prelu(call: Call, x: Array, slope: Array) -> Result:
    return np.where(x < 0, slope * x, x)


def _clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Result:
    low = call.get("min") if low is None else low
    high = call.get("max") if high is None else high
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def _div(call: Call, a: Array, b: Array) -> Result:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    if a.dtype.kind == "u":
        return a // np.where(b == 0, 1, b)
    safe = np.where(b == 0, 1, b)
    with np.errstate(all="ignore"):
        quotient, rest = np.divmod(a, safe)
    return (quotient + ((rest != 0) & ((a < 0) != (safe < 0)))).astype(a.dtype)  # C's: towards zero


def _mod(call: Call, a: Array, b: Array) -> Result:
    if a.dtype.kind in "iu":
        b = np.where(b == 0, 1, b)
    return np.fmod(a, b) if call.get("fmod", 0) else np.mod(a, b)


MULTIPLIED = (3, 4, 5, 6)
"""Exponents by which NumPy takes fifty times as long as a few products do, which round a little differently."""


def _pow(call: Call, a: Array, b: Array) -> Result:
    if is_real(a.dtype):
        if b.size == 1 and b.ndim <= a.ndim and b.item() in MULTIPLIED:
            count, squared = int(b.item()), a * a
            product = squared * a if count % 2 else squared
            for _ in range(count // 2 - 1):
                product = product * squared
            return product
        return np.power(a, b.astype(a.dtype))
    if is_real(b.dtype):
        return np.power(a.astype(b.dtype), b).astype(a.dtype)
    whole = np.power(a.astype(np.int64), np.maximum(b, 0).astype(np.int64)).astype(a.dtype)
    if not (b < 0).any():
        return whole
    parts = np.power(np.where(a == 0, 1, a).astype(np.float64), np.minimum(b, 0).astype(np.float64)).astype(a.dtype)
    return np.where(b < 0, np.where(a == 0, np.iinfo(a.dtype).min, parts), whole).astype(a.dtype)


def _binary(function: Any) -> Operator:
    def run(call: Call, a: Array, b: Array) -> Result:
        a, b = _aligned(call, a, b)
        return np.asarray(function(a, b))

    return run


def _aligned(call: Call, a: Array, b: Array) -> tuple[Array, Array]:
    """Before opset 7 `broadcast` and `axis` say where the second operand begins."""
    if call.version < 7 and call.get("broadcast", 0):
        axis = call.get("axis")
        if axis is not None:
            b = b.reshape(*b.shape, *(1,) * (a.ndim - int(axis) % a.ndim - b.ndim))
    return a, b


def _several(function: Any) -> Operator:
    def run(call: Call, *inputs: Array) -> Result:
        return np.asarray(reduce(function, inputs))

    return run


def _mean(call: Call, *inputs: Array) -> Result:
    return np.asarray(reduce(np.add, inputs) / len(inputs))


def _where(call: Call, condition: Array, a: Array, b: Array) -> Result:
    return np.where(condition, a, b)


def _round(call: Call, x: Array) -> Result:
    return np.rint(x)


def _is_inf(call: Call, x: Array) -> Result:
    found = np.zeros(x.shape, bool)
    if call.get("detect_positive", 1):
        found |= np.isposinf(x)
    if call.get("detect_negative", 1):
        found |= np.isneginf(x)
    return found


def _bit_shift(call: Call, a: Array, b: Array) -> Result:
    bits = a.dtype.itemsize * 8
    shift = np.minimum(b, bits - 1)
    if call.get("direction") == "RIGHT":  # of a signed number: its sign comes in
        moved = np.right_shift(a, shift)
        return np.where((b >= bits) & (a >= 0), 0, moved).astype(a.dtype)
    return np.where(b >= bits, 0, np.left_shift(a, shift)).astype(a.dtype)


def _identity(call: Call, x: Any) -> Result:
    return [x]


def _optional(call: Call, x: Any = None) -> Result:
    """A value is itself, whether something asks if it is there or not; onnx.reference makes a list of it."""
    if x is None:
        raise Unsupported("an optional value that is missing")
    return [x]


def _has_element(call: Call, x: Any = None) -> Result:
    return np.array(x is not None)


def _dropout(call: Call, x: Array, *rest: Array | None) -> Result:
    if len(rest) > 1 and rest[1] is not None and bool(rest[1]):
        raise Unsupported("Dropout while training")
    return [x, np.ones(x.shape, bool)][: call.outputs]


TABLE: dict[str, Operator] = {
    **{name: _unary(getattr(np, name.lower())) for name in ("Abs", "Ceil", "Cos", "Cosh", "Exp", "Floor", "Log")},
    **{name: _unary(getattr(np, name.lower())) for name in ("Sin", "Sinh", "Sqrt", "Tan", "Tanh")},
    "Acos": _unary(np.arccos),
    "Acosh": _unary(np.arccosh),
    "Asin": _unary(np.arcsin),
    "Asinh": _unary(np.arcsinh),
    "Atan": _unary(np.arctan),
    "Atanh": _unary(np.arctanh),
    "Neg": _unary(np.negative),
    "Sign": _unary(np.sign),
    "Not": _unary(np.logical_not),
    "BitwiseNot": _unary(np.bitwise_not),
    "IsNaN": _unary(np.isnan),
    "Erf": _unary(partial(_special, "erf")),
    "Sigmoid": _unary(sigmoid),
    "Softplus": _unary(_softplus),
    "Relu": _unary(lambda x: np.maximum(x, x.dtype.type(0))),
    "Reciprocal": _unary(lambda x: 1 / x),
    "Softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "HardSwish": _unary(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Mish": _unary(lambda x: x * np.tanh(_softplus(x))),
    "Round": _round,
    "Gelu": _gelu,
    "HardSigmoid": _real(_hard_sigmoid, alpha=0.2, beta=0.5),
    "LeakyRelu": _real(lambda x, alpha: np.where(x < 0, alpha * x, x), alpha=0.01),
    "ThresholdedRelu": _stepped(lambda x, alpha: np.where(x > alpha, x, 0).astype(x.dtype), alpha=1.0),
    "Elu": _real(_elu, alpha=1.0),
    "Selu": _real(_selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Celu": _real(_celu, alpha=1.0),
    "Swish": _real(lambda x, alpha: x * sigmoid(alpha * x), alpha=1.0),
    "Shrink": _stepped(_shrink, bias=0.0, lambd=0.5),
    "IsInf": _is_inf,
    "PRelu": _prelu,
    "Clip": _clip,
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": lambda call, a, b: _div(call, *_aligned(call, a, b)),
    "Mod": _mod,
    "Pow": lambda call, a, b: _pow(call, *_aligned(call, a, b)),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Xor": _binary(np.logical_xor),
    "Equal": _binary(np.equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "BitwiseAnd": _binary(np.bitwise_and),
    "BitwiseOr": _binary(np.bitwise_or),
    "BitwiseXor": _binary(np.bitwise_xor),
    "BitShift": _bit_shift,
    "Max": _several(np.maximum),
    "Min": _several(np.minimum),
    "Sum": _several(np.add),
    "Mean": _mean,
    "Where": _where,
    "Identity": _identity,
    "Optional": _optional,
    "OptionalGetElement": _optional,
    "OptionalHasElement": _has_element,
    "Dropout": _dropout,
}
