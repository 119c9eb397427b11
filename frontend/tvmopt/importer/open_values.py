"""Shape arithmetic on open sizes: Shape, Gather, Concat, Mul, ... of small integer tensors whose elements are sizes -
for the folding walk.

Exporters compute shapes at run time. Where a shape is known, the walk computes with it; where parts of it are open,
the same operators run here on arrays of `tvmopt.dims.Dim`, by NumPy. What is computed so is a value that the importer
needs no node for, except where it is read as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tvmopt.dims import Atom, Dim, OpenSize, Size, interval, least
from tvmopt.importer.protos import attributes, node_name, normal_domain
from tvmopt.importer.symbols import UNKNOWN, Symbols

Array = npt.NDArray[Any]

LARGEST = 256
"""Elements of a tensor of sizes; shapes have a few."""

BEYOND = UNKNOWN
"""An end of a slice from here on means: to the end."""


def objects(values: Any) -> Array:
    """An array whose elements are sizes: Python's integers, or `Dim`.

    Raises:
        ValueError: an element is no whole number.
    """
    given = np.asarray(values, object)
    if any(isinstance(v, float) and not math.isfinite(v) for v in given.ravel()):
        raise ValueError("a tensor of sizes holds what is no number")
    flat = [v if isinstance(v, Dim) else int(v) for v in given.ravel()]
    if any(not isinstance(v, Dim) and v != w for v, w in zip(given.ravel(), flat, strict=True)):
        raise ValueError("a tensor of sizes holds a fraction")
    array = np.empty(len(flat), object)
    array[:] = flat
    return array.reshape(given.shape)


def from_the_end(bound: Size) -> bool:
    """Whether a bound of a Slice counts from the end of its axis; of an open one: whether it is above 0 at no size.

    >>> from tvmopt.dims import parse
    >>> [from_the_end(bound) for bound in (-1, parse("1 - seq"), parse("seq - 1"), parse("seq - 5"))]
    [True, True, False, False]
    """
    return bool(interval(bound, {})[1] <= 0) if isinstance(bound, Dim) else bound < 0


def behind(bound: Size) -> Size | None:
    """How many elements a bound of a Slice leaves at the end, where none of them means: to the end, as TensorFlow's
    exporter cuts off what filled an axis up to whole blocks; None for any other bound.

    >>> from tvmopt.dims import parse
    >>> rests = parse("h - 2*(h//2)"), parse("h - 4*(h//4)")
    >>> [behind(BEYOND * (1 - least(rest, 1)) - rest) == rest for rest in rests], behind(-rests[0])
    ([True, True], None)
    """
    if not isinstance(bound, Dim):
        return None
    common = math.gcd(*(count for monomial, count in bound.terms.items() if monomial))
    ways = [(common - 1, (common - 1 - bound) // common)]  # a number that is 0 or 1 says itself whether there are any
    for (factor, *more), count in ((m, n) for m, n in bound.terms.items() if m):
        if not more and isinstance(factor, Atom) and factor.op == "min":
            ways += [(-count, side) for side in (factor.a, factor.b)]
    fit = (rest for far, rest in ways if far >= BEYOND and bound == far * (1 - least(rest, 1)) - rest)
    return next(fit, None)


def _product_of(a: Size, b: Size) -> Size:
    """``a * b``; that is `a` where `b` only says whether it is 0.

    >>> from tvmopt.dims import parse
    >>> rest = parse("h - 4*(h//4)")
    >>> _product_of(-rest, least(rest, 1)) == -rest
    True
    """
    if isinstance(a, Dim) and isinstance(b, Dim):
        for size, other in ((a, b), (b, a), (-a, -b), (-b, -a)):
            if interval(size, {})[0] >= 0 and (any_ := least(size, 1)) in (other, -other):
                return size if any_ == other else -size
    return a * b


def _equal(symbols: Symbols, a: Size, b: Size) -> Size:
    """1 where two sizes are equal, else 0; where calls decide it and one of them is never the smaller one, as a size.

    Raises:
        OpenSize: calls decide it otherwise.
    """
    try:
        return int(symbols.equal(a, b))
    except OpenSize:
        low, high = symbols.between(a - b)
        if low < 0 < high:
            raise
        return 1 - symbols.least(a - b if low >= 0 else b - a, 1)


def _axes(args: list[Array], attrs: dict[str, Any]) -> list[int] | None:
    given = attrs.get("axes", args[1] if len(args) > 1 else None)
    return None if given is None else [int(a) for a in np.ravel(given)]


def _gather(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    return np.asarray(np.take(args[0], args[1].astype(np.int64), axis=attrs.get("axis", 0)))


def _unsqueeze(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    axes = _axes(args, attrs) or []
    return np.expand_dims(args[0], tuple(axes))


def _squeeze(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    axes = _axes(args, attrs)
    return np.squeeze(args[0], None if axes is None else tuple(axes))


def _concat(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    return np.concatenate(args, axis=attrs["axis"])


def _slice(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    lists = [[int(v) for v in np.ravel(a)] for a in args[1:]] or [list(attrs["starts"]), list(attrs["ends"])]
    starts, ends = lists[0], lists[1]
    axes = lists[2] if len(lists) > 2 else list(attrs.get("axes", range(len(starts))))
    steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    index = [slice(None)] * args[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, None if abs(end) >= BEYOND else end, step)
    return np.asarray(args[0][tuple(index)])


def _reshape(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    return args[0].reshape([int(d) for d in np.ravel(args[1])])


def _product(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    axes = _axes(args, attrs)
    return objects(np.prod(args[0], tuple(axes) if axes else None, keepdims=bool(attrs.get("keepdims", 1))))


def _extreme(pick: Callable[[Symbols, Size, Size], Size]) -> Callable[[list[Array], dict[str, Any], Symbols], Array]:
    """ReduceMin or ReduceMax of a vector."""

    def one(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
        if args[0].ndim != 1:
            raise ValueError("sizes are the elements of a vector")
        found = reduce(lambda a, b: pick(symbols, a, b), args[0])
        return objects([found] if attrs.get("keepdims", 1) else found)

    return one


def _range(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    return np.arange(*(int(np.ravel(a)[0]) for a in args)).astype(object)


def _cast(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
    """The same numbers; as truth values, whether they are not 0."""
    if attrs["to"] != onnx.TensorProto.BOOL:
        return args[0]
    return objects([int(not symbols.equal(v, 0)) for v in args[0].ravel()]).reshape(args[0].shape)


def _quotient(symbols: Symbols, a: Size, b: Size) -> Size:
    """A quotient of integers, which ONNX rounds towards zero, and sizes down: see `_keep_signs`."""
    a, b = _above_0(a, b)
    return -(-a // b) if symbols.between(a)[1] <= 0 else a // b


def _above_0(a: Size, b: Size) -> tuple[Size, Size]:
    """Dividend and divisor of the same quotient; the divisor is no negative number."""
    return (-a, -b) if not isinstance(b, Dim) and b < 0 else (a, b)


def _keep_signs(args: list[Array], symbols: Symbols, where: str) -> None:
    """Calls have no dividend below 0 where at some sizes it is above 0: rounded down it would be another quotient.

    Raises:
        OpenSize: values decide that, or it differs from trip to trip of a loop.
    """
    for pair in zip(*(array.ravel() for array in np.broadcast_arrays(*args)), strict=True):
        a, b = _above_0(*pair)
        if a % b != 0 and symbols.between(a)[1] > 0:
            symbols.at_most(0, a, where)


def _by_element(function: Callable[..., Size]) -> Callable[[list[Array], dict[str, Any], Symbols], Array]:
    def whole(args: list[Array], attrs: dict[str, Any], symbols: Symbols) -> Array:
        spread = np.broadcast_arrays(*args)
        return objects(np.array([function(symbols, *v) for v in zip(*map(np.ravel, spread), strict=True)], object)
                       .reshape(spread[0].shape))  # fmt: skip

    return whole


VALUES: dict[str, Callable[[list[Array], dict[str, Any], Symbols], Array]] = {
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Slice": _slice,
    "Reshape": _reshape,
    "ReduceProd": _product,
    "ReduceMin": _extreme(lambda s, a, b: s.least(a, b)),
    "ReduceMax": _extreme(lambda s, a, b: s.most_of(a, b)),
    "Range": _range,
    "Cast": _cast,
    "Transpose": lambda args, attrs, symbols: np.transpose(args[0], attrs.get("perm")),
    "Identity": lambda args, attrs, symbols: args[0],
    "Add": _by_element(lambda s, a, b: a + b),
    "Sub": _by_element(lambda s, a, b: a - b),
    "Mul": _by_element(lambda s, a, b: _product_of(a, b)),
    "Div": _by_element(lambda s, a, b: _quotient(s, a, b)),
    "Floor": lambda args, attrs, symbols: args[0],
    "Ceil": lambda args, attrs, symbols: args[0],
    "Mod": _by_element(lambda s, a, b: a % b),
    "Neg": _by_element(lambda s, a: -a),
    "Min": _by_element(lambda s, a, *more: a if not more else s.least(a, *more)),
    "Max": _by_element(lambda s, a, *more: a if not more else s.most_of(a, *more)),
    "Equal": _by_element(_equal),
    "Less": _by_element(lambda s, a, b: int(s.less(a, b))),
    "Greater": _by_element(lambda s, a, b: int(s.less(b, a))),
    "LessOrEqual": _by_element(lambda s, a, b: int(not s.less(b, a))),
    "GreaterOrEqual": _by_element(lambda s, a, b: int(not s.less(a, b))),
    "Not": _by_element(lambda s, a: int(not a)),
    "And": _by_element(lambda s, a, b: int(a and b)),
    "Or": _by_element(lambda s, a, b: int(a or b)),
    "Where": _by_element(lambda s, test, a, b: a if test else b),
}
"""Operators on tensors of sizes, by their name in ai.onnx."""

WHOLE = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL})
FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE})
"""Floats hold sizes, too; of these a quotient is computed where it is whole."""


def evaluate(node: onnx.NodeProto, args: list[Array], elem_type: int, symbols: Symbols) -> Array | None:
    """The node's value on arrays of sizes; None where it is not computed here, or decided only by a call."""
    function = VALUES.get(node.op_type)
    if function is None or normal_domain(node.domain) or elem_type not in WHOLE | FLOATS:
        return None
    if sum(a.size for a in args) > LARGEST or any(a.dtype.kind not in "iubfO" for a in args):
        return None
    try:
        args = [objects(a) for a in args]
        found = np.asarray(function(args, attributes(node), symbols), object)
        if node.op_type == "Div" and elem_type in FLOATS and np.any(found * args[1] != args[0]):
            return None
        if node.op_type == "Div" and elem_type in WHOLE:
            _keep_signs(args, symbols, node_name(node))
        return found
    except (OpenSize, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def shape_value(node: onnx.NodeProto, shape: Sequence[Size]) -> Array:
    """The value of a Shape or Size of a tensor of that shape."""
    if node.op_type == "Size":
        return objects(math.prod(shape))
    given = attributes(node)
    return objects(list(shape[given.get("start", 0) : given.get("end")]))
