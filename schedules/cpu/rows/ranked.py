"""TopK by comparisons of vectors: the place of a number is how many others come before it.

    keys       numbers as int32 in the same order: NaN above all, both zeros alike
    rank[i]    how many keys are larger, or as large and earlier: one comparison and one masked sum for 16 of them
    then       number i stands at rank[i]

Of a longer row the best k are found first, in their order in the row::

    threshold  the largest t that k keys reach, bit by bit from the highest: how many reach t with this bit, too?
    collect    those above t, and of those that are t the first ones, written one behind the other without a branch;
               vectors that have none are passed over

n * n / 16 comparisons, or two n for each bit until exactly k keys are left, where those of a heap decide branches that
a processor guesses wrong half of the time.

Applies when   keys fit 32 bits and n is at most :data:`LONGEST`: keys lie in memory of the task.
Gain           Zen 4, one core, us for 100 rows, in brackets a heap: 100 of 100 67 (359), 100 of 1000 274 (1630), 12 of
               1000 107 (186); 300 of 8400, 20 rows 368 (1660)
"""

from __future__ import annotations

import operator
from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import INDEX, const_index, load, loop, new_buffer, seq, splat, spread, store, vector
from tvmopt.schedules.cpu.rows.program import Row

Expr = Any
LONGEST = 16384
"""Numbers of a row at most."""
KEYED = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Types whose numbers have keys."""

LOWEST, HIGHEST = -(2**31), 2**31 - 1


def rank_cycles(n: int, lanes: int) -> float:
    """What ranking n numbers takes of a core, roughly: fitted to rows of 100 and 256."""
    return 2.7 * n * n / lanes + 7.0 * n


def choose_cycles(n: int, k: int, lanes: int) -> float:
    """Likewise, what finding the best k takes, and ranking these: of some twenty bits one each, and of vectors those
    that have one of the best."""
    looked_through = 1 - (1 - k / n) ** lanes
    return n / lanes * (20 * 1.5 + 10 + 5.0 * lanes * looked_through) + 600 + rank_cycles(k, lanes)


def chooses(n: int, k: int, lanes: int) -> bool:
    """Whether the best k should be found before they are ranked.

    >>> chooses(100, 100, 16), chooses(256, 10, 16), chooses(1000, 100, 16)
    (False, True, True)
    """
    return k < n and choose_cycles(n, k, lanes) < rank_cycles(n, lanes)


def key_of(x: Expr, dtype: str, largest: bool, lanes: int) -> Expr:
    """The keys of a vector of numbers; those of the smallest ones are the largest, if they are asked for."""

    def number(value: int) -> Expr:
        return splat(value, lanes, "int32")

    kind = "int32" if lanes == 1 else f"int32x{lanes}"
    if dtype == "float32":
        bits = tirx.reinterpret(kind, tirx.Select(x.equal(splat(0.0, lanes)), splat(0.0, lanes), x))
        ordered = tirx.bitwise_xor(bits, tirx.bitwise_and(tirx.shift_right(bits, number(31)), number(HIGHEST)))
        key = tirx.Select(tirx.isnan(x), number(HIGHEST), ordered)
    elif dtype == "uint32":
        key = tirx.bitwise_xor(tirx.reinterpret(kind, x), number(LOWEST))
    else:
        key = x.astype(kind) if dtype != "int32" else x
    return key if largest else tirx.bitwise_xor(key, number(-1))


class Keys:
    """The keys of `n` numbers in whole vectors; behind them stand the lowest ones, which come before none.

    Args:
        spare: how many more the buffer has room for.

    Attributes:
        keys: the buffer. count: one of a vector, for sums. buffers: both.
    """

    def __init__(self, n: int, lanes: int, name: str = "keys", spare: int = 0) -> None:
        self.n, self.lanes, self.vectors = n, lanes, -(-n // lanes)
        self.keys = new_buffer(name, -(-(n + spare) // lanes) * lanes, dtype="int32")
        self.count = new_buffer(f"{name}_count", lanes, dtype="int32")
        self.every = vector(const_index(0), lanes)
        self.buffers = [self.keys, self.count]

    def vector(self, v: Expr) -> Expr:
        """A vector of keys."""
        return load(self.keys, vector(v * self.lanes, self.lanes))

    def keep(self, x: Any, row: Expr, largest: bool) -> list[Any]:
        """Store the keys of a row of `x`."""
        dtype, lanes, whole = str(x.dtype), self.lanes, self.n // self.lanes

        def one(first: Expr, width: int) -> Any:
            key = key_of(load(x, row, vector(first, width)), dtype, largest, width)
            return store(self.keys, key, vector(first, width))

        statements = [loop(whole, lambda v: one(v * lanes, lanes), "v")] if whole else []
        if rest := self.n - whole * lanes:
            statements.append(store(self.keys, splat(LOWEST, lanes, "int32"), vector(whole * lanes, lanes)))
            statements.append(loop(rest, lambda i: one(i + whole * lanes, 1), "i"))
        return statements

    def begin(self) -> Any:
        """Count from 0."""
        return store(self.count, splat(0, self.lanes, "int32"), self.every)

    def add(self, counts: Expr) -> Any:
        """Count the lanes in which something is true."""
        one, zero = splat(1, self.lanes, "int32"), splat(0, self.lanes, "int32")
        return store(self.count, load(self.count, self.every) + tirx.Select(counts, one, zero), self.every)


class Ranks:
    """Statements that rank the numbers of some keys: of equal ones the earlier comes first.

    Attributes:
        ranks: the buffer of ranks.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.ranks = new_buffer("ranks", keys.vectors * keys.lanes, dtype="int32")

    def rank(self) -> Any:
        """Count, for each key, those before it."""
        keys, lanes = self.keys, self.keys.lanes

        def of_vector(v: Expr) -> Any:
            mine = keys.vector(v)

            def others(block: Expr, before: Any) -> Any:
                """A block of as many keys as a vector has."""
                each = [spread(load(keys.keys, block * lanes + j), lanes) for j in range(lanes)]
                return seq([keys.add(before(other, j)) for j, other in enumerate(each)])

            def beside(other: Expr, j: int) -> Expr:
                place = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
                earlier = tirx.GT(place, splat(j, lanes, "int32"))
                return tirx.any(other > mine, tirx.all(other.equal(mine), earlier))

            return seq([
                keys.begin(),
                loop(v, lambda b: others(b, lambda other, j: other >= mine), "b"),
                others(v, beside),
                loop(keys.vectors - 1 - v, lambda b: others(b + v + 1, lambda other, j: other > mine), "b"),
                store(self.ranks, load(keys.count, keys.every), vector(v * lanes, lanes)),
            ])  # fmt: skip

        return loop(keys.vectors, of_vector, "v")


class Chosen:
    """Statements that find the best `k` numbers of some keys.

    Attributes:
        best: their keys, in the order of the row; `places` where they stand in it.
        buffers: of the statements, but those of the keys.
    """

    def __init__(self, keys: Keys, k: int) -> None:
        self.keys, self.k = keys, k
        self.best = Keys(k, keys.lanes, "best", spare=1)  # what does not count is written behind them
        self.places = new_buffer("places", k + 1, dtype="int32")
        self.limit, self.bit, self.reach, self.left, self.end = (
            new_buffer(name, 1, dtype=kind)
            for name, kind in (
                ("limit", "uint32"), ("bit", "uint32"), ("reach", "int32"), ("left", "int32"), ("end", INDEX),
            )
        )  # fmt: skip
        self.buffers = [
            *self.best.buffers, self.places, self.limit, self.bit, self.reach, self.left, self.end,
        ]  # fmt: skip

    def place(self, i: Expr) -> Expr:
        """Where in the row the i-th of the best stands."""
        return load(self.places, i).astype(INDEX)

    def choose(self) -> list[Any]:
        """All of it."""
        zero = tirx.const(0, "uint32")
        return [
            store(self.limit, zero, 0),
            store(self.bit, tirx.const(2**31, "uint32"), 0),
            store(self.reach, tirx.const(self.keys.n, "int32"), 0),
            tirx.While(tirx.all(load(self.bit, 0) > zero, load(self.reach, 0) > self.k), self._try_bit()),
            *self._counted(lambda key, limit: key > limit, self._threshold(load(self.limit, 0))),
            store(self.left, tirx.const(self.k, "int32") - load(self.left, 0), 0),
            store(self.end, const_index(0), 0),
            loop(self.keys.vectors, self._collect_of, "v"),
            *(
                store(self.best.keys, tirx.const(LOWEST, "int32"), i)
                for i in range(self.k, self.best.vectors * self.keys.lanes)
            ),
        ]

    def _threshold(self, limit: Expr) -> Expr:
        """A limit as a key: its bits count from the lowest key on."""
        return tirx.bitwise_xor(tirx.reinterpret("int32", limit), tirx.const(LOWEST, "int32"))

    def _counted(self, counts: Any, threshold: Expr) -> list[Any]:
        """Store in `left` how many keys are so beside a threshold."""
        keys, lanes = self.keys, self.keys.lanes
        row = Row(lanes, lanes)
        total = row.across(load(keys.count, keys.every), operator.add, "int32")
        self.buffers += row.buffers
        against = spread(threshold, lanes)
        return [
            keys.begin(),
            loop(keys.vectors, lambda v: keys.add(counts(keys.vector(v), against)), "v"),
            *row.statements,
            store(self.left, total, 0),
        ]

    def _try_bit(self) -> Any:
        tried = tirx.bitwise_or(load(self.limit, 0), load(self.bit, 0))
        enough = seq([store(self.limit, tried, 0), store(self.reach, load(self.left, 0), 0)])
        return seq([
            *self._counted(lambda key, limit: key >= limit, self._threshold(tried)),
            tirx.IfThenElse(load(self.left, 0) >= self.k, enough, None),
            store(self.bit, tirx.shift_right(load(self.bit, 0), tirx.const(1, "uint32")), 0),
        ])  # fmt: skip

    def _collect_of(self, v: Expr) -> Any:
        """Those of a vector, which has none most of the time."""
        lanes = self.keys.lanes
        row, (one, zero) = Row(lanes, lanes), (splat(n, lanes, "int32") for n in (1, 0))
        reach = self.keys.vector(v) >= spread(self._threshold(load(self.limit, 0)), lanes)
        hits = row.across(tirx.Select(reach, one, zero), operator.add, "int32")
        self.buffers += row.buffers
        each = loop(lanes, lambda i: self._collect(v * lanes + i), "i")
        return seq([*row.statements, tirx.IfThenElse(hits > 0, each, None)])

    def _collect(self, i: Expr) -> Any:
        key, threshold, end = load(self.keys.keys, i), self._threshold(load(self.limit, 0)), load(self.end, 0)
        level = tirx.all(key.equal(threshold), load(self.left, 0) > 0)
        counts = tirx.any(key > threshold, level)
        one, none = (tirx.const(n, "int32") for n in (1, 0))
        return seq([
            store(self.best.keys, key, end),
            store(self.places, i.astype("int32"), end),
            store(self.end, end + tirx.Select(counts, one, none).astype(INDEX), 0),
            store(self.left, load(self.left, 0) - tirx.Select(level, one, none), 0),
        ])  # fmt: skip
