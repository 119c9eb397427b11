"""Softmax, ArgMax and reductions along another axis than the last: strips of neighbouring columns in vectors.

    x [outer, n, inner];  for a strip of up to four vectors of columns        a task
      softmax   m = max over k of x[k];  e[k] = exp(x[k] - m), s = sum over k of e[k];  y[k] = e[k] / s
      argmax    m, i = x[k], k wherever x[k] > m;  the first k of a NaN, if there is one
      sum       s = sum over k of x[k], and likewise a mean and the extremes

Nothing is transposed, and x is read once from where it lies: softmax keeps a copy of its strip. The last strip begins
before its place where strips do not divide the columns. Of few columns, a strip has those of several indices of outer.

Measured   one core of a Xeon with AVX-512, us, in brackets the better of onnxruntime and OpenVINO: softmax 21x128x128
           155 (373), 150x64x64 388 (717); ArgMax 150x64x64 91 (141), 2000x50 21 (34)
           one core of Zen 4, us, in brackets onnxruntime: 1000x30x10 ArgMax 42 (174), maximum 30 (41), sum 22 (202) at
           55 GB/s, softmax 194 (389); 1000x30x3 ArgMax 36 (58), maximum 18 (35), sum 13 (205)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx

from tvmopt.lowering import math
from tvmopt.lowering.common import OPAQUE
from tvmopt.lowering.loops import (
    INDEX,
    NANOSECONDS,
    const_index,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    store,
    vector,
    vector_type,
)
from tvmopt.lowering.lower_extrema import larger
from tvmopt.lowering.overlap import vector_for
from tvmopt.targets import Machine

Expr = Any
VECTORS = 4
"""Vectors of a strip: whole lines of memory, and exponentials that do not wait for each other."""
POSITION = "int32"


class Strip:
    """A strip of x [outer, n, inner] and what is computed of it: at most VECTORS vectors of neighbouring columns.

    The vectors of all columns are shared out evenly among strips. Where one strip has all columns and could have more
    vectors, it takes several indices of `outer` at a time, so that no step waits for the one before. Fewer columns than
    a vector has are in shorter vectors. The last vector of the columns, the last strip and the last indices of `outer`
    begin before their place where they would end beyond it: what is computed twice is stored twice, the same value.

    Attributes:
        vectors, lanes: how many vectors it has, of how many numbers; `wide` of them are of one index of `outer`.
        first: its first index of `outer`. start: its first column.
        tasks: how many strips x has.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: str, machine: Machine) -> None:
        self.outer, self.n, self.inner = shape
        self.lanes = vector_for(self.inner, machine.lanes())
        self.wide, self.count = shares(self.inner, self.lanes)
        together = 1
        if self.count == 1:  # no more at a time than leave a task for each core
            together = min(VECTORS // self.wide, max(1, self.outer // machine.cores))
        self.vectors = together * self.wide
        self.x = new_buffer("x", *shape, dtype=dtype)
        group, strip = tirx.Var("vouter", INDEX), tirx.Var("vstrip", INDEX)
        self.axes = [(group, -(-self.outer // together)), (strip, self.count)]
        self.first = _within(group * together, together, self.outer)
        self.start = _within(strip * (self.wide * self.lanes), self.wide * self.lanes, self.inner)
        self.tasks = prod(extent for _, extent in self.axes)
        self.buffers: list[Any] = []

    def local(self, name: str, dtype: str, rows: int = 1) -> Any:
        """Memory of a strip: `rows` of it."""
        self.buffers.append(new_buffer(name, rows, self.vectors * self.lanes, dtype=dtype))
        return self.buffers[-1]

    def each(self, body: Callable[[int], Any]) -> Any:
        """`body(v)` for each vector."""
        return seq([body(v) for v in range(self.vectors)])

    def rows(self, body: Callable[[Expr, int], Any], first: int = 0) -> Any:
        """`body(k, v)` for each k from `first` on, and each vector."""
        return loop(self.n - first, lambda k: self.each(lambda v: body(k + first, v)), "k")

    def own(self, buffer: Any, v: int, row: Any = 0) -> Expr:
        """Vector v of a buffer of the strip's own."""
        return load(buffer, row, self.here(v))

    def here(self, v: int) -> Expr:
        return vector(v * self.lanes, self.lanes)

    def outer_of(self, v: int) -> Expr:
        """The index of `outer` of vector v."""
        return self.first + v // self.wide

    def there(self, v: int) -> Expr:
        """The columns of vector v."""
        return vector(self.start + min(v % self.wide * self.lanes, self.inner - self.lanes), self.lanes)

    def read(self, k: Any, v: int) -> Expr:
        return load(self.x, self.outer_of(v), k, self.there(v))

    def function(self, y: Any, body: Any, name: str, cycles: float, machine: Machine) -> tirx.PrimFunc:
        """PrimFunc(x, y); `cycles` of a vector."""
        vectors = self.tasks * self.n * self.vectors
        notes = {"tvmopt.kernel": "rows", NANOSECONDS: vectors * cycles / machine.ghz}
        loops = nest(
            name, self.axes, ("outer", "strip"), [everything(self.x)], [everything(y)], body, self.buffers, notes
        )
        return prim_func([self.x, y], loops, OPAQUE)


def shares(columns: int, lanes: int) -> tuple[int, int]:
    """Vectors of a strip, and strips of all columns.

    >>> [shares(columns, 16) for columns in (16, 33, 64, 65, 784)]
    [(1, 1), (3, 1), (4, 1), (3, 2), (4, 13)]
    """
    vectors = -(-columns // lanes)
    strips = -(-vectors // VECTORS)
    return -(-vectors // strips), strips


def _within(start: Expr, width: int, extent: int) -> Expr:
    """`start`, or the earlier place from which `width` places end within `extent`, if there are as many."""
    if extent <= width:
        return const_index(0)
    return start if extent % width == 0 else tirx.min(start, const_index(extent - width))


def fits_softmax(shape: tuple[int, int, int], machine: Machine) -> bool:
    """Whether there is half a vector of columns, of which a strip's copy takes a quarter of L2 at most.

    Fewer columns are turned, and make full vectors of exponentials: of 1000x30x7 that takes 164 us of one core instead
    of 177, of 1000x30x8 184 instead of 98 (Zen 4).
    """
    return 2 * shape[2] >= machine.lanes() and 1 < shape[1] <= machine.l2 // 16 // (VECTORS * machine.lanes())


def softmax(shape: tuple[int, int, int], log: bool, machine: Machine) -> tirx.PrimFunc:
    """Softmax, or its logarithm, along the second axis of float32."""
    strip = Strip(shape, "float32", machine)
    y = new_buffer("y", *shape)
    peak, total = strip.local("peak", "float32"), strip.local("total", "float32")
    kept = strip.local("kept", "float32", strip.n)  # not in y: another task writes the columns that two strips share
    terms = [strip.local(f"term_{v}", "float32") for v in range(strip.vectors)]

    def first(v: int) -> Any:
        nought = store(total, splat(0.0, strip.lanes), 0, strip.here(v))
        return seq([nought, *(store(buffer, strip.read(0, v), 0, strip.here(v)) for buffer in (peak, kept))])

    def highest(k: Expr, v: int) -> Any:
        best = larger(strip.read(k, v), strip.own(peak, v))  # the sum shows a NaN
        return seq([store(peak, best, 0, strip.here(v)), store(kept, strip.read(k, v), k, strip.here(v))])

    def power(k: Expr, v: int) -> Any:
        term = math.exp_nonpositive(strip.own(kept, v, k) - strip.own(peak, v))
        made = [store(terms[v], term, 0, strip.here(v))]
        made += [] if log else [store(kept, strip.own(terms[v], v), k, strip.here(v))]
        return seq([*made, store(total, strip.own(total, v) + strip.own(terms[v], v), 0, strip.here(v))])

    def share(v: int) -> Any:
        sum_ = strip.own(total, v)
        return store(total, tirx.log(sum_) if log else splat(1.0, strip.lanes) / sum_, 0, strip.here(v))

    def result(k: Expr, v: int) -> Any:
        value, shared = strip.own(kept, v, k), strip.own(total, v)
        found = (value - strip.own(peak, v)) - shared if log else value * shared
        return store(y, found, strip.outer_of(v), k, strip.there(v))

    parts = [strip.each(first), strip.rows(highest, 1), strip.rows(power), strip.each(share), strip.rows(result)]
    return strip.function(y, seq(parts), "softmax", 18.0, machine)


def reduction(
    shape: tuple[int, int, int], kind: str, term: Callable[[Expr], Expr], machine: Machine
) -> tirx.PrimFunc:  # fmt: skip
    """Sum, mean, maximum or minimum of terms along the second axis of float32: [outer, inner]. So many numbers of a
    column are taken at a time that no sum waits for the one before."""
    strip = Strip(shape, "float32", machine)
    y = new_buffer("y", shape[0], shape[2])
    combine: Callable[[Expr, Expr], Expr] = {"max": tirx.max, "min": tirx.min}.get(kind, operator.add)
    ways = ways_of(strip.vectors, strip.n, machine)
    parts = [strip.local(f"part_{w}", "float32") for w in range(ways)]

    def begin(w: int) -> Any:
        return strip.each(lambda v: store(parts[w], term(strip.read(const_index(w), v)), 0, strip.here(v)))

    def add(k: Any, w: int) -> Any:
        def joined(v: int) -> Expr:
            return combine(strip.own(parts[w], v), term(strip.read(k, v)))

        return strip.each(lambda v: store(parts[w], joined(v), 0, strip.here(v)))

    def result(v: int) -> Any:
        total = strip.own(parts[0], v)
        for part in parts[1:]:
            total = combine(total, strip.own(part, v))
        total = total / splat(float(strip.n), strip.lanes) if kind == "mean" else total
        return store(y, total, strip.outer_of(v), strip.there(v))

    body = [begin(w) for w in range(ways)]
    body.append(loop(strip.n // ways - 1, lambda k: seq([add(k * ways + (ways + w), w) for w in range(ways)]), "k"))
    body += [add(const_index(strip.n - strip.n % ways + w), w) for w in range(strip.n % ways)]
    return strip.function(y, seq([*body, strip.each(result)]), f"{kind}_across", 1.0, machine)


def ways_of(vectors: int, n: int, machine: Machine) -> int:
    """Numbers of a column, neighbours, that a reduction adds up apart: so many sums are as many additions as a core has
    under way. Two at least: a maximum of 1000x30x3 takes 17 us so, 20 with one (Zen 4).

    >>> [ways_of(vectors, 30, Machine("m", "llvm", "x", fma_latency=4, fma_ports=2)) for vectors in (1, 3, 4)]
    [8, 2, 2]
    """
    return min(n, max(2, machine.fma_latency * machine.fma_ports // vectors))


def extreme(shape: tuple[int, int, int], dtype: str, highest: bool, machine: Machine) -> tirx.PrimFunc:
    """Where the first extreme stands along the second axis, or the first NaN: int64 [outer, inner].

    A NaN is never better and has a place of its own, so that a step waits for one maximum alone. The place that is read
    is counted in a vector: LLVM would move a scalar one into a vector for each comparison.
    """
    strip = Strip(shape, dtype, machine)
    y = new_buffer("y", shape[0], shape[2], dtype="int64")
    peak, place, now = strip.local("peak", dtype), strip.local("place", POSITION), strip.local("now", POSITION)
    nans = strip.local("nans", POSITION) if dtype.startswith("float") else None
    nowhere = splat(strip.n, strip.lanes, POSITION)

    def mark(number: Expr, before: Expr, v: int) -> list[Any]:
        """Keep the place that is read where there is the first NaN."""
        if nans is None:
            return []
        here = tirx.Select(tirx.isnan(number), strip.own(now, 0), nowhere)
        return [store(nans, tirx.min(before, here), 0, strip.here(v))]

    def first(v: int) -> Any:
        number = strip.read(0, v)
        here = store(place, strip.own(now, 0), 0, strip.here(v))
        return seq([here, *mark(number, nowhere, v), store(peak, number, 0, strip.here(v))])

    def step(k: Expr, v: int) -> Any:
        number, best = strip.read(k, v), strip.own(peak, v)
        better = number > best if highest else number < best
        return seq([
            store(place, tirx.Select(better, strip.own(now, 0), strip.own(place, v)), 0, strip.here(v)),
            *([] if nans is None else mark(number, strip.own(nans, v), v)),
            store(peak, tirx.Select(better, number, best), 0, strip.here(v)),
        ])  # fmt: skip

    def result(v: int) -> Any:
        found = strip.own(place, v)
        if nans is not None:
            found = tirx.Select(strip.own(nans, v) < nowhere, strip.own(nans, v), found)
        return store(y, found.astype(vector_type("int64", strip.lanes)), strip.outer_of(v), strip.there(v))

    begin = store(now, splat(0, strip.lanes, POSITION), 0, strip.here(0))
    following = store(now, strip.own(now, 0) + splat(1, strip.lanes, POSITION), 0, strip.here(0))
    steps = loop(strip.n - 1, lambda i: seq([following, strip.each(lambda v: step(i + 1, v))]), "k")
    parts = [begin, strip.each(first), steps, strip.each(result)]
    return strip.function(y, seq(parts), "argmax" if highest else "argmin", 3.0, machine)
