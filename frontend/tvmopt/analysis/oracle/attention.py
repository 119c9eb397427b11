"""Attention with caches: of com.microsoft by onnxruntime's documentation, and of ai.onnx where caches are rounded.

    present = as it is stored(past and the new rows, one behind the other)
    y = softmax(scale * q presentᵀ + bias) present

A mask is a bias of 0 and -inf, or of 0 and `mask_filter_value`.
"""

from __future__ import annotations

import math

import numpy as np

from tvmopt.analysis.oracle.products import softmax_last
from tvmopt.analysis.oracle.values import KEPT, Array, Call, Operator, Result, Unsupported, is_real

KEEPERS = {"Attention", "GroupQueryAttention", "MultiHeadAttention"}
"""Operators that make caches and read them: they round them themselves."""


def attend(call: Call, q: Array, k: Array, v: Array, bias: Array, softcap: float = 0.0) -> Array:
    """Attention of q [B, H, S, D] to k and v [B, G, T, D], G dividing H: [B, H, S, D]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (call.operand(np.repeat(x, groups, 1)) for x in (k, v))
    scale = call.single("scale", 0.0) or 1 / math.sqrt(q.shape[3])
    scores = np.matmul(call.operand(q), k.swapaxes(2, 3)) * scale
    if softcap > 0:
        scores = np.tanh(scores / softcap) * softcap
    return np.asarray(np.matmul(call.operand(softmax_last(scores + bias)), v))


def cached(call: Call, k: Array, v: Array, past_key: Array | None, past_value: Array | None) -> list[Array]:
    """(What attention reads of keys and values, the outputs 1 and 2)."""
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    made = [call.kept(1, k), call.kept(2, v)]
    return [*(call.in_cache(i, m) for i, m in enumerate(made, 1)), *made]


def split(x: Array, heads: int) -> Array:
    """[B, S, H*D] -> [B, H, S, D]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merged(x: Array) -> Array:
    """[B, H, S, D] -> [B, S, H*D]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def causal(call: Call, queries: int, first: int, keys: int, window: int = -1) -> Array:
    """0 where a query may look, else -inf: [queries, keys]. The first query stands where key number `first` does."""
    distance = np.arange(queries)[:, None] + first - np.arange(keys)
    seen = (distance >= 0) & ((distance < window) | (window < 0))
    return np.where(seen, 0, -np.inf).astype(call.work)


def rotated(call: Call, x: Array, cos: Array, sin: Array, at: Array) -> Array:
    """Heads [B, H, S, D] turned by the angles of the rows `at` [B, S] of tables [positions, half]."""
    half = cos.shape[1]
    c, s = cos[at][:, None], sin[at][:, None]
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if call.get("rotary_interleaved", 0) else None
    one, other = pairs or (slice(0, half), slice(half, 2 * half))
    turned = x.copy()
    turned[..., one] = c * x[..., one] - s * x[..., other]
    turned[..., other] = s * x[..., one] + c * x[..., other]
    return turned


def grouped(
    call: Call, query: Array, key: Array | None, value: Array | None, past_key: Array | None = None,
    past_value: Array | None = None, lengths: Array | None = None, total: Array | None = None,
    cos: Array | None = None, sin: Array | None = None, at: Array | None = None, bias: Array | None = None,
    *rest: Array | None,
) -> Result:  # fmt: skip
    """GroupQueryAttention, of texts that fill their rows of the caches: not of padded ones, or buffers of their own."""
    if call.get("smooth_softmax", 0) or call.outputs > 3 or any(x is not None for x in rest) or lengths is None:
        raise Unsupported("attention sinks, scores, or caches of integers")
    heads, own = int(call.get("num_heads")), int(call.get("kv_num_heads"))
    if key is None or value is None:
        depth = query.shape[2] // (heads + 2 * own)
        query, key, value = np.split(query, [heads * depth, (heads + own) * depth], 2)
    q, k, v = split(query, heads), split(key, own), split(value, own)
    new, past = q.shape[2], 0 if past_key is None else past_key.shape[2]
    if {past + new} != {*np.ravel(lengths + 1), *np.ravel(total if total is not None else past + new)}:
        raise Unsupported("texts of other lengths than the caches'")
    if call.get("do_rotary", 0):
        assert cos is not None and sin is not None
        at = np.broadcast_to(np.arange(past, past + new) if at is None else at, (q.shape[0], new))
        if at.size and not 0 <= at.min() <= at.max() < len(cos):
            raise Unsupported("positions beyond the tables")
        q, k = (rotated(call, x, cos, sin, at) for x in (q, k))
    k, v, *made = cached(call, k, v, past_key, past_value)
    seen = causal(call, new, past, past + new, int(call.get("local_window_size", -1)))
    y = attend(call, q, k, v, seen if bias is None else seen + bias, call.single("softcap", 0.0))
    return [merged(y), *made][: call.outputs]


def multi_head(
    call: Call, query: Array, key: Array | None = None, value: Array | None = None, added: Array | None = None,
    mask: Array | None = None, bias: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, *rest: Array | None,
) -> Result:  # fmt: skip
    """MultiHeadAttention: query, key and value apart, or side by side as [B, S, H, 3, D] or [B, T, H, 2, D]."""
    if call.outputs > 3 or any(x is not None for x in rest):
        raise Unsupported("scores, or a cache that beams share")
    heads = int(call.get("num_heads"))
    if key is None:
        query, key, value = (x.reshape(*x.shape[:2], -1) for x in np.moveaxis(query, 3, 0))
    elif value is None:
        key, value = (x.reshape(*x.shape[:2], -1) for x in np.moveaxis(key, 3, 0))
    parts = [query, key, value]
    if added is not None:
        edges = np.cumsum([x.shape[-1] for x in (query, query)])
        biases = np.split(added, edges)
        parts = [x + b if x.ndim == 3 else x for x, b in zip(parts, biases, strict=True)]
    q, k, v = (split(x, heads) if x.ndim == 3 else x for x in parts)
    k, v, *made = cached(call, k, v, past_key, past_value)
    new, total = q.shape[2], k.shape[2]
    every = np.zeros((1, 1, new, total), call.work) if bias is None else bias
    if mask is not None:
        every = every + masked(call, mask, total)
    if call.get("unidirectional", 0):
        every = every + causal(call, new, total - new, total)
    return [merged(attend(call, q, k, v, every)), *made][: call.outputs]


def masked(call: Call, mask: Array, total: int) -> Array:
    """The bias of a mask: numbers of keys [B], or flags [B, T], [B, S, T] or [B, 1, S, T]."""
    if mask.ndim == 1:
        mask = np.arange(total) < mask[:, None]
    if mask.shape[-1] != total:
        raise Unsupported("a mask of another length")
    wide = mask[:, None, None] if mask.ndim == 2 else mask[:, None] if mask.ndim == 3 else mask
    return np.where(wide > 0, 0, call.single("mask_filter_value", -10000.0)).astype(call.work)


def standard(
    call: Call, q: Array, k: Array, v: Array, mask: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, filled: Array | None = None,
) -> Result:  # fmt: skip
    """Attention of ai.onnx whose caches are rounded; the body of its schema is the definition of any other."""
    if call.get(KEPT) is None or call.outputs > 3 or filled is not None or call.get("softmax_precision", 1) != 1:
        raise Unsupported("what the body of the schema is right for")
    flat = q.ndim == 3
    if flat:
        heads = [int(call.get(f"{kind}_num_heads")) for kind in ("q", "kv", "kv")]
        q, k, v = (split(x, n) for x, n in zip((q, k, v), heads, strict=True))
    k, v, *made = cached(call, k, v, past_key, past_value)
    new, total = q.shape[2], k.shape[2]
    bias = np.zeros((new, total), call.work)
    if mask is not None:
        given = mask if is_real(mask.dtype) else np.where(mask, 0, -np.inf)
        width = [(0, 0)] * (given.ndim - 1) + [(0, total - given.shape[-1])]
        bias = bias + np.pad(given, width, constant_values=-np.inf).astype(call.work)
    if call.get("is_causal", 0):
        bias = bias + causal(call, new, 0 if past_key is None else past_key.shape[2], total)
    hidden = (bias == -np.inf).all(-1, keepdims=True)  # a query that sees nothing
    y = np.where(hidden, 0, attend(call, q, k, v, np.where(hidden, 0, bias), call.single("softcap", 0.0)))
    return [merged(y) if flat else y, *made][: call.outputs]


TABLE: dict[str, Operator] = {"Attention": standard}
CONTRIB: dict[str, Operator] = {"GroupQueryAttention": grouped, "MultiHeadAttention": multi_head}
