"""Programs over one row of a tensor, in explicit vectors - for softmax, the norms and reductions of a last axis.

A sum of floats is a chain: LLVM may not reorder it, and one addition every `fma_latency` cycles is 60 times
slower than the row's bytes. So a reduction runs in `UNROLL` vectors of partial results, joined as a tree::

    for k in 0 .. C / (U*V):   acc[u] = combine(acc[u], f(x[k*U*V + u*V : ... + V]))          u < U
    rest of whole vectors, then the last C mod V elements as one vector that overlaps its neighbour, masked
    acc[0] = combine(acc[0], ..., acc[U-1]);  halves of halves -> one number

Plain elementwise loops over the row stay scalar in the program: LLVM vectorises those, tails included. The program is
the body of one block per row, so schedules can run rows in parallel and put an epilogue behind each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import (
    INDEX,
    Expr,
    Index,
    const_index,
    load,
    loop,
    nest,
    new_buffer,
    seq,
    splat,
    store,
    vector,
)

UNROLL = 4
Step = Callable[[Index, int], list[Any]]
"""`step(start, u)`: the statements of the vector from element `start` on, into the partial results `u`."""


class Row:
    """Builds the statements of one row's program.

    Args:
        length: elements of the row; an expression where it is open.
        lanes: elements of a vector register.
    """

    def __init__(self, length: Index, lanes: int) -> None:
        self.length, self.lanes = length, lanes
        self.statements: list[Any] = []
        self.buffers: list[Any] = []
        self._names = itertools.count()

    def local(self, size: int, name: str, dtype: str = "float32") -> Any:
        """A small buffer that lives in registers or on the stack."""
        buffer = new_buffer(f"{name}{next(self._names)}", size, dtype=dtype)
        self.buffers.append(buffer)
        return buffer

    def keep(self, value: Expr, name: str = "kept", dtype: str = "float32") -> Expr:
        """A scalar computed now, read later."""
        buffer = self.local(1, name, dtype)
        self.statements.append(store(buffer, value, 0))
        return load(buffer, 0)

    def map(self, body: Callable[[Expr], Any]) -> None:
        """`body(c)`, a statement, for every element c; left to LLVM to vectorise."""
        self.statements.append(loop(self.length, body, "c"))

    def reduce(
        self,
        value: Callable[[Index], Expr],
        combine: Callable[[Expr, Expr], Expr],
        identity: float,
        write: Callable[[Index, Expr], Any] | None = None,
        dtype: str = "float32",
    ) -> Expr:
        """combine over c of value(c), numbers of type `dtype`; `write(c, value)` also stores each value.

        `value` and `write` get a scalar index or a vector of `lanes` consecutive ones; they must not read
        what `write` stores, since the last vector overlaps the one before.
        """
        return self._reduced([value], combine, identity, write, dtype)[0]

    def sums(self, *values: Callable[[Index], Expr]) -> list[Expr]:
        """The sums over c of several values, in one pass."""
        return self._reduced(values, lambda a, b: a + b, 0.0, None, "float32")

    def _reduced(
        self, values: Sequence[Callable[[Index], Expr]], combine: Any, identity: float, write: Any, dtype: str
    ) -> list[Expr]:
        """See `reduce`; `write` is of a single value."""
        lanes, length = self.lanes, self.length
        if not isinstance(length, int):
            return self._open(values, combine, identity, write, dtype)
        if length < lanes:
            return self._short(values, combine, identity, write, dtype)
        unroll = min(UNROLL, length // lanes)
        trips, rest = length // (unroll * lanes), length // lanes % unroll
        tail = tirx.const(length % lanes, INDEX) if length % lanes else None

        def behind(step: Step) -> list[Any]:
            return [s for u in range(rest) for s in step((trips * unroll + u) * lanes, u)]

        return self._vectors(values, combine, identity, write, dtype, unroll, trips, behind, tail)

    def _open(self, values: Any, combine: Any, identity: float, write: Any, dtype: str) -> list[Expr]:
        """A row of open length: in vectors, or number by number where it is shorter than one."""
        lanes, length = self.lanes, self.length
        totals = [self.local(1, "total", dtype) for _ in values]
        trips = tirx.truncdiv(length, const_index(UNROLL * lanes))
        rest = tirx.truncdiv(length, const_index(lanes)) - trips * UNROLL

        def behind(step: Step) -> list[Any]:
            return [loop(rest, lambda k: seq(step((trips * UNROLL + k) * lanes, 0)), "k")]

        tail = tirx.truncmod(length, const_index(lanes))

        def whole() -> list[Expr]:
            return self._vectors(values, combine, identity, write, dtype, UNROLL, trips, behind, tail)

        def short() -> list[Expr]:
            return self._short(values, combine, identity, write, dtype)

        before, forms = self.statements, []
        for form in (whole, short):
            self.statements = []
            found = form()
            forms.append(seq([*self.statements, *(store(t, f, 0) for t, f in zip(totals, found, strict=True))]))
        self.statements = [*before, tirx.IfThenElse(length >= lanes, *forms)]
        return [load(total, 0) for total in totals]

    def _vectors(
        self, values: Sequence[Callable[[Index], Expr]], combine: Any, identity: float, write: Any, dtype: str,
        unroll: int, trips: Index, behind: Callable[[Step], list[Any]], tail: Expr | None,
    ) -> list[Expr]:  # fmt: skip
        """See `reduce`.

        Args:
            unroll, trips: vectors of a trip, and trips.
            behind: the steps of the whole vectors that are left.
            tail: how many elements are in no whole vector; None: none.
        """
        lanes = self.lanes
        accumulators = [self.local(unroll * lanes, "acc", dtype) for _ in values]

        def step(start: Index, u: int, mask: Expr | None = None) -> list[Any]:
            index, part, done = vector(start, lanes), vector(u * lanes, lanes), []
            for parts, value in zip(accumulators, values, strict=True):
                term = value(index)
                if write is not None:
                    kept = self.local(lanes, "term", dtype)
                    done.append(store(kept, term, vector(0, lanes)))
                    done.append(write(index, load(kept, vector(0, lanes))))
                    term = load(kept, vector(0, lanes))
                if mask is not None:
                    term = tirx.Select(mask, term, splat(identity, lanes, dtype))
                done.append(store(parts, combine(load(parts, part), term), part))
            return done

        for parts in accumulators:
            for u in range(unroll):
                self.statements.append(store(parts, splat(identity, lanes, dtype), vector(u * lanes, lanes)))
        width = unroll * lanes
        self.statements.append(
            loop(trips, lambda k: seq([s for u in range(unroll) for s in step(k * width + u * lanes, u)]), "k")
        )
        self.statements += behind(step)
        if tail is not None:
            mask = vector(0, lanes) >= tirx.Broadcast(lanes - tail, lanes)
            self.statements += step(self.length - lanes, unroll - 1, mask)
        totals = []
        for parts in accumulators:
            total = load(parts, vector(0, lanes))
            for u in range(1, unroll):
                total = combine(total, load(parts, vector(u * lanes, lanes)))
            totals.append(self.across(total, combine, dtype))
        return totals

    def _short(self, values: Any, combine: Any, identity: float, write: Any, dtype: str) -> list[Expr]:
        totals = [self.local(1, "acc", dtype) for _ in values]
        self.statements += [store(total, tirx.const(identity, dtype), 0) for total in totals]

        def body(c: Expr) -> Any:
            done = []
            for total, value in zip(totals, values, strict=True):
                term = value(c)
                if write is not None:
                    kept = self.local(1, "term", dtype)
                    done += [store(kept, term, 0), write(c, load(kept, 0))]
                    term = load(kept, 0)
                done.append(store(total, combine(load(total, 0), term), 0))
            return seq(done)

        self.statements.append(loop(self.length, body, "c"))
        return [load(total, 0) for total in totals]

    def across(self, value: Expr, combine: Callable[[Expr, Expr], Expr], dtype: str) -> Expr:
        """One number from the lanes of a vector: halves of halves."""
        width = self.lanes
        while True:
            buffer = self.local(width, "half", dtype)
            self.statements.append(store(buffer, value, vector(0, width)))
            if width == 1:
                return load(buffer, 0)
            width //= 2
            value = combine(load(buffer, vector(0, width)), load(buffer, vector(width, width)))

    def block(
        self, name: str, rows: Sequence[int], reads: Any, writes: Any, variables: Sequence[Any], kernel: str,
        notes: Mapping[str, float] | None = None,
    ) -> Any:  # fmt: skip
        """The loops over `rows` around one block with this program as its body, and annotations."""
        axes = list(zip(variables, rows, strict=True))
        names = [f"r{i}" for i in range(len(rows))]
        body = seq(self.statements)
        return nest(name, axes, names, reads, writes, body, self.buffers, {"tvmopt.kernel": kernel, **(notes or {})})
