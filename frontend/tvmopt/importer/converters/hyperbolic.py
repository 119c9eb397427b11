"""Sign of unsigned integers, Sinh and Cosh: TVM's own do not compile in every type or place."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvmopt.importer.converters.common import Build, dtype_of, like
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def sign(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Sign; of an unsigned integer it is 0 or 1 (TVM would write a -1 of its type)."""
    b, x = Build(bb, ctx.name), inputs[0]
    return b.cast(b.greater(x, 0), dtype_of(x)) if dtype_of(x).startswith("uint") else ctx.stock(inputs, attrs)


def _half_exp(b: Build, x: Any) -> tuple[Any, Any]:
    """``exp(|x|) / 2`` and ``exp(-|x|) / 2``, finite as long as the first is: by the square of exp(|x| / 2)."""
    root = b.emit(relax.op.exp(b.mul(b.emit(relax.op.abs(x)), 0.5)))
    half = b.mul(root, 0.5)
    return b.mul(half, root), b.div(b.div(like(0.5, x), root), root)


def cosh(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Cosh by exp: TVM has no code for it in a vector loop."""
    b = Build(bb, ctx.name)

    def fn(x: Any) -> Any:
        rising, falling = _half_exp(b, x)
        return relax.op.add(rising, falling)

    return b.unary(fn, inputs[0])


_SINH = tuple(1 / math.factorial(n) for n in range(21, 0, -2))
"""The series of sinh up to x^21: below 1 the rest is less than 1e-22."""


def sinh(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Sinh by exp, and below 1 by its series: the difference of the two exponentials would cancel."""
    b = Build(bb, ctx.name)

    def fn(x: Any) -> Any:
        rising, falling = _half_exp(b, x)
        large = b.sub(rising, falling)
        square = b.mul(x, x)
        series = like(_SINH[0], x)
        for coefficient in _SINH[1:]:
            series = b.add(b.mul(series, square), coefficient)
        small = b.less(b.emit(relax.op.abs(x)), 1.0)
        signed = b.where(b.less(x, 0.0), b.emit(relax.op.negative(large)), large)
        return relax.op.where(small, b.mul(series, x), signed)

    return b.unary(fn, inputs[0])


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Sign"): sign,
    ("", "Cosh"): cosh,
    ("", "Sinh"): sinh,
}
