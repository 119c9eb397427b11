"""The sizes of an attention kernel - strips, register tiles, tasks - as arithmetic, and what a call asks for: for the
kernels in vectors and in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer

from tvmopt.lowering.common import Symbols, is_empty, operand_types, sizes, static_shape
from tvmopt.lowering.loops import splat
from tvmopt.operators import masked
from tvmopt.operators.caches import ATTEND, depth_of, places_of, scores_of, stored_as
from tvmopt.operators.stored import FLOAT
from tvmopt.scheduling.facts import largest_divisor
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

RUN = 256
"""Keys of a task that has one query, where all heads are one group (:attr:`AttentionPlan.run`)."""

MOST_RUNS = 8
"""How many times as many they are at most."""

MOST_SHARED = 8
"""Heads of a task that has one query at most."""

MOST_OPEN_KEYS = 14
"""Keys of a register tile at most where their number is open: fewer of them than of a tile are computed one by one."""


def ceil_div(a: Any, b: int) -> Any:
    """a / b, upwards; `a` may be open.

    >>> ceil_div(17, 8)
    3
    """
    return -(-a // b) if isinstance(a, int) else tirx.floordiv(a + (b - 1), b)


def is_one(size: Any) -> bool:
    """Whether a size is known to be 1."""
    return isinstance(size, int) and size == 1


@dataclass(frozen=True)
class AttentionPlan:
    """One attention kernel.

    Attributes:
        batch, heads, queries, keys, depth, depth_v: sizes, of which batch, queries and keys may be open: expressions;
            `kv_heads` divides `heads`.
        lanes, registers: of the machine.
        scale: of the scores.
        offset: None, or a query i sees keys j <= i + offset.
        bias: shape of the additive mask, each dimension full or 1, or None; a constant mask that differs by query
            comes transposed, `[B, N, Sk, Sq padded to strips]`.
        fill: None, or what stands in place of a score where the mask is plus infinity.
        chunks: tasks a head, each a run of whole strips; tasks of one query are others (one_query.py).
        capacity: None, or keys and values are the first rows of caches [B, N, capacity, H].
        shared: heads that one task computes where there is one query; they share their keys.
        apart: None, or an expression: the queries have places, and are of several texts where it is 1.
        cache_batch: texts in the caches, where queries have places.
        stored: how the caches store their numbers (:mod:`tvmopt.operators.stored`).
    """

    batch: Any
    heads: int
    kv_heads: int
    queries: Any
    keys: Any
    depth: int
    depth_v: int
    lanes: int
    registers: int
    scale: float
    offset: Any | None
    bias: tuple[Any, ...] | None
    bias_transposed: bool
    chunks: Any
    fill: float | None = None
    capacity: Any = None
    shared: int = 1
    apart: Any = None
    cache_batch: Any = None
    stored: str = FLOAT

    @property
    def nq(self) -> int:
        """Vectors of queries in a strip: two, or one where the queries fit in one."""
        return 1 if isinstance(self.queries, int) and self.queries <= self.lanes else 2

    @property
    def strip(self) -> int:
        """Queries of a strip."""
        return self.nq * self.lanes

    @property
    def run(self) -> int:
        """Keys of a task that has one query. What is found in each run has to be put together, so runs are as long as
        leave some 16 tasks of 4,096 keys: groups of heads are tasks by themselves. They do not depend on the number of
        cores, so that bits do not.
        """
        return run_of(self.heads // self.shared)

    @property
    def strips(self) -> Any:
        """Strips of a head."""
        return ceil_div(self.queries, self.strip)

    @property
    def mk(self) -> int:
        """Keys of a register tile: mk*nq + nq + 1 <= registers, tiles as equal as can be.

        >>> plan(1, 12, 128, 128, 64).mk, plan(1, 12, 197, 197, 64).mk, plan(1, 1, 5, 5, 8).mk
        (13, 14, 5)
        """
        most = max(1, (self.registers - self.nq - 1) // self.nq)
        if not isinstance(self.keys, int):
            return min(most, MOST_OPEN_KEYS)
        tiles = -(-self.keys // most)
        return -(-self.keys // tiles)

    @property
    def v_lanes(self) -> int:
        """Vector width along the depth of V."""
        return gcd(self.depth_v, self.lanes)

    @property
    def output_lanes(self) -> int:
        """Vector width along the depth of V in a tile of the output: where vectors that divide it are shorter than half
        of the widest, the last one overlaps the one before.

        >>> plan(1, 6, 256, 256, 26).output_lanes, plan(1, 1, 9, 9, 7).output_lanes, plan(1, 1, 9, 9, 24).output_lanes
        (16, 4, 8)
        """
        widest = min(self.lanes, 1 << (self.depth_v.bit_length() - 1))
        return self.v_lanes if 2 * self.v_lanes >= widest or self.stored != FLOAT else widest

    @property
    def output_vectors(self) -> int:
        """Vectors along the depth of V in a tile of the output; a number that 2 or 3 divides, where they overlap."""
        vectors = -(-self.depth_v // self.output_lanes)
        return vectors if vectors % 2 == 0 or vectors % 3 == 0 or self.output_lanes == self.v_lanes else vectors + 1

    @property
    def output_tile(self) -> tuple[int, int]:
        """(mo, no): queries and vectors of depth of a tile of the output; mo divides the strip.

        >>> plan(1, 12, 128, 128, 64).output_tile, plan(1, 12, 128, 128, 48).output_tile
        ((8, 2), (8, 3))
        """
        vectors = self.output_vectors
        no = next(n for n in (2, 3, 1) if vectors % n == 0)
        most = (self.registers - no - 1) // no
        return next(m for m in (8, 4, 2, 1) if m <= most and self.strip % m == 0), no


def plan(
    batch: Any, heads: int, queries: Any, keys: Any, depth: int, *, kv_heads: int | None = None,
    depth_v: int | None = None, lanes: int = 16, registers: int = 32, cores: int = 1,
    scale: float | None = None,
    offset: Any | None = None, bias: tuple[Any, ...] | None = None, bias_transposed: bool = False,
) -> AttentionPlan:  # fmt: skip
    """A plan; `chunks` leaves three tasks a core where there are strips enough; each strip is one where sizes are
    open."""
    first = AttentionPlan(
        batch, heads, kv_heads or heads, queries, keys, depth, depth_v or depth, lanes, registers,
        depth**-0.5 if scale is None else scale, offset, bias, bias_transposed, 1,
    )  # fmt: skip
    if not (isinstance(batch, int) and isinstance(queries, int)):
        return replace(first, chunks=first.strips)
    wanted = -(-3 * cores // (batch * heads)) if cores > 1 else 1
    chunks = next((c for c in range(min(wanted, first.strips), 0, -1) if first.strips % c == 0), 1)
    return AttentionPlan(**{**first.__dict__, "chunks": chunks})


def plan_of(call: relax.Call, machine: Machine, shapes: Sequence[Any] | None = None) -> AttentionPlan | Declined:
    """The plan of `R.nn.attention`, `R.nn.attention_bias` or `tvmopt.masked_attention`, without its mask: q, k, v as
    [B, S, N, H], float32 or bfloat16, the mask float32.

    Args:
        shapes: of the operands, for a kernel that takes open sizes; left out: open sizes are declined.
    """
    shapes = [static_shape(a) for a in call.args] if shapes is None else shapes
    if any(s is None or len(s) != 4 or is_empty(s) for s in shapes):
        return Declined("an open or empty shape")
    if not all(isinstance(d, int) for s in shapes[:3] for d in s[2:]):
        return Declined("an open number of heads, or an open depth")
    if getattr(call.attrs, "window_size", None) is not None:
        return Declined("a sliding window")
    kinds = {str(a.ty.dtype) for a in call.args[:3]}
    if kinds not in ({"float32"}, {"bfloat16"}):
        return Declined(operand_types(call))
    if any(str(a.ty.dtype) != "float32" for a in call.args[3:]):
        return Declined(f"a {call.args[3].ty.dtype} mask")
    (batch, queries, heads, depth), (_, keys, kv_heads, _), v_shape = (tuple(s or ()) for s in shapes[:3])
    if heads % kv_heads or v_shape[2] != kv_heads:
        return Declined(f"{heads} heads of queries do not share {kv_heads} of keys evenly")
    if str(call.op.name) == masked.OP:
        causal, (scale, fill) = None, masked.scale_and_fill(call)
    else:
        causal = str(call.attrs.causal_mask) if call.attrs.causal_mask is not None else None
        scale, fill = depth**-0.5 if call.attrs.scale is None else float(call.attrs.scale.value), None
    made = plan(
        batch, heads, queries, keys, depth, kv_heads=kv_heads, depth_v=v_shape[3], lanes=machine.lanes(),
        registers=machine.vector_registers, cores=machine.cores,
        scale=scale, offset=None if causal is None else (0 if causal == "TopLeft" else _distance(keys, queries)),
    )  # fmt: skip
    return replace(made, fill=fill)


def cached_plan(call: relax.Call, machine: Machine, symbols: Symbols) -> AttentionPlan | Declined:
    """The plan of `tvmopt.cached_attention`, without its mask; `symbols`: those of the kernel."""
    shapes, places = [symbols.of(a) for a in call.args[:3]], places_of(call)
    bias = () if places is not None else call.args[4:]
    kinds = {stored_as(cache) for cache in call.args[1:3]}
    if {str(a.ty.dtype) for a in (call.args[0], *bias)} != {"float32"} or len(kinds) != 1 or "" in kinds:
        return Declined(operand_types(call))
    (batch, queries, heads, depth), (_, kv_heads, capacity, _), v_shape = shapes
    if heads % kv_heads or v_shape[1] != kv_heads:
        return Declined(f"{heads} heads of queries do not share {kv_heads} of keys evenly")
    keys, *apart = symbols.here(call.args[3].values)
    scores = scores_of(call)
    made = plan(
        batch, heads, queries, keys, depth, kv_heads=kv_heads, depth_v=int(depth_of(call.args[2])),
        lanes=machine.lanes(), registers=machine.vector_registers, cores=machine.cores, scale=scores.scale,
        offset=_distance(keys, queries) if scores.causal else None,
    )  # fmt: skip
    made = replace(
        made, fill=scores.fill, capacity=capacity, shared=heads_together(heads, kv_heads), stored=kinds.pop()
    )
    return replace(made, apart=apart[0], cache_batch=shapes[1][0]) if apart else made


def heads_together(heads: int, kv_heads: int) -> int:
    """Heads of a task that share a read of their keys.

    >>> heads_together(16, 4), heads_together(32, 1), heads_together(12, 12), heads_together(14, 2)
    (4, 8, 1, 7)
    """
    return largest_divisor(heads // kv_heads, MOST_SHARED)


def run_of(groups: int) -> int:
    """Keys of a task of one query, where its heads are so many groups.

    >>> [run_of(groups) for groups in (1, 2, 3, 5, 12, 64)]
    [256, 512, 512, 1024, 2048, 2048]
    """
    return RUN * min(MOST_RUNS, 1 << groups.bit_length() - 1)


def _distance(keys: Any, queries: Any) -> Any:
    """How many more keys there are than queries, or the other way round; a number where it is known."""
    if isinstance(keys, int) and isinstance(queries, int):
        return abs(keys - queries)
    found = Analyzer().simplify(keys - queries)
    return abs(int(found)) if isinstance(found, tirx.IntImm) else tirx.abs(found)


def output_type(call: relax.Call) -> Any:
    """The type of the result, [B, S, N, H] like the queries, with the depth of the values."""
    last = (sizes(call.args[2]) or ())[3] if str(call.op.name) != ATTEND else int(depth_of(call.args[2]))
    return relax.TensorType([*(sizes(call.args[0]) or ())[:3], last], str(call.args[0].ty.dtype))


def with_mask(p: AttentionPlan, scores: Any, mask: Any) -> Any:
    """A vector of scores under the mask: added, or replaced by the fill."""
    if p.fill is None:
        return scores + mask
    return tirx.Select(mask >= splat(masked.GONE, p.lanes), splat(p.fill, p.lanes), scores + mask)
