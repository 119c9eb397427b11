"""Flash attention on tensor cores: the scores never leave the registers.

    block    bm queries of one head, 16 a warp; keys and values pass in tiles of bn, copied a tile ahead (cp.async)
    step     s = Q K^T (mma), scale, mask, bias; the row's running top and total (online softmax, in base 2,
             quads of lanes share a row: two shuffles); s, rounded to 16 bits, *is* the A fragment of o += P V
    causal   a block stops at the last key its last query sees: half the work
    shared   (bm + 4*bn) * row bytes: Q, two tiles of K and V each; row: 64 bytes, or the head's in multiples of 128
    regs     s: bn/2, o: depth/2, q: depth/4 (reread from shared memory above a depth of 128), softmax 4
                                                                bn 64, depth 64: 32 + 32 + 16; depth 128: 32 +
                                                                64 + 32
    heads    of any depth up to 256, zeros up to a multiple of 16; fewer key heads than query heads (GQA)
    floor    4*B*N*Sq*Sk*H FLOPs at the tensor cores' rate
Measured     not yet on a GPU: numbers are checked in the emulator, registers and spills by ptxas (tests/cuda)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, gcd, log2
from typing import Any

from tvm import tirx

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue, ends_in
from tvmopt.schedules.cuda._mainloop import KINDS, chunk_copy, handle
from tvmopt.scheduling.blocks import annotated, consumer
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

Expr = Any


@dataclass(frozen=True)
class AttentionProblem:
    """Sizes; `offset`: a query i sees keys up to i + offset, if `causal`; `bias`: the mask's shape or ()."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    depth_v: int
    dtype: str
    scale: float
    causal: bool
    offset: int
    bias: tuple[int, ...]
    cores: int

    @property
    def row(self) -> int:
        """Bytes of a row in shared memory.

        >>> [row_bytes(d) for d in (8, 32, 64, 80, 128)]
        [64, 64, 128, 256, 256]
        """
        return row_bytes(max(self.depth, self.depth_v))


def row_bytes(depth: int) -> int:
    """What the swizzle of `at` needs: 64, or a multiple of 128."""
    return 64 if depth <= 32 else -(-depth // 64) * 128


def recognise(func: Any, machine: Machine) -> AttentionProblem | None:
    """The block that the lowering marked `attention`."""
    block, out = annotated(func, "attention"), consumer(func, "attention")
    if block is None or out is None or "tvmopt.causal" not in block.annotations:
        return None
    if not ends_in(func, block, out):
        return None
    notes = block.annotations
    q, k, v = ([int(d) for d in b.shape] for b in func.params[:3])
    bias = tuple(int(d) for d in func.params[3].shape) if int(notes["tvmopt.bias"]) else ()
    return AttentionProblem(
        q[0], q[2], k[2], q[1], k[1], q[3], v[3], str(func.params[0].dtype),
        float(notes["tvmopt.scale"].value),
        bool(int(notes["tvmopt.causal"])), int(notes["tvmopt.offset"]), bias, machine.cores,
    )  # fmt: skip


def knobs(problem: AttentionProblem, machine: Machine) -> Space:
    """`bm` queries of a block: 128 where that still gives every SM a block; `bn` keys of a step."""
    blocks = problem.batch * problem.heads * -(-problem.queries // 128)
    bm = 128 if blocks >= problem.cores and problem.queries > 64 else 64
    bn = 64 if problem.row <= 256 else 32
    return Space({"bm": (bm, 192 - bm), "bn": (bn, 96 - bn)})


def apply(sch: Any, problem: AttentionProblem, knobs: Knobs) -> None:
    """Write the kernel in the place of the loops."""
    _Program(sch.mod["main"], problem, knobs["bm"], knobs["bn"]).install(sch)


class _Program:
    def __init__(self, func: Any, problem: AttentionProblem, bm: int, bn: int) -> None:
        block, out = annotated(func, "attention"), consumer(func, "attention")
        assert block is not None and out is not None
        self.s, self.bm, self.bn, self.func = problem, bm, bn, func
        self.warps = bm // 16
        self.kernel = T.GridProgram(32 * self.warps, [T.ceildiv(problem.queries, bm), problem.batch * problem.heads])
        deep, wide = T.ceildiv(problem.depth, 16), T.ceildiv(problem.depth_v, 16)
        self.kc, self.ni, self.no = deep, bn // 8, 2 * wide
        self.keep = deep <= 8 and bm == 64  # query fragments stay in registers; 8 warps of 128 registers: two blocks
        self.stride = 16 * wide + 8
        k_tile = bn * problem.row
        self.k_at, self.v_at = bm * problem.row, bm * problem.row + 2 * k_tile
        operands = self.v_at + 2 * k_tile
        alloc = self.kernel.alloc
        self.smem = alloc(T.shared(max(operands, bm * self.stride * 4)))
        self.q = alloc(T.local(4 * deep, "uint32", "q"))
        self.scores = alloc(T.local(4 * self.ni, "float32", "s"))
        self.o = alloc(T.local(4 * self.no, "float32", "o"))
        self.top, self.total = alloc(T.local(2, "float32", "top")), alloc(T.local(2, "float32", "total"))
        self.epilogue = Epilogue(out, block.body.buffer, problem.depth_v)
        self.run = alloc(T.local(self.epilogue.width, "float32", "run"))
        head = self.kernel.block[1]
        self.b, self.n = head // problem.heads, head % problem.heads
        self.query0 = self.kernel.block[0] * bm
        self.warp_row = self.kernel.tx // 32 * 16
        self.kind = f"tvmopt::{KINDS[problem.dtype]}"

    def install(self, sch: Any) -> None:
        s = self.s
        q, k, v = self.func.params[:3]
        kv_head = self.n // (s.heads // s.kv_heads)
        steps = self._steps()

        def tiles(step: Expr) -> Any:
            slot = tirx.floormod(step, T.int_(2)) * (self.bn * s.row)
            return T.seq(
                [
                    self._copy(k, step * self.bn, self.bn, s.keys, s.kv_heads, kv_head, s.depth, slot + self.k_at),
                    self._copy(v, step * self.bn, self.bn, s.keys, s.kv_heads, kv_head, s.depth_v, slot + self.v_at),
                ]
            )

        def step(j: Expr) -> Any:
            return T.seq(
                [
                    T.call("cp_async_wait<0>"),
                    T.barrier(),
                    T.when(j + 1 < steps, tiles(j + 1)),
                    T.call("cp_async_commit"),
                    *self._attend(j),
                ]
            )

        statements = [
            self._copy(q, self.query0, self.bm, s.queries, s.heads, self.n, s.depth, T.int_(0)),
            tiles(T.int_(0)),
            T.call("cp_async_commit"),
            T.call(f"zero<{4 * self.no}>", T.pointer(self.o)),
            T.call("start_softmax", T.pointer(self.top), T.pointer(self.total)),
            self._first_queries(),
            T.loop(steps, step, "step"),
            *self._end(),
        ]
        self.kernel.buffers.extend(self.epilogue.buffers)
        T.install(sch, self.kernel, [x for x in statements if x is not None])

    def _steps(self) -> Any:
        """Tiles of keys that the block's queries see."""
        s, all_ = self.s, T.ceildiv(self.s.keys, self.bn)
        if not s.causal:
            return all_
        last = self.query0 + (self.bm - 1 + s.offset)
        return tirx.min(T.int_(all_), tirx.floordiv(last, T.int_(self.bn)) + 1)

    def _copy(
        self, buffer: Any, row0: Expr, rows: int, limit: int, heads: int, head: Expr, depth: int, base: Expr
    ) -> Any:
        """`rows` positions of one head to shared memory, zeros beyond `limit` and up to a multiple of 16 in depth."""
        chunk, row = gcd(depth, 8), self.s.row
        chunks = T.up(depth, 16) // chunk
        count = rows * chunks
        threads = self.kernel.threads

        def one(i: Expr) -> Any:
            index = i * threads + self.kernel.tx
            r, d = index // chunks, index % chunks * chunk
            place = ((self.b * limit + row0 + r) * heads + head) * depth + d
            inside = T.both(
                None if limit % rows == 0 and limit >= rows else row0 + r < limit,
                None if T.up(depth, 16) == depth else d < depth,
            )
            to = handle(f"at<{row}>", T.pointer(self.smem, base), r, d * 2)
            copy = chunk_copy(2 * chunk, to, T.pointer(buffer, place), inside)
            return T.when(None if count % threads == 0 else index < count, copy)

        turns = T.ceildiv(count, threads)
        return T.loop(turns, one, "i", unroll=turns <= 16)

    def _first_queries(self) -> Any:
        if not self.keep:
            return None
        load = T.call(f"load_queries<{self.s.row}, {self.kc}>", T.pointer(self.q), self.smem.data, self.warp_row)
        return T.seq([T.call("cp_async_wait<0>"), T.barrier(), load])

    def _attend(self, j: Expr) -> list[Any]:
        s, row = self.s, self.s.row
        slot = tirx.floormod(j, T.int_(2)) * (self.bn * row)
        keys, values = T.pointer(self.smem, slot + self.k_at), T.pointer(self.smem, slot + self.v_at)
        scores, o = T.pointer(self.scores), T.pointer(self.o)
        query0 = self.query0 + self.warp_row
        made = []
        if not self.keep:
            made.append(T.call(f"load_queries<{row}, {self.kc}>", T.pointer(self.q), self.smem.data, self.warp_row))
        made.append(T.call(f"scores<{self.kind}, {row}, {self.kc}, {self.ni}>", scores, T.pointer(self.q), keys))
        limit = "true" if s.causal else "false"
        scale = tirx.const(s.scale * log2(e), "float32")
        first = j * self.bn
        made.append(T.call(f"scale_and_mask<{self.ni}, {limit}>", scores, scale, first, s.keys, query0, s.offset))
        if s.bias:
            made.append(self._bias(first, query0))
        made.append(
            T.call(f"softmax_step<{self.ni}, {self.no}>", scores, o, T.pointer(self.top), T.pointer(self.total))
        )
        made.append(T.call(f"weigh<{self.kind}, {row}, {self.ni}, {self.no}>", o, scores, values))
        return made

    def _bias(self, first: Expr, query0: Expr) -> Any:
        s = self.s
        b, n, q, keys = s.bias
        base = T.int_(0)
        if b > 1:
            base = base + self.b * (n * q * keys)
        if n > 1:
            base = base + self.n * (q * keys)
        pointer = T.pointer(self.func.params[3], base)
        pitch = keys if q > 1 else 0
        factor = tirx.const(log2(e), "float32")
        call = f"add_bias<{self.ni}>"
        return T.call(call, T.pointer(self.scores), pointer, pitch, factor, first, s.keys, query0, s.queries)

    def _end(self) -> list[Any]:
        s, width = self.s, self.epilogue.width
        runs = s.depth_v // width
        count = self.bm * runs
        threads = self.kernel.threads

        def one(i: Expr) -> Any:
            index = i * threads + self.kernel.tx
            row, d = index // runs, index % runs * width
            query = self.query0 + row
            inside = T.both(
                None if count % threads == 0 else index < count,
                None if s.queries % self.bm == 0 else query < s.queries,
            )
            read = T.call(f"unstage<{width}, {self.stride}>", T.pointer(self.run), self.smem.data, row, d)
            return T.when(inside, T.seq([read, *self.epilogue.run([self.b, query, self.n, d], self.run)]))

        return [
            T.call(f"divide<{self.no}>", T.pointer(self.o), T.pointer(self.total)),
            T.call("cp_async_wait<0>"),
            T.barrier(),
            T.call(f"stage<1, {self.no}, {self.stride}>", self.smem.data, T.pointer(self.o), self.warp_row, 0),
            T.barrier(),
            T.loop(T.ceildiv(count, threads), one, "turn"),
        ]
