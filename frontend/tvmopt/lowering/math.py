"""Transcendental functions as short vector polynomials: for every kernel that computes an exp, tanh or log.

LLVM has no vector maths library here: `llvm.exp.v16f32` becomes sixteen calls of libm's `expf`, 25 times slower than
the memory that feeds it. :func:`install` registers float32 lowerings through TVM's own extension point
(`register_intrin_lowering`, the last step before code generation), so schedules, fusion and records see a plain
`T.exp(x)` and the machine sees a dozen vector instructions. Each builder takes any number of lanes.

    function  method and source                                            ns/element  max error (ulp)
    exp       2^n * P7(r), r = x - n ln 2 (Cephes expf.c); no denormals    0.15 (1.35)  1.0
    log       m = x * 2^-e in [sqrt(1/2), sqrt 2); P8 (Cephes logf.c)      0.26 (1.44)  0.8
    tanh      E / (E + 2), E = 2^n (e^2r - 1) + (2^n - 1)                  0.30         2.5
    erf       x + x Q5(x^2) to 0.928, then 1 - exp(R(|x|)) (N. Juffa)      0.32 (4.4)   1.0
    sigmoid   1 / (1 + exp(-x))                                            0.18 (1.5)   2.2
    normal    0.5 + x P14(x^2) to 5.5, then 0 or 1 (minimax by Lawson's                 1.7e-7, not ulp
    cdf       iteration, for GELU: what counts there is the error itself)
    sin, cos  r = x - n pi/2 in float64; P7(r), P8(r) (Cephes sinf.c)      0.5 (7.4)    1.6
    atan      x + x^3 P3(x^2), of x, (x - 1) / (x + 1) or -1 / x (Cephes)  0.24 (11)    2.8
    asin,     x + x^3 P4(x^2), of x or sqrt((1 - x) / 2) (Cephes asinf.c)  0.23 (11)    2.4, 1.3
    acos

Measured on one Zen 5 core (sin and cos on a Xeon, arc functions and tanh on Zen 4), TVM's own lowering in brackets;
errors with FMA, over the whole range. Beyond 1e5 sin and cos are libm's.
Inf, NaN and signed zeros follow IEEE (tests/lowering/test_math.py walks all exponents).
No conversion float -> int appears: LLVM calls it poison out of range. Rounding adds and subtracts 1.5 * 2^23
instead, after which the low bits of the sum *are* the integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import tvm
from tvm import tirx
from tvm.target.codegen import target_has_features

from tvmopt.lowering.intrinsics import register
from tvmopt.lowering.loops import vector_type

Expr = Any

_MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves round(x) in the low bits of the sum


def _lanes(x: Expr) -> int:
    return int(x.ty.dtype.lanes)


def _const(value: float, like: Expr, dtype: str = "float32") -> Expr:
    lanes = _lanes(like)
    scalar = tirx.const(value, dtype)
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def _cast_bits(x: Expr, dtype: str) -> Expr:
    return tirx.reinterpret(vector_type(dtype, _lanes(x)), x)


def _let(value: Expr, body: Callable[[Expr], Expr], name: str) -> Expr:
    """`body` with `value` computed once."""
    var = tirx.Var(name, value.ty)
    return tirx.Let(var, value, body(var))


def _poly(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, highest power first."""
    result = _const(coefficients[0], x)
    for c in coefficients[1:]:
        result = result * x + _const(c, x)
    return result


_EXP = (1.3814540025e-3, 8.3687451126e-3, 4.1668390787e-2, 1.6666520399e-1, 4.9999993432e-1)
"""P4 in e^r = 1 + r + r^2 P4(r): least squares with Lawson's weights, to 3.1e-9 of e^r for |r| <= ln 2 / 2. In float32
the error of e^x is 0.875 units in the last place at most, as with one power more."""
_LOG2E, _LN2_HI, _LN2_LO = 1.44269504088896341, 0.693359375, -2.12194440e-4


def _reduced(x: Expr, of: Callable[[Expr, Expr], Expr], times: float = 1.0) -> Expr:
    """`of(r, t)` for times x = n ln 2 + times r: r in [-0.35, 0.35] / times, and t = n + 1.5 * 2^23, whose low bits
    are n, the nearest integer to times x log2 e."""

    def rest(t: Expr) -> Expr:
        n = t - _const(_MAGIC, x)
        r = x - n * _const(_LN2_HI / times, x) - n * _const(_LN2_LO / times, x)
        return _let(r, lambda r: of(r, t), "r")

    return _let(x * _const(times * _LOG2E, x) + _const(_MAGIC, x), rest, "t")


def _power(t: Expr, bias: int = 127) -> Expr:
    """2^(n + bias - 127) of t = n + 1.5 * 2^23: shifted into the exponent field, all but n falls off."""
    shift = _const(23, t, "int32")
    return _cast_bits((_cast_bits(t, "int32") << shift) + (_const(bias, t, "int32") << shift), "float32")


def _exp_bounded(x: Expr, bias: int = 127) -> Expr:
    """e^x * 2^(bias - 127) for -87.3 < x < 88.3; NaN passes; anything else is garbage. e^r = 1 + r + r^2 P4(r)."""
    return _reduced(x, lambda r, t: _poly(r, (*_EXP, 1.0, 1.0)) * _power(t, bias))


def exp(x: Expr) -> Expr:
    """e^x, float32, any lanes; overflow gives inf, below e^-87 (1.6e-38) it is 0: no denormals."""

    def body(x: Expr) -> Expr:
        def halves(c: Expr) -> Expr:  # 2^(n - 1), doubled: n = 128 is still finite
            return _let(_exp_bounded(c, 126), lambda half: half + half, "half")

        value = _let(_at_most(x, 89.0), _exp_scaled if _scales(x) else halves, "c")
        return tirx.Select(x < _const(-87.0, x), _const(0.0, x), value)

    return _let(x, body, "x")


def _scales(x: Expr) -> bool:
    """Whether an instruction multiplies a vector by powers of two (AVX-512's `vscalefps`), with overflow: one for the
    three that put a power together and the sum that doubles it."""
    target = tvm.target.Target.current(allow_none=True)
    if _lanes(x) != 16 or target is None or target.kind.name != "llvm":
        return False
    return bool(target_has_features("avx512f", target))


def _exp_scaled(x: Expr) -> Expr:
    """e^x for x < 128 ln 2 + 1, infinity where it is too large; NaN passes; garbage below -87.3."""

    def scaled(r: Expr, t: Expr) -> Expr:
        every, nearest = tirx.const(-1, "int16"), tirx.const(4, "int32")  # all lanes; rounding as usual
        name = "llvm.x86.avx512.mask.scalef.ps.512"

        def times_power(p: Expr) -> Expr:
            n = t - _const(_MAGIC, x)
            return tirx.call_llvm_pure_intrin(str(x.ty.dtype), name, p, n, p, every, nearest)

        return _let(_poly(r, (*_EXP, 1.0, 1.0)), times_power, "p")

    return _reduced(x, scaled)


def exp_nonpositive(x: Expr) -> Expr:
    """e^x for x <= 0 (softmax): below -87.3 exactly 0."""

    def body(x: Expr) -> Expr:  # a comparison with NaN is false: NaN passes
        value = _exp_scaled(x) if _scales(x) else _exp_bounded(x)
        return tirx.Select(x < _const(-87.3, x), _const(0.0, x), value)

    return _let(x, body, "x")


def _at_most(x: Expr, high: float) -> Expr:
    return tirx.Select(x > _const(high, x), _const(high, x), x)


def _at_least(x: Expr, low: float) -> Expr:
    return tirx.Select(x < _const(low, x), _const(low, x), x)  # a comparison with NaN is false: NaN passes


def _clip(x: Expr, low: float, high: float) -> Expr:
    return tirx.Select(x > _const(high, x), _const(high, x), _at_least(x, low))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x) as 0.5 / (0.5 + 0.5 e^-x).

    Below -89.1 it is 0, because the exponent of e^-x is that of infinity: x sigmoid(x) is then 0, not -3e38 * 6e-39.
    """
    negative = _clip(_const(0.0, x) - x, -87.0, 89.5)
    half = _const(0.5, x)
    return half / (half + _let(negative, lambda c: _exp_bounded(c, 126), "c"))


def _abs(x: Expr) -> Expr:
    return _cast_bits(_cast_bits(x, "int32") & _const(0x7FFFFFFF, x, "int32"), "float32")


def _copysign(magnitude: Expr, sign: Expr) -> Expr:
    bits = _cast_bits(sign, "int32") & _const(-0x80000000, sign, "int32")
    return _cast_bits(_cast_bits(magnitude, "int32") | bits, "float32")


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent: E / (E + 2) with E = e^2x - 1.

    2x = n ln 2 + 2r, and E = 2^n (e^2r - 1) + (2^n - 1), of which the second term is exact up to n = 24 and the first
    one alone is left for small x: E has all of its digits there. Beyond 9.1 the quotient is 1.
    """

    def quotient(e: Expr) -> Expr:
        return e / (e + _const(2.0, x))

    def of_rest(r: Expr, t: Expr) -> Expr:
        scaled = [c * 2.0**k for c, k in zip(_EXP, range(len(_EXP) + 1, 1, -1), strict=True)]  # e^2r in powers of r

        def all_of(power: Expr) -> Expr:
            below_one = _poly(r, scaled) * (r * r) + (r + r)
            return _let(below_one * power + (power - _const(1.0, x)), quotient, "e")

        return _let(_power(t), all_of, "p")

    def body(x: Expr) -> Expr:
        return _copysign(_let(_clip(x, -20.0, 20.0), lambda c: _reduced(c, of_rest, times=2.0), "c"), x)

    return _let(x, body, "x")


_ERF_SMALL = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_BIG = (
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)


def erf(x: Expr) -> Expr:
    """Error function (N. Juffa's erff, stackoverflow.com/a/35148199)."""

    def body(x: Expr) -> Expr:
        small = _let(x * x, lambda s: _poly(s, _ERF_SMALL) * x + x, "s")

        def tail(a: Expr) -> Expr:  # beyond 4.0 erf is 1 to the last bit; the clip keeps R monotonic
            return _let(_clip(a, 0.0, 4.0), lambda t: exp_nonpositive(_poly(t, _ERF_BIG) * t - t), "a")

        a = _abs(x)
        return tirx.Select(a > _const(0.927734375, x), _copysign(_const(1.0, x) - tail(a), x), small)

    return _let(x, body, "x")


_NORMAL = (5.38080116e-4, -1.36883033e-3, 1.02383783e-3, -1.22939807e-3, 4.23638616e-3, -7.67467404e-3, 1.0468618e-2,
           -1.46713639e-2, 2.02879831e-2, -2.61124689e-2, 3.20817418e-2, -3.87872681e-2, 4.77369912e-2, -6.41724765e-2,
           1.2855193e-1)  # fmt: skip
_NORMAL_END = 5.5
"""1 less the distribution there is 1.9e-8: less than half a unit in the last place of 1."""


def normal_cdf(x: Expr) -> Expr:
    """The share of a standard normal distribution below x, to 2e-7: an odd polynomial around one half."""

    def body(x: Expr) -> Expr:
        t = x * x * _const(2.0 / _NORMAL_END**2, x) - _const(1.0, x)
        inside = _let(t, lambda t: _poly(t, _NORMAL), "t") * x + _const(0.5, x)
        high = tirx.Select(x > _const(_NORMAL_END, x), _const(1.0, x), inside)
        return tirx.Select(x < _const(-_NORMAL_END, x), _const(0.0, x), high)

    return _let(x, body, "x")


_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


def log(x: Expr) -> Expr:
    """Natural logarithm (Cephes logf.c); log(0) = -inf, log(x < 0) = NaN, denormals exact."""

    def body(x: Expr) -> Expr:
        tiny = x < _const(1.1754943508222875e-38, x)
        bits = _cast_bits(tirx.Select(tiny, x * _const(8388608.0, x), x), "int32")  # 2^23 makes denormals normal

        def split(b: Expr) -> Expr:
            # move the range to [sqrt(1/2), sqrt 2): subtract the bits of sqrt(1/2), keep the exponent part
            e = (b - _const(0x3F3504F3, b, "int32")) >> _const(23, b, "int32")
            m = _cast_bits(b - (e << _const(23, b, "int32")), "float32") - _const(1.0, x)
            k = e - tirx.Select(tiny, _const(23, b, "int32"), _const(0, b, "int32"))
            k_float = k.astype(vector_type("float32", _lanes(x)))
            return _let(m, lambda m: _let(k_float, lambda k: _log_sum(m, k), "k"), "m")

        value = _let(bits, split, "b")
        inf, nan = float("inf"), float("nan")
        value = tirx.Select(x < _const(inf, x), value, x)  # inf and NaN pass
        value = tirx.Select(
            x > _const(0.0, x),
            value,
            tirx.Select(x.equal(_const(0.0, x)), _const(-inf, x), x + _const(nan, x)),
        )
        return value

    return _let(x, body, "x")


def _log_sum(m: Expr, k: Expr) -> Expr:
    s = m * m
    return _let(
        _poly(m, _LOG) * m * s + k * _const(_LN2_LO, m) - s * _const(0.5, m),
        lambda y: (m + y) + k * _const(_LN2_HI, m),
        "y",
    )


_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_HALF_PI_HI, _HALF_PI_LO = 1.57079632673412561417, 6.07710050650619224932e-11
"""The first has 33 bits: its product with n is exact in float64."""
_FAR = 1e5
"""Beyond it n is not exact in float32, and libm takes over."""


def sin(x: Expr) -> Expr:
    """Sine; a vector with a number beyond 1e5 in it is one of libm's calls a lane."""
    return _let(x, lambda x: _turned(x, "sin", 0), "x")


def cos(x: Expr) -> Expr:
    """Cosine, as :func:`sin`."""
    return _let(x, lambda x: _turned(x, "cos", 1), "x")


def _turned(x: Expr, name: str, quarters: int) -> Expr:
    """sin(|x| + quarters * pi/2), with the sign of x for the sine.

    |x| = n pi/2 + r: the low bits of |x| * 2/pi + 1.5 * 2^23 are n, whose lowest bit chooses between sine and cosine of
    r, and the next one turns the sign round.
    """

    def near(a: Expr) -> Expr:
        def of(t: Expr) -> Expr:
            wide = vector_type("float64", _lanes(x))
            n = (t - _const(_MAGIC, x)).astype(wide)
            r = a.astype(wide) - n * _const(_HALF_PI_HI, x, "float64") - n * _const(_HALF_PI_LO, x, "float64")
            return _let(r.astype(vector_type("float32", _lanes(x))), lambda r: chosen(t, r), "r")

        return _let(a * _const(2 / math.pi, x) + _const(_MAGIC, x), of, "t")

    def chosen(t: Expr, r: Expr) -> Expr:
        one = _const(1, x, "int32")
        n = _cast_bits(t, "int32") + _const(quarters, x, "int32")
        s = r * r
        sine = _poly(s, _SIN) * s * r + r
        cosine = _poly(s, _COS) * s * s - s * _const(0.5, x) + _const(1.0, x)
        value = tirx.Select((n & one).equal(_const(0, x, "int32")), sine, cosine)
        sign = (n & _const(2, x, "int32")) << _const(30, x, "int32")
        if name == "sin":
            sign = sign ^ (_cast_bits(x, "int32") & _const(-0x80000000, x, "int32"))
        return _cast_bits(_cast_bits(value, "int32") ^ sign, "float32")

    def either(a: Expr) -> Expr:
        far = a > _const(_FAR, x)  # of NaN it is false: it passes
        if _lanes(x) > 1:
            far = tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.or", far)
        libm = tirx.call_llvm_pure_intrin(str(x.ty.dtype), f"llvm.{name}", x)
        return tirx.if_then_else(far, libm, near(a))

    return _let(_abs(x), either, "a")


_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ATAN_MIDDLE, _ATAN_FAR = 0.414213562373095, 2.414213562373095  # tan(pi / 8), tan(3 pi / 8)


def atan(x: Expr) -> Expr:
    """Arc tangent (Cephes atanf.c): that of (a - 1) / (a + 1) and pi/4, or of -1 / a and pi/2."""

    def reduced(a: Expr) -> Expr:
        far, middle = a > _const(_ATAN_FAR, x), a > _const(_ATAN_MIDDLE, x)
        one, zero = _const(1.0, x), _const(0.0, x)
        above = tirx.Select(far, _const(-1.0, x), tirx.Select(middle, a - one, a))
        below = tirx.Select(far, a, tirx.Select(middle, a + one, one))
        turned = tirx.Select(far, _const(math.pi / 2, x), tirx.Select(middle, _const(math.pi / 4, x), zero))

        def sum_of(r: Expr) -> Expr:
            s = r * r
            return turned + (_poly(s, _ATAN) * s * r + r)

        return _let(above / below, sum_of, "r")

    return _let(x, lambda x: _copysign(_let(_abs(x), reduced, "a"), x), "x")


_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)


def _asin_near(x: Expr, of: Callable[[Expr, Expr], Expr]) -> Expr:
    """`of(a, r)` with a = |x| and r the arc sine of a up to 0.5, beyond it that of sqrt((1 - a) / 2) (Cephes asinf.c):
    NaN beyond 1."""

    def near(a: Expr) -> Expr:
        far, half = a > _const(0.5, x), _const(0.5, x)
        s = tirx.Select(far, half - half * a, a * a)

        def sum_of(s: Expr) -> Expr:
            root = tirx.call_llvm_pure_intrin(str(x.ty.dtype), "llvm.sqrt", s)
            return _let(
                tirx.Select(far, root, a), lambda b: _let(_poly(s, _ASIN) * s * b + b, lambda r: of(a, r), "r"), "b"
            )

        return _let(s, sum_of, "s")

    return _let(_abs(x), near, "a")


def asin(x: Expr) -> Expr:
    """Arc sine."""

    def of(a: Expr, r: Expr) -> Expr:
        return tirx.Select(a > _const(0.5, r), _const(math.pi / 2, r) - (r + r), r)

    return _let(x, lambda x: _copysign(_asin_near(x, of), x), "x")


def acos(x: Expr) -> Expr:
    """Arc cosine."""

    def of_sign(x: Expr) -> Expr:
        def of(a: Expr, r: Expr) -> Expr:
            negative, twice = x < _const(0.0, x), r + r
            far = tirx.Select(negative, _const(math.pi, x) - twice, twice)
            near = _const(math.pi / 2, x) - _copysign(r, x)
            return tirx.Select(a > _const(0.5, x), far, near)

        return _asin_near(x, of)

    return _let(x, of_sign, "x")


NORMAL_CDF = "tvmopt.normal_cdf"
"""An operator of ours: :func:`normal_cdf` of float32."""
_RULES: dict[str, Callable[[Expr], Expr]] = {
    "tirx.exp": exp, "tirx.log": log, "tirx.tanh": tanh, "tirx.erf": erf, "tirx.sigmoid": sigmoid,
    "tirx.sin": sin, "tirx.cos": cos, "tirx.atan": atan, "tirx.asin": asin, "tirx.acos": acos,
    NORMAL_CDF: normal_cdf,
}  # fmt: skip
_LEVEL = 50  # TVM's own rules sit at 10; a user's may sit above


def _kind(x: Expr) -> str:
    return str(x.ty.dtype).split("x")[0]


def _is_float32(x: Expr) -> bool:
    return _kind(x) == "float32"


def _exact_tanh(x: Expr) -> Expr:
    """libm's tanh of float64: TVM's quotient of exponentials has no digit left of a number of 1e-16."""
    if _lanes(x) == 1:
        return tirx.call_pure_extern("float64", "tanh", x)
    lanes = range(_lanes(x))
    # a name, without which eight lanes of a tanh of a tanh are 64 of the first
    return _let(x, lambda v: tirx.Shuffle([_exact_tanh(tirx.Shuffle([v], [i])) for i in lanes], list(lanes)), "lanes")


def expansion(call: Expr) -> Callable[[Expr], Expr] | None:
    """The builder for a call of one of these functions on float32, or of one on float64 that goes lane by lane; None
    for what reads its argument once."""
    name = getattr(call.op, "name", "")
    builder = _RULES.get(name)
    if builder is None or _is_float32(call.args[0]):
        return builder
    if _kind(call.args[0]) == "float64":
        return _exact_tanh if name == "tirx.tanh" else _BY_LANES.get(name)
    return None


_BY_LANES: dict[str, Callable[[Expr], Expr]] = {}
"""Functions that other types than float32 have for single numbers only."""


@lru_cache(maxsize=1)
def install() -> tuple[str, ...]:
    """Register the lowerings with TVM for LLVM targets, once a process; returns their names.

    Of other types than float32 only float64's tanh is touched; they keep the rule TVM had.
    """
    register({NORMAL_CDF: 1}, "tvmopt/lowering/math.py")
    for name, builder in _RULES.items():
        _register(name, builder)
    return tuple(_RULES)


def _register(name: str, builder: Callable[[Expr], Expr]) -> None:
    op = _op(name)
    stock = op.get_attr("llvm.FLowerIntrinsic") or op.get_attr("default.FLowerIntrinsic")
    scalar_only = not op.get_attr("TVectorizable")
    if scalar_only:  # erf: TVM's vectorizer would make a loop over the lanes, of float32 too
        _BY_LANES[name] = partial(_lane_by_lane, name)
        op.set_attr("TVectorizable", True)

    def rule(call: Any) -> Any:
        x = call.args[0]
        if _is_float32(x):
            return builder(x)
        if scalar_only and _lanes(x) > 1:
            return _lane_by_lane(name, x)
        if name == "tirx.tanh" and _kind(x) == "float64":
            return _exact_tanh(x)
        return stock(call) if stock is not None else call

    tirx.op.register_intrin_lowering(name, "llvm", f=rule, level=_LEVEL)


def _lane_by_lane(name: str, x: Expr) -> Expr:
    """The function of each lane of a vector, for types that have no vector form of it."""
    count, kind = _lanes(x), _kind(x)
    lanes = [tirx.op.call_intrin(kind, name, tirx.Shuffle([x], [i])) for i in range(count)]
    return tirx.Shuffle(lanes, list(range(count)))


def _op(name: str) -> Any:
    return tvm.ir.Op.get(name)
