"""Attention whose mask takes the place of scores, as `where(keep, scores, fill)` before softmax says - written by
:mod:`tvmopt.passes.fuse_attention`; each machine chooses a form of it.

    y = tvmopt.masked_attention(q, k, v, bias)         y = softmax(s) @ v
                                                       s = fill where bias is +inf, else scale * q @ k^T + bias

    q [B, Sq, N, H]; k [B, Sk, N, H]; v [B, Sk, N, Hv]; y [B, Sq, N, Hv]; bias [B, N, Sq, Sk] (the
    first three axes may be 1)

To add a large negative number instead is not the same: a score beyond it, an infinite one and NaN come through, and in
a row that is masked altogether scores and fill mix.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.masked_attention"
GONE = float("inf")
"""What `bias` has where the fill stands in place of the score."""


def masked_attention(q: Any, k: Any, v: Any, bias: Any, scale: float, fill: float) -> Any:
    """The call; its type is inferred when it is bound."""
    with np.errstate(over="ignore"):
        numbers = json.dumps({"scale": scale, "fill": float(np.float32(fill))})
    return relax.Call(tvm.ir.Op.get(OP), [q, k, v, bias], tvm.ir.make_node("ir.DictAttrs", numbers=numbers))


def scale_and_fill(call: Any) -> tuple[float, float]:
    """The two numbers of a call of :data:`OP`."""
    numbers = json.loads(str(call.attrs["numbers"]))
    return float(numbers["scale"]), float(numbers["fill"])


def _type(call: Any, _bb: Any) -> Any:
    q, v = call.args[0].ty, call.args[2].ty
    return relax.TensorType([*list(q.shape)[:3], list(v.shape)[3]], q.dtype)


def _is_one(extent: Any) -> bool:
    """Whether a size is known to be 1."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _definition(bb: relax.BlockBuilder, call: Any) -> Any:
    """What stands in place of a call that no machine's own form took. 16-bit numbers are summed in float32."""
    scale, fill = scale_and_fill(call)

    def attention_where(q: te.Tensor, k: te.Tensor, v: te.Tensor, bias: te.Tensor) -> te.Tensor:
        wide = "float64" if q.dtype == "float64" else "float32"
        q, k, v = (topi.transpose(t, [0, 2, 1, 3]) for t in (q, k, v))
        (batch, heads, queries, _), keys, group = q.shape, k.shape[2], q.shape[1] // k.shape[1]
        d, j = te.reduce_axis((0, q.shape[3]), "d"), te.reduce_axis((0, keys), "j")

        def masked(b: Any, n: Any, i: Any, c: Any) -> Any:
            at = [0 if _is_one(extent) else x for extent, x in zip(bias.shape, (b, n, i, c), strict=True)]
            mask = bias(*at).astype(wide)
            score = products(b, n, i, c) * tirx.const(scale, wide) + mask
            return tirx.Select(mask >= tirx.const(GONE, wide), tirx.const(fill, wide), score)

        products = te.compute(
            (batch, heads, queries, keys),
            lambda b, n, i, c: te.sum(q(b, n, i, d).astype(wide) * k(b, n // group, c, d).astype(wide), axis=[d]),
        )
        weights = topi.nn.softmax(te.compute(products.shape, masked))
        summed = te.compute(
            (batch, heads, queries, v.shape[3]),
            lambda b, n, i, c: te.sum(weights(b, n, i, j) * v(b, n // group, j, c).astype(wide), axis=[j]),
        )
        return topi.transpose(topi.cast(summed, q.dtype), [0, 2, 1, 3])

    return bb.call_te(attention_where, *call.args, primfunc_name_hint="attention_where")


register(OP, _type, __name__)
legalize_by(OP, _definition)
