"""Scaled-dot-product attention as TE, operator by operator - for the CUDA attention family, which computes it at once.

    scores[b, n, i, j] = sum_d float(q[b, i, n, d]) * float(k[b, j, n / group, d])
    masked             = scores * scale + bias, -inf where j > i + offset (causal)
    weights            = exp(masked - max_j masked)
    attention          = (sum_j weights * float(v[b, j, n / group, d])) / sum_j weights

The loops say what is computed (and count the FLOPs); the family writes the flash-attention kernel in their place.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, operand_types, static_shape
from tvmopt.operators import masked
from tvmopt.schedules.cuda._product import wide
from tvmopt.schedules.cuda.attention.written_out import written_out
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

MOST_DEPTH = 256  # of a head: queries, keys and outputs of more do not fit in registers and shared memory


def attention(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.attention` and `R.nn.attention_bias` on fp16 or bf16: q, k, v as [B, S, N, H]."""
    attrs = call.attrs
    shapes = [static_shape(a) for a in call.args]
    if getattr(attrs, "window_size", None) is not None or any(s is not None and 0 in s for s in shapes):
        return Declined("an empty shape, or a sliding window")
    if any(s is None for s in shapes):
        return written_out(bb, call) if _known_heads(call) else Declined("an open number of heads")
    q, k, v = (tuple(s or ()) for s in shapes[:3])
    dtype = str(call.args[0].ty.dtype)
    if dtype not in ("float16", "bfloat16") or any(str(a.ty.dtype) != dtype for a in call.args[1:3]):
        return Declined(operand_types(call))
    if q[2] % k[2] or v[2] != k[2]:
        return Declined("heads of queries that do not share those of keys evenly")
    if max(q[3], v[3]) > MOST_DEPTH:
        return written_out(bb, call)
    causal = str(attrs.causal_mask) if attrs.causal_mask is not None else None
    offset = -1 if causal is None else (0 if causal == "TopLeft" else abs(k[1] - q[1]))
    scale = q[3] ** -0.5 if attrs.scale is None else float(attrs.scale.value)
    group, keys, out = q[2] // k[2], k[1], str(call.ty.dtype)
    ninf = tirx.const(float("-inf"), "float32")

    def compute(*args: te.Tensor) -> te.Tensor:
        d, j = te.reduce_axis((0, q[3]), name="d"), te.reduce_axis((0, keys), name="j")
        j1, j2 = te.reduce_axis((0, keys), name="j1"), te.reduce_axis((0, keys), name="j2")
        grid = (q[0], q[2], q[1], keys)
        scores = te.compute(
            grid,
            lambda b, n, i, c: te.sum(wide(args[0](b, i, n, d)) * wide(args[1](b, c, n // group, d)), axis=[d]),
            name="scores",
        )

        def mask(b: Any, n: Any, i: Any, c: Any) -> Any:
            value = scores(b, n, i, c) * tirx.const(scale, "float32")
            if len(args) == 4:
                shape = [int(e) for e in args[3].shape]
                value = value + wide(args[3](*(0 if e == 1 else x for e, x in zip(shape, (b, n, i, c), strict=True))))
            return value if causal is None else te.if_then_else(c <= i + offset, value, ninf)

        masked = te.compute(grid, mask, name="masked")
        top = te.compute(grid[:3], lambda b, n, i: te.max(masked(b, n, i, j1), axis=[j1]), name="top")
        weights = te.compute(grid, lambda b, n, i, c: te.exp(masked(b, n, i, c) - top(b, n, i)), name="weights")
        total = te.compute(grid[:3], lambda b, n, i: te.sum(weights(b, n, i, j2), axis=[j2]), name="total")
        summed = te.compute(
            (q[0], q[1], q[2], v[3]),
            lambda b, i, n, c: te.sum(weights(b, n, i, j) * wide(args[2](b, j, n // group, c)), axis=[j]),
            name="summed",
        )
        result = te.compute(
            summed.shape,
            lambda b, i, n, c: summed(b, i, n, c) / total(b, n, i),
            name="attention",
            attrs={
                "tvmopt.kernel": "attention", "tvmopt.scale": tirx.const(scale, "float32"),
                "tvmopt.causal": int(causal is not None), "tvmopt.offset": offset,
                "tvmopt.bias": int(len(args) == 4),
            },
        )  # fmt: skip
        return te.compute(
            result.shape,
            lambda *i: result(*i) if out == "float32" else result(*i).astype(out),
            name="unpack",
            attrs={"tvmopt.kernel": "unpack"},
        )

    return call_fusable(bb, compute, list(call.args), "attention")


def _known_heads(call: relax.Call) -> bool:
    """Whether the numbers of heads of q, k and v are known, and the queries' a multiple of the others."""
    heads = [a.ty.shape.values[2] for a in call.args[:3]]
    if not all(isinstance(n, tirx.IntImm) for n in heads):
        return False
    queries, keys, values = map(int, heads)
    return keys == values and queries % keys == 0


def masked_attention(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.masked_attention` with the fill added: the family's kernel has no other mask."""
    q, k, v, bias = call.args
    scale, fill = masked.scale_and_fill(call)
    dtype = str(bias.ty.dtype)
    gone = bb.emit(relax.op.equal(bias, relax.const(masked.GONE, dtype)))
    added = bb.emit(relax.op.where(gone, relax.const(fill, dtype), bias))
    plain = relax.op.nn.attention(q, k, v, bias=added, scale=tirx.FloatImm("float32", scale))
    return attention(bb, bb.normalize(plain), machine)
