"""Sizes of tensors that are known only when a model is called: integer polynomials over named symbols - from the
importer to the manifest.

A size is an ``int`` or a :class:`Dim`. A `Dim` is kept in one canonical form, so that two of them are equal for every
call exactly where their texts are equal (as far as polynomials and floor divisions by numbers go):

    >>> seq, past = Dim.symbol("seq"), Dim.symbol("past")
    >>> 2 * (seq + past) - past - past, (seq * 12 * 64) // 64
    (2*seq, 12*seq)
    >>> h = Dim.symbol("h")
    >>> ((h - 1) // 2 + 1 - 1) // 2 + 1                     # two convolutions of stride 2
    (h + 3)//4

Each symbol is at least 1, but for those whose name begins with ``past``, the length of a cache, and ``found0``,
``found1``, ..., which values decide in a run: they begin at 0 (:func:`lowest`).
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from typing import Any, NamedTuple

Size = Any
"""An `int` or a `Dim`: arithmetic on either gives either."""

Shapes = Mapping[str, Sequence[int | str] | str]
"""Sizes that a caller gives: by the name of an input, or of an open size. A size may be the text of a `Range`."""

LONGEST = 8000
"""Characters of a text that is read as a size; longer ones come from nobody."""


FEW = 6
"""Minima and maxima in a sum that bounds are found through."""


PAST = "past"
"""How the names of symbols begin that may be 0."""


FOUND = "found"
"""How the names of sizes begin that values decide, in a run: how many boxes remain."""


def lowest(name: str) -> int:
    """The least value that a symbol of this name may have.

    >>> lowest("seq"), lowest("past_sequence_length"), lowest("found0")
    (1, 0, 0)
    """
    return 0 if name.startswith(PAST) or is_found(name) else 1


def is_found(name: str) -> bool:
    """Whether the name is one of a size that values decide."""
    return name.startswith(FOUND) and name.removeprefix(FOUND).isdecimal()


class OpenSize(ValueError):
    """A whole number was needed of a size that only a call tells, or a comparison that only a call decides."""


class Atom(NamedTuple):
    """A part of a size that is no polynomial: ``a // b``, ``min(a, b)`` or ``max(a, b)``."""

    op: str
    a: Size
    b: Size

    def __str__(self) -> str:
        if self.op != "//":
            return f"{self.op}({self.a}, {self.b})"
        a, b = (str(x) if isinstance(x, int) or x.is_symbol else f"({x})" for x in (self.a, self.b))
        return f"{a}//{b}"


Factor = str | Atom
Monomial = tuple[Factor, ...]


class Dim:
    """An integer polynomial over symbols and atoms that is no number; arithmetic gives an `int` where it is one."""

    __slots__ = ("_text", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        kept = [(k, v) for k, v in terms.items() if v]
        self.terms = dict(sorted(kept, key=lambda term: (-len(term[0]), [*map(str, term[0])])))
        self._text = ""

    @staticmethod
    def symbol(name: str) -> Dim:
        """The size of that name."""
        return Dim({(name,): 1})

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def is_symbol(self) -> bool:
        """Whether it is one symbol and nothing else."""
        return len(self.terms) == 1 and all(
            v == 1 and len(k) == 1 and isinstance(k[0], str) for k, v in self.terms.items()
        )

    def symbols(self) -> set[str]:
        """The names in it.

        >>> sorted(parse("min(a, 2*b) + c//3").symbols())
        ['a', 'b', 'c']
        """
        found: set[str] = set()
        for factor in (f for monomial in self.terms for f in monomial):
            if isinstance(factor, str):
                found.add(factor)
            else:
                found |= symbols_of((factor.a, factor.b))
        return found

    def __str__(self) -> str:
        if not self._text:
            parts = []
            for monomial, count in self.terms.items():
                alone = len(monomial) == 1 and count == 1
                factors = [str(f) if alone or isinstance(f, str) or f.op != "//" else f"({f})" for f in monomial]
                text = "*".join([*([str(abs(count))] if abs(count) != 1 or not monomial else []), *factors])
                parts.append(("- " if count < 0 else "+ ") + text)
            self._text = " ".join(parts).removeprefix("+ ").replace("- ", "-", 1 if parts[0][0] == "-" else 0)
        return self._text

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __int__(self) -> int:
        raise OpenSize(f"the size {self} is open")

    __index__ = __int__

    def __bool__(self) -> bool:
        return True

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Size:
        return _combine(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Size:
        return _combine(self, other, -1)

    def __rsub__(self, other: Any) -> Size:
        return _combine(-self, other, 1)

    def __neg__(self) -> Dim:
        return Dim({k: -v for k, v in self.terms.items()})

    def __mul__(self, other: Any) -> Size:
        if (terms := _terms(other)) is None:
            return NotImplemented
        product: dict[Monomial, int] = {}
        for a, x in self.terms.items():
            for b, y in terms.items():
                key = tuple(sorted(a + b, key=str))
                product[key] = product.get(key, 0) + x * y
        return _plain(product)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Size:
        raise OpenSize(f"the size {self} is open")

    __rtruediv__ = __truediv__

    def __float__(self) -> float:
        raise OpenSize(f"the size {self} is open")

    def __floordiv__(self, other: Any) -> Size:
        return NotImplemented if _terms(other) is None else _divide(self, _size(other))

    def __rfloordiv__(self, other: Any) -> Size:
        return NotImplemented if _terms(other) is None else _divide(_size(other), self)

    def __mod__(self, other: Any) -> Size:
        return self - (self // other) * other

    def __rmod__(self, other: Any) -> Size:
        return other - (other // self) * self

    # -- order: decided for all symbols from 1 on, or an error -----------------------------------------------------

    def __lt__(self, other: Any) -> bool:
        return less(self, other, {})

    def __gt__(self, other: Any) -> bool:
        return less(other, self, {})

    def __le__(self, other: Any) -> bool:
        return not less(other, self, {})

    def __ge__(self, other: Any) -> bool:
        return not less(self, other, {})

    # -- with other things in place of the symbols -----------------------------------------------------------------

    def build(
        self,
        symbol: Callable[[str], Any],
        least: Callable[[Any, Any], Any],
        most: Callable[[Any, Any], Any],
        joined: bool = False,
    ) -> Any:
        """The same expression of other things: `symbol` gives what stands for a name, `least` and `most` are their
        minimum and maximum. `joined`: in a form whose terms can be bounded one by one, ``n - (3*n)//4`` as
        ``(n + 3)//4``. A quotient by nothing is nothing: only sizes that no call has lead to one.
        """

        def value(size: Size) -> Any:
            return size.build(symbol, least, most, joined) if isinstance(size, Dim) else size

        def factor(one: Factor) -> Any:
            if isinstance(one, str):
                return symbol(one)
            a, b = value(one.a), value(one.b)
            if one.op == "//" and isinstance(b, int) and b == 0:
                return 0
            return a // b if one.op == "//" else (least if one.op == "min" else most)(a, b)

        total = None
        for monomial, count in (_joined(self.terms) if joined else self.terms).items():
            term = None
            for one in map(factor, monomial):
                term = one if term is None else term * one
            term = count if term is None else term if count == 1 else term * count
            total = term if total is None else total + term
        return total

    def at(self, sizes: Mapping[str, Size]) -> Size:
        """The size with these in place of its symbols; other symbols stay.

        >>> parse("batch*seq + 1").at({"batch": 2, "seq": 8}), parse("batch*seq").at({"batch": 2})
        (17, 2*seq)
        """
        return self.build(lambda name: sizes[name] if name in sizes else Dim.symbol(name), least, most)


def _size(value: Any) -> Size:
    """A NumPy integer as an int."""
    return value if isinstance(value, Dim) else int(value)


def _terms(value: Any) -> Mapping[Monomial, int] | None:
    if isinstance(value, Dim):
        return value.terms
    if isinstance(value, float):
        raise OpenSize("an open size is no operand of a fraction")
    return {(): int(value)} if hasattr(value, "__index__") else None


def _plain(terms: Mapping[Monomial, int]) -> Size:
    """A polynomial, as an int where it is one."""
    return Dim(terms) if any(k and v for k, v in terms.items()) else terms.get((), 0)


def _combine(a: Dim, b: Any, sign: int) -> Size:
    terms = _terms(b)
    if terms is None:
        return NotImplemented
    total = dict(a.terms)
    for key, count in terms.items():
        total[key] = total.get(key, 0) + sign * count
    return _plain(total)


def _joined(terms: Mapping[Monomial, int]) -> Mapping[Monomial, int]:
    """The same sum with ``n - (3*n)//4`` as ``(n + 3)//4``: who bounds one term after the other, as TVM does for its
    storages, is close to the truth then. Not the canonical form: what is added later would no longer cancel.

    >>> print(Dim(_joined(parse("4*b*n - 4*b*((3*n)//4)").terms)))
    4*((n + 3)//4)*b

    ``(3*n)//4 + (n + 3)//4`` is n, which the first may then be joined with, as where a picture that was filled up to
    whole windows once is filled up again:

    >>> print(Dim(_joined(parse("6*n - 7*((27*n)//28) + (3*n)//4 + (n + 3)//4").terms)))
    7*((n + 27)//28)
    """
    for monomial, count in terms.items():
        for place, factor in enumerate(monomial):
            if isinstance(factor, str) or not _by_number(factor) or not isinstance(factor.a, Dim):
                continue
            (term, times), *more = [(k, v) for k, v in factor.a.terms.items() if k]
            if more or not factor.b < 2 * times < 2 * factor.b:
                continue
            beside = (*monomial[:place], *monomial[place + 1 :])
            other = tuple(sorted((*beside, *term), key=str))
            rest = (Dim({term: factor.b - times}) + (factor.b - 1 - factor.a.terms.get((), 0))) // factor.b
            whole = _with_its_rest(terms, monomial, Dim({beside: 1}) * rest, other)
            if whole is not None:
                return _joined(whole)
            has = terms.get(other, 0)
            if has * count >= 0 or abs(has) < abs(count):
                continue
            quotient = Dim({beside: -count}) * rest
            left = {**terms, monomial: 0, other: has + count}
            return _joined(quotient.terms if not any(left.values()) else (Dim(left) + quotient).terms)
    return terms


def _with_its_rest(
    terms: Mapping[Monomial, int], monomial: Monomial, rest: Size, other: Monomial
) -> Mapping[Monomial, int] | None:
    """The sum with n, in `other`, for ``(3*n)//4 + (n + 3)//4``: a monomial and its `rest`; None where the sum does not
    have both."""
    if not isinstance(rest, Dim) or list(rest.terms.values()) != [1]:
        return None
    (second,) = rest.terms
    count, partner = terms[monomial], terms.get(second, 0)
    if count * partner <= 0:
        return None
    both = min(count, partner, key=abs)
    moved = {monomial: count - both, second: partner - both, other: terms.get(other, 0) + both}
    return {k: v for k, v in {**terms, **moved}.items() if v} or {(): 0}


def _divide(a: Size, b: Size) -> Size:
    """``floor(a / b)`` in its canonical form."""
    if isinstance(b, Dim):
        a, b = _without_common_factors(a, b)
    if isinstance(b, Dim):
        return _divide_exactly(a, b)
    if b == 0:
        raise ZeroDivisionError(f"{a} is divided by zero")
    if not isinstance(a, Dim):
        return a // b
    if b < 0:
        a, b = -a, -b
    if all(v < 0 for k, v in a.terms.items() if k):  # ceil(n / b) has one form: floor((n + b - 1) / b)
        return -_divide(b - 1 - a, b)
    whole = _plain({k: v // b for k, v in a.terms.items()})
    rest = _plain({k: v % b for k, v in a.terms.items()})
    if not isinstance(rest, Dim):  # from 0 to b - 1
        return whole
    common = math.gcd(b, *(v for k, v in rest.terms.items() if k))
    if common > 1:  # floor((g*p + k) / (g*c)) = floor((p + floor(k/g)) / c)
        rest, b = _plain({k: v // common for k, v in rest.terms.items()}), b // common
    inner = [k[0] for k, v in rest.terms.items() if v == 1 and len(k) == 1 and _by_number(k[0])]
    if len(inner) == 1 and isinstance(inner[0], Atom):  # floor((floor(n/d) + m) / c) = floor((n + m*d) / (c*d))
        n, d = inner[0].a, inner[0].b
        return whole + _divide(n + (rest - Dim({(inner[0],): 1})) * d, b * d)
    return whole + (rest if b == 1 else Dim({(Atom("//", rest, b),): 1}))


def _by_number(factor: Factor) -> bool:
    return isinstance(factor, Atom) and factor.op == "//" and not isinstance(factor.b, Dim)


def _divide_exactly(a: Size, b: Dim) -> Size:
    """Division by what is no number: exact where nothing is left, term by term; else an atom.

    >>> past, seq = Dim.symbol("past"), Dim.symbol("seq")
    >>> (64 * past + 64 * seq) // (16 * past + 16 * seq), (past * seq + seq * seq) // (past + seq)
    (4, seq)
    """
    (divisor, count), left, quotient = next(iter(b.terms.items())), a, 0
    for _ in range(len(a.terms) if isinstance(a, Dim) else 0):
        monomial, value = next(iter(left.terms.items())) if isinstance(left, Dim) else ((), left)
        factors = list(monomial)
        for one in divisor:
            if one not in factors:
                return Dim({(Atom("//", a, b),): 1})
            factors.remove(one)
        if value % count:
            break
        term = _plain({tuple(factors): value // count})
        left, quotient = left - term * b, quotient + term
        if isinstance(left, int) and left == 0:
            return quotient
    return 0 if isinstance(a, int) and a == 0 else Dim({(Atom("//", a, b),): 1})


def _without_common_factors(a: Size, b: Dim) -> tuple[Size, Size]:
    """Dividend and divisor without what is a factor of all their terms; where that is 0, nothing can be divided.

    >>> h, w = Dim.symbol("h"), Dim.symbol("w")
    >>> print((4 * h * w + w) // (8 * w), (h * h * w) // (h * w * w))
    h//2 h//w
    """
    if not isinstance(a, Dim):
        return a, b
    common = reduce(lambda one, other: one & other, (Counter(monomial) for part in (a, b) for monomial in part.terms))
    if not common:
        return a, b
    without = [{tuple((Counter(k) - common).elements()): v for k, v in part.terms.items()} for part in (a, b)]
    return _plain(without[0]), _plain(without[1])


def least(a: Size, b: Size, ranges: Ranges | None = None) -> Size:
    """The smaller one, where that is decided; else ``min(a, b)``.

    >>> least(parse("seq"), parse("seq + 1")), least(parse("seq"), 512)
    (seq, min(512, seq))
    """
    return _extreme("min", a, b, ranges or {})


def most(a: Size, b: Size, ranges: Ranges | None = None) -> Size:
    """The larger one, where that is decided; else ``max(a, b)``.

    >>> most(parse("past"), 0)
    past
    """
    return _extreme("max", a, b, ranges or {})


def _extreme(op: str, a: Size, b: Size, ranges: Ranges) -> Size:
    low, high = interval(a - b, ranges)
    if low >= 0 or high <= 0:
        return b if (low >= 0) == (op == "min") else a
    a, b = sorted((a, b), key=str)
    return Dim({(Atom(op, a, b),): 1})


def parts_of(size: Size, count: int) -> list[Size]:
    """Sizes of the parts of an axis, all alike but for the last ones, which are what is left of it.

    >>> parts_of(7, 3), parts_of(4, 3), parts_of(parse("n"), 2)
    ([3, 3, 1], [2, 2, 0], [(n + 1)//2, -((n + 1)//2) + n])
    """
    step = -(-size // count)
    return [most(least(step, size - place * step), 0) for place in range(count)]


# -- ranges ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """The sizes that a symbol may have, and the one to be fastest at (0: none is named yet).

    Attributes:
        at_most: only the largest size was asked for; the smallest will be the least that the model takes.

    >>> str(Range(1, 512, 128)), str(Range(4, 4, 4)), str(Range(1, 8))
    ('1..512@128', '4', '1..8')
    """

    min: int
    max: int
    opt: int = 0
    at_most: bool = False

    @classmethod
    def of(cls, text: str) -> Range | None:
        """The range that a user wrote; None for ``?``, any size.

        >>> [str(Range.of(text)) for text in ("1..512@128", "16", "..512", "?")]
        ['1..512@128', '16', '1..512', 'None']
        >>> Range.of("..512").at_most
        True

        Raises:
            ValueError: it is none, or an empty one.
        """
        if text.strip() == "?":
            return None
        pattern = r"(?P<one>[0-9]{1,18})|(?P<low>[0-9]{1,18})?\.\.(?P<high>[0-9]{1,18})(?:@(?P<best>[0-9]{1,18}))?"
        found = re.fullmatch(pattern, text.strip(), re.ASCII)
        if not found:
            raise ValueError(f"{text!r} is no size and no range such as 1..512, 1..512@128 or ..512")
        one, low, high, best = (int(g) if g else None for g in found.group("one", "low", "high", "best"))
        made = (
            cls(one, one, one) if one is not None else cls(1 if low is None else low, high or 0, best or 0, low is None)
        )
        if not made.min <= made.max or (made.opt and made.opt not in made):
            raise ValueError(f"{text!r} is an empty range, or names a size outside of it")
        return made

    def __str__(self) -> str:
        best = f"@{self.opt}" if self.opt else ""
        return str(self.min) if self.min == self.max else f"{self.min}..{self.max}{best}"

    def __contains__(self, size: int) -> bool:
        return self.min <= size <= self.max


Ranges = Mapping[str, Range]
Interval = tuple[Any, Any]


def interval(size: Size, ranges: Ranges) -> Interval:
    """The lowest and the highest value, as far as ranges tell; a symbol without one is :func:`lowest` or more.

    >>> interval(parse("batch*seq - 1"), {"seq": Range(1, 512, 128)})
    (0, inf)
    """
    return _Intervals(ranges)(size)


class _Intervals:
    """The intervals of sizes and of what they are made of, each once: minima in minima would double them each time."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.known: dict[Dim, Interval] = {}

    def __call__(self, size: Size) -> Interval:
        if not isinstance(size, Dim):
            return size, size
        if size not in self.known:
            self.known[size] = self._found(size)
        return self.known[size]

    def _found(self, size: Dim) -> Interval:
        low, high = self._sum(size.terms)
        terms, slack = _without_quotients(size.terms)
        closer = self._sum(terms)
        low, high = max(low, closer[0] + slack[0]), min(high, closer[1] + slack[1])
        for ends in (*self._without_extremes(size), *self._without_remainders(size)):
            low, high = max(low, ends[0]), min(high, ends[1])
        return (math.ceil(low) if math.isfinite(low) else low), (math.floor(high) if math.isfinite(high) else high)

    def _without_extremes(self, size: Dim) -> Iterator[Interval]:
        """Bounds of a size by those with ``a`` or ``b`` in place of ``min(a, b)`` or ``max(a, b)``: so they cancel,
        as in ``min(300, n) - n``: the minimum is neither more than `a` nor more than `b`. Each of them doubles what
        there is to look at, so there are none of more than :data:`FEW`.

        >>> interval(parse("min(300, n) - n"), {})
        (-inf, 0)
        """
        if sum(len(m) == 1 and not isinstance(m[0], str) and m[0].op != "//" for m in size.terms) > FEW:
            return
        for monomial, count in size.terms.items():
            (atom, *more) = monomial or ("",)
            if more or isinstance(atom, str) or atom.op == "//":
                continue
            above = (atom.op == "min") == (count > 0)  # what is put in its place gives an upper bound
            rest = Dim({k: v for k, v in size.terms.items() if k != monomial})
            for side in (atom.a, atom.b):
                low, high = self(rest + side * count)
                yield (-math.inf, high) if above else (low, math.inf)
            return  # the others are replaced there

    def _without_remainders(self, size: Dim) -> Iterator[Interval]:
        """Bounds of a size with a quotient by an open size `n`, of which it has ``n`` times as many: ``n * (a // n)``
        is not more than `a`, and more than ``a - n``. So ``a % n``, which is written as ``a - n * (a // n)``, is known
        to be less than `n`: PyTorch rolls an open axis by as much.

        >>> interval(parse("k - n*(k//n)"), {})[0], interval(parse("k - n*(k//n) - n"), {})[1]
        (0, -1)
        """
        for factor in dict.fromkeys(f for monomial in size.terms for f in monomial):
            if isinstance(factor, str) or factor.op != "//" or not isinstance(factor.b, Dim):
                continue
            having = {k: v for k, v in size.terms.items() if factor in k}
            without = _plain({tuple(f for f in k if f != factor): v for k, v in having.items()})
            if not isinstance(without, Dim) or any(k.count(factor) > 1 for k in having):
                continue
            times, odd = divmod(next(iter(without.terms.values())), next(iter(factor.b.terms.values())))
            if odd or without != factor.b * times or self(factor.b)[0] < 0:
                continue  # where it is 0, nothing is divided by it
            above = factor.a * times + _plain({k: v for k, v in size.terms.items() if k not in having})
            below = above - (factor.b - 1) * times
            ends = (below, above) if times > 0 else (above, below)
            yield self(ends[0])[0], self(ends[1])[1]
            return  # the others are replaced there

    def _sum(self, terms: Mapping[Monomial, Any]) -> Interval:
        low: Any = 0
        high: Any = 0
        for monomial, count in terms.items():
            span: Interval = (count, count)
            for factor in monomial:
                span = _product(span, self._span(factor))
            low, high = low + span[0], high + span[1]
        return low, high

    def _span(self, factor: Factor) -> Interval:
        if isinstance(factor, str):
            known = self.ranges.get(factor)
            return (known.min, known.max) if known else (lowest(factor), math.inf)
        a, b = self(factor.a), self(factor.b)
        if factor.op == "//":
            if b[0] <= 0:
                return -math.inf, math.inf
            ends = [_quotient(x, y) for x in a for y in b]
            return min(ends), max(ends)
        pick = min if factor.op == "min" else max
        return pick(a[0], b[0]), pick(a[1], b[1])


def _without_quotients(terms: Mapping[Monomial, int]) -> tuple[dict[Monomial, Any], Interval]:
    """The terms with ``n // d`` as ``(n - r) / d``, and the interval of what the remainders add: so a quotient and its
    numerator cancel, as in ``h - 2*(h//2)``."""
    left: dict[Monomial, Any] = {k: Fraction(v) for k, v in terms.items()}
    low, high = Fraction(0), Fraction(0)
    while atom := next((k for k in left if len(k) == 1 and _by_number(k[0])), None):
        (quotient,), count = atom, left.pop(atom)
        assert isinstance(quotient, Atom)
        share = count / quotient.b
        for key, value in (_terms(quotient.a) or {}).items():
            left[key] = left.get(key, Fraction(0)) + share * value
        ends = (Fraction(0), -share * (quotient.b - 1))
        low, high = low + min(ends), high + max(ends)
    return {k: v for k, v in left.items() if v}, (low, high)


def _quotient(x: float, y: float) -> float:
    if math.isinf(y):
        return -1.0 if x < 0 else 0.0
    return x if math.isinf(x) else x // y


def _product(a: Interval, b: Interval) -> Interval:
    ends = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return min(ends), max(ends)


def less(a: Size, b: Size, ranges: Ranges) -> bool:
    """Whether ``a < b`` for every size within the ranges.

    Raises:
        OpenSize: for some it is, for others not.
    """
    low, high = interval(a - b, ranges)
    if high < 0 or low >= 0:
        return bool(high < 0)
    raise OpenSize(f"whether {a} is less than {b} is decided at run time")


def equal(a: Size, b: Size, ranges: Ranges) -> bool:
    """Whether ``a == b`` for every size within the ranges.

    >>> equal(parse("seq"), -1, {})
    False

    Raises:
        OpenSize: for some it is, for others not.
    """
    low, high = interval(a - b, ranges)
    if low == high == 0 or low > 0 or high < 0:
        return bool(low == high == 0)
    raise OpenSize(f"whether {a} is {b} is decided at run time")


# -- texts -------------------------------------------------------------------------------------------------------------

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


@cache
def parse(text: str) -> Size:
    """A size out of its text.

    >>> parse("past_length + 1"), parse("12"), parse("min(seq, 512)//2")
    (past_length + 1, 12, (min(512, seq))//2)

    Raises:
        ValueError: the text is no such expression.
    """

    def read(node: ast.AST) -> Size:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](read(node.left), read(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -read(node.operand)
        if isinstance(node, ast.Name):
            return Dim.symbol(node.id)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2 and not node.keywords:
            extreme = {"min": least, "max": most}.get(node.func.id)
            if extreme is not None:
                return extreme(read(node.args[0]), read(node.args[1]))
        raise ValueError(f"{text!r} is no size")

    if len(text) > LONGEST:
        raise ValueError(f"a size of {len(text)} characters")
    try:
        return read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, ZeroDivisionError, MemoryError):
        raise ValueError(f"{text!r} is no size") from None


def identifier(text: str) -> str:
    """A symbol's name out of whatever an exporter wrote.

    >>> identifier("Dyn:0"), identifier("batch size"), identifier("in")
    ('Dyn_0', 'batch_size', 'in_')
    """
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "size"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or name in ("min", "max") else name


def symbols_of(shape: Iterable[Size]) -> set[str]:
    """The symbols in a shape."""
    return set().union(*(d.symbols() for d in shape if isinstance(d, Dim)), set())


def replaced(size: Size, sizes: Mapping[str, Size]) -> Size:
    """A size with these in place of its symbols; other symbols stay."""
    return size.at(sizes) if isinstance(size, Dim) else int(size)


def at(shape: Iterable[Size], sizes: Mapping[str, int]) -> tuple[Size, ...]:
    """A shape with its symbols replaced."""
    return tuple(replaced(d, sizes) for d in shape)


def told(sizes: Mapping[str, int]) -> str:
    """Sizes in words.

    >>> told({"batch": 2, "seq": 8})
    'batch = 2, seq = 8'
    """
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def holds(condition: str, sizes: Mapping[str, int]) -> bool:
    """Whether a condition of a model holds at these sizes.

    >>> holds("past + seq <= 1024", {"past": 1000, "seq": 25}), holds("2*a == b", {"a": 2, "b": 4})
    (False, True)

    A division by zero does not hold: it is of a tensor that has no elements.

    >>> holds("a//b == 1", {"a": 0, "b": 0})
    False
    """
    left, sign, right = condition.partition(" <= ") if " <= " in condition else condition.partition(" == ")
    try:
        a, b = (replaced(parse(side), sizes) for side in (left, right))
    except ZeroDivisionError:
        return False
    return bool(a <= b if sign == " <= " else a == b)


def near(sizes: Mapping[str, int], ranges: Ranges, conditions: Sequence[str], up: bool = False) -> dict[str, int]:
    """Sizes that meet all conditions, next to these: themselves, else multiples of 2, 4, ..., 256; none: empty.

    >>> near({"h": 70}, {"h": Range(1, 100)}, ["h == 32*(h//32)"])
    {'h': 64}

    Args:
        up: rounded up, else down; the other way where that leaves a range.
    """
    asked = set().union(*(symbols_of(map(parse, re.split(" <= | == ", c))) for c in conditions), set())
    for step in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        found = dict(sizes)
        for name in asked & sizes.keys():
            below, above = sizes[name] // step * step, -(-sizes[name] // step) * step
            first, second = (above, below) if up else (below, above)
            found[name] = first if first in ranges[name] else second
        if all(found[n] in ranges[n] for n in asked & sizes.keys()) and all(holds(c, found) for c in conditions):
            return found
    return {}


def best_sizes(ranges: Ranges, conditions: Sequence[str]) -> dict[str, int]:
    """The sizes for which a model is best, or the next that meet all conditions; empty where there are none.

    >>> best_sizes({"h": Range(1, 100, 70)}, ["h == 32*(h//32)"])
    {'h': 64}
    """
    return near({name: known.opt for name, known in ranges.items()}, ranges, conditions)


def is_open(shape: Iterable[Size]) -> bool:
    """Whether some size is open."""
    return any(isinstance(d, Dim) for d in shape)
