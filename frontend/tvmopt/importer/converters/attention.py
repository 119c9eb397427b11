"""Attention and rotary embeddings, of ai.onnx and com.microsoft, as plain MatMul, Softmax and masks.

They are written out with Relax operators (not as one opaque kernel), so that the attention pass finds them
like those a framework has exported in pieces.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import OpenSize, Size, is_open
from tvmopt.floats import HALVES
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within


def split_heads(b: Build, x: Any, heads: int) -> Any:
    """[B, S, H*D] as [B, H, S, D]."""
    batch, length, hidden = shape_of(x)
    return b.transpose(b.reshape(x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def merge_heads(b: Build, x: Any) -> Any:
    """[B, H, S, D] as [B, S, H*D]."""
    batch, heads, length, depth = shape_of(x)
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, length, heads * depth))


def repeat_heads(b: Build, x: Any, times: int) -> Any:
    """[B, H, S, D] as [B, H*times, S, D], each head repeated in place (grouped-query attention)."""
    if times == 1:
        return x
    batch, heads, length, depth = shape_of(x)
    wide = b.broadcast(b.reshape(x, (batch, heads, 1, length, depth)), (batch, heads, times, length, depth))
    return b.reshape(wide, (batch, heads * times, length, depth))


def _allowed(queries: int, keys: int, causal: bool, left: int, right: int, offset: int) -> Any:
    """Which key a query may see, ``bool[q, k]``: causal and window masks, query i standing at ``i + offset``."""
    distance = np.arange(queries)[:, None] + offset - np.arange(keys)[None, :]
    allowed = np.ones((queries, keys), bool)
    if causal:
        allowed &= distance >= 0
    if left >= 0:
        allowed &= distance <= left
    if right >= 0:
        allowed &= -distance <= right
    return allowed


def _allowed_open(b: Build, queries: Size, keys: Size, causal: bool, left: int, right: int, offset: Size) -> Any:
    """The same at open lengths: ``bool[1, 1, q, k]``."""
    key = b.reshape(b.arange(keys), (1, 1, 1, keys))
    query = b.add(b.reshape(b.arange(queries), (1, 1, queries, 1)), b.reshape(b.number(offset), (1, 1, 1, 1)))
    return _near(b, None, b.sub(query, key), causal, left, right)


def _allowed_external(b: Build, nonpad: Any, queries: Size, keys: Size, causal: bool, left: int, right: int) -> Any:
    """The same for a static cache whose lengths are known at run time: ``bool[B, 1, q, k]``."""
    batch = shape_of(nonpad)[0]
    lengths = b.reshape(b.cast(nonpad, "int64"), (batch, 1, 1, 1))
    key = b.reshape(b.arange(keys), (1, 1, 1, keys))
    result = b.broadcast(b.less(key, lengths), (batch, 1, 1, keys))
    behind = b.sub(b.arange(queries), b.number(queries))
    distance = b.sub(b.add(lengths, b.reshape(behind, (1, 1, queries, 1))), key)
    return _near(b, result, distance, causal, left, right)


def _near(b: Build, result: Any, distance: Any, causal: bool, left: int, right: int) -> Any:
    """What is allowed so far (None: all), and is no further away than causality and windows say."""
    limits = []
    if causal:
        limits.append(b.greater_equal(distance, 0))
    if left >= 0:
        limits.append(b.less_equal(distance, left))
    if right >= 0:
        limits.append(b.greater_equal(distance, -right))
    for limit in limits:
        result = limit if result is None else b.both(result, limit)
    return result


def _bias(
    b: Build,
    ctx: Context,
    inputs: Inputs,
    attrs: dict[str, Any],
    shape: tuple[Size, Size],
    past: Size,
    dtype: str,
) -> Any:
    """The additive mask (0 or -inf, plus what attn_mask adds), broadcastable to [B, H, q, k]; None if there is none."""
    queries, keys = shape
    causal = bool(attrs.get("is_causal", 0))
    left, right = attrs.get("left_window_size", -1), attrs.get("right_window_size", -1)
    mask, nonpad = inputs[3], inputs[6]
    bias = None
    if nonpad is not None:
        allowed = _allowed_external(b, nonpad, queries, keys, causal, left, right)
        bias = b.where(allowed, const(0, dtype), const(-np.inf, dtype))
    elif (causal or left >= 0 or right >= 0) and is_open((*shape, past)):
        allowed = _allowed_open(b, queries, keys, causal, left, right, past)
        bias = b.where(allowed, const(0, dtype), const(-np.inf, dtype))
    elif causal or left >= 0 or right >= 0:
        allowed = _allowed(queries, keys, causal, left, right, past)
        if not allowed.all():
            bias = const(np.where(allowed, 0.0, -np.inf), dtype)
    if mask is not None:
        if dtype_of(mask) == "bool":
            mask = b.where(mask, const(0, dtype), const(-np.inf, dtype))
        missing = keys - shape_of(mask)[-1]
        if missing:
            rank = len(shape_of(mask))
            tail = const(np.full((*map(int, shape_of(mask)[:-1]), int(missing)), -np.inf), dtype)
            mask = b.concat([mask, tail], rank - 1)
        bias = mask if bias is None else b.add(bias, mask)
    return bias


def attention(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ai.onnx Attention (opset 23 to 25): heads split and grouped, key/value cache, masks, windows, softcap.

    A query row with every key masked gives zeros (not NaN), as the standard says; the guard for it is built
    only where a mask is computed at run time or a constant one has such a row.
    """
    b = Build(bb, ctx.name)
    q, k, v = inputs[0], inputs[1], inputs[2]
    flat = len(shape_of(q)) == 3
    if flat:
        q = split_heads(b, q, attrs["q_num_heads"])
        k, v = split_heads(b, k, attrs["kv_num_heads"]), split_heads(b, v, attrs["kv_num_heads"])
    batches = [shape_of(t)[0] for t in (q, k, v)]
    if any(size != batches[0] for size in batches):
        told = " and ".join(str(size) for size in batches)
        raise ctx.unsupported(f"its queries, keys and values have batches of {told}", "bind them with --shape")
    if is_open(heads := [shape_of(t)[1] for t in (q, k)]) and heads[0] != heads[1]:
        raise OpenSize("how many heads share one of the keys is open")
    past: Size = 0
    if inputs[4] is not None:
        past = shape_of(inputs[4])[2]
        k, v = b.concat([inputs[4], k], 2), b.concat([inputs[5], v], 2)
    present = (k, v)
    dtype = dtype_of(q)
    groups = shape_of(q)[1] // shape_of(k)[1]
    k, v = repeat_heads(b, k, groups), repeat_heads(b, v, groups)
    queries, keys = shape_of(q)[2], shape_of(k)[2]
    scale = attrs.get("scale") or 1 / math.sqrt(shape_of(q)[3])
    transposed = b.transpose(k, (0, 1, 3, 2))
    if dtype in HALVES:  # the standard scales both sides, which keeps the product in range
        root = math.sqrt(scale)
        scores = b.matmul(b.mul(q, root), b.mul(transposed, root))
    else:
        scores = b.mul(b.matmul(q, transposed), scale)
    exposed = scores
    softcap = attrs.get("softcap", 0.0)
    if softcap > 0:
        scores = b.mul(b.unary(relax.op.tanh, b.div(scores, softcap)), softcap)
    mode = attrs.get("qk_matmul_output_mode", 0)
    if mode == 1:
        exposed = scores
    bias = _bias(b, ctx, inputs, attrs, (queries, keys), past, dtype)
    if bias is not None:
        scores = b.add(scores, bias)
    if mode == 2:
        exposed = scores
    precision = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}.get(attrs.get("softmax_precision", 0))
    weights = b.softmax(
        b.cast(
            scores,
            precision if precision not in (None, *HALVES) else "float32" if dtype in HALVES else dtype,
        )
    )
    weights = _guard(b, ctx, b.cast(weights, dtype), bias)
    if mode == 3:
        exposed = weights
    out = b.matmul(weights, v)
    return (merge_heads(b, out) if flat else out, *present, exposed)


def _guard(b: Build, ctx: Context, weights: Any, bias: Any) -> Any:
    """Zero the rows whose keys are all masked."""
    if bias is None:
        return weights
    known = ctx.array(bias)
    if known is not None:
        dead = np.isneginf(known.astype("float32")).all(-1, keepdims=True)
        if not dead.any():
            return weights
        return b.where(const(dead, "bool"), 0.0, weights)
    highest = b.max(b.wide(bias), -1, True)
    return b.where(b.less(highest, -3.4e38), 0.0, weights)


def rotate(b: Build, x: Any, cos: Any, sin: Any, dim: int, interleaved: bool) -> Any:
    """Rotate the first `dim` of the last axis of x [B, S, H, D] by angles whose cos and sin are [B, S, 1, dim/2]."""
    last, depth = 3, shape_of(x)[3]
    turned, kept = b.slice(x, last, 0, dim), b.slice(x, last, dim, depth) if dim < depth else None
    if interleaved:
        first, second = b.slice(turned, last, 0, dim, 2), b.slice(turned, last, 1, dim, 2)
    else:
        first, second = b.slice(turned, last, 0, dim // 2), b.slice(turned, last, dim // 2, dim)
    real = b.sub(b.mul(cos, first), b.mul(sin, second))
    imag = b.add(b.mul(sin, first), b.mul(cos, second))
    if interleaved:
        batch, length, heads, half = shape_of(real)
        pairs = [b.reshape(p, (batch, length, heads, half, 1)) for p in (real, imag)]
        result = b.reshape(b.concat(pairs, 4), (batch, length, heads, dim))
    else:
        result = b.concat([real, imag], last)
    return result if kept is None else b.concat([result, kept], last)


def _rotary(
    bb: relax.BlockBuilder, ctx: Context, x: Any, cos: Any, sin: Any, positions: Any, attrs: dict[str, Any]
) -> Result:
    b = Build(bb, ctx.name)
    original = shape_of(x)
    if len(original) == 4:
        x = b.transpose(x, (0, 2, 1, 3))
    else:
        dim = attrs.get("rotary_embedding_dim", 0) or 2 * shape_of(cos)[-1]
        heads = attrs.get("num_heads", 0) or original[2] // dim
        x = b.reshape(x, (*original[:2], heads, original[2] // heads))
    batch, length, _, depth = shape_of(x)
    dim = attrs.get("rotary_embedding_dim", 0) or depth
    if positions is not None:
        if shape_of(positions) in ((1,), ()):
            # com.microsoft gives the offset of the first position.
            start = b.reshape(b.cast(positions, "int64"), (1, 1))
            positions = b.broadcast(b.add(start, const(np.arange(length)[None, :], "int64")), (batch, length))
        positions = within(b, ctx, 3 if ctx.domain == "" else 1, "a position", 0, shape_of(cos)[0] - 1, positions)
        cos, sin = b.take(cos, positions, 0), b.take(sin, positions, 0)
    angles = [b.reshape(a, (shape_of(a)[0], shape_of(a)[1], 1, shape_of(a)[2])) for a in (cos, sin)]
    out = rotate(b, x, angles[0], angles[1], dim, bool(attrs.get("interleaved", 0)))
    return b.transpose(out, (0, 2, 1, 3)) if len(original) == 4 else b.reshape(out, original)


def rotary_embedding(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ai.onnx RotaryEmbedding: X, cos_cache, sin_cache, position_ids."""
    return _rotary(bb, ctx, inputs[0], inputs[1], inputs[2], inputs[3], attrs)


def ms_rotary_embedding(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """com.microsoft RotaryEmbedding: input, position_ids, cos_cache, sin_cache."""
    return _rotary(bb, ctx, inputs[0], inputs[2], inputs[3], inputs[1], attrs)


def linear_attention(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LinearAttention: the recurrence ``S = exp(g) S + k (x) u``, ``o = scale q S``, unrolled over the
    tokens.

    ``u`` is v, or ``beta (v - S^T k)`` for the delta rules. The state [B, H, Dk, Dv] is kept in float32.
    """
    b = Build(bb, ctx.name)
    rule = attrs.get("update_rule", "gated_delta")
    q_heads, heads = attrs["q_num_heads"], attrs["kv_num_heads"]
    dtype = dtype_of(inputs[0])
    q, k, v = (
        split_heads(b, b.cast(x, "float32"), n) for x, n in zip(inputs[:3], (q_heads, heads, heads), strict=True)
    )
    batch, _, length, dk = shape_of(q)
    dv = shape_of(v)[3]
    state_dtype = dtype_of(inputs[3]) if inputs[3] is not None else dtype
    if inputs[3] is not None:
        state = b.cast(inputs[3], "float32")
    else:
        state = const(np.zeros((batch, heads, dk, dv)), "float32")
    if rule.startswith("gated"):
        decay = b.emit(relax.op.exp(split_heads(b, b.cast(inputs[4], "float32"), heads)))
    if rule.endswith("delta"):
        beta = split_heads(b, b.cast(inputs[5], "float32"), shape_of(inputs[5])[-1])
    scale = attrs.get("scale", 0.0) or 1 / math.sqrt(dk)
    outputs = []
    for t in range(length):
        query, key, value = (b.slice(x, 2, t, t + 1) for x in (q, k, v))
        column = b.transpose(key, (0, 1, 3, 2))
        if rule.startswith("gated"):
            state = b.mul(state, b.transpose(b.slice(decay, 2, t, t + 1), (0, 1, 3, 2)))
        if rule.endswith("delta"):
            value = b.mul(b.slice(beta, 2, t, t + 1), b.sub(value, b.matmul(key, state)))
        state = b.add(state, b.mul(column, value))
        outputs.append(b.mul(b.matmul(query, repeat_heads(b, state, q_heads // heads)), scale))
    out = merge_heads(b, b.concat(outputs, 2))
    return b.cast(out, dtype), b.cast(state, state_dtype)


def tensor_scatter(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TensorScatter: write `update` into a key/value cache at each batch's position, linear or circular."""
    b = Build(bb, ctx.name)
    cache, update, indices = inputs[0], inputs[1], inputs[2]
    shape, rank = shape_of(cache), len(shape_of(cache))
    axis = attrs.get("axis", -2) % rank
    room, count = shape[axis], shape_of(update)[axis]
    linear = attrs.get("mode", "linear") == "linear"
    if indices is None:
        indices = const(np.zeros(shape[0]), "int64")
    elif linear:
        indices = within(b, ctx, 2, "a position", 0, room - count)
    start = b.reshape(b.cast(indices, "int64"), (shape[0], *[1] * (rank - 1)))
    slot = const(np.arange(room).reshape([room if i == axis else 1 for i in range(rank)]), "int64")
    source = b.sub(slot, start)  # the row of `update` that lands in each slot of the cache
    if not linear:
        source = b.emit(relax.op.floor_mod(b.add(source, room), const(room, "int64")))
    inside = b.both(b.greater_equal(source, 0), b.less(source, count))
    clipped = b.broadcast(b.minimum(b.maximum(source, 0), count - 1), shape)
    return b.where(inside, b.emit(relax.op.gather_elements(update, clipped, axis)), cache)


def causal_conv(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """CausalConvWithState: depthwise Conv1d over the past k-1 positions and the input, then an optional SiLU."""
    b = Build(bb, ctx.name)
    x, weight, bias, past = inputs[0], inputs[1], inputs[2], inputs[3]
    batch, channels, length = shape_of(x)
    taps = shape_of(weight)[2]
    dtype = dtype_of(x)
    if past is None:
        past = const(np.zeros((batch, channels, taps - 1)), dtype)
    if length == 0:
        return x, past
    padded = b.concat([past, x], 2)
    out = b.emit(relax.op.nn.conv1d(b.wide(padded), b.wide(weight), groups=channels))
    if bias is not None:
        out = b.add(out, b.reshape(b.wide(bias), (1, channels, 1)))
    if attrs.get("activation", "none") in ("silu", "swish"):
        out = b.emit(relax.op.nn.silu(b.wide(b.cast(out, dtype))))
    total = shape_of(padded)[2]
    return b.cast(out, dtype), b.slice(padded, 2, total - (taps - 1), total)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Attention"): attention,
    ("", "RotaryEmbedding"): rotary_embedding,
    ("com.microsoft", "RotaryEmbedding"): ms_rotary_embedding,
    ("", "LinearAttention"): linear_attention,
    ("", "TensorScatter"): tensor_scatter,
    ("", "CausalConvWithState"): causal_conv,
}
