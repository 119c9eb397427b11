"""Add, Sub and Mul of unsigned integers, which wrap around.

TVM's code says of sums and products of 32 and 64 bits without a sign that they never overflow, and LLVM makes ``0`` of
``0 - x``. So 32 bits are computed in 64, and 64 in two halves: no operation below leaves its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, stock
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

HALF = (1 << 32) - 1
Sum = Callable[[Build, Any, Any], Any]


def _number(value: int) -> Any:
    return const(value, "uint64")


def _halves(b: Build, x: Any) -> tuple[Any, Any]:
    """The lower and the upper 32 bits."""
    low = b.emit(relax.op.bitwise_and(x, _number(HALF)))
    return low, b.emit(relax.op.right_shift(x, _number(32)))


def _joined(b: Build, low: Any, high: Any) -> Any:
    """``low + 2^32 high``, both of less than 64 bits."""
    lower, carried = _halves(b, low)
    upper = b.emit(relax.op.bitwise_and(b.add(high, carried), _number(HALF)))
    return b.emit(relax.op.bitwise_or(b.emit(relax.op.left_shift(upper, _number(32))), lower))


def add(b: Build, x: Any, y: Any) -> Any:
    """``x + y``."""
    (x0, x1), (y0, y1) = _halves(b, x), _halves(b, y)
    return _joined(b, b.add(x0, y0), b.add(x1, y1))


def subtract(b: Build, x: Any, y: Any) -> Any:
    """``x - y``: with a borrow of 2^32 from the upper half, which goes without."""
    (x0, x1), (y0, y1) = _halves(b, x), _halves(b, y)
    low = b.add(x0, b.sub(_number(HALF + 1), y0))
    return _joined(b, low, b.add(x1, b.sub(_number(HALF), y1)))


def multiply(b: Build, x: Any, y: Any) -> Any:
    """``x y``: the product of the upper halves is beyond the type."""
    (x0, x1), (y0, y1) = _halves(b, x), _halves(b, y)
    crossed = [_halves(b, b.mul(p, q))[0] for p, q in ((x0, y1), (x1, y0))]
    return _joined(b, b.mul(x0, y0), b.add(*crossed))


def _wrapping(operation: Sum) -> Converter:
    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        kind = dtype_of(inputs[0]) if hasattr(inputs[0], "ty") else ""  # sizes are no tensors
        if kind not in ("uint32", "uint64"):
            return stock(bb, inputs, attrs, ctx)
        b = Build(bb, ctx.name)
        return b.cast(operation(b, b.cast(inputs[0], "uint64"), b.cast(inputs[1], "uint64")), kind)

    return convert


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Add"): _wrapping(add),
    ("", "Sub"): _wrapping(subtract),
    ("", "Mul"): _wrapping(multiply),
}
