"""Sizes that are fractions of others on their way: `int(h * 1.5)` and `ceil(h / 32) * 32`, which exporters compute in
floats - for the folding walk.

    f = Cast(h)    p = Mul(f, 1.5)    w = Floor(p)         w is h + h//2
    f = Cast(h)    p = Div(f, 32)     w = Ceil(p)          w is (h + 31)//32

Whether a call has two equal sizes is on its way to a size, too, where it is cast to a number and multiplied with one:

    t = Equal(n, 0)    f = Cast(t)    p = Mul(f, 7)        p is 7*(1 - min(1, n))

A fraction is no size; what rounds it is. Floats round, too: a product with 0.7, which no float is, becomes one with
7/10 as far as both have the same whole numbers below and above them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import floor, gcd
from typing import Any

import numpy as np
import onnx

from tvmopt.dims import Dim, OpenSize, Size, replaced
from tvmopt.importer.open_values import FLOATS, LARGEST, VALUES, WHOLE, Array
from tvmopt.importer.protos import attributes, node_name, normal_domain
from tvmopt.importer.symbols import Symbols

FINEST = 1024
"""Into how many parts a size is divided at the most."""
TRIED = 1 << 20
"""Sizes up to which a factor that no float is exactly is compared with a ratio."""
LEAST = 1 << 12
"""Sizes up to which they must agree at least."""


@dataclass(frozen=True)
class Part:
    """``above / below`` of a size, `below` being 2 or more; rounded `down` only, where floats are another number.

    >>> h = Dim.symbol("h")
    >>> part(3 * h, 2), part(4 * h, 2), part(6, 4)
    (Part(above=3*h, below=2, down=False), 2*h, Part(above=3, below=2, down=False))
    """

    above: Size
    below: int
    down: bool = False


Number = Any
"""A size, or a part of one."""


def part(above: Size, below: int) -> Number:
    """``above / below``: a size where it is one."""
    if below < 0:
        above, below = -above, -below
    common = gcd(below, *(above.terms.values() if isinstance(above, Dim) else [above]))
    above, below = above // common, below // common
    return above if below == 1 else Part(above, below)


def with_sizes(number: Number, mapping: Mapping[str, Size]) -> Number:
    """A size or a part, with sizes in place of symbols."""
    if not isinstance(number, Part):
        return replaced(number, mapping)
    made = part(replaced(number.above, mapping), number.below)
    return replace(made, down=number.down) if isinstance(made, Part) else made


def sizes_in(array: Array) -> list[Size]:
    """The sizes that the elements of an array are parts of."""
    return [_split(number)[0] for number in array.ravel()]


def _split(number: Number) -> tuple[Size, int]:
    return (number.above, number.below) if isinstance(number, Part) else (number, 1)


@dataclass(frozen=True)
class Ratio:
    """What a float is as a factor of sizes.

    Attributes:
        most: the largest size for which that holds; None where it holds for all.
        down: only the whole numbers below products with it are those below products of floats.
    """

    number: Fraction
    most: int | None = None
    down: bool = False


@cache
def ratio(factor: float, double: bool = False, divides: bool = False, down: bool = False) -> Ratio | None:
    """The ratio of small numbers by which a size is multiplied, where floats do so by `factor`, or divide by it.

    Args:
        double: in double precision. divides: they divide. down: only whole numbers below matter.

    >>> ratio(1.5), ratio(float(np.float32(0.7)))
    (Ratio(number=Fraction(3, 2), most=None, down=False), Ratio(number=Fraction(7, 10), most=1048576, down=False))
    >>> ratio(32.0, divides=True), ratio(3.14159265)
    (Ratio(number=Fraction(1, 32), most=None, down=False), None)
    """
    if not np.isfinite(factor) or factor <= 0:
        return None
    exact = Fraction(factor)
    if exact.denominator == 1 and not divides:
        return Ratio(exact)
    if factor >= FINEST:
        return None
    near = exact.limit_denominator(FINEST)
    if near == 0 or (divides and near.numerator > FINEST):
        return None
    found = 1 / near if divides else near
    if exact == near and (near.denominator == 1 or not divides):  # floats multiply and divide by it as numbers do
        return Ratio(found)
    sizes = np.arange(1, TRIED + 1)
    kind: Any = np.float64 if double else np.float32
    floats = sizes.astype(kind) / kind(factor) if divides else sizes.astype(kind) * kind(factor)
    below, above = sizes * found.numerator // found.denominator, -(-sizes * found.numerator // found.denominator)
    apart = np.flatnonzero((np.floor(floats) != below) | ((np.ceil(floats) != above) & (not down)))
    most = int(apart[0]) if apart.size else TRIED
    return Ratio(found, most, down) if most >= LEAST else None


def floor_product(size: Size, scale: float) -> tuple[Size, int | None] | None:
    """(The size by which runtimes resize an axis, and the largest `size` for which that holds, if one is): the float32
    product, rounded down; None for an open size and a scale that is no ratio of small numbers, or no number.

    >>> floor_product(10, float(np.float32(0.7))), floor_product(Dim.symbol("h"), 1.5)
    ((7, None), (h + h//2, None))
    """
    if not np.isfinite(scale):
        return None
    if not isinstance(size, Dim):
        with np.errstate(over="ignore"):
            product = float(np.float32(size) * np.float32(scale))
        return floor(product if np.isfinite(product) else size * scale), None
    found = ratio(float(np.float32(scale)), down=True)
    if found is None:
        return None
    return size * found.number.numerator // found.number.denominator, found.most


class _Unknown(Exception):
    """A fraction of this kind is not computed here."""


@dataclass(frozen=True)
class _At:
    """Where numbers are computed: the node's name, and whether it computes in double precision."""

    symbols: Symbols
    where: str
    double: bool

    def times(self, a: Number, b: Number, divides: bool = False) -> Number:
        """A product, or a quotient by a number; floats among them are constants."""
        if not divides and isinstance(a, float):
            a, b = b, a
        if isinstance(a, float):
            raise _Unknown
        above, below = _split(self._both(a))
        if isinstance(b, float):
            ways = (ratio(abs(b), self.double, divides, down) for down in (False, True))
            found = next(filter(None, ways), None)
            if found is None or (found.most is not None and below > 1) or (found.down and b < 0):
                raise _Unknown
            if found.most is not None:
                self.symbols.at_most(above, found.most, self.where)
            number = -found.number if b < 0 else found.number
            _stays(below, number.numerator)
            made = part(above * number.numerator, below * number.denominator)
            return replace(made, down=True) if found.down and isinstance(made, Part) else made
        times, over = _split(self._both(b))
        if not divides:
            _stays(below, times)
            _stays(over, above)
            return part(above * times, below * over)
        if isinstance(times, Dim) or times == 0:
            raise _Unknown
        return part(above * over, below * times)

    def plus(self, a: Number, b: Number, sign: int = 1) -> Number:
        """A sum, or a difference."""
        (above, below), (more, over) = (_split(_exactly(self._both(n))) for n in (a, b))
        if _odd(below) > 1 and _odd(over) > 1:
            raise _Unknown
        return part(above * over + sign * more * below, below * over)

    @staticmethod
    def _both(a: Number) -> Number:
        """A number that may be rounded up, too, as what is computed with it may."""
        if isinstance(a, Part) and a.down:
            raise _Unknown
        return a

    def rounded(self, a: Number, up: bool) -> Size:
        """The next whole number."""
        above, below = _split(_exactly(a))
        if up and isinstance(a, Part) and a.down:
            raise _Unknown
        return -(-above // below) if up else above // below

    def whole(self, a: Number) -> Size:
        """What a cast leaves: rounded towards zero."""
        above, _ = _split(_exactly(a))
        if self.symbols.between(above)[0] < 0:
            raise _Unknown
        return self.rounded(a, up=False)


def _odd(below: int) -> int:
    """A divisor without its factors of two: where it is 1, floats divide exactly."""
    return below // (below & -below)


def _stays(below: int, times: Size) -> None:
    """Refuse a product that may be whole where the part itself, ``above / below``, is not: that was rounded, and
    ``h / 3 * 3`` may be a little less than `h` then.
    """
    if _odd(below) > 1 and (isinstance(times, Dim) or gcd(_odd(below), times) > 1):
        raise _Unknown


def _exactly(number: Number) -> Number:
    """A constant as the fraction that it is."""
    if not isinstance(number, float):
        return number
    exact = Fraction(number)
    if exact.denominator > FINEST:
        raise _Unknown
    return part(exact.numerator, exact.denominator)


MOVED = {"Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Reshape", "Transpose", "Identity"}
"""Operators that give the elements of what they read as they are."""

COMPUTED: dict[str, Callable[..., Number]] = {
    "Add": _At.plus,
    "Sub": lambda at, a, b: at.plus(a, b, -1),
    "Mul": _At.times,
    "Div": lambda at, a, b: at.times(a, b, divides=True),
    "Neg": lambda at, a: at.times(a, -1),
    "Floor": lambda at, a: at.rounded(a, up=False),
    "Ceil": lambda at, a: at.rounded(a, up=True),
}
"""Operators on fractions, element by element, by their name in ai.onnx."""


def evaluate(node: onnx.NodeProto, args: list[Array], elem_type: int, symbols: Symbols) -> Array | None:
    """The node's value on arrays of sizes, parts of them and constants; None where it is not computed here.

    Args:
        elem_type: of the result.
    """
    if normal_domain(node.domain) or sum(a.size for a in args) > LARGEST:
        return None
    at = _At(symbols, node_name(node), elem_type == onnx.TensorProto.DOUBLE)
    try:
        given = [np.frompyfunc(_plain, 1, 1)(a) if a.size else a.astype(object) for a in args]
        given = [np.asarray(a, object) for a in given]
        if node.op_type in MOVED:
            found = VALUES[node.op_type](given, attributes(node), symbols)
        elif node.op_type == "Cast" and elem_type in FLOATS | WHOLE - {onnx.TensorProto.BOOL}:
            found = given[0] if elem_type in FLOATS else _each(at.whole, given)
        elif node.op_type == "Not":
            found = 1 - given[0]
        elif node.op_type in COMPUTED and elem_type in FLOATS:
            compute = COMPUTED[node.op_type]
            found = _each(lambda *numbers: compute(at, *numbers), given)
        else:
            return None
        return None if any(isinstance(v, float) for v in np.ravel(found)) else np.asarray(found, object)
    except (_Unknown, OpenSize, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def _plain(value: Any) -> Number:
    """A size or a part as it is; of constants an int where it is whole, else a float."""
    if isinstance(value, Dim | Part):
        return value
    if not np.isfinite(value):
        raise ValueError("no number")
    return int(value) if float(value).is_integer() else float(value)


def _each(function: Callable[..., Number], args: list[Array]) -> Array:
    spread = np.broadcast_arrays(*args)
    found = np.empty(spread[0].size, object)
    found[:] = [function(*numbers) for numbers in zip(*map(np.ravel, spread), strict=True)]
    return found.reshape(spread[0].shape)
