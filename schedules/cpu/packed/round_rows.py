"""Rows rounded to 8 bits by groups, and laid out as the products of packed weights read them - a kernel of its own, so
that products of the same rows (query, key and value) share it.

A row is one stream of int32 words, group after group::

    [ group / 4 words of four bytes each | step (a float's bits) | lift ]

    step = max |x| / 127                         of the group; NaN where a number is infinite or NaN
    byte = round(x * (127 / max |x|))            halves to even, two's complement
    lift = -2^(bits-1) * sum of the bytes        int32: what the codes' middle takes from their products
         = step * sum of the bytes               a float's bits, where the weights have zero points

as :func:`tvmopt.operators.codes.round_groups` has it, to the bit. The maximum is one of integers: the bits of positive
floats are ordered as the floats are, with infinity and NaN above all of them. A rounded number becomes an integer by
adding 1.5 * 2^23, whose last bits are then its own: a conversion has no meaning for NaN.

Cost       some 10 cycles a vector: 0.6 us for 4096 numbers, beside 90 of their product with 4096 columns
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import tirx

from tvmopt.lowering.common import OPAQUE
from tvmopt.lowering.loops import (
    INDEX,
    as_index,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    spread,
    store,
    vector,
    vector_type,
)
from tvmopt.operators.codes import LARGEST, LEAST

Expr = Any
WORD = 4
"""Bytes of a word."""
MORE = 2
"""Words of a group behind its bytes."""
INFINITY, NAN = 0x7F800000, 0x7FC00000
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000
"""1.5 * 2^23, and its bits: a float this large has its ones in its last bit."""
PARALLEL = 1 << 16
"""Numbers from which on the rows are shared by threads: some 20 us of one of them."""


def row_words(groups: int, group: int) -> int:
    """Words of a row."""
    return groups * (group // WORD + MORE)


class RoundRows:
    """Writes the kernel.

    Args:
        rows: how many; a variable where the number is open. middle: of the codes; None where they have zero points.
    """

    def __init__(self, rows: Any, groups: int, group: int, middle: int | None, lanes: int, parallel: bool) -> None:
        self.rows, self.groups, self.group, self.middle = rows, groups, group, middle
        self.lanes, self.parallel = min(lanes, group), parallel
        self.x = new_buffer("x", rows, groups * group)
        self.y = new_buffer("rounded", rows, row_words(groups, group), dtype="int32")
        self.locals: list[Any] = []

    def func(self) -> Any:
        """PrimFunc(x, rounded)."""
        one = tirx.Var("vone", INDEX)

        def row(m: Expr) -> Any:
            return loop(self.groups, lambda g: self._group(m, g), "g")

        body = loop(self.rows, row, "m")
        if self.parallel and not (isinstance(self.rows, int) and self.rows * self.groups * self.group < PARALLEL):
            m = tirx.Var("m", INDEX)
            shared = tirx.For(m, as_index(0), as_index(self.rows), tirx.ForKind.PARALLEL, row(m))
            least = -(-PARALLEL // (self.groups * self.group))
            body = tirx.IfThenElse(as_index(self.rows) < least, loop(self.rows, row, "m"), shared)
        whole = nest(
            "round_rows", [(one, 1)], ("one",), [everything(self.x)], [everything(self.y)], body, self.locals,
            {"tvmopt.kernel": "packed_rows"},
        )  # fmt: skip
        return prim_func([self.x, self.y], whole, OPAQUE)

    def _local(self, name: str, dtype: str, lanes: int) -> Any:
        buffer = new_buffer(f"{name}_{len(self.locals)}", lanes, dtype=dtype)
        self.locals.append(buffer)
        return buffer

    def _group(self, m: Expr, g: Expr) -> Any:
        """The words of one group of a row."""
        n, parts = self.lanes, self.group // self.lanes
        start, out = g * self.group, g * (self.group // WORD + MORE)
        words = n // WORD
        top, total = self._local("top", "int32", 1), self._local("total", "int32", n)
        step, whole = self._local("step", "float32", 1), vector(0, n)

        def bits(x: Expr, lanes: int = n) -> Expr:
            return tirx.reinterpret(vector_type("int32", lanes), x)

        def x(p: int) -> Expr:
            return load(self.x, m, vector(start + p * n, n))

        sizes = [bits(x(p)) & splat(0x7FFFFFFF, n, "int32") for p in range(parts)]
        largest = across("smax", reduce(tirx.max, sizes), n)
        least = int(LEAST.view("int32"))
        number = tirx.reinterpret("float32", load(top, 0))
        own = tirx.reinterpret("int32", number / tirx.const(float(LARGEST), "float32"))
        known = tirx.Select(load(top, 0) < tirx.const(INFINITY, "int32"), own, tirx.const(NAN, "int32"))
        statements = [
            store(top, tirx.max(largest, tirx.const(least, "int32")), 0),
            store(step, tirx.const(float(LARGEST), "float32") / number, 0),  # the inverse, first
            store(total, splat(0, n, "int32"), whole),
        ]
        for p in range(parts):
            value = self._local("value", "int32", n)
            nearest = tirx.call_llvm_pure_intrin(
                vector_type("float32", n), f"llvm.rint.v{n}f32", x(p) * spread(load(step, 0), n)
            )
            statements += [
                store(value, bits(nearest + splat(MAGIC, n)) - splat(MAGIC_BITS, n, "int32"), whole),
                store(total, load(total, whole) + load(value, whole), whole),
            ]
            packed = tirx.reinterpret(vector_type("int32", words), load(value, whole).astype(vector_type("int8", n)))
            statements.append(store(self.y, packed, m, vector(out + p * words, words)))
        sum_ = across("add", load(total, whole), n)
        if self.middle is None:
            real = sum_.astype("float32") * tirx.reinterpret("float32", known)
            lift = tirx.reinterpret("int32", real)
        else:
            lift = sum_ * tirx.const(-self.middle, "int32")
        behind = out + self.group // WORD
        return seq([*statements, store(self.y, known, m, behind), store(self.y, lift, m, behind + 1)])


def across(name: str, value: Expr, lanes: int) -> Expr:
    """The reduction of the int32 lanes of a vector by one of LLVM's: "add", "smax"."""
    return tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.{name}.v{lanes}i32", value)
