"""New rows of keys or values at their place in a cache.

    K[b, h, past + i, :] = new[b, i, h, :]          B * new * H rows of D numbers, each contiguous on both sides
    K[text(i), h, position(i), :] = new[0, i, h, :]         where tokens have places

A step writes one row a head, a few kilobytes in all; threads would cost more than they save.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvmopt.lowering.common import OPAQUE, Symbols, sizes
from tvmopt.lowering.loops import INDEX, everything, load, loop, nest, new_buffer, prim_func, store
from tvmopt.operators.caches import places_of
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def append_rows(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.append_rows`, in place."""
    cache, new, where = call.args
    if str(cache.ty.dtype) != str(new.ty.dtype):
        return Declined(f"rows of {new.ty.dtype} for a cache of {cache.ty.dtype}")
    symbols = Symbols()
    shapes, dtype = (symbols.of(cache), symbols.of(new)), str(cache.ty.dtype)
    if places_of(call) is None:
        (first,) = symbols.here([where.values[0]])
        handed = symbols.to_hand_over()
        func = _func(*shapes, first, handed, dtype)
        args = relax.Tuple([cache, new, *symbols.named(handed)])
    else:
        func = _placed(*shapes, symbols.of(where), dtype)
        args = relax.Tuple([cache, where, new])
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


def _placed(cache: tuple[Any, ...], new: tuple[Any, ...], where: tuple[Any, ...], dtype: str) -> tirx.PrimFunc:
    """PrimFunc(cache, places, new)."""
    to, rows = new_buffer("cache", *cache, dtype=dtype), new_buffer("new", *new, dtype=dtype)
    places = new_buffer("places", *where, dtype=INDEX)
    _, count, heads, depth = new
    i, h = (tirx.Var(n, INDEX) for n in ("vi", "vh"))
    text, position = (load(places, row, i) for row in (0, 1))
    body = loop(depth, lambda d: store(to, load(rows, 0, i, h, d), text, h, position, d), "d")
    loops = nest(
        "append", [(i, count), (h, heads)], "ih", [everything(rows), everything(places)], [everything(to)], body, [],
        {"tvmopt.kernel": "cache"},
    )  # fmt: skip
    return prim_func([to, places, rows], loops, OPAQUE)
