"""Keys and values that a decoder keeps from step to step, as Relax operators - written by
:mod:`tvmopt.passes.mark_caches` and :mod:`tvmopt.passes.keep_caches`.

    c = tvmopt.extend_cache(past, new)                  [B, H, past, D], [B, H, new, D] -> [B, H, past + new, D]

    K = tvmopt.append_rows(K, new, shape[past])         K [B, H, capacity, D] with new [B, new, H, D] from row `past` on
    c = tvmopt.cached_rows(K, shape[n])                 its first n rows, a copy: [B, H, n, D]
    t = tvmopt.last_rows(x, shape[n])                   the last n rows of [B, S, D]: [B, n, D]
    y = tvmopt.cached_attention(q, K, V, shape[n][, bias])      q [B, Sq, N, D]; bias [B, N, Sq, n] (1 where it is
                                                        the same for all) -> y [B, Sq, N, Dv]

    K = tvmopt.append_rows(K, new, places)              places [2, S]: of each token its text, a row of K [texts, ..],
                                                        and its position there
    y = tvmopt.cached_attention(q, K, V, shape[n, apart], places)   causal: a query sees its own text up to itself, n
                                                        keys at most; apart is 1 where the tokens are not consecutive
                                                        ones of one text

The rows of a buffer K are numbers of float32 or bfloat16, or words of int32: four bytes each, and behind those of a row
its step (:mod:`tvmopt.operators.stored`). What is written into it and read from it is float32.

The second form is that of a buffer which stays where it is: `append_rows` is a function in the graph, and writes into
its first operand when it has become a kernel. That is right because the pass that writes it lets nobody else read the
buffer of before. The third form is the second one for tokens of several texts, written by
:mod:`tvmopt.passes.place_tokens`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from tvmopt.operators.register import legalize_by, register
from tvmopt.operators.stored import BYTES, FLOAT, HALF, WORD

EXTEND, APPEND, ROWS, LAST, ATTEND = (
    f"tvmopt.{name}" for name in ("extend_cache", "append_rows", "cached_rows", "last_rows", "cached_attention")
)


@dataclass(frozen=True)
class Scores:
    """What is done to scores: `scale` times the product; `fill` in place of a score whose bias is plus infinity, if
    there is one; `causal`: a query does not see the keys behind its own place, the last query standing at the last
    key."""

    scale: float
    causal: bool = False
    fill: float | None = None


def _call(op: str, *args: Any, **attributes: str) -> Any:
    return relax.Call(tvm.ir.Op.get(op), list(args), tvm.ir.make_node("ir.DictAttrs", **attributes))


def extend_cache(past: Any, new: Any) -> Any:
    """The call."""
    return _call(EXTEND, past, new)


def append_rows(cache: Any, new: Any, past: Any) -> Any:
    """The call; `past`: the row that the first new one becomes, an expression."""
    return _call(APPEND, cache, new, relax.ShapeExpr([past]))


def append_placed(cache: Any, new: Any, places: Any) -> Any:
    """The call for tokens of several texts."""
    return _call(APPEND, cache, new, places)


def cached_rows(cache: Any, count: Any) -> Any:
    """The call; `count`: an expression."""
    return _call(ROWS, cache, relax.ShapeExpr([count]))


def last_rows(x: Any, count: Any) -> Any:
    """The call; `count`: an expression."""
    return _call(LAST, x, relax.ShapeExpr([count]))


def cached_attention(q: Any, k: Any, v: Any, keys: Any, bias: Any, scores: Scores) -> Any:
    """The call; `keys`: how many rows of the caches count, an expression; `bias`: None if there is none."""
    given = [] if bias is None else [bias]
    return _call(ATTEND, q, k, v, relax.ShapeExpr([keys]), *given, numbers=json.dumps(asdict(scores)))


def placed_attention(q: Any, k: Any, v: Any, keys: Any, apart: Any, places: Any, scores: Scores) -> Any:
    """The call for tokens of several texts; `keys`: the most that a query sees, and `apart`: expressions."""
    return _call(ATTEND, q, k, v, relax.ShapeExpr([keys, apart]), places, numbers=json.dumps(asdict(scores)))


def places_of(call: Any) -> Any:
    """The places of the tokens of a call of :data:`APPEND` or :data:`ATTEND`; None in the form without."""
    if str(call.op.name) == APPEND:
        return None if isinstance(call.args[2], relax.ShapeExpr) else call.args[2]
    return call.args[4] if len(call.args[3].values) == 2 else None


def scores_of(call: Any) -> Scores:
    """What a call of :data:`ATTEND` does to its scores."""
    return Scores(**json.loads(str(call.attrs["numbers"])))


def stored_as(cache: Any) -> str:
    """How the numbers of a cache are stored."""
    return {"float32": FLOAT, "bfloat16": HALF, "int32": BYTES}.get(str(cache.ty.dtype), "")


def depth_of(cache: Any) -> Any:
    """The numbers of its rows."""
    last = list(cache.ty.shape)[3]
    return (int(last) - 1) * WORD if stored_as(cache) == BYTES else last


def _extended(call: Any, _bb: Any) -> Any:
    past, new = (list(a.ty.shape) for a in call.args)
    return relax.TensorType([*past[:2], past[2] + new[2], past[3]], call.args[0].ty.dtype)


def _same_cache(call: Any, _bb: Any) -> Any:
    return call.args[0].ty


def _first_rows(call: Any, _bb: Any) -> Any:
    shape = list(call.args[0].ty.shape)
    return relax.TensorType([*shape[:2], call.args[1].values[0], depth_of(call.args[0])], "float32")


def _last(call: Any, _bb: Any) -> Any:
    batch, _, depth = call.args[0].ty.shape
    return relax.TensorType([batch, call.args[1].values[0], depth], call.args[0].ty.dtype)


def _attended(call: Any, _bb: Any) -> Any:
    q = call.args[0].ty
    return relax.TensorType([*list(q.shape)[:3], depth_of(call.args[2])], q.dtype)


def _joined(bb: relax.BlockBuilder, call: Any) -> Any:
    return bb.call_te(lambda a, b: topi.concatenate([a, b], axis=2), *call.args, primfunc_name_hint="extend_cache")


def _copied(bb: relax.BlockBuilder, call: Any) -> Any:
    depth, kind = depth_of(call.args[0]), stored_as(call.args[0])

    def cached_rows(cache: te.Tensor, count: Any) -> te.Tensor:
        def number(b: Any, h: Any, i: Any, d: Any) -> Any:
            if kind != BYTES:
                return cache(b, h, i, d).astype("float32")
            word = cache(b, h, i, tirx.floordiv(d, WORD)) >> (8 * tirx.floormod(d, WORD)).astype("int32")
            byte = ((word & tirx.const(255, "int32")) ^ tirx.const(128, "int32")) - tirx.const(128, "int32")
            return byte.astype("float32") * tirx.reinterpret("float32", cache(b, h, i, depth // WORD))

        return te.compute([*cache.shape[:2], count, depth], number, name="rows")

    return bb.call_te(cached_rows, call.args[0], call.args[1].values[0], primfunc_name_hint="cached_rows")


def _last_copied(bb: relax.BlockBuilder, call: Any) -> Any:
    def last_rows(x: te.Tensor, count: Any) -> te.Tensor:
        batch, rows, depth = x.shape
        return te.compute((batch, count, depth), lambda b, i, d: x(b, rows - count + i, d), name="rows")

    return bb.call_te(last_rows, call.args[0], call.args[1].values[0], primfunc_name_hint="last_rows")


for _op, _type in (
    (EXTEND, _extended), (APPEND, _same_cache), (ROWS, _first_rows), (LAST, _last), (ATTEND, _attended),
):  # fmt: skip
    register(_op, _type, __name__)
legalize_by(EXTEND, _joined)
legalize_by(ROWS, _copied)
legalize_by(LAST, _last_copied)
