"""com.microsoft (Q)Attention, MultiHeadAttention and GroupQueryAttention, written out like Attention of ai.onnx."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmopt.dims import OpenSize, Size, is_open
from tvmopt.importer.converters.attention import merge_heads, repeat_heads, rotate, split_heads
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import refused, within
from tvmopt.importer.converters.quantized import matmul_integer, real


def _attend(b: Build, q: Any, k: Any, v: Any, bias: Any, scale: float | None, softcap: float = 0.0) -> Any:
    """Attention of [B, H, S, D] tensors with an additive bias; [B, S, H*D]."""
    scores = b.mul(b.matmul(q, b.transpose(k, (0, 1, 3, 2))), scale or 1 / math.sqrt(shape_of(q)[3]))
    if softcap:
        scores = b.mul(b.unary(relax.op.tanh, b.div(scores, softcap)), softcap)
    if bias is not None:
        scores = b.add(scores, bias)
    weights = b.unary(lambda x: relax.op.nn.softmax(x, -1), scores)
    return merge_heads(b, b.matmul(weights, v))


def _mask_bias(b: Build, ctx: Context, number: int, batch: Size, total: int, fill: float, dtype: str) -> Any:
    """The bias of a mask, input `number`: 0/1 flags [B, T], [B, S, T] or [B, 1, S, T]; or lengths [B], behind which the
    first keys that count may stand [2 B]. None where nothing is masked."""
    mask = ctx.node_inputs[number]
    shape = shape_of(mask)
    if len(shape) == 1:
        if shape[0] == 0:
            return None
        ends = within(b, ctx, number, "a length", 0, np.iinfo(np.int32).max)
        keys = const(np.arange(total)[None, :], dtype_of(mask))
        mask = b.less(keys, b.reshape(b.slice(ends, 0, 0, batch), (batch, 1)))
        if shape[0] != batch:
            mask = b.both(mask, b.greater_equal(keys, b.reshape(b.slice(ends, 0, batch, 2 * batch), (batch, 1))))
        shape = (batch, total)
    elif ctx.op_type != "MultiHeadAttention" and shape[1:] == (1,):
        return None  # the same for all keys
    else:
        mask = b.greater(mask, 0)
    wide = {2: (shape[0], 1, 1, shape[-1]), 3: (shape[0], 1, *shape[1:])}.get(len(shape), shape)
    return b.where(b.reshape(mask, wide), const(0.0, dtype), const(fill, dtype))


def _causal(b: Build, queries: int, total: int, dtype: str, window: int = -1) -> Any:
    """0 where the last `queries` of `total` positions may look, else -inf; None if they may everywhere."""
    distance = np.arange(queries)[:, None] + (total - queries) - np.arange(total)[None, :]
    allowed = (distance >= 0) & ((distance < window) | (window < 0))
    return None if allowed.all() else const(np.where(allowed, 0.0, -np.inf), dtype)


def _sum(b: Build, *biases: Any) -> Any:
    total = None
    for bias in biases:
        if bias is not None:
            total = bias if total is None else b.add(total, bias)
    return total


def attention(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Attention: packed projection of the input, then attention; outputs [B, S, hidden] and the cache."""
    b = Build(bb, ctx.name)
    x, weight, bias, _, past, extra = (inputs[i] for i in range(6))
    if inputs[6] is not None:
        raise ctx.unsupported("a shared past buffer", "export without it")
    packed = b.matmul(x, weight)
    if bias is not None:
        packed = b.add(packed, bias)
    return _projected(b, ctx, attrs, packed, 3, past, extra)


def quantized_attention(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """QAttention: an integer projection, then attention in floats."""
    b = Build(bb, ctx.name)
    x, weight, bias, x_scale, weight_scale, _, x_zero, weight_zero, past = (inputs[i] for i in range(9))
    left, right = real(b, x, x_scale, x_zero), real(b, weight, weight_scale, weight_zero)
    if left is not None and right is not None:
        packed = b.matmul(left, right)
    else:
        total = matmul_integer(bb, Inputs([x, weight, x_zero, weight_zero]), {}, ctx)
        packed = b.mul(b.cast(b.emit(total), "float32"), b.mul(x_scale, weight_scale))
    return _projected(b, ctx, attrs, b.add(packed, bias), 5, past, None)


def _projected(b: Build, ctx: Context, attrs: dict[str, Any], packed: Any, mask: int, past: Any, extra: Any) -> Result:
    """Attention of queries, keys and values that stand side by side, [B, S, 3 hidden]; and the cache. `mask`: which
    input that is."""
    if attrs.get("do_rotary", 0) or attrs.get("past_present_share_buffer", 0):
        raise ctx.unsupported("do_rotary or a shared past buffer", "export without them")
    heads, dtype = attrs["num_heads"], dtype_of(packed)
    width = shape_of(packed)[2]
    sizes = list(attrs.get("qkv_hidden_sizes", ())) or [width // 3] * 3
    edges = np.cumsum([0, *sizes])
    q, k, v = (split_heads(b, b.slice(packed, 2, int(edges[i]), int(edges[i + 1])), heads) for i in range(3))
    if past is not None:
        old = [b.reshape(b.slice(past, 0, i, i + 1), shape_of(past)[1:]) for i in range(2)]
        k, v = b.concat([old[0], k], 2), b.concat([old[1], v], 2)
    total = shape_of(k)[2]
    fill = attrs.get("mask_filter_value", -10000.0)
    biases = [extra]
    if ctx.node_inputs[mask] is not None:
        biases.append(_mask_bias(b, ctx, mask, shape_of(q)[0], total, fill, dtype))
    if attrs.get("unidirectional", 0):
        biases.append(_causal(b, shape_of(q)[2], total, dtype))
    out = _attend(b, q, k, v, _sum(b, *biases), attrs.get("scale"))
    if not ctx.wants(1):
        return out
    stack = [b.reshape(c, (1, *shape_of(c))) for c in (k, v)]
    return out, b.concat(stack, 0)


def multi_head_attention(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MultiHeadAttention: separate, or packed, query, key and value; outputs [B, S, hidden] and the cache."""
    b = Build(bb, ctx.name)
    query, key, value, bias, mask, extra, past_key, past_value = (inputs[i] for i in range(8))
    heads, dtype = attrs["num_heads"], dtype_of(query)

    def biased(x: Any, begin: int, end: int) -> Any:
        return x if bias is None else b.add(x, b.slice(bias, 0, begin, end))

    if key is None:  # [B, S, H, 3, D]
        batch, length, _, _, depth = shape_of(query)
        parts = [b.reshape(b.slice(query, 3, i, i + 1), (batch, length, heads * depth)) for i in range(3)]
    elif value is None:  # [B, T, H, 2, D]
        batch, length, _, _, depth = shape_of(key)
        pair = [b.reshape(b.slice(key, 3, i, i + 1), (batch, length, heads * depth)) for i in range(2)]
        parts = [query, *pair]
    else:
        parts = [query, key, value]
    hidden = shape_of(parts[0])[2]
    q = split_heads(b, biased(parts[0], 0, hidden), heads)
    if len(shape_of(parts[1])) == 4:  # projected and split already
        k, v = parts[1], parts[2]
    else:
        width = shape_of(parts[2])[2]
        k = split_heads(b, biased(parts[1], hidden, 2 * hidden), heads)
        v = split_heads(b, biased(parts[2], 2 * hidden, 2 * hidden + width), heads)
    if past_key is not None:
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    total = shape_of(k)[2]
    biases = [extra]
    if mask is not None:
        fill = attrs.get("mask_filter_value", -10000.0)
        biases.append(_mask_bias(b, ctx, 4, shape_of(q)[0], total, fill, dtype))
    if attrs.get("unidirectional", 0):
        biases.append(_causal(b, shape_of(q)[2], total, dtype))
    return (_attend(b, q, k, v, _sum(b, *biases), attrs.get("scale")), k, v)[: max(1, ctx.num_outputs)]


def group_query_attention(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GroupQueryAttention: causal, grouped, with rotary embedding and a cache that grows (not a shared buffer).

    `seqlens_k` + 1 is the number of valid keys of each batch entry, so the first new token stands at
    ``seqlens_k + 1 - S``.
    """
    b = Build(bb, ctx.name)
    query, key, value, past_key, past_value, lengths, total_length, cos, sin = (inputs[i] for i in range(9))
    heads, kv_heads, dtype = attrs["num_heads"], attrs["kv_num_heads"], dtype_of(query)
    if attrs.get("smooth_softmax", 0) or any(x is not None for x in inputs[11:]):
        raise ctx.unsupported("smooth_softmax or attention sinks")
    for name, usual in _USUAL.items():
        if (found := attrs.get(name, usual)) != usual:
            raise ctx.unsupported(f"its {name} is {found!r}")
    if key is None:
        depth = shape_of(query)[2] // (heads + 2 * kv_heads)
        edges = [0, heads * depth, (heads + kv_heads) * depth, (heads + 2 * kv_heads) * depth]
        query, key, value = (b.slice(query, 2, edges[i], edges[i + 1]) for i in range(3))
    batch, length, _ = shape_of(query)
    q, k, v = split_heads(b, query, heads), split_heads(b, key, kv_heads), split_heads(b, value, kv_heads)
    past = shape_of(past_key)[2] if past_key is not None else 0
    lengths = _counted(b, ctx, lengths, past, length)
    known = ctx.array(total_length)
    if known is None:
        lengths = b.add(lengths, _all_in_all(b, ctx, total_length, past + length))
    elif np.ravel(known)[0] != past + length:
        raise ctx.unsupported(
            f"a cache of {past} positions for {np.ravel(known)[0]} in all (a shared buffer)",
            "bind the cache to as many positions as are filled",
        )
    valid = b.add(b.reshape(lengths, (batch, 1)), 1)
    start = const(np.zeros((batch, 1)), "int64") if past == 0 else b.sub(valid, b.number(length))
    if attrs.get("do_rotary", 0):
        at = inputs[9]
        at = b.add(start, b.reshape(b.arange(length), (1, length))) if at is None else b.cast(at, "int64")
        at = within(b, ctx, 5 if inputs[9] is None else 9, "a position", 0, shape_of(cos)[0] - 1, at)
        at = b.broadcast(at, (batch, length))
        angles = [b.reshape(b.take(a, at, 0), (batch, length, 1, shape_of(a)[1])) for a in (cos, sin)]
        turned = []
        for x in (q, k):
            flat = b.transpose(x, (0, 2, 1, 3))
            out = rotate(b, flat, angles[0], angles[1], 2 * shape_of(cos)[1], bool(attrs.get("rotary_interleaved", 0)))
            turned.append(b.transpose(out, (0, 2, 1, 3)))
        q, k = turned
    if past:
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    total = shape_of(k)[2]
    if is_open((length, total)):
        return _open_grouped(b, ctx, attrs, (q, k, v), valid, inputs[10])
    bias = _causal(b, length, total, dtype, attrs.get("local_window_size", -1))
    keys = const(np.arange(total).reshape(1, 1, 1, total), "int64")
    padded = b.less(keys, b.reshape(valid, (batch, 1, 1, 1)))
    bias = _sum(b, bias, b.where(padded, const(0.0, dtype), const(-np.inf, dtype)), inputs[10])
    groups = heads // kv_heads
    out = _attend(
        b,
        q,
        repeat_heads(b, k, groups),
        repeat_heads(b, v, groups),
        bias,
        attrs.get("scale"),
        attrs.get("softcap", 0.0),
    )
    return (out, k, v)[: max(1, ctx.num_outputs)]


_USUAL = {"causal": 1, "sliding_window_cache": 0, "k_quant_type": "NONE", "v_quant_type": "NONE"}
"""Attributes of GroupQueryAttention that change what is computed, and the only values that are known here."""


def _counted(b: Build, ctx: Context, lengths: Any, past: Size, length: Size) -> Any:
    """`seqlens_k`, int64[B], refused where it is out of range: behind a cache it is what the cache and the new tokens
    are together, less one, in each batch (an entry of fewer would have its new keys inside of the cache); else at most
    that."""
    total = past + length
    if not is_open((past, length)):
        most = int(total) - 1
        return b.cast(within(b, ctx, 5, "a length", most if past else 0, most), "int64")
    lengths, last = b.cast(lengths, "int64"), b.sub(b.number(total), 1)
    first = b.where(b.greater(b.number(past), 0), last, 0)
    outside = b.emit(relax.op.logical_or(b.less(lengths, first), b.greater(lengths, last)))
    fix = "pass the number of keys less one; with a cache, of the cache and the new tokens together"
    return b.add(lengths, refused(b, ctx, 5, outside, "a length is out of range", fix))


def _all_in_all(b: Build, ctx: Context, told: Any, total: Size) -> Any:
    """Zero, int64[1]; an error of the run where the number of keys that is told is not that of the keys."""
    other = b.emit(relax.op.not_equal(b.reshape(b.cast(told, "int64"), (1,)), b.number(total)))
    fix = "pass the keys of the cache and of the new tokens together; a shared buffer is not supported"
    return refused(b, ctx, 6, other, "total_sequence_length is out of range", fix)


def _open_grouped(
    b: Build, ctx: Context, attrs: dict[str, Any], qkv: tuple[Any, Any, Any], valid: Any, extra: Any
) -> Result:
    """The same at open lengths: one operator, which knows what causal means for keys before the first query."""
    q, k, v = qkv
    batch, heads, length, depth = shape_of(q)
    total, window, softcap = shape_of(k)[2], attrs.get("local_window_size", -1), attrs.get("softcap", 0.0)
    if dtype_of(q) != "float32":
        raise OpenSize("attention of 16 bits needs numbers for its lengths")
    seen = b.less(b.reshape(b.arange(total), (1, 1, 1, total)), b.reshape(valid, (batch, 1, 1, 1)))
    if window >= 0 or softcap:
        seen = b.both(seen, _near(b, length, total, window))
    bias = _sum(b, b.where(seen, const(0.0, "float32"), const(-np.inf, "float32")), extra)
    if softcap:  # which no attention kernel has
        keys, values = (repeat_heads(b, x, heads // shape_of(k)[1]) for x in (k, v))
        return (_attend(b, q, keys, values, bias, attrs.get("scale"), softcap), k, v)[: max(1, ctx.num_outputs)]
    scale = tvm.tirx.FloatImm("float32", attrs.get("scale") or 1 / math.sqrt(depth))
    rows = [b.transpose(x, (0, 2, 1, 3)) for x in (q, k, v)]
    out = b.emit(relax.op.nn.attention(*rows, bias=bias, scale=scale, causal_mask="BottomRight"))
    return (b.reshape(out, (batch, length, heads * depth)), k, v)[: max(1, ctx.num_outputs)]


def _near(b: Build, queries: Any, total: Any, window: int) -> Any:
    """:func:`_causal` at open lengths: whether a query sees a key, [1, 1, queries, total]."""
    last = b.sub(b.number(total), b.number(queries))
    places = b.add(b.reshape(b.arange(queries), (1, 1, queries, 1)), b.reshape(last, (1, 1, 1, 1)))
    distance = b.sub(places, b.reshape(b.arange(total), (1, 1, 1, total)))
    past = b.greater_equal(distance, 0)
    return past if window < 0 else b.both(past, b.less(distance, window))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("com.microsoft", "Attention"): attention,
    ("com.microsoft", "QAttention"): quantized_attention,
    ("com.microsoft", "MultiHeadAttention"): multi_head_attention,
    ("com.microsoft", "GroupQueryAttention"): group_query_attention,
}
