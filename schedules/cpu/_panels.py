"""Weights in panels as wide as the register tile - what the products with constant weights share: GEMM, convolution,
Winograd.

    Wp[p, k, j] = W[k, p*nr + j], zero beyond N

The inner loop of a product then reads Wp forwards, one cache line after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import is_empty, operand_types, sizes, static_shape
from tvmopt.lowering.pairs import bits, dot2, pack_pairs, pair
from tvmopt.lowering.quads import WORD, dot4, pack_quads, quad
from tvmopt.lowering.repeats import packed_once

OPERANDS = {
    ("float32", "float32"): "float32",
    ("float32", "float16"): "float32",
    ("bfloat16", "bfloat16"): "float32",
    ("uint8", "int8"): "int32",
}
"""What register tiles multiply, and the type of the sum."""
DOUBLES = {("float64", "float64"): "float64"}
"""What those of `gemm` multiply, too, for `Machine.of_doubles`."""


def pack_panels(weight: np.ndarray, nr: int) -> np.ndarray:
    """W[..., K, N] as panels [..., ceil(N/nr), K, nr], zeros beyond N: a view, which whoever makes a constant of it
    copies, where N is a multiple of nr.

    >>> pack_panels(np.arange(6.0).reshape(2, 3), 2)[1]
    array([[2., 0.],
           [5., 0.]])
    """
    *lead, k, n = weight.shape
    panels = -(-n // nr)
    if n % nr:
        padded = np.zeros((*lead, k, panels * nr), weight.dtype)
        padded[..., :n] = weight
        weight = padded
    return np.moveaxis(weight.reshape(*lead, k, panels, nr), -2, -3)


def weight_panels(value: np.ndarray, nr: int) -> relax.Expr:
    """W[..., K, N] as packed panels: float32, float16, float64, uint32 pairs of bfloat16, or int32 words of int8."""

    def pack() -> relax.Expr:
        if value.dtype in (np.float32, np.float16, np.float64):
            return relax.const(pack_panels(value, nr), str(value.dtype))
        if value.dtype == np.int8:
            return relax.const(pack_panels(pack_quads(value), nr), "int32")
        return relax.const(pack_panels(pack_pairs(value), nr), "uint32")

    return packed_once(value, ("panels", nr), pack)


def unfit(call: relax.Call, of_doubles: bool = False) -> str | None:
    """Why register tiles do not multiply the operands of a product or convolution, in a few words; None if they do."""
    x, w = call.args
    xs, ws = sizes(x), static_shape(w)
    if xs is None or ws is None or not isinstance(xs[-1], int):
        return "an open sum"
    return unlike(call, of_doubles)


def unlike(call: relax.Call, of_doubles: bool = False) -> str | None:
    """Likewise, whatever is open."""
    x, w = call.args
    if is_empty(sizes(x)) or is_empty(sizes(w)):
        return "an empty operand"
    known = OPERANDS | DOUBLES if of_doubles else OPERANDS
    total = known.get((str(x.ty.dtype), str(w.ty.dtype)))
    if total is None:
        return operand_types(call)
    return None if str(call.ty.dtype) == total else f"a {call.ty.dtype} result"


def product(data: Callable[..., Any], index: tuple[Any, ...], weight: Any, length: int) -> Any:
    """One term of the sum over k = index[-1]: data * weight; two terms where the weight is a pair of bfloat16, four
    where it is a word of int8.

    Args:
        index: the place in `data`; its last element counts numbers, or pairs or words of them.
        length: numbers along the last axis; behind an odd one stands a zero. Words have four.
    """
    if str(weight.ty.dtype) == "float64":
        return data(*index) * weight
    if str(weight.ty.dtype) in ("float32", "float16"):
        return data(*index) * weight.astype("float32")
    *rows, k = index
    if str(weight.ty.dtype) == "int32":
        return dot4(quad(*(data(*rows, WORD * k + byte) for byte in range(WORD))), weight)
    low, high = bits(data(*rows, 2 * k)), bits(data(*rows, 2 * k + 1))
    if length % 2:
        high = te.if_then_else(2 * k + 1 < length, high, tirx.const(0, "uint16"))
    return dot2(pair(low, high), weight)


def whole_words(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Rows of bytes, made longer by those that a last word has too many: the weights are zeros there."""
    shape = sizes(x) or ()
    more = -shape[-1] % WORD if str(x.ty.dtype) == "uint8" else 0
    return bb.emit(relax.op.nn.pad(x, [0, 0] * (len(shape) - 1) + [0, more])) if more else x


def packed_at_run_time(bb: relax.BlockBuilder, weight: relax.Expr, groups: int, nr: int) -> relax.Expr:
    """The same panels of a weight that is no constant, by a kernel."""

    def pack(w: te.Tensor) -> te.Tensor:
        out_c, kh, kw, in_g = (int(d) for d in w.shape)
        out_g = out_c // groups
        panels = -(-out_g // nr)

        def entry(p: tirx.Expr, ky: tirx.Expr, kx: tirx.Expr, c: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
            column = p % panels * nr + j
            value = w(p // panels * out_g + column, ky, kx, c)
            return value if out_g % nr == 0 else te.if_then_else(column < out_g, value, tirx.const(0.0, w.dtype))

        return te.compute((groups * panels, kh, kw, in_g, nr), entry, name="pack_weight")

    return bb.emit(bb.call_te(pack, weight, primfunc_name_hint="pack_weight"))
