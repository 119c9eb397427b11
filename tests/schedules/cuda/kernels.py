"""Functions for the GPU families that use no tensor cores, and their answers in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from tvmopt.lowering.window import Window
from tvmopt.schedules.cuda.depthwise import compute as dw
from tvmopt.schedules.cuda.rows import compute as norm

Case = tuple[Any, list[tuple[tuple[int, ...], str]], tuple[tuple[int, ...], str], Callable[..., Any]]
"""The PrimFunc, shapes and types of its inputs and of its output, and what it computes."""


def case(inputs: list[te.Tensor], output: te.Tensor, answer: Callable[..., Any]) -> Case:
    func = te.create_prim_func([*inputs, output], "int64")
    return func, [_spec(t) for t in inputs], _spec(output), answer


def _spec(t: te.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(int(d) for d in t.shape), str(t.dtype)


def _in(name: str, shape: tuple[int, ...], dtype: str) -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def softmax(rows: tuple[int, ...], length: int, dtype: str = "float32", log: bool = False) -> Case:
    def answer(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True)
        return np.log(y) if log else y

    x = _in("x", (*rows, length), dtype)
    return case([x], norm.softmax_te(x, dtype, log), answer)


def layer_norm(rows: tuple[int, ...], length: int, dtype: str = "float32", relu: bool = False) -> Case:
    x, g, b = _in("x", (*rows, length), dtype), _in("g", (length,), dtype), _in("b", (length,), dtype)
    depth = len(rows)

    def affine(value: Any, *i: Any) -> Any:
        return value * g(*i[depth:]).astype(value.ty.dtype) + b(*i[depth:]).astype(value.ty.dtype)

    y = norm.norm_te(x, depth, 1e-5, dtype, affine, True, "layer_norm")
    out = topi.nn.relu(y) if relu else y

    def answer(x: Any, g: Any, b: Any) -> Any:
        value = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b
        return np.maximum(value, 0) if relu else value

    return case([x, g, b], out, answer)


def row_mean(rows: tuple[int, ...], length: int, dtype: str = "float32") -> Case:
    x = _in("x", (*rows, length), dtype)
    return case([x], topi.divide(topi.sum(x, axis=-1), tirx.const(length, dtype)), lambda x: x.mean(-1))


def row_max(rows: tuple[int, ...], length: int, dtype: str = "float32") -> Case:
    x = _in("x", (*rows, length), dtype)
    return case([x], topi.max(x, axis=-1, keepdims=True), lambda x: x.max(-1, keepdims=True))


def add_tanh(shape: tuple[int, ...], dtype: str = "float32") -> Case:
    x, b = _in("x", shape, dtype), _in("b", shape[-1:], dtype)
    y = te.compute(shape, lambda *i: te.tanh(x(*i)) + b(i[-1]), name="y")
    return case([x, b], y, lambda x, b: np.tanh(x) + b)


def cast(shape: tuple[int, ...], source: str, target: str) -> Case:
    x = _in("x", shape, source)
    return case([x], topi.cast(x, target), lambda x: x)


def transpose(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32", scale: bool = False) -> Case:
    x = _in("x", shape, dtype)
    y = topi.transpose(x, axes)
    y = topi.multiply(y, tirx.const(2, dtype)) if scale else y
    return case([x], y, lambda x: x.transpose(axes) * (2 if scale else 1))


def concat(shape: tuple[int, ...], other: int, dtype: str = "float32") -> Case:
    x, y = _in("x", shape, dtype), _in("y", (*shape[:-1], other), dtype)
    return case([x, y], topi.concatenate([x, y], axis=-1), lambda x, y: np.concatenate([x, y], -1))


def shuffle(channels: int, groups: int) -> Case:
    x = _in("x", (1, 4, 4, channels), "float32")
    split = topi.reshape(x, (1, 4, 4, groups, channels // groups))
    y = topi.reshape(topi.transpose(split, (0, 1, 2, 4, 3)), (1, 4, 4, channels))

    def answer(x: Any) -> Any:
        return x.reshape(1, 4, 4, groups, -1).swapaxes(3, 4).reshape(1, 4, 4, channels)

    return case([x], y, answer)


def pool(kind: str, n: int, size: int, channels: int, kernel: int, stride: int, pad: int, dtype: str) -> Case:
    x = _in("x", (n, size, size, channels), dtype)
    y = topi.nn.pool2d(
        x,
        (kernel, kernel),
        (stride, stride),
        (1, 1),
        (pad,) * 4,
        kind,
        layout="NHWC",
        count_include_pad=False,
    )

    def answer(x: Any) -> Any:
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=np.nan)
        views = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]
        return (np.nanmax if kind == "max" else np.nanmean)(views, (-1, -2))

    return case([x], y, answer)


def depthwise(n: int, size: int, channels: int, kernel: int, stride: int, dtype: str, multiplier: int = 1) -> Case:
    pad, outputs = kernel // 2, channels * multiplier
    out = (size + 2 * pad - kernel) // stride + 1
    window = Window((kernel, kernel), (stride, stride), (pad,) * 4, (1, 1), (out, out))
    x, w = _in("x", (n, size, size, channels), dtype), _in("w", (kernel, kernel, outputs), dtype)

    def answer(x: Any, w: Any) -> Any:
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        views = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]
        return np.einsum("nhwcij,ijc->nhwc", np.repeat(views, multiplier, 3), w)

    return case([x, w], dw.depthwise_te(x, w, window, dtype), answer)


def global_pool(n: int, size: int, channels: int, dtype: str = "float32") -> Case:
    x = _in("x", (n, size, size, channels), dtype)
    y = topi.divide(topi.sum(x, axis=[1, 2], keepdims=True), tirx.const(size * size, dtype))
    return case([x], y, lambda x: x.mean((1, 2), keepdims=True))


def batch_sum(shape: tuple[int, ...]) -> Case:
    x = _in("x", shape, "float32")
    return case([x], topi.sum(x, axis=0), lambda x: x.sum(0))


def argmax(rows: int, length: int) -> Case:
    x = _in("x", (rows, length), "float32")
    return case([x], topi.argmax(x, axis=-1), lambda x: x.argmax(-1))


def two_reductions(rows: int, length: int) -> Case:
    """Sums over both axes: no one family takes them."""
    x = _in("x", (rows, length), "float32")
    j, i = te.reduce_axis((0, length), "j"), te.reduce_axis((0, rows), "i")
    across = te.compute((rows,), lambda r: te.sum(x[r, j], axis=j), name="across")
    down = te.compute((length,), lambda c: te.sum(x[i, c], axis=i), name="down")
    y = te.compute((rows, length), lambda r, c: across[r] * down[c], name="y")
    return case([x], y, lambda x: x.sum(1, keepdims=True) * x.sum(0, keepdims=True))
