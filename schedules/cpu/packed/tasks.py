"""The tasks of a product of packed weights: panels of columns and, where these are few, parts of the rows."""

from __future__ import annotations

from math import ceil
from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import as_index, const_index

Expr = Any
VECTORS = 4
"""Vectors of columns in a panel: their chains hide the latency of a multiply-add, and 256 bytes are a good stride."""


def panel_vectors(columns: int, lanes: int, cores: int) -> int:
    """Vectors of columns in a panel: the widest of those that take a core the least time.

    A panel of v vectors takes v + 1: what is done for its numbers of x is done once. So cores share 1024 columns
    evenly, and 80 columns are two panels of 48, not of 64 (the last panel begins before its place).

    >>> [panel_vectors(1024, 16, cores) for cores in (1, 16, 32, 64)]
    [4, 4, 2, 1]
    >>> panel_vectors(64, 16, 2), panel_vectors(80, 16, 1)
    (2, 3)
    """
    widths = range(1, min(VECTORS, columns // lanes) + 1)
    times = {v: ceil(ceil(columns / (v * lanes)) / cores) * (v + 1) for v in widths}
    return min(times, key=lambda v: (times[v], -v))


def row_parts(rows: Any, panels: int, mr: int, cores: int) -> int:
    """Parts of the rows, where the panels are too few to be shared evenly.

    >>> row_parts(512, 16, 6, 2), row_parts(512, 1, 6, 8), row_parts(512, 3, 6, 2), row_parts(1, 3, 6, 2)
    (1, 8, 2, 1)
    """
    most = 4 * cores if not isinstance(rows, int) else max(1, rows // mr)
    shares = {n: -(-panels * n // cores) * cores / (panels * n) for n in range(1, min(most, 4 * cores) + 1)}
    return min(shares, key=lambda n: (max(shares[n], 1.1), n))


def part_of(rows: Any, part: Expr, parts: int, mr: int) -> tuple[Expr, Expr]:
    """(The first row of a part of the rows, how many it has): whole tiles of `mr` rows, but for the last tile of
    the last part; parts behind the last row have none."""
    total = as_index(rows)
    if parts == 1:
        return const_index(0), total
    tiles = tirx.floordiv(total + (mr - 1), const_index(mr))
    each = tirx.floordiv(tiles + (parts - 1), const_index(parts)) * mr
    first = part * each
    return first, tirx.max(tirx.min(each, total - first), const_index(0))
