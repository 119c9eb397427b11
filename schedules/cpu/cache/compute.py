"""New rows of keys or values at their place in a cache.

    K[b, h, past + i, :] = new[b, i, h, :]          B * new * H rows of D numbers, each contiguous on both sides
    K[text(i), h, position(i), :] = new[0, i, h, :]         where tokens have places

A buffer of bfloat16 takes them rounded; one of words (:mod:`tvmopt.operators.stored`) takes each row's bytes and its
step, which are those of `tvmopt.operators.codes.round_groups` to the bit.

A step writes one row a head, a few kilobytes in all; threads would cost more than they save.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from tvm import relax, tirx

from tvmopt.lowering.common import OPAQUE, Symbols, sizes
from tvmopt.lowering.loops import (
    INDEX,
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
from tvmopt.operators.caches import depth_of, places_of, stored_as
from tvmopt.operators.codes import LARGEST, LEAST
from tvmopt.operators.stored import BYTES, HALF, WORD
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
Place = Callable[[Expr], list[Expr]]
"""Where an element of a row stands, by its index in the row: a number or a vector of them."""


def append_rows(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.append_rows`, in place."""
    cache, new, where = call.args
    kind = stored_as(cache)
    if not kind or str(new.ty.dtype) != "float32":
        return Declined(f"rows of {new.ty.dtype} for a cache of {cache.ty.dtype}")
    symbols = Symbols()
    rows = _Rows(symbols.of(cache), symbols.of(new), kind, gcd(int(depth_of(cache)), machine.lanes()))
    if places_of(call) is None:
        (first,) = symbols.here([where.values[0]])
        handed = symbols.to_hand_over()
        func = rows.behind(first, handed)
        args = relax.Tuple([cache, new, *symbols.named(handed)])
    else:
        func = rows.placed(symbols.of(where))
        args = relax.Tuple([cache, where, new])
    return relax.op.call_tir_inplace(
        bb.add_func(func, "append_rows"), args, [0], [relax.TensorType(sizes(cache), cache.ty.dtype)]
    )


class _Rows:
    """Writes the kernel of a cache and of new rows of these shapes; `lanes` numbers make a vector."""

    def __init__(self, cache: tuple[Any, ...], new: tuple[Any, ...], kind: str, lanes: int) -> None:
        self.kind, self.lanes, self.shape = kind, lanes, new
        dtype = {BYTES: "int32", HALF: "bfloat16"}.get(kind, "float32")
        self.to, self.new = new_buffer("cache", *cache, dtype=dtype), new_buffer("new", *new)
        self.locals: list[Any] = []

    def behind(self, past: Any, handed: list[Any]) -> tirx.PrimFunc:
        """PrimFunc(cache, new, handed): `past` in their variables."""
        batch, count, heads, _ = self.shape
        b, h = (tirx.Var(n, INDEX) for n in ("vb", "vh"))
        body = loop(count, lambda i: self._row(lambda d: [b, i, h, d], lambda d: [b, h, past + i, d]), "i")
        loops = nest(
            "append", [(b, batch), (h, heads)], "bh", [everything(self.new)], [everything(self.to)], body,
            self.locals, {"tvmopt.kernel": "cache"},
        )  # fmt: skip
        return prim_func([self.to, self.new, *handed], loops, OPAQUE)

    def placed(self, where: tuple[Any, ...]) -> tirx.PrimFunc:
        """PrimFunc(cache, places, new)."""
        places = new_buffer("places", *where, dtype=INDEX)
        _, count, heads, _ = self.shape
        i, h = (tirx.Var(n, INDEX) for n in ("vi", "vh"))
        text, position = (load(places, row, i) for row in (0, 1))
        body = self._row(lambda d: [0, i, h, d], lambda d: [text, h, position, d])
        loops = nest(
            "append", [(i, count), (h, heads)], "ih", [everything(self.new), everything(places)],
            [everything(self.to)], body, self.locals, {"tvmopt.kernel": "cache"},
        )  # fmt: skip
        return prim_func([self.to, places, self.new], loops, OPAQUE)

    def _row(self, source: Place, target: Place) -> Any:
        """One row written."""
        depth = self.shape[3]
        if self.kind != BYTES:
            dtype = str(self.to.dtype)
            return loop(depth, lambda d: store(self.to, load(self.new, *source(d)).astype(dtype), *target(d)), "d")
        n, words = self.lanes, self.lanes // WORD
        if not self.locals:
            self.locals += [new_buffer("tops", n, dtype="int32"), new_buffer("row", 2)]
        tops, row = self.locals  # the largest of each lane; the inverse of the step, and the step itself
        every = vector(0, n)

        def number(p: Expr) -> Expr:
            return load(self.new, *source(vector(p * n, n)))

        def largest(p: Expr) -> Any:  # the bits of positive floats are ordered as these are, infinity and NaN last
            size = tirx.reinterpret(vector_type("int32", n), number(p)) & splat(0x7FFFFFFF, n, "int32")
            return store(tops, tirx.max(load(tops, every), size), every)

        def packed(p: Expr) -> Any:
            whole = tirx.round(number(p) * spread(load(row, 0), n)).astype(vector_type("int32", n))
            word = tirx.reinterpret(vector_type("int32", words), whole.astype(vector_type("int8", n)))
            return store(self.to, word, *target(vector(p * words, words)))

        top = tirx.reinterpret("float32", load(tops, 0))
        step = tirx.Select(top < tirx.const(float("inf"), "float32"), load(row, 1), tirx.const(float("nan"), "float32"))
        most = tirx.const(float(LARGEST), "float32")
        return seq([
            store(tops, splat(int(LEAST.view("int32")), n, "int32"), every),
            loop(depth // n, largest, "d"),
            loop(n - 1, lambda t: store(tops, tirx.max(load(tops, 0), load(tops, t + 1)), 0), "t"),
            store(row, most / top, 0),
            store(row, top / most, 1),
            loop(depth // n, packed, "d"),
            store(self.to, tirx.reinterpret("int32", step), *target(depth // WORD)),
        ])  # fmt: skip
