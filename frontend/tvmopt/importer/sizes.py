"""Open sizes at TVM's border: `tvmopt.dims.Dim` to and from the expressions of a Relax program.

One symbol is one variable in all programs of a process, so that a converter needs no table to write a size that it
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import tirx

from tvmopt.dims import Dim, Size, least, most

NAMED_SIZES = "tvmopt.opt_size"
"""Our attribute of `main`: the value of each open size to be fastest at."""
LEAST_SIZES = "tvmopt.least_size"
"""Our attribute of `main`: the smallest value of each open size."""

_VARIABLES: dict[str, Any] = {}


def variable(name: str) -> Any:
    """TVM's variable for a symbol."""
    return _VARIABLES.setdefault(name, tirx.Var(name, "int64"))


def to_tvm(size: Size) -> Any:
    """A size as TVM takes it: an int, or an expression whose terms TVM's planner of storages can bound one by one."""
    return size.build(variable, tirx.min, tirx.max, joined=True) if isinstance(size, Dim) else int(size)


def shape_to_tvm(shape: Iterable[Size]) -> list[Any]:
    """A shape as TVM takes it."""
    return [to_tvm(d) for d in shape]


_BINARY: dict[str, Callable[[Size, Size], Size]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b,
    "FloorMod": lambda a, b: a % b,
    "Min": least,
    "Max": most,
}


def from_tvm(expr: Any) -> Size:
    """The size that an expression of TVM is.

    Raises:
        ValueError: it is none that a :class:`Dim` can be.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, tirx.Var) and expr.same_as(_VARIABLES.get(str(expr.name))):
        return Dim.symbol(str(expr.name))  # any other variable stands for a size that values decide
    kind = type(expr).__name__
    if kind in _BINARY:
        return _BINARY[kind](from_tvm(expr.a), from_tvm(expr.b))
    if kind == "Cast":
        return from_tvm(expr.value)
    raise ValueError(f"{expr} is no size")


def sizes_of(kind: Any) -> tuple[Size, ...] | None:
    """The shape in a tensor's type, open sizes as `Dim`; None where it is no tensor, or a size is not known at all."""
    shape = getattr(kind, "shape", None)
    if not isinstance(shape, tvm.relax.ShapeExpr):
        return None
    try:
        return tuple(map(from_tvm, shape.values))
    except ValueError:
        return None


def shape_of(expr: Any) -> tuple[Size, ...] | None:
    """The shape of a Relax expression, as :func:`sizes_of` gives it."""
    return sizes_of(getattr(expr, "ty", None))


def named_sizes(module: tvm.IRModule) -> dict[str, int]:
    """The sizes that a program is to be fastest at, by symbol; none for a static one."""
    return _attribute(module, NAMED_SIZES)


def least_sizes(module: tvm.IRModule) -> dict[str, int]:
    """The smallest values of open sizes, by symbol; none for a static program."""
    return _attribute(module, LEAST_SIZES)


def _attribute(module: tvm.IRModule, name: str) -> dict[str, int]:
    main = next((f for g, f in module.functions_items() if g.name_hint == "main"), None)
    attributes = dict((main.attrs if main is not None else None) or {})
    return {str(symbol): int(size) for symbol, size in attributes.get(name, {}).items()}
