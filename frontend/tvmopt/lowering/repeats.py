"""Kernels that a lowering has made before, from the same function of tensors of the same types - for `common.py` and
`LowerOperators` - and weights that it has packed before.

A network repeats its layers: of ResNet-50's 53 convolutions, 53 activations and 16 sums there are 23, 9 and 4 kinds.
TVM finds out that two kernels are one when it has made both, which takes it a millisecond or two each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType
from typing import Any

import numpy as np
from tvm import relax, tirx

PLAIN = (int, str, float, bool, type(None))
"""Values that are what they look like."""


@dataclass(frozen=True)
class Made:
    """A kernel in the module that is built, and the type of its result."""

    kernel: Any
    result: Any

    def called(self, args: Sequence[relax.Expr]) -> relax.Expr:
        """A call of it with other tensors of the same types."""
        return relax.call_tir(self.kernel, list(args), self.result)


class _Latest(threading.local):
    """The module that a thread builds, its kernels by what they were made from, and its packed weights; None outside
    :func:`remembered`."""

    def __init__(self) -> None:
        self.builder: Any = None
        self.made: dict[Any, Made] | None = None
        self.packed: dict[Any, tuple[np.ndarray, relax.Expr]] | None = None


_latest = _Latest()


@contextmanager
def remembered() -> Iterator[None]:
    """Kernels and packed weights are remembered until this ends, when the module is built."""
    _latest.builder, _latest.made, _latest.packed = None, {}, {}
    try:
        yield
    finally:
        _latest.builder, _latest.made, _latest.packed = None, None, None


def packed_once(value: np.ndarray, how: Hashable, pack: Callable[[], relax.Expr]) -> relax.Expr:
    """The constant that `pack` makes of a weight: one for all kernels that read this weight in the same form.

    Weights are the same where their memory is, not their numbers: a model with other weights has as many constants.

    Args:
        how: what else decides the form.
    """
    if _latest.packed is None:
        return pack()
    key = (value.ctypes.data, value.shape, value.strides, str(value.dtype), how)
    if key not in _latest.packed:
        _latest.packed[key] = value, pack()  # the weight is kept, so that no other one comes to lie there
    return _latest.packed[key][1]


def repeats(bb: relax.BlockBuilder) -> dict[Any, Made]:
    """The kernels made so far in the module that is built."""
    if _latest.made is None:
        return {}
    if _latest.builder is None or not _latest.builder.same_as(bb):
        _latest.builder, _latest.made = bb, {}
    return _latest.made


def legalized(op: str, stock: Callable[..., Any], bb: relax.BlockBuilder, call: relax.Call) -> Any:
    """What TVM's own lowering, `stock`, makes of a call of an operator without attributes."""
    types = types_of(call.args) if call.attrs is None else None
    if types is None or any(not sizes for sizes, *_ in types):  # a number may become a part of the kernel
        return stock(bb, call)
    made = repeats(bb)
    if (op, types) in made:
        return made[op, types].called(call.args)
    result = stock(bb, call)
    if isinstance(result, relax.Call) and getattr(result.op, "name", "") == "relax.call_tir":
        kernel, given = result.args[0], result.args[1]
        if len(given.fields) == len(call.args) and all(map(_same, given.fields, call.args)):
            made[op, types] = Made(kernel, result.ty_args[0])
    return result


def _same(one: Any, other: Any) -> bool:
    return bool(one.same_as(other))


def captured(function: Callable[..., Any]) -> tuple[Any, ...] | None:
    """A function as something to compare: its code and all that it has from around; None where that is not plain.

    >>> def adds(n):
    ...     return lambda x: x + n
    >>> captured(adds(1)) == captured(adds(1)), captured(adds(1)) == captured(adds(2)), captured(adds([1]))
    (True, False, None)
    >>> captured(adds(1)) == captured(adds(True)), captured(adds(adds(1))) == captured(adds(adds(1)))
    (False, True)
    >>> from tvmopt.dims import Range
    >>> [captured(adds(Range(1, 2))) == captured(adds(Range(1, n))) for n in (2, 3)]
    [True, False]
    """
    if not isinstance(function, FunctionType):
        return None
    around = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        around += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # not bound yet
        return None
    values = tuple(map(_plain, around))
    return None if None in values else (function.__code__, values)


def _plain(value: Any) -> Any:
    """A value with its type, since 1 and True are equal; None where it is not plain."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, tuple):
        parts = tuple(map(_plain, value))
        return None if None in parts else parts
    if is_dataclass(value) and value.__hash__ is not None:  # a frozen one
        parts = tuple(_plain(getattr(value, field.name)) for field in fields(value))
        return None if None in parts else (type(value), parts)
    return captured(value)


def key_of(
    compute: Callable[..., Any], args: Sequence[relax.Expr], name: str, pattern: int, wanted: Sequence[Any]
) -> tuple[Any, ...] | None:
    """What decides a kernel that `compute` makes of tensors and of the sizes `wanted`; None where that is not known."""
    if not all(isinstance(size, int) for size in wanted):
        return None
    key = (captured(compute), name, pattern, types_of(args), tuple(wanted))
    return None if None in key else key


def types_of(args: Sequence[relax.Expr]) -> tuple[Any, ...] | None:
    """Shapes and types of the elements of tensors, and which of them are the same one; None where a size is open."""
    found = []
    for arg in args:
        kind = arg.ty
        shape = getattr(kind, "shape", None)
        if not isinstance(kind, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
            return None
        sizes = tuple(int(d) if isinstance(d, tirx.IntImm) else None for d in shape.values)
        if None in sizes:
            return None
        same = next(i for i, other in enumerate(args) if _same(other, arg))
        found.append((sizes, str(kind.dtype), same, str(kind.vdevice)))
    return tuple(found)
