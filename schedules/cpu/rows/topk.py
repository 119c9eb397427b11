"""TopK: a heap of the best k of a row, whose root is the worst of them - one comparison for an element that stays out.

    heap of x[0 .. k);   for i >= k: if x[i] beats the root, it takes its place and sinks;   then the heap is sorted

n comparisons and, for random order, k log(n / k) sinkings of log k steps; TVM's own kernel sorts all n. Of equal values
the one with the lower index comes first, as ONNX asks: a later element never beats an equal one. NaN is larger than
every number, as for NumPy. The results' own memory holds the heap.

A few are a sorted list in registers instead, into which a number is put by comparing it with all of them at once. And
blocks of two vectors without one that beats the last are passed over. More of them are found and ranked by comparisons
of vectors (ranked.py), and a heap is left for numbers of 64 bits and very long rows.

The largest one alone needs no heap: it stands where ArgMax (positions.py) finds it, in two passes of vectors.

Measured   Zen 5, one core, us for 100 rows, in brackets the heap and onnxruntime: 5 of 8400 114 (485, 335), 5 of 1000
           40 (94, 65)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OPAQUE, flat, static_shape
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
)
from tvmopt.schedules.cpu.rows import positions
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.schedules.cpu.rows.ranked import KEYED, LONGEST, Chosen, Keys, Ranks, choose_cycles, chooses, rank_cycles
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
LOW_FLOATS = ("float16", "bfloat16")
"""Compared in float32, which has every one of their numbers."""

FEW = 8
"""Numbers of a list that is kept in registers."""
PASSED = 2
"""Vectors of a block that is passed over where none of its numbers counts."""


def _beats(a: Expr, b: Expr, largest: bool, real: bool) -> Expr:
    """Whether value a is better than value b; NaN is larger than every number."""
    before = a > b if largest else a < b
    if not real:
        return before
    nan, other = (a, b) if largest else (b, a)
    return tirx.any(before, tirx.all(tirx.isnan(nan), tirx.Not(tirx.isnan(other))))


class _Heap:
    """Statements over one row of values and their indices, the worst of a heap of `size` at 0."""

    def __init__(self, values: Any, indices: Any, row: Expr, largest: bool) -> None:
        self.values, self.indices, self.row, self.largest = values, indices, row, largest
        dtype, place = str(values.dtype), str(indices.dtype)
        self.real = dtype.startswith("float")
        self.buffers = [
            new_buffer(name, 1, dtype=kind)
            for kind, name in ((dtype, "value"), (place, "index"), (INDEX, "at"), (INDEX, "child"))
        ]

    def get(self, k: Expr) -> tuple[Expr, Expr]:
        return load(self.values, self.row, k), load(self.indices, self.row, k)

    def put(self, k: Expr, value: Expr, index: Expr) -> list[Any]:
        return [store(self.values, value, self.row, k), store(self.indices, index, self.row, k)]

    def beats(self, a: Expr, b: Expr) -> Expr:
        return _beats(a, b, self.largest, self.real)

    def equal(self, a: Expr, b: Expr) -> Expr:
        """Whether neither is better."""
        return tirx.any(a.equal(b), tirx.all(tirx.isnan(a), tirx.isnan(b))) if self.real else a.equal(b)

    def worse(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        """Whether a comes behind b: of equals, the later one."""
        return tirx.any(self.beats(b[0], a[0]), tirx.all(self.equal(a[0], b[0]), a[1] > b[1]))

    def sink(self, start: Expr, size: Expr) -> Any:
        """Let the element at `start` sink below those that are worse, in a heap of `size`."""
        value, index, at, child = self.buffers
        here, down = load(at, 0), load(child, 0)
        held = load(value, 0), load(index, 0)
        take = seq([*self.put(here, *self.get(down)), store(at, down, 0), store(child, 2 * down + 1, 0)])
        right = self.worse(self.get(down + 1), self.get(down))
        choose = tirx.IfThenElse(down + 1 < size, tirx.IfThenElse(right, store(child, down + 1, 0), None), None)
        step = tirx.IfThenElse(self.worse(self.get(down), held), take, store(child, size, 0))  # or: it stays here
        return seq([
            store(value, self.get(start)[0], 0), store(index, self.get(start)[1], 0),
            store(at, start, 0), store(child, 2 * start + 1, 0),
            tirx.While(down < size, seq([choose, step])),
            *self.put(here, *held),
        ])  # fmt: skip


class _List:
    """Statements over the best `k` of a row so far, in order, in registers."""

    def __init__(self, k: int, dtype: str, place: str, largest: bool) -> None:
        self.k, self.place, self.largest, self.real = k, place, largest, dtype.startswith("float")
        self.values, self.indices = new_buffer("best", k, dtype=dtype), new_buffer("where", k, dtype=place)
        self.behind, self.offered = new_buffer("behind", k, dtype="int32"), new_buffer("offered", 1, dtype=dtype)
        self.buffers = [self.values, self.indices, self.behind, self.offered]

    def put(self, value: Expr, index: Expr, count: int) -> Any:
        """A number into a list of `count`, behind those that it does not beat; the last of `k` falls out."""
        offered, place = load(self.offered, 0), index.astype(self.place)
        found = [store(self.offered, value, 0)]
        for j in range(count):
            beaten = _beats(offered, load(self.values, j), self.largest, self.real)
            found.append(store(self.behind, tirx.Select(beaten, tirx.const(1, "int32"), tirx.const(0, "int32")), j))
        for j in reversed(range(min(count + 1, self.k))):
            for buffer, new in ((self.values, offered), (self.indices, place)):
                moved = tirx.Select(load(self.behind, j - 1) > 0, load(buffer, j - 1), new) if j else new
                kept = tirx.Select(load(self.behind, j) > 0, moved, load(buffer, j)) if j < count else moved
                found.append(store(buffer, kept, j))
        return seq(found)

    def none_counts(self, vectors: list[Expr], lanes: int) -> tuple[list[Any], Expr, list[Any]]:
        """Statements, whether no number of some vectors beats the last of the list, and buffers of the statements."""
        worst = tirx.Broadcast(load(self.values, self.k - 1), lanes)
        ones = [
            tirx.Select(_beats(v, worst, self.largest, self.real), splat(1, lanes, "int32"), splat(0, lanes, "int32"))
            for v in vectors
        ]
        row = Row(lanes, lanes)
        hits = row.across(sum(ones[1:], ones[0]), operator.add, "int32")
        return row.statements, hits.equal(0), row.buffers


def few(rows: int, n: int, k: int, dtype: str, place: str, largest: bool, lanes: int) -> Any:
    """The PrimFunc of :func:`kernel` for a list in registers."""
    x, values, indices, row = _arguments(rows, n, k, dtype, place)
    best = _List(k, dtype, place, largest)

    def offer(i: Expr) -> Any:
        counts = _beats(load(x, row, i), load(best.values, k - 1), largest, best.real)
        return tirx.IfThenElse(counts, best.put(load(x, row, i), i, k), None)

    body = [best.put(load(x, row, i), const_index(i), i) for i in range(k)]
    width, buffers = PASSED * lanes, list(best.buffers)
    blocks = (n - k) // width

    def block(b: Expr) -> Any:
        first = b * width + k
        vectors = [load(x, row, vector(first + v * lanes, lanes)) for v in range(PASSED)]
        look, none, more = best.none_counts(vectors, lanes)
        buffers.extend(more)
        return seq([*look, tirx.IfThenElse(none, tirx.Evaluate(0), loop(width, lambda i: offer(first + i), "i"))])

    if blocks:
        body.append(loop(blocks, block, "b"))
    if rest := n - k - blocks * width:
        body.append(loop(rest, lambda i: offer(i + (n - rest)), "i"))
    for j in range(k):
        body += [store(values, load(best.values, j), row, j), store(indices, load(best.indices, j), row, j)]
    return _of_rows(x, values, indices, row, body, buffers, rows * (n / 4 + 60 * k))


def ranked(rows: int, n: int, k: int, dtype: str, place: str, largest: bool, lanes: int) -> Any:
    """The PrimFunc of :func:`kernel` by ranks: of all numbers of a row, or of the best k."""
    x, values, indices, row = _arguments(rows, n, k, dtype, place)
    keys, at = Keys(n, lanes), new_buffer("at", 1, dtype=INDEX)
    body, buffers = keys.keep(x, row, largest), [*keys.buffers, at]
    source: Callable[[Expr], Expr]
    if chooses(n, k, lanes):
        chosen = Chosen(keys, k)
        ranks, cycles, source = Ranks(chosen.best), choose_cycles(n, k, lanes), chosen.place
        body += chosen.choose()
        buffers += chosen.buffers
    else:
        ranks, cycles, source = Ranks(keys), rank_cycles(n, lanes), lambda i: i

    def put(i: Expr) -> Any:
        here, place_of = load(at, 0), source(i)
        found = [store(values, load(x, row, place_of), row, here), store(indices, place_of.astype(place), row, here)]
        inside = seq(found) if ranks.keys.n == k else tirx.IfThenElse(here < k, seq(found), None)
        return seq([store(at, load(ranks.ranks, i).astype(INDEX), 0), inside])

    body += [ranks.rank(), loop(ranks.keys.n, put, "i")]
    return _of_rows(x, values, indices, row, body, [*buffers, ranks.ranks], rows * cycles / 4)


def _arguments(rows: int, n: int, k: int, dtype: str, place: str) -> tuple[Any, Any, Any, Any]:
    """x, values and indices, and the variable of a row."""
    shapes = ((dtype, "x", n), (dtype, "values", k), (place, "indices", k))
    x, values, indices = (new_buffer(name, rows, size, dtype=kind) for kind, name, size in shapes)
    return x, values, indices, tirx.Var("row", INDEX)


def _of_rows(x: Any, values: Any, indices: Any, row: Any, body: list[Any], buffers: list[Any], time: float) -> Any:
    """The PrimFunc whose rows have these statements and buffers; `time`: of all, in nanoseconds."""

    def of_row(buffer: Any) -> Any:
        return BufferRegion(buffer, [Range.from_min_extent(row, const_index(1)), everything(buffer).region[1]])

    block = nest(
        "topk", [(row, int(x.shape[0]))], ["r"], [of_row(x)], [of_row(values), of_row(indices)], seq(body), buffers,
        {"tvmopt.kernel": "rows", NANOSECONDS: time},
    )  # fmt: skip
    return prim_func([x, values, indices], block, OPAQUE)


def kernel(rows: int, n: int, k: int, dtype: str, place: str, largest: bool) -> Any:
    """A PrimFunc [rows, n] -> values [rows, k], indices [rows, k]."""
    x, values, indices, row = _arguments(rows, n, k, dtype, place)
    heap = _Heap(values, indices, row, largest)

    def enter(at: Expr, i: Expr) -> list[Any]:
        return heap.put(at, load(x, row, i), i.astype(place))

    def swap(e: Expr) -> Any:
        last = const_index(k - 1) - e
        value, index = heap.buffers[0], heap.buffers[1]
        held = [store(value, heap.get(last)[0], 0), store(index, heap.get(last)[1], 0)]
        back = heap.put(const_index(0), load(value, 0), load(index, 0))
        return seq([*held, *heap.put(last, *heap.get(const_index(0))), *back, heap.sink(const_index(0), last)])

    def offer(i: Expr) -> Any:
        better = heap.beats(load(x, row, i + k), heap.get(const_index(0))[0])
        zero = const_index(0)
        return tirx.IfThenElse(better, seq([*enter(zero, i + k), heap.sink(zero, const_index(k))]), None)

    body = [loop(k, lambda i: seq(enter(i, i)), "i")]
    if k > 1:
        body.append(loop(k // 2, lambda i: heap.sink(const_index(k // 2 - 1) - i, const_index(k)), "i"))
    if n > k:
        body.append(loop(n - k, offer, "i"))
    if k > 1:
        body.append(loop(k - 1, swap, "e"))
    return _of_rows(x, values, indices, row, body, heap.buffers, rows * (n + 60 * k))


def single(rows: int, n: int, dtype: str, largest: bool, lanes: int) -> Any:
    """The same PrimFunc for k = 1."""
    x, values, indices, at = _arguments(rows, n, 1, dtype, "int64")
    row = Row(n, lanes)
    positions.program(largest, dtype)(row, [x, indices], (at,))
    row.statements.append(store(values, load(x, at, load(indices, at, 0)), at, 0))
    block = row.block("topk", [rows], [everything(x)], [everything(values), everything(indices)], [at], "rows")
    return prim_func([x, values, indices], block, OPAQUE)


def topk(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.topk`, static."""
    x, attrs = call.args[0], call.attrs
    shape, dtype, k = static_shape(x), str(x.ty.dtype), int(attrs.k)
    if (
        not shape
        or 0 in shape
        or dtype not in (*DTYPES, *LOW_FLOATS)
        or k < 1
        or str(attrs.dtype) not in ("int32", "int64")
    ):
        return Declined(f"an open or empty shape, or the type {dtype}")
    declared, dtype = dtype, "float32" if dtype in LOW_FLOATS else dtype
    if declared != dtype:
        x = bb.emit(relax.op.astype(x, dtype))
    axis, last = int(attrs.axis) % len(shape), len(shape) - 1
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    turned = [shape[i] for i in order]
    if axis != last:
        x = bb.emit(relax.op.permute_dims(x, order))
    rows, n = prod(turned[:-1]), turned[-1]
    k = min(k, n)
    place = str(attrs.dtype)
    largest = bool(attrs.largest)
    first = largest or not dtype.startswith("float")  # ArgMin puts NaN before every number
    if k == 1 and place == "int64" and n < 2**31 and first:
        func = single(rows, n, dtype, largest, machine.lanes())
    elif k <= FEW:
        func = few(rows, n, k, dtype, place, largest, machine.lanes() // (2 if dtype.endswith("64") else 1))
    elif dtype in KEYED and n <= LONGEST:
        func = ranked(rows, n, k, dtype, place, largest, machine.lanes())
    else:
        func = kernel(rows, n, k, dtype, place, largest)
    types = [relax.TensorType([rows, k], dtype), relax.TensorType([rows, k], place)]
    both = bb.emit(relax.call_tir(bb.add_func(func, "topk"), [flat(bb, x, (rows, n))], types))

    def shaped(i: int) -> Any:
        y = flat(bb, bb.emit(relax.TupleGetItem(both, i)), (*turned[:-1], k))
        if i == 0 and declared != dtype:
            y = bb.emit(relax.op.astype(y, declared))
        return y if axis == last else bb.emit(relax.op.permute_dims(y, [order.index(i) for i in range(len(order))]))

    kind = str(attrs.ret_type)
    return relax.Tuple([shaped(0), shaped(1)]) if kind == "both" else shaped(0 if kind == "values" else 1)


LOWERS = {"relax.topk": topk}
