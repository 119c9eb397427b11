"""Shapes, indices and the movement of data: nothing here rounds."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported, Value


def _shape(call: Call, x: Array) -> Result:
    start, end = call.get("start", 0), call.get("end")
    return np.array(x.shape[start:end], np.int64)


def _reshape(call: Call, x: Array, shape: Array | None = None) -> Result:
    wanted = call.ints("shape", shape) or []
    if not call.get("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in wanted and x.size == 0:
        known = prod(n for n in wanted if n != -1)
        wanted = [(x.size // known if known else 0) if n == -1 else n for n in wanted]
    return x.reshape(wanted)


def _transpose(call: Call, x: Array) -> Result:
    return np.transpose(x, call.ints("perm"))


def _squeeze(call: Call, x: Array, axes: Array | None = None) -> Result:
    chosen = call.ints("axes", axes)
    return np.squeeze(x, tuple(chosen) if chosen is not None else None)


def _unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Result:
    return np.expand_dims(x, tuple(call.ints("axes", axes) or ()))


def _flatten(call: Call, x: Array) -> Result:
    axis = int(call.get("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _concat(call: Call, *inputs: Array) -> Result:
    return np.concatenate(inputs, int(call.get("axis", 1)))


def _split(call: Call, x: Array, sizes: Array | None = None) -> Result:
    axis = int(call.get("axis", 0))
    parts = call.ints("split", sizes)
    if parts is None:
        number = int(call.get("num_outputs", call.outputs))
        step = -(-x.shape[axis] // number)
        parts = [min(step, x.shape[axis] - i * step) for i in range(number)]
    return list(np.split(x, np.cumsum(parts)[:-1], axis))


def _slice(call: Call, x: Array, *rest: Array | None) -> Result:
    given = [None if v is None else [int(n) for n in v.reshape(-1)] for v in (*rest, None, None, None, None)[:4]]
    starts = given[0] if given[0] is not None else call.ints("starts") or []
    ends = given[1] if given[1] is not None else call.ints("ends") or []
    axes = given[2] if given[2] is not None else call.ints("axes") or list(range(len(starts)))
    steps = given[3] or [1] * len(starts)
    at = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        if step > 0:
            low, high = (min(max(v + size if v < 0 else v, 0), size) for v in (start, end))
            at[axis] = slice(low, high, step)
        else:
            low = min(max(start + size if start < 0 else start, 0), size - 1)
            last = max(end + size if end < 0 else end, -1)
            at[axis] = slice(low, None if last < 0 else last, step)
    return x[tuple(at)]


def _expand(call: Call, x: Array, shape: Array) -> Result:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape))).copy()


def _tile(call: Call, x: Array, repeats: Array, axis: Array | None = None) -> Result:
    if call.version < 6:
        raise Unsupported("Tile of opset 1")
    return np.tile(x, [int(n) for n in repeats])


def _pad(
    call: Call, x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None
) -> Result:
    given = call.ints("pads", pads) if pads is not None or call.get("pads") is not None else call.ints("paddings")
    assert given is not None
    at = [int(a) % x.ndim for a in axes.reshape(-1)] if axes is not None else list(range(x.ndim))
    fill = call.get("value", 0.0) if value is None else np.asarray(value).reshape(-1)[0] if np.size(value) else 0
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(at):
        before[axis], after[axis] = given[i], given[i + len(at)]
    cut = tuple(slice(max(0, -b), n - max(0, -a)) for b, n, a in zip(before, x.shape, after, strict=True))
    width = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    mode = call.get("mode", "constant")
    fills = {"constant_values": np.asarray(fill).astype(x.dtype)} if mode == "constant" else {}
    return np.pad(x[cut], width, mode, **fills)  # onnxruntime cuts first: what it repeats are elements that are left


def _gather(call: Call, x: Array, indices: Array) -> Result:
    return np.take(x, _inside(indices, x.shape[int(call.get("axis", 0))]), int(call.get("axis", 0)))


def _inside(indices: Array, size: int) -> Array:
    """Negative indices count from the end."""
    wide = indices.astype(np.int64)
    return np.asarray(np.where(wide < 0, wide + size, wide))


def _gather_elements(call: Call, x: Array, indices: Array) -> Result:
    axis = int(call.get("axis", 0)) % x.ndim
    at: list[Any] = list(np.indices(indices.shape))
    at[axis] = _inside(indices, x.shape[axis])
    return x[tuple(at)]


def _gather_nd(call: Call, x: Array, indices: Array) -> Result:
    batch, depth = int(call.get("batch_dims", 0)), indices.shape[-1]
    lead = x.shape[:batch]
    flat = x.reshape(prod(lead), *x.shape[batch:])
    where = indices.reshape(prod(lead), prod(indices.shape[batch:-1]), depth).astype(np.int64)
    where = np.where(where < 0, where + np.array(flat.shape[1 : 1 + depth]), where)
    rows = np.arange(flat.shape[0])[:, None]
    picked = flat[(rows, *(where[..., i] for i in range(depth)))]
    return picked.reshape(*indices.shape[:-1], *x.shape[batch + depth :])


_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scattered(call: Call, x: Array, at: tuple[Array, ...], updates: Array) -> Array:
    out = x.copy()
    how = call.get("reduction", "none")
    if how == "none":
        out[at] = updates
    else:
        _COMBINE[how].at(out, at, updates)
    return out


def _scatter_elements(call: Call, x: Array, indices: Array, updates: Array) -> Result:
    axis = int(call.get("axis", 0)) % x.ndim
    at: list[Any] = list(np.indices(indices.shape))
    at[axis] = _inside(indices, x.shape[axis])
    return _scattered(call, x, tuple(at), updates)


def _scatter_nd(call: Call, x: Array, indices: Array, updates: Array) -> Result:
    depth = indices.shape[-1]
    wide = indices.astype(np.int64)
    wide = np.where(wide < 0, wide + np.array(x.shape[:depth], np.int64), wide)
    return _scattered(call, x, tuple(wide[..., i] for i in range(depth)), updates)


def _one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Result:
    axis, number = int(call.get("axis", -1)), int(np.asarray(depth).reshape(-1)[0])
    where = np.asarray(indices).astype(np.int64)
    where = np.where(where < 0, where + number, where)
    axis = axis % (where.ndim + 1)
    hot = np.expand_dims(where, axis) == np.arange(number).reshape(
        [-1 if i == axis else 1 for i in range(where.ndim + 1)]
    )
    return np.where(hot, values[1], values[0])


def _constant_of_shape(call: Call, shape: Array) -> Result:
    value = call.get("value")
    fill = Value(np.zeros(1, call.work), np.dtype(np.float32)) if value is None else value
    return [Value(np.full([int(n) for n in shape], fill.array.reshape(-1)[0], fill.array.dtype), fill.kind)]


def _constant(call: Call) -> Result:
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if call.get(name) is not None:
            return np.asarray(call.get(name), dtype)
    value = call.get("value", call.get("sparse_value"))
    if value is None:
        raise Unsupported("a Constant of strings")
    return [value]


ENDLESS = 1 << 31
"""Elements that no Range has."""


def _range(call: Call, start: Array, limit: Array, delta: Array) -> Result:
    first, end, step = (np.asarray(v).reshape(-1)[0] for v in (start, limit, delta))
    number = np.ceil((np.float64(end) - np.float64(first)) / np.float64(step))
    if not number <= ENDLESS:
        raise Unsupported("a Range without an end")
    return (np.arange(int(max(number, 0))) * step + first).astype(start.dtype)


def _trilu(call: Call, x: Array, k: Array | None = None) -> Result:
    shift = 0 if k is None else int(np.asarray(k).reshape(-1)[0])
    shift = max(-max(x.shape), min(max(x.shape), shift))  # NumPy takes no diagonal as far away as int64 goes
    return np.triu(x, shift) if call.get("upper", 1) else np.tril(x, shift)


def _depth_to_space(call: Call, x: Array) -> Result:
    n, c, h, w = x.shape
    b = int(call.get("blocksize"))
    if call.get("mode", "DCR") == "DCR":
        y = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth(call: Call, x: Array) -> Result:
    n, c, h, w = x.shape
    b = int(call.get("blocksize"))
    order = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(order)
    return y.reshape(n, c * b * b, h // b, w // b)


def _top_k(call: Call, x: Array, k: Array | None = None) -> Result:
    axis = int(call.get("axis", -1)) % max(1, x.ndim)
    number = int(np.asarray(k).reshape(-1)[0]) if k is not None else int(call.get("k"))
    wide = (
        x.astype(np.float64)
        if x.dtype.kind == "f"
        else x.astype(object)
        if x.dtype == np.uint64
        else x.astype(np.int64)
    )
    order = np.argsort(-wide if call.get("largest", 1) else wide, axis, kind="stable")
    picks = np.take(order, range(number), axis).astype(np.int64)
    return [np.take_along_axis(x, picks, axis), picks]


def _non_zero(call: Call, x: Array) -> Result:
    """[rank, number of them]: [0, 0] or [0, 1] of a scalar, unlike NumPy's and onnxruntime's."""
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim]


def _compress(call: Call, x: Array, condition: Array) -> Result:
    """What a condition says beyond the axis is of nothing, as in onnxruntime."""
    axis = call.get("axis")
    size = x.size if axis is None else x.shape[int(axis)]
    return np.compress(condition[:size], x, None if axis is None else int(axis))


TABLE: dict[str, Operator] = {
    "Shape": _shape,
    "Size": lambda call, x: np.array(x.size, np.int64),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Trilu": _trilu,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "TopK": _top_k,
    "NonZero": _non_zero,
    "Compress": _compress,
}
