"""Reductions, softmax and norms, each in its stable form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported

Reduce = Callable[..., Array]


def _reduced(function: Reduce) -> Operator:
    def run(call: Call, x: Array, axes: Array | None = None) -> Result:
        chosen = call.ints("axes", axes)
        # Of no axes it still squares, or takes a logarithm.
        every = () if call.get("noop_with_empty_axes", 0) else range(x.ndim)
        where = tuple(dict.fromkeys(a % x.ndim for a in chosen)) if chosen else tuple(every)
        with np.errstate(all="ignore"):
            made = function(in_sequence(x, where), where, bool(call.get("keepdims", 1)))
        return np.asarray(made).astype(x.dtype, copy=False)

    return run


def in_sequence(x: Array, axes: Sequence[int]) -> Array:
    """The same tensor, in float32 so laid out that NumPy adds along these axes one element after the other, as an
    engine's kernel does: numbers that lie side by side it adds in pairs, which rounds less than any engine."""
    if x.dtype != np.float32:
        return x
    order = [*axes, *(a for a in range(x.ndim) if a not in axes)]
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


def _mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    if x.dtype.kind in "iu":
        total = x.sum(axes, keepdims=keep, dtype=np.uint64 if x.dtype == np.uint64 else np.int64)
        count = total.dtype.type(max(1, prod(x.shape[a] for a in axes)))
        floor, rest = np.divmod(total, count)
        return np.asarray(floor + ((total < 0) & (rest != 0))).astype(x.dtype)  # towards zero
    return np.asarray(x.mean(axes, keepdims=keep))


def _root_of_squares(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.sqrt(np.square(x).sum(axes, keepdims=keep)))
    root = np.sqrt(np.square(x.astype(np.float64)).sum(axes, keepdims=keep))
    top = int(np.iinfo(x.dtype).max)
    return np.asarray(np.minimum(root, float(top) if int(float(top)) <= top else np.nextafter(float(top), 0.0)))


def _extreme(name: str) -> Reduce:
    def run(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if x.dtype.kind == "b":
            return np.asarray(getattr(x, "any" if name == "max" else "all")(axes, keepdims=keep))
        low: Any = (-np.inf, np.inf) if x.dtype.kind == "f" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
        initial = low[0] if name == "max" else low[1]
        return np.asarray(getattr(x, name)(axes, keepdims=keep, initial=initial))

    return run


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    from scipy import special  # takes long to import, and few models need it

    wide = x if x.dtype.kind == "f" else x.astype(np.float64)
    return np.asarray(
        special.logsumexp(wide, axis=axes, keepdims=keep) if wide.size else np.log(wide.sum(axes, keepdims=keep))
    )


def _top_k(call: Call, x: Array, k: Array | None = None) -> Result:
    """The first of equals first; NaN is larger than every number."""
    axis, count = int(call.get("axis", -1)), int(call.get("k", 0) if k is None else np.ravel(k)[0])
    rank = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-rank if call.get("largest", 1) else rank, axis, kind="stable")
    order = np.take(order, range(count), axis)
    return [np.take_along_axis(x, order, axis), order]


def _arg(call: Call, x: Array) -> Result:
    axis = int(call.get("axis", 0))
    find = np.argmax if call.op == "ArgMax" else np.argmin
    if call.get("select_last_index", 0):
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
    else:
        found = find(x, axis)
    return np.asarray(np.expand_dims(found, axis) if call.get("keepdims", 1) else found).astype(np.int64)


def _softmax(call: Call, x: Array) -> Result:
    shape = x.shape
    if call.version < 13:
        axis = int(call.get("axis", 1)) % max(1, x.ndim)
        x, axis = x.reshape(prod(shape[:axis]), prod(shape[axis:])), 1
    else:
        axis = int(call.get("axis", -1))
    return soft(x, axis, call.op).reshape(shape)


def soft(x: Array, axis: int, op: str = "Softmax") -> Array:
    if not x.size:
        return x
    if op == "Hardmax":
        best = np.expand_dims(np.argmax(x, axis), axis)
        out = np.zeros_like(x)
        np.put_along_axis(out, best, 1, axis)
        return out
    moved = x - x.max(axis, keepdims=True, initial=-np.inf)
    e = np.exp(moved)
    total = e.sum(axis, keepdims=True)
    return np.asarray(moved - np.log(total) if op == "LogSoftmax" else e / total)


def _cumulative(call: Call, x: Array, axis: Array) -> Result:
    at = int(np.asarray(axis).reshape(-1)[0])
    if not x.shape[at]:
        return x
    if call.get("reverse", 0):
        x = np.flip(x, at)
    y = np.cumsum(x, at, dtype=x.dtype) if call.op == "CumSum" else np.cumprod(x, at, dtype=x.dtype)
    if call.get("exclusive", 0):
        first = np.full_like(np.take(y, [0], at), 0 if call.op == "CumSum" else 1)
        y = np.concatenate([first, np.take(y, range(x.shape[at] - 1), at)], at)
    return np.flip(y, at) if call.get("reverse", 0) else y


# -- norms -----------------------------------------------------------------------------------------------


def normalized(x: Array, axes: tuple[int, ...], epsilon: float, centred: bool = True) -> tuple[Array, Array, Array]:
    """(x without mean and scale, the mean, the reciprocal of the deviation)."""
    mean = x.mean(axes, keepdims=True)
    d = x - mean if centred else x
    inverse = 1 / np.sqrt((d * d).mean(axes, keepdims=True) + x.dtype.type(epsilon))
    return d * inverse, mean, inverse


def _channel(v: Array, x: Array) -> Array:
    return v.reshape(1, -1, *(1,) * (x.ndim - 2))


def batch_norm(call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Result:
    if call.get("training_mode", 0) or (call.outputs > 1 and call.version >= 14):
        raise Unsupported("BatchNormalization while training")
    if x.ndim < 2:
        raise Unsupported("BatchNormalization of a vector")
    factor = scale / np.sqrt(var + x.dtype.type(call.single("epsilon", 1e-5)))
    return (x - _channel(mean, x)) * _channel(factor, x) + _channel(bias, x)


def instance_norm(call: Call, x: Array, scale: Array, bias: Array) -> Result:
    y, _, _ = normalized(x, tuple(range(2, x.ndim)), call.single("epsilon", 1e-5))
    return y * _channel(scale, x) + _channel(bias, x)


def group_norm(call: Call, x: Array, scale: Array, bias: Array) -> Result:
    groups = int(call.get("num_groups"))
    split = x.reshape(x.shape[0], groups, prod(x.shape[1:]) // groups)
    y, _, _ = normalized(split, (2,), call.single("epsilon", 1e-5))
    if call.version < 21:
        per = x.shape[1] // groups
        scale, bias = np.repeat(scale, per), np.repeat(bias, per)
    return y.reshape(x.shape) * _channel(scale, x) + _channel(bias, x)


def layer_norm(call: Call, x: Array, scale: Array, bias: Array | None = None) -> Result:
    axis = int(call.get("axis", -1)) % x.ndim
    y, mean, inverse = normalized(x, tuple(range(axis, x.ndim)), call.single("epsilon", 1e-5))
    y = y * scale
    return [y if bias is None else y + bias, mean, inverse][: call.outputs]


def rms_norm(call: Call, x: Array, scale: Array, *rest: Array) -> Result:
    axis = int(call.get("axis", -1)) % x.ndim
    y, _, inverse = normalized(x, tuple(range(axis, x.ndim)), call.single("epsilon", 1e-5), False)
    return [y * scale, inverse][: call.outputs]


def mean_variance_norm(call: Call, x: Array) -> Result:
    axes = tuple(a % x.ndim for a in call.ints("axes") or [0, 2, 3])
    d = x - x.mean(axes, keepdims=True)
    return d / (np.sqrt((d * d).mean(axes, keepdims=True)) + x.dtype.type(1e-9))


def lrn(call: Call, x: Array) -> Result:
    size = int(call.get("size"))
    alpha, beta, bias = (call.single(n, v) for n, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    before, channels = (size - 1) // 2, x.shape[1]
    total = np.empty_like(x)
    for c in range(channels):  # from running sums a channel beside one a billion times as large would lose its digits
        total[:, c] = (x[:, max(0, c - before) : c + size - before] ** 2).sum(1)
    dtype = x.dtype.type
    return x / (dtype(bias) + dtype(alpha / size) * total) ** dtype(beta)


def lp_norm(call: Call, x: Array) -> Result:
    axis, p = int(call.get("axis", -1)), int(call.get("p", 2))
    size = np.abs(x).sum(axis, keepdims=True) if p == 1 else np.sqrt((x * x).sum(axis, keepdims=True))
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size)).astype(x.dtype)


TABLE: dict[str, Operator] = {
    "ReduceSum": _reduced(lambda x, a, k: x.sum(a, keepdims=k, dtype=x.dtype)),
    "ReduceMean": _reduced(_mean),
    "ReduceMax": _reduced(_extreme("max")),
    "ReduceMin": _reduced(_extreme("min")),
    "ReduceProd": _reduced(lambda x, a, k: x.prod(a, keepdims=k, dtype=x.dtype)),
    "ReduceL1": _reduced(lambda x, a, k: np.abs(x).sum(a, keepdims=k, dtype=x.dtype)),
    "ReduceL2": _reduced(_root_of_squares),
    "ReduceSumSquare": _reduced(lambda x, a, k: np.square(x).sum(a, keepdims=k, dtype=x.dtype)),
    "ReduceLogSum": _reduced(
        lambda x, a, k: np.log(x.sum(a, keepdims=k, dtype=x.dtype if x.dtype.kind == "f" else float))
    ),
    "ReduceLogSumExp": _reduced(_log_sum_exp),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "TopK": _top_k,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _softmax,
    "CumSum": _cumulative,
    "CumProd": _cumulative,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "MeanVarianceNormalization": mean_variance_norm,
    "LRN": lrn,
    "LpNormalization": lp_norm,
}
