"""New rows of keys or values at their place in a cache.

    K[b, h, past + i, :] = new[b, i, h, :]          B * new * H rows of D numbers, each contiguous on both sides

A step writes one row a head, a few kilobytes in all; threads would cost more than they save.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvmopt.lowering.common import OPAQUE, Symbols, sizes
from tvmopt.lowering.loops import INDEX, everything, load, loop, nest, new_buffer, prim_func, store
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def append_rows(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.append_rows`, in place."""
    cache, new, past = call.args
    if str(cache.ty.dtype) != str(new.ty.dtype):
        return Declined(f"rows of {new.ty.dtype} for a cache of {cache.ty.dtype}")
    symbols = Symbols()
    shapes = symbols.of(cache), symbols.of(new)
    (first,) = symbols.here([past.values[0]])
    handed = symbols.to_hand_over()
    func = _func(*shapes, first, handed, str(cache.ty.dtype))
    args = relax.Tuple([cache, new, *symbols.named(handed)])
    return relax.op.call_tir_inplace(
        bb.add_func(func, "append_rows"), args, [0], [relax.TensorType(sizes(cache), cache.ty.dtype)]
    )


def _func(cache: tuple[Any, ...], new: tuple[Any, ...], past: Any, handed: list[Any], dtype: str) -> tirx.PrimFunc:
    """PrimFunc(cache, new, handed): `past` in their variables."""
    to, rows = new_buffer("cache", *cache, dtype=dtype), new_buffer("new", *new, dtype=dtype)
    batch, count, heads, depth = new
    b, h = (tirx.Var(n, INDEX) for n in ("vb", "vh"))
    body = loop(count, lambda i: loop(depth, lambda d: store(to, load(rows, b, i, h, d), b, h, past + i, d), "d"), "i")
    loops = nest(
        "append", [(b, batch), (h, heads)], "bh", [everything(rows)], [everything(to)], body, [],
        {"tvmopt.kernel": "cache"},
    )  # fmt: skip
    return prim_func([to, rows, *handed], loops, OPAQUE)
