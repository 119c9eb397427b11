"""Scaled-dot-product attention of bfloat16 by AMX tiles, one kernel: scores and probabilities never leave the cache.

A task is a run of strips of 32 queries of one head::

    Kt[t, i, j] = pair(k[j, 32t + 2i], k[j, 32t + 2i + 1])       K transposed into tiles of B, once a task
    Vp[j, d]    = pair(v[2j, d], v[2j + 1, d])                   V's rows in pairs
    S           = q . Kt                                         tiles; q's rows are read where they lie
    P, l        = bf16(exp(S*scale + mask - max)), sum of exp    in vectors over the keys, fp32
    out         = bf16((P . Vp) / l)                             tiles

Keys are rounded up to 32; those beyond the last one have a mask of minus infinity. A strip under a causal mask stops at
the last 32 keys that one of its queries sees. P is rounded to bf16, as an operand of any product is.

Declines   a depth of q or v that is no multiple of 32; fewer than 16 queries or keys: the kernel in vectors,
           which widens to fp32, takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.tirx.op import address_of, call_intrin

from tvmopt.lowering import math
from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, constant, static_shape
from tvmopt.lowering.loops import (
    INDEX,
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
from tvmopt.lowering.lower_extrema import larger
from tvmopt.lowering.pairs import ROUND, install, pair
from tvmopt.schedules.cpu._amx.cost import HEIGHT, WORDS, Steps
from tvmopt.schedules.cpu._amx.instructions import Operands, configure, fill, long, product, release, tile_heights
from tvmopt.schedules.cpu._attention_plan import AttentionPlan, output_type, plan_of, with_mask
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
STRIP = HEIGHT
WIDTH = 2 * WORDS
"""Columns of a block of tiles, and terms of a step."""


def attention(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.attention` and `R.nn.attention_bias` of bfloat16, of sizes that are the tiles'."""
    if str(call.args[0].ty.dtype) != "bfloat16":
        return None
    p, args = plan_of(call, machine), list(call.args)
    if isinstance(p, Declined):
        return p
    if p.depth % WIDTH or p.depth_v % WIDTH or min(p.queries, p.keys) < STRIP // 2:
        return Declined(f"a depth that is no multiple of {WIDTH}, or fewer than {STRIP // 2} queries or keys")
    if len(args) == 4:
        bias, args[3] = mask_operand(bb, args[3], p)
        p = replace(p, bias=bias)
    func = attention_tiles(p, machine.cores)
    return relax.call_tir(bb.add_func(func, "attention"), args, output_type(call))


def attention_tiles(p: AttentionPlan, cores: int) -> Any:
    """The PrimFunc(q, k, v, [bias], out) of bfloat16; a bias that differs by query has `padded_keys` columns."""
    install()
    strips = -(-p.queries // STRIP)
    wanted = -(-3 * cores // (p.batch * p.heads)) if cores > 1 else 1
    chunks = next(c for c in range(max(1, min(wanted, strips)), 0, -1) if strips % c == 0)
    return _TiledAttention(replace(p, chunks=chunks)).func()


def padded_keys(keys: int) -> int:
    """Keys, rounded up to whole blocks of tiles."""
    return -(-keys // WIDTH) * WIDTH


class _TiledAttention:
    """Writes the kernel of a plan."""

    def __init__(self, p: AttentionPlan) -> None:
        self.p, self.keys, self.strips = p, padded_keys(p.keys), -(-p.queries // STRIP)
        self.q = new_buffer("q", p.batch, p.queries, p.heads, p.depth, dtype="bfloat16")
        self.k = new_buffer("k", p.batch, p.keys, p.kv_heads, p.depth, dtype="bfloat16")
        self.v = new_buffer("v", p.batch, p.keys, p.kv_heads, p.depth_v, dtype="bfloat16")
        self.bias = new_buffer("bias", *p.bias) if p.bias else None
        self.out = new_buffer("out", p.batch, p.queries, p.heads, p.depth_v, dtype="bfloat16")
        self.locals: list[Any] = []
        self.kt = self._local("kt", p.depth // 2 * self.keys, "uint32")
        self.vp = self._local("vp", self.keys // 2 * p.depth_v, "uint32")
        self.s = self._local("s", STRIP * self.keys)
        self.prob = self._local("prob", STRIP * self.keys, "uint16")
        self.o = self._local("o", STRIP * p.depth_v)
        self.mask = self._local("mask", self.keys)
        self.part = self._local("part", p.lanes)
        self.scale = self._local("scale", STRIP)
        self.words = [self._local(f"words{i}", 8, "uint64") for i in range(2)]
        self.b, self.h, self.chunk = (tirx.Var(n, INDEX) for n in ("vb", "vh", "vc"))

    def _local(self, name: str, size: int, dtype: str = "float32") -> Any:
        buffer = new_buffer(name, size, dtype=dtype)
        self.locals.append(buffer)
        return buffer

    @property
    def kv(self) -> Expr:
        p = self.p
        return tirx.floordiv(self.h * p.kv_heads, p.heads) if p.kv_heads != p.heads else self.h

    def func(self) -> Any:
        p = self.p
        inputs = [self.q, self.k, self.v, *([self.bias] if self.bias is not None else [])]
        axes = [(self.b, p.batch), (self.h, p.heads), (self.chunk, p.chunks)]
        both = 2 * p.queries * self.keys * (p.depth + p.depth_v) // p.chunks  # products of one task, without a mask
        body = nest(
            "amx_attention", axes, "bhc", list(map(everything, inputs)), [everything(self.out)], self._task(),
            self.locals, {"tvmopt.kernel": "amx_attention", "tvmopt.flops": tirx.const(both, "int64")},
        )  # fmt: skip
        return prim_func([*inputs, self.out], body, OUT_ELEMENTWISE_FUSABLE)

    def _task(self) -> Any:
        p, each = self.p, self.strips // self.p.chunks
        tail = p.queries % STRIP
        words = fill(self.words[0], self._tiles(STRIP))
        words += fill(self.words[1], self._tiles(tail)) if tail else []

        def strip(s: Expr) -> Any:
            first = (self.chunk * each + s) * STRIP
            if not tail:
                return self._strip(first, STRIP)
            last = seq([configure(self.words[1]), self._strip(first, tail), configure(self.words[0])])
            return tirx.IfThenElse(first + STRIP <= p.queries, self._strip(first, STRIP), last)

        return seq(
            [*words, self._pack_keys(), self._pack_values(), self._row_mask(), configure(self.words[0]),
             loop(each, strip, "s"), release()]
        )  # fmt: skip

    @staticmethod
    def _tiles(rows: int) -> tuple[int, int, int, int]:
        heights = tile_heights(rows)
        return heights[0], heights[1] if len(heights) == 2 else 0, WORDS, WIDTH

    # -- operands --------------------------------------------------------------------------------------

    def _pack_keys(self) -> Any:
        p, zero = self.p, tirx.const(0, "uint32")

        def row(j: Expr) -> Any:
            def one(d: Expr) -> Any:
                low, high = (load(self.k, self.b, j, self.kv, d * 2 + i) for i in (0, 1))
                return store(self.kt, pair(low, high), d * self.keys + j)

            return loop(p.depth // 2, one, "d")

        def beyond(d: Expr) -> Any:
            return loop(self.keys - p.keys, lambda j: store(self.kt, zero, d * self.keys + p.keys + j), "j")

        parts = [loop(p.keys, row, "j")]
        return seq([*parts, *([loop(p.depth // 2, beyond, "d")] if self.keys > p.keys else [])])

    def _pack_values(self) -> Any:
        p, lanes = self.p, gcd(self.p.depth_v, self.p.lanes)
        sixteen, zero = tirx.Broadcast(tirx.const(16, "uint32"), lanes), tirx.const(0, "uint32")

        def half(row: Expr, d: Expr) -> Expr:
            value = load(self.v, self.b, row, self.kv, vector(d * lanes, lanes))
            return tirx.reinterpret(f"uint16x{lanes}", value).astype(f"uint32x{lanes}")

        def row(j: Expr, both: bool) -> Any:
            def one(d: Expr) -> Any:
                value = half(j * 2, d)
                value = value | (half(j * 2 + 1, d) << sixteen) if both else value
                return store(self.vp, value, vector(j * p.depth_v + d * lanes, lanes))

            return loop(p.depth_v // lanes, one, "d")

        used = -(-p.keys // 2)
        parts = [loop(p.keys // 2, lambda j: row(j, True), "j")]
        parts += [row(const_index(p.keys // 2), False)] if p.keys % 2 else []
        rest = (self.keys // 2 - used) * p.depth_v
        parts += [loop(rest, lambda i: store(self.vp, zero, i + used * p.depth_v), "i")] if rest else []
        return seq(parts)

    def _row_mask(self) -> Any:
        """The part of the mask that all queries share: minus infinity beyond the last key."""
        p, rest = self.p, self.keys - self.p.keys

        def value(j: Expr) -> Expr:
            if self.bias is None or p.bias is None or p.bias[2] != 1:
                return tirx.const(0.0, "float32")
            key = j if p.bias[3] > 1 else const_index(0)
            return load(self.bias, self._mask_batch(), self._mask_head(), const_index(0), key)

        parts = [loop(p.keys, lambda j: store(self.mask, value(j), j), "j")]
        minus = tirx.const(float("-inf"), "float32")
        parts += [loop(rest, lambda j: store(self.mask, minus, j + p.keys), "j")] if rest else []
        return seq(parts)

    def _mask_batch(self) -> Expr:
        return self.b if self.p.bias and self.p.bias[0] > 1 else const_index(0)

    def _mask_head(self) -> Expr:
        return self.h if self.p.bias and self.p.bias[1] > 1 else const_index(0)

    # -- a strip ---------------------------------------------------------------------------------------

    def _strip(self, first: Expr, rows: int) -> Any:
        p = self.p
        blocks: Expr | int = self.keys // WIDTH
        if p.offset is not None:  # keys that the last query sees, in whole blocks
            seen = tirx.max(tirx.min(first + (rows + p.offset), const_index(p.keys)), const_index(1))
            blocks = tirx.floordiv(seen + (WIDTH - 1), const_index(WIDTH))
        scores = loop(blocks, lambda kb: self._scores(first, kb, rows), "kb")
        probabilities = loop(rows, lambda i: self._softmax(first, i, blocks), "i")
        sums = loop(p.depth_v // WIDTH, lambda db: self._sums(db, rows, blocks), "db")
        return seq([scores, probabilities, sums, loop(rows, lambda i: self._write(first, i), "i")])

    def _scores(self, first: Expr, kb: Expr, rows: int) -> Any:
        p = self.p

        def a(row: Expr, _line: Expr) -> Expr:
            return address_of(load(self.q, self.b, first + row, self.h, 0))

        def c(row: Expr) -> Expr:
            return address_of(load(self.s, row * self.keys + kb * WIDTH))

        operands = Operands(
            a, lambda _: address_of(load(self.kt, kb * WIDTH)), c, long(2 * p.heads * p.depth), 4 * self.keys,
            long(4 * self.keys), 1, Steps.of(p.depth, 2), WIDTH,
        )  # fmt: skip
        return product(operands, const_index(0), rows)

    def _sums(self, db: Expr, rows: int, blocks: Expr | int) -> Any:
        p = self.p
        operands = Operands(
            lambda row, _: address_of(load(self.prob, row * self.keys)),
            lambda _: address_of(load(self.vp, db * WIDTH)),
            lambda row: address_of(load(self.o, row * p.depth_v + db * WIDTH)),
            long(2 * self.keys), 4 * p.depth_v, long(4 * p.depth_v), 1, Steps.of(self.keys, 2), WIDTH,
            None if isinstance(blocks, int) else blocks,
        )  # fmt: skip
        return product(operands, const_index(0), rows)

    def _softmax(self, first: Expr, i: Expr, blocks: Expr | int) -> Any:
        p, lanes = self.p, self.p.lanes
        each = WIDTH // lanes
        top, acc = self._local("top", lanes), self._local("acc", lanes)
        cell = vector(0, lanes)

        def masked(c: Expr) -> Any:
            place = vector(i * self.keys + c * lanes, lanes)
            value = load(self.s, place) * splat(p.scale, lanes)
            value = with_mask(p, value, load(self.mask, vector(c * lanes, lanes)))
            if self.bias is not None and p.bias is not None and p.bias[2] != 1:
                here = (self._mask_batch(), self._mask_head(), first + i, vector(c * lanes, lanes))
                value = with_mask(p, value, load(self.bias, *here))
            if p.offset is not None:
                last = tirx.Broadcast(first + i + p.offset, lanes)
                value = tirx.Select(vector(c * lanes, lanes) <= last, value, splat(float("-inf"), lanes))
            return seq([store(self.s, value, place), store(top, larger(load(top, cell), load(self.s, place)), cell)])

        def exponential(c: Expr) -> Any:
            place = vector(i * self.keys + c * lanes, lanes)
            peak = tirx.Broadcast(load(self.part, 0), lanes)
            value = math.exp_nonpositive(load(self.s, place) - peak)
            half = call_intrin(f"uint16x{lanes}", ROUND, load(self.s, place))
            return seq([
                store(self.s, value, place), store(acc, load(acc, cell) + load(self.s, place), cell),
                store(self.prob, half, place),
            ])  # fmt: skip

        count = blocks * each
        one = tirx.const(1.0, "float32")
        return seq([
            store(top, splat(float("-inf"), lanes), cell), loop(count, masked, "c"),
            *self._across(load(top, cell), larger), store(acc, splat(0.0, lanes), cell),
            loop(count, exponential, "c"), *self._across(load(acc, cell), lambda x, y: x + y),
            store(self.scale, one / load(self.part, 0), i),
        ])  # fmt: skip

    def _across(self, value: Expr, combine: Callable[[Expr, Expr], Expr]) -> list[Any]:
        """part[0] = one number from the lanes of a vector: halves of halves."""
        width, out = self.p.lanes, []
        while True:
            out.append(store(self.part, value, vector(0, width)))
            if width == 1:
                return out
            width //= 2
            value = combine(load(self.part, vector(0, width)), load(self.part, vector(width, width)))

    def _write(self, first: Expr, i: Expr) -> Any:
        p, lanes = self.p, gcd(self.p.depth_v, self.p.lanes)

        def one(d: Expr) -> Any:
            value = load(self.o, vector(i * p.depth_v + d * lanes, lanes)) * tirx.Broadcast(load(self.scale, i), lanes)
            return store(
                self.out, value.astype(f"bfloat16x{lanes}"), self.b, first + i, self.h, vector(d * lanes, lanes)
            )

        return loop(p.depth_v // lanes, one, "d")


# -- the mask ------------------------------------------------------------------------------------------


def mask_operand(bb: relax.BlockBuilder, bias: Any, p: AttentionPlan) -> tuple[tuple[int, ...], Any]:
    """The mask's shape as the kernel reads it, and the expression: [.., 1, keys], or [.., queries, padded keys]."""
    shape = static_shape(bias) or ()
    if shape[2] == 1:
        return shape, bias
    wide, full = padded_keys(p.keys), (*shape[:2], p.queries, p.keys)
    value = constant(bb, bias)
    if value is not None:
        padded = np.zeros((*full[:3], wide), "float32")
        padded[..., : p.keys] = np.broadcast_to(value, full)
        return padded.shape, relax.const(padded)
    expr = bb.emit(relax.op.broadcast_to(bias, full))
    if wide != p.keys:
        expr = bb.emit(relax.op.nn.pad(expr, [0, 0, 0, 0, 0, 0, 0, wide - p.keys]))
    return (*full[:3], wide), expr
