"""Attention that the family's kernel does not take, as Relax operators - where TVM's own form is none.

    y = softmax(scale * q @ k^T + bias, -inf where j > i + offset) @ v

TVM's form adds numbers of 16 bits up in 16 bits, and refuses sizes that are expressions (a cache's length and the
tokens behind it).
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

op = relax.op


def written_out(bb: relax.BlockBuilder, call: relax.Call) -> Any:
    """`R.nn.attention` and `R.nn.attention_bias` on q, k, v as [B, S, N, H]; sizes may be open, those of heads not."""
    q, k, v, *bias = call.args
    dtype, attrs = str(q.ty.dtype), call.attrs
    kind = "float64" if dtype == "float64" else "float32"
    queries, heads, depth = q.ty.shape.values[1:]
    keys = k.ty.shape.values[1]

    def emit(value: Any) -> Any:
        return bb.emit(value)

    def by_head(x: Any) -> Any:
        """[B, S, N, H] -> [B, N of the queries, S, H]."""
        x = emit(op.permute_dims(x, [0, 2, 1, 3]))
        group = int(heads) // int(x.ty.shape.values[1])
        return x if group == 1 else emit(op.repeat(x, group, 1))

    scale = int(depth) ** -0.5 if attrs.scale is None else float(attrs.scale.value)
    across = emit(op.permute_dims(by_head(k), [0, 1, 3, 2]))
    scores = emit(op.matmul(by_head(q), across, out_dtype=kind))
    scores = emit(op.multiply(scores, relax.const(scale, kind)))
    if bias:
        scores = emit(op.add(scores, emit(op.astype(bias[0], kind))))
    if attrs.causal_mask is not None:
        offset = 0 if str(attrs.causal_mask) == "TopLeft" else tirx.abs(keys - queries)
        ones = emit(op.ones((queries, keys), kind))
        keep = emit(op.greater(emit(op.tril(ones, offset)), relax.const(0, kind)))
        scores = emit(op.where(keep, scores, relax.const(float("-inf"), kind)))
    weights = emit(op.astype(emit(op.nn.softmax(scores, -1)), dtype))
    summed = emit(op.matmul(weights, by_head(v), out_dtype=kind))
    return op.permute_dims(emit(op.astype(summed, str(call.ty.dtype))), [0, 2, 1, 3])
