"""Scaled-dot-product attention as one kernel a head: scores and probabilities never leave the cache.

For a strip of Q = nq*V queries of one head, all in vectors over the *queries*::

    Qt[d, i]   = scale * q[i, d]                    the strip, transposed: S*D moves a head in all
    St[j, i]   = sum_d k[j, d] * Qt[d, i]           mk x nq register tiles: k is broadcast, nothing of K is repacked
    m[i]       = max_j (St + mask);  St = exp(St - m);  l[i] = sum_j St    vertical: no sum across lanes anywhere
    o[i, d]    = (sum_j St[j, i] * v[j, d]) / l[i]  mo x no register tiles: St is the broadcast operand, as it lies

With the queries in the lanes softmax needs no horizontal step and both products read K and V in their own
layout, [B, S, N, H]. With bfloat16 operands (`--precision bf16`) the kernel widens what it loads and rounds what it
stores; its arithmetic stays float32. A causal strip stops at its last visible key (half the work). The strip of scores,
Sk*Q*4 bytes, is in L2 up to 4096 keys. Float32, static shapes; anything else is TVM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering import math
from tvmopt.lowering.common import OPAQUE, OUT_ELEMENTWISE_FUSABLE, Symbols, call_with_pattern, constant, sizes
from tvmopt.lowering.loops import (
    INDEX,
    as_index,
    const_index,
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
from tvmopt.lowering.lower_extrema import larger
from tvmopt.operators.stored import CARRIERS, FLOAT, elements
from tvmopt.schedules.cpu._attention_plan import (
    AttentionPlan,
    cached_plan,
    ceil_div,
    is_one,
    output_type,
    plan_of,
    with_mask,
)
from tvmopt.schedules.cpu._attention_tasks import KEYS_AXIS
from tvmopt.schedules.cpu.attention.one_query import OneQuery, fits
from tvmopt.schedules.cpu.attention.stored_rows import StoredRows
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any


def attention_func(p: AttentionPlan, dtype: str = "float32", handed: Sequence[Any] = ()) -> Any:
    """The PrimFunc(q, k, v, [bias], [handed], out); `dtype` of q, k, v and out; `handed`: symbols of open sizes that
    are no tensor's size."""
    return _Attention(p, dtype, handed).func()


class _Attention:
    """Writes the kernel of a plan."""

    def __init__(self, p: AttentionPlan, dtype: str = "float32", handed: Sequence[Any] = ()) -> None:
        self.p, self.dtype, self.handed = p, dtype, handed
        self.q = new_buffer("q", p.batch, p.queries, p.heads, p.depth, dtype=dtype)
        rows = (p.keys, p.kv_heads) if p.capacity is None else (p.kv_heads, p.capacity)
        texts = p.batch if p.apart is None else p.cache_batch
        kind = dtype if p.stored == FLOAT else CARRIERS[p.stored]
        self.k = new_buffer("k", texts, *rows, elements(p.depth, p.stored), dtype=kind)
        self.v = new_buffer("v", texts, *rows, elements(p.depth_v, p.stored), dtype=kind)
        self.key_rows, self.value_rows = StoredRows(self.k, p.depth, p.stored), StoredRows(self.v, p.depth_v, p.stored)
        self.places = None if p.apart is None else new_buffer("places", 2, p.queries, dtype=INDEX)
        self.bias = new_buffer("bias", *p.bias) if p.bias else None
        self.out = new_buffer("out", p.batch, p.queries, p.heads, p.depth_v, dtype=dtype)
        self.locals: list[Any] = []
        self.qt = self._local("qt", p.depth * p.strip)
        self.st = self._local("st", p.keys * p.strip)
        self.top = self._local("top", p.strip)
        self.total = self._local("total", p.strip)
        self.acc = self._local("acc", max(p.mk * p.nq * p.lanes, p.output_tile[0] * p.output_tile[1] * p.output_lanes))
        self.unpacked = self._local("unpacked", p.mk * p.depth) if p.stored != FLOAT else None
        self.b, self.h, self.chunk = (tirx.Var(n, INDEX) for n in ("vb", "vh", "vc"))
        if self.places is not None:
            self.task = new_buffer("task", 2, dtype=INDEX)
            self.locals.append(self.task)

    def _local(self, name: str, size: Any) -> Any:
        buffer = new_buffer(name, size)
        self.locals.append(buffer)
        return buffer

    def key_at(self, key: Expr, head: Expr | None = None) -> tuple[Expr, Expr, Expr]:
        """Where a key, or its value, stands of this head of queries (default: the task's)."""
        p, head = self.p, self.h if head is None else head
        head = tirx.floordiv(head * p.kv_heads, p.heads) if p.kv_heads != p.heads else head
        if p.capacity is None:
            return self.b, key, head
        return self.text() if self.places is not None else self.b, head, key

    def text(self) -> Expr:
        """Which text the task is of, where queries have places."""
        return load(self.task, 0)

    # -- tasks of one query -------------------------------------------------------------------------

    @property
    def single(self) -> Any:
        """Whether tasks have one query: a condition, or known."""
        p = self.p
        if p.capacity is None or self.dtype != "float32" or not fits(p):
            return False
        if isinstance(p.queries, int):
            return p.queries == 1
        return p.queries == 1 if p.apart is None else tirx.any(p.queries == 1, p.apart == 1)

    @property
    def runs(self) -> Any:
        """Runs of keys of a query at most."""
        return ceil_div(self.p.keys, self.p.run)

    def query_of(self, chunk: Expr) -> tuple[Expr, Expr]:
        """The query of a task that has one, and which of its runs of keys."""
        if self.places is None:
            return const_index(0), chunk
        return tirx.floordiv(chunk, as_index(self.runs)), tirx.floormod(chunk, as_index(self.runs))

    def keys_of(self, query: Expr) -> Expr:
        """How many keys a query sees that is a task's only one."""
        return as_index(self.p.keys) if self.places is None else load(self.places, 1, query) + 1

    def own_keys(self) -> Expr:
        """The same of the task."""
        return as_index(self.p.keys) if self.places is None else load(self.task, 1)

    def of_one_query(self, other: Any, count: Any = None) -> Any:
        """A count (default: of tasks a head, queries times runs of keys) where tasks have one query, else another."""
        p, single = self.p, self.single
        count = (p.queries * self.runs if self.places is not None else self.runs) if count is None else count
        if isinstance(single, bool):
            return count if single else other
        flag = tirx.Cast("int64", single)
        return flag * count + (1 - flag) * other

    def _placed(self, body: Any, row: Expr) -> Any:
        """A task behind the place of one of its queries: of a strip all queries are of one text."""
        if self.places is None:
            return body
        text, position = (load(self.places, i, row) for i in (0, 1))
        return seq([store(self.task, text, 0), store(self.task, position + 1, 1), body])

    def _narrow(self, value: Expr) -> Expr:
        if self.dtype == "float32":
            return value
        return value.astype(vector_type(self.dtype, self.p.output_lanes))

    def func(self) -> Any:
        p = self.p
        inputs = [self.q, self.k, self.v, *(b for b in (self.places, self.bias) if b is not None)]
        one = None if self.single is False else OneQuery(self)
        heads = self.of_one_query(p.heads, p.heads // p.shared)
        axes = [(self.b, p.batch), (self.h, heads), (self.chunk, self.of_one_query(p.chunks))]
        reads = list(map(everything, inputs))
        if p.capacity is not None:  # how many keys count is read off the region
            reads[1:3] = [first_rows(b, p.keys) for b in (self.k, self.v)]
        found = one.found if one is not None else []
        body = nest(
            "attention", axes, "bhc", reads, list(map(everything, (self.out, *found))), self._tasks(one),
            self.locals, {"tvmopt.kernel": "attention", **({} if p.capacity is None else {KEYS_AXIS: 2})},
        )  # fmt: skip
        body = body if one is None else seq([body, one.together()])
        return prim_func([*inputs, *self.handed, self.out], body, OUT_ELEMENTWISE_FUSABLE, found)

    def _tasks(self, one: OneQuery | None) -> Any:
        if one is None:
            return self._strips()
        task = self._placed(one.task(), one.query_row)
        if self.single is True:
            return task
        strip = self._placed(self._strip(self.chunk * self.p.strip), const_index(0))  # each strip is a chunk
        return tirx.IfThenElse(self.single, task, strip)

    def _strips(self) -> Any:
        if not isinstance(self.p.chunks, int):
            return self._strip(self.chunk * self.p.strip)
        each = self.p.strips // self.p.chunks
        return loop(each, lambda s: self._strip((self.chunk * each + s) * self.p.strip), "s")

    def _strip(self, first: Expr) -> Any:
        """Queries first .. first + strip."""
        p = self.p
        visible: Expr = as_index(p.keys)
        if p.offset is not None:  # keys that the last query of the strip sees
            visible = tirx.max(tirx.min(visible, first + (p.strip + p.offset)), const_index(1))
        return seq([
            self._transpose(first), self._start(), self._scores(first, visible), self._softmax(visible),
            self._output(first, visible),
        ])  # fmt: skip

    def _transpose(self, first: Expr) -> Any:
        p = self.p

        def one(i: Expr, d: Expr) -> Any:
            row = tirx.min(first + i, as_index(p.queries - 1)) if self.ragged else first + i
            return store(
                self.qt,
                _wide(load(self.q, self.b, row, self.h, d)) * tirx.const(p.scale, "float32"),
                d * p.strip + i,
            )

        return loop(p.strip, lambda i: loop(p.depth, lambda d: one(i, d), "d"), "i")

    def _start(self) -> Any:
        minus = splat(float("-inf"), self.p.lanes)
        return seq([store(self.top, minus, vector(u * self.p.lanes, self.p.lanes)) for u in range(self.p.nq)])

    # -- scores -------------------------------------------------------------------------------------

    @property
    def ragged(self) -> bool:
        """Whether the last strip may have fewer queries."""
        return not isinstance(self.p.queries, int) or self.p.queries % self.p.strip > 0

    def _open_scores(self, first: Expr, visible: Expr) -> Any:
        """Tiles of keys whose number is open: the last one moved up, so that it computes some scores twice; fewer keys
        than a tile one by one."""
        p = self.p
        many = loop(
            tirx.floordiv(visible + (p.mk - 1), p.mk),
            lambda t: self._score_tile(first, tirx.min(t * p.mk, p.keys - p.mk), p.mk),
            "t",
        )
        return tirx.IfThenElse(p.keys >= p.mk, many, loop(visible, lambda t: self._score_tile(first, t, 1), "t"))

    def _scores(self, first: Expr, visible: Expr) -> Any:
        p = self.p
        if not isinstance(p.keys, int):
            return self._open_scores(first, visible)
        full, rest = divmod(p.keys, p.mk)
        if p.offset is None:
            parts = [loop(full, lambda t: self._score_tile(first, t * p.mk, p.mk), "t")]
            return seq([*parts, *([self._score_tile(first, const_index(full * p.mk), rest)] if rest else [])])
        tiles = tirx.min(tirx.floordiv(visible + (p.mk - 1), p.mk), const_index(full))
        parts = [loop(tiles, lambda t: self._score_tile(first, t * p.mk, p.mk), "t")]
        if rest:
            parts.append(
                tirx.IfThenElse(visible > full * p.mk, self._score_tile(first, const_index(full * p.mk), rest), None)
            )
        return seq(parts)

    def _score_tile(self, first: Expr, key: Expr, rows: int) -> Any:
        """St[key .. key + rows] and the running maximum."""
        p, lanes = self.p, self.p.lanes

        def at(j: int, u: int) -> Expr:
            return vector((j * p.nq + u) * lanes, lanes)

        tile = [(j, u) for j in range(rows) for u in range(p.nq)]
        unpacked = [] if self.unpacked is None else [self._unpack(key, rows, self.unpacked)]
        statements = [*unpacked, *(store(self.acc, splat(0.0, lanes), at(j, u)) for j, u in tile)]

        def step(d: Expr) -> Any:
            out = []
            for j in range(rows):
                scalar = tirx.Broadcast(self._of_key(key, j, d), lanes)
                for u in range(p.nq):
                    query = load(self.qt, vector(d * p.strip + u * lanes, lanes))
                    out.append(store(self.acc, load(self.acc, at(j, u)) + scalar * query, at(j, u)))
            return seq(out)

        statements.append(loop(p.depth, step, "d"))
        for j, u in tile:
            place = vector((key + j) * p.strip + u * lanes, lanes)
            statements.append(store(self.st, self._masked(load(self.acc, at(j, u)), first, key + j, u), place))
        for u in range(
            p.nq
        ):  # a store for each key: `larger` names both values twice, and nested that doubles each time
            top = vector(u * lanes, lanes)
            for j in range(rows):
                score = load(self.st, vector((key + j) * p.strip + u * lanes, lanes))
                statements.append(store(self.top, larger(load(self.top, top), score), top))
        return seq(statements)

    def _of_key(self, key: Expr, j: int, d: Expr) -> Expr:
        """Number d of key j of a tile."""
        if self.unpacked is not None:
            return load(self.unpacked, j * self.p.depth + d)
        return self.key_rows.numbers(self.key_at(key + j), d, 1)

    def _unpack(self, key: Expr, rows: int, to: Any) -> Any:
        """The keys of a tile in float32."""
        depth, lanes = self.p.depth, gcd(self.p.depth, self.p.lanes)

        def row(j: int) -> Any:
            where = self.key_at(key + j)

            def part(d: Expr) -> Any:
                found = self.key_rows.numbers(where, d * lanes, lanes)
                found = found * spread(self.key_rows.step(where), lanes) if self.key_rows.has_steps else found
                return store(to, found, vector(j * depth + d * lanes, lanes))

            return loop(depth // lanes, part, "d")

        return seq([row(j) for j in range(rows)])

    def _masked(self, score: Expr, first: Expr, key: Expr, u: int) -> Expr:
        p, lanes = self.p, self.p.lanes
        if self.bias is not None and p.bias is not None:
            b = const_index(0) if is_one(p.bias[0]) else self.b
            h = const_index(0) if is_one(p.bias[1]) else self.h
            if p.bias_transposed:
                mask = load(self.bias, b, h, key, vector(first + u * lanes, lanes))
            else:  # the same for every query
                j = const_index(0) if is_one(p.bias[3]) else key
                mask = tirx.Broadcast(load(self.bias, b, h, const_index(0), j), lanes)
            score = with_mask(p, score, mask)
        if p.offset is not None:
            last = tirx.Ramp(first + (u * lanes + p.offset), const_index(1), lanes)
            score = tirx.Select(tirx.Broadcast(key, lanes) <= last, score, splat(float("-inf"), lanes))
        return score

    # -- softmax and output -------------------------------------------------------------------------

    def _softmax(self, visible: Expr) -> Any:
        p, lanes = self.p, self.p.lanes
        cells = [vector(u * lanes, lanes) for u in range(p.nq)]
        zero = [store(self.total, splat(0.0, lanes), cell) for cell in cells]

        def weigh(j: Expr) -> Any:
            out = []
            for u, cell in enumerate(cells):
                place = vector(j * p.strip + u * lanes, lanes)
                value = math.exp_nonpositive(load(self.st, place) - load(self.top, cell))
                out.append(store(self.st, value, place))
                out.append(store(self.total, load(self.total, cell) + load(self.st, place), cell))
                if self.value_rows.has_steps:
                    step = spread(self.value_rows.step(self.key_at(j)), lanes)
                    out.append(store(self.st, load(self.st, place) * step, place))
            return seq(out)

        inverse = [store(self.total, splat(1.0, lanes) / load(self.total, cell), cell) for cell in cells]
        return seq([*zero, loop(visible, weigh, "j"), *inverse])

    def _output(self, first: Expr, visible: Expr) -> Any:
        p = self.p
        mo, no = p.output_tile
        return loop(
            p.output_vectors // no,
            lambda d: loop(p.strip // mo, lambda t: self._output_tile(first, visible, t * mo, d * no), "t"),
            "db",
        )

    def _output_tile(self, first: Expr, visible: Expr, query: Expr, vectors: Expr) -> Any:
        """Some vectors of some queries; `vectors`: the number of the first."""
        p, lanes = self.p, self.p.output_lanes
        mo, no = p.output_tile

        def depth(n: int) -> Expr:
            """Where a vector begins; the last one is moved back to end with the depth."""
            begin = (vectors + n) * lanes
            return begin if p.depth_v % lanes == 0 else tirx.min(begin, const_index(p.depth_v - lanes))

        def at(i: int, n: int) -> Expr:
            return vector((i * no + n) * lanes, lanes)

        tile = [(i, n) for i in range(mo) for n in range(no)]
        zero = tirx.const(0.0, "float32")
        start = [store(self.acc, splat(0.0, lanes) if lanes > 1 else zero, at(i, n)) for i, n in tile]

        def step(j: Expr) -> Any:
            out = []
            for i in range(mo):
                weight = spread(load(self.st, j * p.strip + query + i), lanes)
                for n in range(no):
                    value = self.value_rows.numbers(self.key_at(j), depth(n), lanes)
                    out.append(store(self.acc, load(self.acc, at(i, n)) + weight * value, at(i, n)))
            return seq(out)

        finish = []
        place = [vector(depth(n), lanes) for n in range(no)]
        for i in range(mo):
            scale = spread(load(self.total, query + i), lanes)
            row = first + query + i
            puts = seq([
                store(self.out, self._narrow(load(self.acc, at(i, n)) * scale), self.b, row, self.h, place[n])
                for n in range(no)
            ])  # fmt: skip
            finish.append(tirx.IfThenElse(row < p.queries, puts, None) if self.ragged else puts)
        return seq([*start, loop(visible, step, "j"), *finish])


def first_rows(cache: Any, rows: Any) -> Any:
    """The region of the first rows of a cache [B, N, capacity, H]."""
    extents = [*cache.shape[:2], as_index(rows), cache.shape[3]]
    return BufferRegion(cache, [Range.from_min_extent(const_index(0), d) for d in extents])


def _wide(value: Expr) -> Expr:
    """A loaded number, or vector of them, in float32."""
    return value.astype(vector_type("float32", int(value.ty.dtype.lanes)))


# -- lowering -------------------------------------------------------------------------------------


def attention(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.attention`, `R.nn.attention_bias` and `tvmopt.masked_attention`: q, k, v as [B, S, N, H]."""
    symbols, args = Symbols(), list(call.args)
    p = plan_of(call, machine, [symbols.of(a) for a in args])
    if isinstance(p, Declined):
        return p
    return _called(bb, call, p, symbols, args, (sizes(call.args[1]) or ())[1])


def cached_attention(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.cached_attention`: q as [B, S, N, H], keys and values as the first rows of caches [B, N, capacity, H]."""
    symbols = Symbols()
    p = cached_plan(call, machine, symbols)
    if isinstance(p, Declined):
        return p
    if p.apart is not None and not fits(p):
        return Declined(f"heads of {p.depth} numbers, for tokens of several texts")
    return _called(bb, call, p, symbols, [*call.args[:3], *call.args[4:]], call.args[3].values[0])


def _called(
    bb: relax.BlockBuilder, call: relax.Call, p: AttentionPlan, symbols: Symbols, args: list[Any], keys: Any
) -> Any:
    """The kernel of a plan and its call; `args`: q, k, v and the places or the mask, if there are any."""
    if p.apart is not None:
        symbols.of(args[3])
    elif len(args) == 4:
        args[3], transposed = _bias(bb, args[3], p, (sizes(call.args[0]) or ())[1], keys)
        p = replace(p, bias=symbols.of(args[3]), bias_transposed=transposed)
    handed = symbols.to_hand_over()
    func = attention_func(p, str(call.args[0].ty.dtype), handed)
    return relax.call_tir(bb.add_func(func, "attention"), [*args, *symbols.named(handed)], output_type(call))


def _bias(bb: relax.BlockBuilder, bias: Any, p: AttentionPlan, queries: Any, keys: Any) -> tuple[Any, bool]:
    """The mask as the kernel reads it, and whether it is transposed to [.., Sk, strips]; `queries`, `keys`: in the
    symbols of `main`."""
    shape = sizes(bias) or ()
    if is_one(shape[2]):
        return bias, False
    wide, value = p.strips * p.strip, constant(bb, bias)
    if value is not None and isinstance(wide, int) and isinstance(p.keys, int):
        full = np.broadcast_to(value, (*shape[:2], queries, keys))
        turned = np.zeros((*shape[:2], p.keys, wide), "float32")
        turned[..., :queries] = np.swapaxes(full, 2, 3)
        return relax.const(turned), True
    whole = relax.op.broadcast_to(bias, (*shape[:2], queries, keys))
    if not all(isinstance(d, int) for d in (*shape[:2], wide, keys)):
        return bb.emit(call_with_pattern(bb, _turned(p.strip), [bb.emit(whole)], "turn_mask", OPAQUE)), True
    turned_expr = bb.emit(relax.op.permute_dims(whole, [0, 1, 3, 2]))
    if wide != queries:
        turned_expr = bb.emit(relax.op.nn.pad(turned_expr, [0, 0, 0, 0, 0, 0, 0, wide - queries]))
    return turned_expr, True


def _turned(strip: int) -> Any:
    """The loops that transpose a mask with open sizes, and fill it up to whole strips."""

    def compute(mask: te.Tensor) -> te.Tensor:
        *lead, queries, keys = mask.shape
        zero = tirx.const(0.0, "float32")
        return te.compute(
            (*lead, keys, ceil_div(queries, strip) * strip),
            lambda b, h, j, i: te.if_then_else(i < queries, mask(b, h, i, j), zero),
            name="turned",
        )

    return compute
