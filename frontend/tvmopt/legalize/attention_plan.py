"""The sizes of an attention kernel - strips, register tiles, tasks - as arithmetic, for the kernel and its tests."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True)
class Plan:
    """One attention kernel.

    Attributes:
        batch, heads, queries, keys, depth, depth_v: sizes; `kv_heads` divides `heads`.
        lanes, registers: of the machine.
        scale: of the scores.
        offset: None, or a query i sees keys j <= i + offset.
        bias: shape of the additive mask, each dimension full or 1, or None; a constant mask that differs by query
            comes transposed, `[B, N, Sk, Sq padded to strips]`.
        chunks: tasks a head, each a run of whole strips.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    depth_v: int
    lanes: int
    registers: int
    scale: float
    offset: int | None
    bias: tuple[int, ...] | None
    bias_transposed: bool
    chunks: int

    @property
    def nq(self) -> int:
        """Vectors of queries in a strip: two, or one where the queries fit in one."""
        return 1 if self.queries <= self.lanes else 2

    @property
    def strip(self) -> int:
        """Queries of a strip."""
        return self.nq * self.lanes

    @property
    def strips(self) -> int:
        """Strips of a head."""
        return -(-self.queries // self.strip)

    @property
    def mk(self) -> int:
        """Keys of a register tile: mk*nq + nq + 1 <= registers, tiles as equal as can be.

        >>> plan(1, 12, 128, 128, 64).mk, plan(1, 12, 197, 197, 64).mk, plan(1, 1, 5, 5, 8).mk
        (13, 14, 5)
        """
        most = max(1, (self.registers - self.nq - 1) // self.nq)
        tiles = -(-self.keys // most)
        return -(-self.keys // tiles)

    @property
    def v_lanes(self) -> int:
        """Vector width along the depth of V."""
        return gcd(self.depth_v, self.lanes)

    @property
    def output_tile(self) -> tuple[int, int]:
        """(mo, no): queries and vectors of depth of a tile of the output; mo divides the strip.

        >>> plan(1, 12, 128, 128, 64).output_tile, plan(1, 12, 128, 128, 48).output_tile
        ((8, 2), (8, 3))
        """
        vectors = self.depth_v // self.v_lanes
        no = next(n for n in (2, 3, 1) if vectors % n == 0)
        most = (self.registers - no - 1) // no
        return next(m for m in (8, 4, 2, 1) if m <= most and self.strip % m == 0), no


def plan(
    batch: int, heads: int, queries: int, keys: int, depth: int, *, kv_heads: int | None = None,
    depth_v: int | None = None, lanes: int = 16, registers: int = 32, cores: int = 1,
    scale: float | None = None,
    offset: int | None = None, bias: tuple[int, ...] | None = None, bias_transposed: bool = False,
) -> Plan:  # fmt: skip
    """A plan; `chunks` leaves three tasks a core where there are strips enough."""
    first = Plan(
        batch, heads, kv_heads or heads, queries, keys, depth, depth_v or depth, lanes, registers,
        depth**-0.5 if scale is None else scale, offset, bias, bias_transposed, 1,
    )  # fmt: skip
    wanted = -(-3 * cores // (batch * heads)) if cores > 1 else 1
    chunks = next((c for c in range(min(wanted, first.strips), 0, -1) if first.strips % c == 0), 1)
    return Plan(**{**first.__dict__, "chunks": chunks})
