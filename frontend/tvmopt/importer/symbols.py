"""The open sizes of one model while it is prepared: their ranges, and what the graph says of them - for the walk.

Sizes that values decide in a run - how many boxes remain - are symbols, too. They are at most that of the tensor that
was selected from, and no condition may name them: it could not be checked before a call.

A graph says that two sizes are equal where it adds their tensors, and that a size is at most 512 where it slices a
table of 512 rows. Equal symbols become one; what cannot be solved for a symbol stays as a condition, which is checked
at each call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count as count_from

from tvmopt.dims import (
    FOUND,
    Dim,
    Interval,
    OpenSize,
    Range,
    Size,
    equal,
    interval,
    least,
    less,
    lowest,
    most,
    replaced,
    symbols_of,
)
from tvmopt.runtime.roles import Roles

UNKNOWN = 10**9
"""No axis is longer; exporters write larger ends of slices for "to the end"."""

CUT_BEFORE_SELECTION = "export the network up to its raw boxes and scores, and select outside the model"
"""How to mend a model whose sizes values decide."""

Rewrite = Callable[[Mapping[str, Size]], None]


class Undecided(OpenSize):
    """Two sizes must be equal, and values decide whether they are: nothing could check it before kernels run.

    Attributes:
        fix: how to mend the model.
    """

    fix = CUT_BEFORE_SELECTION


class Changing(Undecided):
    """Two sizes must be equal, and are not in each trip of a loop."""

    fix = "give what the loop computes the same shape in each trip"


@dataclass(frozen=True)
class Condition:
    """What must hold in every call: ``a == b``, or ``a <= b``."""

    a: Size
    sign: str
    b: Size

    def __str__(self) -> str:
        return f"{self.a} {self.sign} {self.b}"

    def always(self, ranges: Mapping[str, Range]) -> bool:
        """Whether it holds for all sizes within the ranges, as far as intervals tell."""
        low, high = interval(self.a - self.b, ranges)
        return bool(high <= 0 if self.sign == "<=" else low == high == 0)


@dataclass
class Symbols:
    """What is known of the open sizes.

    Attributes:
        names: the symbols in the order of the inputs.
        ranges: those that the caller gave.
        most: the largest size that the graph allows, and the node that says so, by symbol.
        conditions: what else holds for every call that the model takes, and the node that says so.
        replaced: symbols that turned out to be another size.
        aliases: sizes that must equal another one that no symbol can be solved for.
        decided: what each size that values decide is at most.
        places: what the number of a trip is at most, of each loop whose body is walked now.
        selections: the size that an operator decided of these inputs.
        decoder: what the inputs and outputs are, if it is one: the length of its caches may be 0.
    """

    names: tuple[str, ...] = ()
    ranges: dict[str, Range] = field(default_factory=dict)
    most: dict[str, tuple[int, str]] = field(default_factory=dict)
    conditions: dict[Condition, str] = field(default_factory=dict)
    replaced: dict[str, tuple[Size, str]] = field(default_factory=dict)
    aliases: dict[Size, Size] = field(default_factory=dict)
    decided: dict[str, Size] = field(default_factory=dict)
    places: dict[str, Size] = field(default_factory=dict)
    selections: dict[tuple[str, ...], Size] = field(default_factory=dict)
    decoder: Roles = field(default_factory=Roles)

    def __bool__(self) -> bool:
        return bool(self.names or self.decided or self.places)

    def known(self) -> dict[str, Range]:
        """Ranges as far as they are known."""
        implied = {name: Range(lowest(name), most, most) for name, (most, _) in self.most.items()}
        known = {n: self.ranges.get(n) or implied.get(n) or Range(lowest(n), UNKNOWN) for n in self.names}
        for name, limit in self.decided.items():  # in the order of the walk: a limit names earlier ones
            known[name] = Range(0, min(interval(limit, known)[1], UNKNOWN))
        for name, limit in self.places.items():
            known[name] = Range(0, max(0, min(interval(limit, known)[1], UNKNOWN)))
        return known

    def find(self, most: Size) -> Size:
        """A new size that values decide, `most` at the most; 0 where it cannot be more."""
        if most == 0:
            return 0
        name = self._unused()
        self.decided[name] = most
        return Dim.symbol(name)

    def place(self, most: Size) -> Dim:
        """The number of a trip, counted from 0, `most` at the most: what is computed of it in the body of its loop are
        sizes until :meth:`forget`."""
        name = self._unused()
        self.places[name] = most
        return Dim.symbol(name)

    def forget(self, place: Dim) -> None:
        """The body of a loop has been walked."""
        del self.places[str(place)]

    def in_place(self, *sizes: Size) -> bool:
        """Whether one of the sizes differs from trip to trip."""
        return bool(symbols_of(sizes) & self.places.keys())

    def _unused(self) -> str:
        taken = {*self.names, *self.decided, *self.places, *self.replaced}
        return next(name for i in count_from(0) if (name := f"{FOUND}{i}") not in taken)

    def between(self, size: Size) -> Interval:
        """The lowest and the highest value of a size. A trip number, or what values decide, is put at its ends, which
        may be sizes: so ``rows - trip`` is 1 or more in a loop over all rows."""
        low = high = size
        for name, limit in reversed((self.decided | self.places).items()):
            low, high = _at_an_end(low, name, limit, -1), _at_an_end(high, name, limit, 1)
        known = self.known()
        whole = interval(size, known)
        if low is high:
            return whole
        return max(whole[0], interval(low, known)[0]), min(whole[1], interval(high, known)[1])

    def limits(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """What the sizes that values decide are at most, at these sizes of the inputs."""
        found = dict(sizes)
        for name, limit in self.decided.items():
            found[name] = max(0, int(replaced(limit, found)))
        return {name: found[name] for name in self.decided}

    def is_decided(self, *sizes: Size) -> bool:
        """Whether values decide one of these sizes, or where something begins, in a run."""
        return bool(symbols_of(sizes) & (self.decided.keys() | self.places.keys()))

    def less(self, a: Size, b: Size) -> bool:
        """Whether ``a < b``; OpenSize where that differs from call to call."""
        if self.in_place(a, b):
            low, high = self.between(a - b)
            if high < 0 or low >= 0:
                return bool(high < 0)
        return less(a, b, self.known())

    def equal(self, a: Size, b: Size) -> bool:
        """Whether ``a == b``; OpenSize where that differs from call to call."""
        if self.in_place(a, b):
            low, high = self.between(a - b)
            if low > 0 or high < 0:
                return False
        return equal(a, b, self.known())

    def least(self, a: Size, b: Size) -> Size:
        """The smaller of two sizes."""
        if self.in_place(a, b):
            low, high = self.between(a - b)
            if high <= 0 or low >= 0:
                return a if high <= 0 else b
        return least(a, b, self.known())

    def most_of(self, a: Size, b: Size) -> Size:
        """The larger of two sizes."""
        if self.in_place(a, b):
            low, high = self.between(a - b)
            if high <= 0 or low >= 0:
                return b if high <= 0 else a
        return most(a, b, self.known())

    def canonical(self, size: Size) -> Size:
        """The size that stands for this one and all that must equal it, in the symbols of now."""
        if isinstance(size, Dim) and self.replaced.keys() & size.symbols():
            size = replaced(size, {name: value for name, (value, _) in self.replaced.items()})
        return self.aliases.get(size, size) if self.aliases else size

    def at_most(self, size: Size, limit: Size, where: str) -> None:
        """Take note that ``size <= limit`` in every call, because of the node `where`."""
        condition = Condition(size, "<=", limit)
        if self.between(size - limit)[1] <= 0:
            return
        if self.is_decided(size, limit):
            raise OpenSize(f"whether {condition} is decided by values, at run time")
        if isinstance(size, Dim) and size.is_symbol and isinstance(limit, int):
            name = str(size)
            if name not in self.most or limit < self.most[name][0]:
                self.most[name] = (limit, where)
        else:
            self.conditions.setdefault(condition, where)

    def left(self, ranges: Mapping[str, Range]) -> tuple[str, ...]:
        """The conditions that some sizes within the ranges do not meet."""
        return tuple(str(condition) for condition in self.conditions if not condition.always(ranges))

    def unify(self, a: Size, b: Size, where: str, rewrite: Rewrite) -> Size:
        """The one size that both are, because the node `where` takes them for equal.

        Args:
            rewrite: replaces symbols wherever the walk keeps sizes.
        """
        a, b = self.canonical(a), self.canonical(b)
        if a == b or not (isinstance(a, Dim) or isinstance(b, Dim)):
            return a
        found = self._solved(*_reduced(a, b)) or _same_rows(*_reduced(a, b), self.names)
        if self.is_decided(a, b) and (found is None or not self._may_be(*found)):
            if self.in_place(a, b):
                raise Changing(f"whether {a} is {b} differs from trip to trip of a loop")
            raise Undecided(f"whether {a} is {b} is decided by values, at run time")
        if found is None:
            kept, other = (b, a) if not isinstance(b, Dim) or len(str(b)) < len(str(a)) else (a, b)
            if (between := _numerator(other, kept)) is not None:
                low, size, high = between
                self.at_most(low, size, where)
                self.at_most(size, high, where)
            else:
                left, right = _reduced(other, kept)
                self.conditions.setdefault(Condition(left, "==", right), where)
            self.aliases = {k: kept if v == other else v for k, v in self.aliases.items()} | {other: kept}
            return kept
        name, value = found
        self.replaced[name] = (value, where)
        self.names = tuple(n for n in self.names if n != name)
        if name in self.decided:
            limit = self.decided.pop(name)
            other = str(value)
            self.decided[other] = self.least(self.decided[other], limit)
        if name in self.ranges and isinstance(value, Dim) and value.is_symbol:
            self.ranges.setdefault(str(value), self.ranges[name])
        self._replace(name, value, rewrite)
        a, b = replaced(a, {name: value}), replaced(b, {name: value})
        return self.unify(a, b, where, rewrite)

    def _replace(self, name: str, value: Size, rewrite: Rewrite) -> None:
        """Write `value` in place of a symbol; conditions that become true go, those that can be solved are."""
        mapping = {name: value}
        rewrite(mapping)
        self.replaced = {k: (replaced(v, mapping), w) for k, (v, w) in self.replaced.items()}
        self.decided = {k: replaced(limit, mapping) for k, limit in self.decided.items()}
        self.places = {k: replaced(limit, mapping) for k, limit in self.places.items()}
        if name in self.most:
            self.at_most(value, *self.most.pop(name))
        before, self.conditions, self.aliases = self.conditions, {}, {}
        for condition, where in before.items():
            a, b = replaced(condition.a, mapping), replaced(condition.b, mapping)
            if condition.sign == "==":
                self.unify(a, b, where, rewrite)
            else:
                self.at_most(a, b, where)

    def _may_be(self, name: str, value: Size) -> bool:
        """Whether a symbol may be said to be `value`, as far as values decide either: two sizes that they decide may be
        one, which the run checks."""
        return name in self.decided and isinstance(value, Dim) and value.is_symbol and str(value) in self.decided

    def _solved(self, a: Size, b: Size) -> tuple[str, Size] | None:
        """A symbol that stands alone on one side, and the polynomial that it is: of two symbols the later input's."""
        sides = [(str(x), y) for x, y in ((a, b), (b, a)) if isinstance(x, Dim) and x.is_symbol]
        order = {name: i for i, name in enumerate((*self.names, *self.decided))}
        fit = [(x, y) for x, y in sides if x in order and _is_sum(y) and x not in symbols_of([y])]
        return max(fit, key=lambda side: order[side[0]], default=None)


def _reduced(a: Size, b: Size) -> tuple[Size, Size]:
    """An equation without the factors that all its terms have in common, none of which is 0.

    >>> from tvmopt.dims import parse
    >>> _reduced(parse("4*batch*seq"), parse("2*batch"))
    (2*seq, 1)
    """
    terms = [dict(d.terms) if isinstance(d, Dim) else {(): d} for d in (a, b)]
    if not a or not b:
        return a, b
    common = Counter(next(iter(terms[0])))
    for monomial in (m for side in terms for m in side):
        common &= Counter(monomial)
    number = math.gcd(*(v for side in terms for v in side.values()))
    factor = Dim({tuple(common.elements()): number}) if common else number
    return a // factor, b // factor


def _numerator(a: Size, b: Size) -> tuple[int, Dim, int] | None:
    """What ``n//d + c == b`` says of `n`, where that is a quotient by a number: its bounds, constants apart.

    >>> from tvmopt.dims import parse
    >>> _numerator(parse("(t + 320)//512"), 1)
    (192, t, 703)
    """
    if not isinstance(a, Dim) or not isinstance(b, int):
        return None
    constant = a.terms.get((), 0)
    monomials = [(k, v) for k, v in a.terms.items() if k]
    if len(monomials) != 1 or monomials[0][1] != 1 or len(monomials[0][0]) != 1:
        return None
    atom = monomials[0][0][0]
    if isinstance(atom, str) or atom.op != "//" or not isinstance(atom.b, int) or not isinstance(atom.a, Dim):
        return None
    inside = atom.a.terms.get((), 0)
    low = atom.b * (b - constant) - inside
    return low, atom.a - inside, low + atom.b - 1


def _same_rows(a: Size, b: Size, names: tuple[str, ...]) -> tuple[str, Size] | None:
    """Of ``(rows*length)//batch == seq`` or ``rows*length == batch*seq``, as exporters write it that name each
    dimension apart: that `batch` is `rows`, the first in the order of the inputs.

    >>> from tvmopt.dims import parse
    >>> _same_rows(parse("(length*rows)//batch"), parse("seq"), ("batch", "seq", "rows", "length"))
    ('batch', rows)
    >>> _same_rows(parse("length*rows"), parse("batch*seq"), ("batch", "seq", "rows", "length"))
    ('rows', batch)
    """
    products = [_symbols_multiplied(size, names) for size in (a, b)]
    if len(products[0]) == len(products[1]) > 1:
        first, later = sorted((product[0] for product in products), key=names.index)
        return later, Dim.symbol(first)
    factors = [f for size in (a, b) if isinstance(size, Dim) for monomial in size.terms for f in monomial]
    for factor in factors:
        if isinstance(factor, str) or factor.op != "//" or not isinstance(factor.a, Dim):
            continue
        (monomial, *more), below = factor.a.terms, factor.b
        if more or not isinstance(below, Dim) or not below.is_symbol or not all(f in names for f in monomial):
            continue
        return str(below), Dim.symbol(min(map(str, monomial), key=names.index))
    return None


def _symbols_multiplied(size: Size, names: tuple[str, ...]) -> list[str]:
    """The symbols of a product that has no other factors, in the order of `names`; none of any other size."""
    monomial, count = next(iter(size.terms.items())) if isinstance(size, Dim) and len(size.terms) == 1 else ((), 1)
    fit = count == 1 and all(isinstance(factor, str) and factor in names for factor in monomial)
    return sorted(map(str, monomial), key=names.index) if fit else []


def _at_an_end(size: Size, name: str, most: Size, end: int) -> Size:
    """A size that adds or subtracts a multiple of a symbol from 0 to `most`, where it is largest (`end` 1) or smallest;
    any other one as it is.

    >>> from tvmopt.dims import parse
    >>> [_at_an_end(parse("rows - trip"), "trip", parse("rows - 1"), end) for end in (-1, 1)]
    [1, rows]
    """
    if not isinstance(size, Dim) or (name,) not in size.terms:
        return size
    count = size.terms[(name,)]
    rest = size - count * Dim.symbol(name)
    if name in symbols_of([rest]):
        return size
    return rest + count * most if (count > 0) == (end > 0) else rest


def _is_sum(size: Size) -> bool:
    """Whether a size is a number, or a polynomial that only adds and multiplies: it is at least 1 where its symbols
    are."""
    if not isinstance(size, Dim):
        return True
    return all(count > 0 and all(isinstance(f, str) for f in monomial) for monomial, count in size.terms.items())
