"""Softmax, ArgMax and reductions along another axis than the last: strips of neighbouring columns in vectors.

    x [outer, n, inner];  for a strip of up to four vectors of columns        a task
      softmax   m = max over k of x[k];  e[k] = exp(x[k] - m), s = sum over k of e[k];  y[k] = e[k] / s
      argmax    m, i = x[k], k wherever x[k] > m, or is the first NaN
      sum       s = sum over k of x[k], and likewise a mean and the extremes

Nothing is transposed, and x is read once from where it lies: softmax keeps a copy of its strip. The last strip begins
before its place where strips do not divide the columns.

Measured   one core of a Xeon with AVX-512, us, in brackets the better of onnxruntime and OpenVINO: softmax 21x128x128
           155 (373), 150x64x64 388 (717); ArgMax 150x64x64 91 (141), 2000x50 21 (34)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
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
from tvmopt.targets import Machine

Expr = Any
VECTORS = 4
"""Vectors of a strip: whole lines of memory, and exponentials that do not wait for each other."""
WAYS = 4
"""Rows that a reduction adds up apart."""
POSITION = "int32"


class Strip:
    """A strip of x [outer, n, inner] and what is computed of it.

    Attributes:
        vectors, lanes: how many vectors it has, of how many numbers. start: its first column.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: str, machine: Machine) -> None:
        self.outer, self.n, self.inner = shape
        self.lanes = machine.lanes()
        self.vectors = min(VECTORS, self.inner // self.lanes)
        width = self.vectors * self.lanes
        self.count = -(-self.inner // width)
        self.x = new_buffer("x", *shape, dtype=dtype)
        self.at, strip = tirx.Var("vouter", INDEX), tirx.Var("vstrip", INDEX)
        self.axes = [(self.at, self.outer), (strip, self.count)]
        even = self.inner % width == 0
        self.start = strip * width if even else tirx.min(strip * width, const_index(self.inner - width))
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

    def there(self, v: int) -> Expr:
        return vector(self.start + v * self.lanes, self.lanes)

    def read(self, k: Any, v: int) -> Expr:
        return load(self.x, self.at, k, self.there(v))

    def function(self, y: Any, body: Any, name: str, cycles: float, machine: Machine) -> tirx.PrimFunc:
        """PrimFunc(x, y); `cycles` of a vector."""
        vectors = self.outer * self.n * self.count * self.vectors
        notes = {"tvmopt.kernel": "rows", NANOSECONDS: vectors * cycles / machine.ghz}
        loops = nest(
            name, self.axes, ("outer", "strip"), [everything(self.x)], [everything(y)], body, self.buffers, notes
        )
        return prim_func([self.x, y], loops, OPAQUE)


def fits(shape: tuple[int, int, int], machine: Machine) -> bool:
    """Whether there are vectors of columns, of which a strip's copy takes a quarter of L2 at most."""
    return shape[2] >= machine.lanes() and 1 < shape[1] <= machine.l2 // 16 // (VECTORS * machine.lanes())


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
        return store(y, found, strip.at, k, strip.there(v))

    parts = [strip.each(first), strip.rows(highest, 1), strip.rows(power), strip.each(share), strip.rows(result)]
    return strip.function(y, seq(parts), "softmax", 18.0, machine)


def reduction(shape: tuple[int, int, int], kind: str, machine: Machine) -> tirx.PrimFunc:
    """Sum, mean, maximum or minimum along the second axis of float32, of WAYS numbers or more: [outer, inner]. So many
    rows are taken at a time that no sum waits for the one before."""
    strip = Strip(shape, "float32", machine)
    y = new_buffer("y", shape[0], shape[2])
    combine: Callable[[Expr, Expr], Expr] = {"max": tirx.max, "min": tirx.min}.get(kind, operator.add)
    parts = [strip.local(f"part_{w}", "float32") for w in range(WAYS)]

    def begin(w: int) -> Any:
        return strip.each(lambda v: store(parts[w], strip.read(const_index(w), v), 0, strip.here(v)))

    def add(k: Any, w: int) -> Any:
        def joined(v: int) -> Expr:
            return combine(strip.own(parts[w], v), strip.read(k, v))

        return strip.each(lambda v: store(parts[w], joined(v), 0, strip.here(v)))

    def result(v: int) -> Any:
        total = strip.own(parts[0], v)
        for part in parts[1:]:
            total = combine(total, strip.own(part, v))
        total = total / splat(float(strip.n), strip.lanes) if kind == "mean" else total
        return store(y, total, strip.at, strip.there(v))

    body = [begin(w) for w in range(WAYS)]
    body.append(loop(strip.n // WAYS - 1, lambda k: seq([add(k * WAYS + (WAYS + w), w) for w in range(WAYS)]), "k"))
    body += [add(const_index(strip.n - strip.n % WAYS + w), w) for w in range(strip.n % WAYS)]
    return strip.function(y, seq([*body, strip.each(result)]), f"{kind}_across", 1.0, machine)


def extreme(shape: tuple[int, int, int], dtype: str, highest: bool, machine: Machine) -> tirx.PrimFunc:
    """Where the first extreme stands along the second axis, or the first NaN: int64 [outer, inner]."""
    strip = Strip(shape, dtype, machine)
    y = new_buffer("y", shape[0], shape[2], dtype="int64")
    peak, place = strip.local("peak", dtype), strip.local("place", POSITION)

    def first(v: int) -> Any:
        nought = store(place, splat(0, strip.lanes, POSITION), 0, strip.here(v))
        return seq([store(peak, strip.read(0, v), 0, strip.here(v)), nought])

    def step(k: Expr, v: int) -> Any:
        number, best = strip.read(k, v), strip.own(peak, v)
        better = number > best if highest else number < best
        if dtype.startswith("float"):
            better = tirx.any(better, tirx.all(tirx.isnan(number), tirx.Not(tirx.isnan(best))))
        here = tirx.Broadcast(k.astype(POSITION), strip.lanes)
        return seq([
            store(place, tirx.Select(better, here, strip.own(place, v)), 0, strip.here(v)),
            store(peak, tirx.Select(better, number, best), 0, strip.here(v)),
        ])  # fmt: skip

    def result(v: int) -> Any:
        wide = strip.own(place, v).astype(vector_type("int64", strip.lanes))
        return store(y, wide, strip.at, strip.there(v))

    parts = [strip.each(first), strip.rows(step, 1), strip.each(result)]
    return strip.function(y, seq(parts), "argmax" if highest else "argmin", 3.0, machine)
