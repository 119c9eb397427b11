"""The function that computes a program's open sizes, its stores in order.

`VMShapeLower` writes one number a size into a buffer and walks a table of them, whose order is that of addresses in
memory: two compiles of one model made other libraries. No store reads what another one of the same function writes.

    H[7] = (H[1] - 1) // 8 + 1                  H[3] = (H[1] - 1) // 2 + 1
    H[3] = (H[1] - 1) // 2 + 1                  H[7] = (H[1] - 1) // 8 + 1
"""

from __future__ import annotations

from typing import Any

from tvm import tirx


def order_stores(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function; with its stores by their places in the buffer where it is one of sizes."""
    if "tirx.is_host_func" not in (func.attrs or {}) or not isinstance(func.body, tirx.SeqStmt):
        return func
    stores: list[Any] = list(func.body.seq)
    if not all(isinstance(s, tirx.BufferStore) and isinstance(s.indices[0], tirx.IntImm) for s in stores):
        return func
    return func.with_body(tirx.SeqStmt(sorted(stores, key=lambda store: int(store.indices[0]))))
