"""TopK: a heap of the best k of a row, whose root is the worst of them - one comparison for an element that stays out.

    heap of x[0 .. k);   for i >= k: if x[i] beats the root, it takes its place and sinks;   then the heap is sorted

n comparisons and, for random order, k log(n / k) sinkings of log k steps; TVM's own kernel sorts all n. Of equal values
the one with the lower index comes first, as ONNX asks: a later element never beats an equal one. NaN is larger than
every number, as for NumPy. The results' own memory holds the heap.

The largest one alone needs no heap: it stands where ArgMax (positions.py) finds it, in two passes of vectors.
"""

from __future__ import annotations

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
    store,
)
from tvmopt.schedules.cpu.rows import positions
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
LOW_FLOATS = ("float16", "bfloat16")
"""Compared in float32, which has every one of their numbers."""


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
        """Whether value a is better than value b; NaN is larger than every number."""
        before = a > b if self.largest else a < b
        if not self.real:
            return before
        nan, other = (a, b) if self.largest else (b, a)
        return tirx.any(before, tirx.all(tirx.isnan(nan), tirx.Not(tirx.isnan(other))))

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


def kernel(rows: int, n: int, k: int, dtype: str, place: str, largest: bool) -> Any:
    """A PrimFunc [rows, n] -> values [rows, k], indices [rows, k]."""
    shapes = ((dtype, "x", n), (dtype, "values", k), (place, "indices", k))
    x, values, indices = (new_buffer(name, rows, size, dtype=kind) for kind, name, size in shapes)
    row = tirx.Var("row", INDEX)
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

    def of_row(buffer: Any) -> Any:
        return BufferRegion(buffer, [Range.from_min_extent(row, const_index(1)), everything(buffer).region[1]])

    block = nest(
        "topk", [(row, rows)], ["r"], [of_row(x)], [of_row(values), of_row(indices)], seq(body), heap.buffers,
        {"tvmopt.kernel": "rows", NANOSECONDS: rows * (n + 60 * k)},
    )  # fmt: skip
    return prim_func([x, values, indices], block, OPAQUE)


def single(rows: int, n: int, dtype: str, largest: bool, lanes: int) -> Any:
    """The same PrimFunc for k = 1."""
    shapes = ((dtype, "x", n), (dtype, "values", 1), ("int64", "indices", 1))
    x, values, indices = (new_buffer(name, rows, size, dtype=kind) for kind, name, size in shapes)
    row, at = Row(n, lanes), tirx.Var("row", INDEX)
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
    else:
        func = kernel(rows, n, k, dtype, place, largest)
    types = [relax.TensorType([rows, k], dtype), relax.TensorType([rows, k], place)]
    both = bb.emit(relax.call_tir(bb.add_func(func, "topk"), [flat(bb, x, (rows, n))], types))

    def shaped(i: int) -> Any:
        y = bb.emit(relax.op.reshape(bb.emit(relax.TupleGetItem(both, i)), (*turned[:-1], k)))
        if i == 0 and declared != dtype:
            y = bb.emit(relax.op.astype(y, declared))
        return y if axis == last else bb.emit(relax.op.permute_dims(y, [order.index(i) for i in range(len(order))]))

    kind = str(attrs.ret_type)
    return relax.Tuple([shaped(0), shaped(1)]) if kind == "both" else shaped(0 if kind == "values" else 1)


LOWERS = {"relax.topk": topk}
