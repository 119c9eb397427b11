"""Comparisons of floats, and truths made of them, as IEEE 754 has them - in the place of TVM's own.

TVM's simplifier takes floats for numbers that are equal to themselves. Fused into one kernel it makes of

    x == x              true        of NaN: false
    x < y or y <= x     true                false
    x < y or y < x      x != y              false, and true
    not (x <= x)        x < x               true, and false

and a model that asks whether its numbers are any (`x == x`) was told so always. Therefore

    Before              After
    a == b              a <= b and b <= a                LLVM makes one comparison of it
    a or b              bool(uint8(a) | uint8(b))        and no bytes of these
    not a               bool(uint8(a) ^ 1)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm import relax, tirx

from tvmopt.operators.register import rewrite_stock

TRUTHS = ("relax.equal", "relax.not_equal", "relax.logical_or", "relax.logical_not")


@lru_cache(maxsize=1)
def install() -> None:
    """Register the forms with TVM, once a process."""
    for name in TRUTHS:
        rewrite_stock(name, _rules)


def _rules(call: relax.Call) -> list[Any]:
    return [(tirx.EQ, _equal), (tirx.NE, _unequal), (tirx.Or, _either), (tirx.Not, _not)]


def _real(value: Any) -> bool:
    return str(value.ty.dtype).startswith(("float", "bfloat"))


def _equal(node: Any) -> Any:
    return tirx.And(tirx.LE(node.a, node.b), tirx.LE(node.b, node.a)) if _real(node.a) else node


def _unequal(node: Any) -> Any:
    return _inverse(_equal(node)) if _real(node.a) else node


def _either(node: Any) -> Any:
    return tirx.Cast("bool", _byte(node.a) | _byte(node.b))


def _not(node: Any) -> Any:
    return _inverse(node.a)


def _inverse(truth: Any) -> Any:
    return tirx.Cast("bool", _byte(truth) ^ tirx.const(1, "uint8"))


def _byte(truth: Any) -> Any:
    return tirx.Cast("uint8", truth)
