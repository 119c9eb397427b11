"""FLOPs and bytes of one kernel, from its PrimFunc before scheduling - for reports and the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvmopt.scheduling.blocks import blocks_of, extents


@dataclass(frozen=True)
class Cost:
    """flops: arithmetic operations of one call (a multiply-add is two); bytes: its parameters, each touched once."""

    flops: float
    bytes: float


def kernel_cost(func: tirx.PrimFunc) -> Cost:
    """Operations counted in every block's body times its iterations; bytes from the parameters' sizes.

    Transcendental calls count one. Index arithmetic (integers), comparisons and selects count nothing.
    """
    flops = 0.0
    for block in blocks_of(func):
        iterations = prod(extents(block) or [0])
        flops += iterations * _operations(block.body)
    total = 0.0
    for param in func.params:
        shape = getattr(getattr(param, "ty", None), "shape", None) or getattr(param, "shape", None)
        dtype = str(getattr(getattr(param, "ty", None), "dtype", None) or getattr(param, "dtype", "float32"))
        if shape is not None and all(isinstance(d, tirx.IntImm | int) for d in shape):
            total += prod(int(d) for d in shape) * _itemsize(dtype)
    return Cost(flops, total)


def _itemsize(dtype: str) -> float:
    digits = "".join(c for c in dtype.split("e")[0] if c.isdigit())
    return max(1, int(digits or 8) // 8)


_FLOAT_OPS = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def _operations(node: Any) -> int:
    """Floating-point operations in one execution of a statement or expression."""
    kind = type(node).__name__
    count = 0
    if (kind in _FLOAT_OPS and _is_float(node)) or (
        kind == "Call" and _is_float(node) and getattr(node.op, "name", "") != "tirx.if_then_else"
    ):
        count = 1
    for child in _children(node, kind):
        count += _operations(child)
    return count


def _is_float(node: Any) -> bool:
    return "float" in str(getattr(node, "dtype", None) or node.ty)


def _children(node: Any, kind: str) -> list[Any]:
    if kind == "BufferStore":
        return [node.value]
    if kind == "SeqStmt":
        return list(node.seq)
    if kind in (*_FLOAT_OPS, "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"):
        return [node.a, node.b]
    if kind == "Select":
        return [node.true_value, node.false_value]
    if kind == "Call":
        return list(node.args)
    if kind in ("Cast", "Evaluate", "Let"):
        return [node.body if kind == "Let" else node.value]
    if kind in ("For", "AttrStmt"):
        return [node.body]
    return []
