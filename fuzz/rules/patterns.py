"""Operators in the pieces that exporters break them into: what the compiler's fusions put together again."""

from __future__ import annotations

import numpy as np

from fuzz.build import Builder, Reject
from fuzz.rules.windows import image


def softmax(b: Builder) -> None:
    a = b.pick(ranks=(2, 3, 4))
    axis = b.axis(a.rank)
    top, attrs = b.axes_operand([axis], 18)
    total, sum_attrs = b.axes_operand([axis], 13)
    shifted = b.node("Sub", [a, b.node("ReduceMax", [a, *top], keepdims=1, **attrs)])
    e = b.node("Exp", [shifted])
    b.node("Div", [e, b.node("ReduceSum", [e, *total], keepdims=1, **sum_attrs)])


def layer_norm(b: Builder) -> None:
    a = b.pick(ranks=(2, 3, 4))
    axes = [-1] if b.chance(0.7) else b.axes(a.rank)
    operands, attrs = b.axes_operand(axes, 18)
    mean = b.node("ReduceMean", [a, *operands], keepdims=1, **attrs)
    centred = b.node("Sub", [a, mean])
    square = b.node("Mul", [centred, centred]) if b.chance(0.5) else b.node("Pow", [centred, b.constant(2.0, a.dtype)])
    variance = b.node("ReduceMean", [square, *operands], keepdims=1, **attrs)
    root = b.node("Sqrt", [b.node("Add", [variance, b.constant(1e-5, a.dtype)])])
    y = b.node("Div", [centred, root]) if b.chance(0.6) else b.node("Mul", [centred, b.node("Reciprocal", [root])])
    if b.chance(0.7):
        y = b.node("Mul", [y, b.weight(a.dtype, a.shape[-1:])])
    if b.chance(0.7):
        b.node("Add", [y, b.weight(a.dtype, a.shape[-1:])])


def rms_norm(b: Builder) -> None:
    a = b.pick(ranks=(2, 3))
    operands, attrs = b.axes_operand([-1], 18)
    mean = b.node("ReduceMean", [b.node("Mul", [a, a]), *operands], keepdims=1, **attrs)
    root = b.node("Sqrt", [b.node("Add", [mean, b.constant(1e-6, a.dtype)])])
    y = b.node("Div", [a, root])
    b.node("Mul", [y, b.weight(a.dtype, a.shape[-1:])])


def gelu(b: Builder) -> None:
    a = b.pick()
    half, one = b.constant(0.5, a.dtype), b.constant(1.0, a.dtype)
    inner = b.node("Erf", [b.node("Div", [a, b.constant(np.sqrt(2.0), a.dtype)])])
    b.node("Mul", [b.node("Mul", [a, b.node("Add", [inner, one])]), half])


def silu(b: Builder) -> None:
    a = b.pick()
    b.node("Mul", [a, b.node(b.choice(["Sigmoid", "HardSigmoid", "Tanh"]), [a])])


def conv_norm(b: Builder) -> None:
    """Convolution, batch norm or scale and shift, and an activation; perhaps a residual."""
    x = image(b)
    if x.rank != 4 or min(x.shape[2:]) < 3:
        raise Reject("an image of 3x3 at least")
    n = b.choice([x.shape[1], 8, 16, 17])
    y = b.node("Conv", [x, b.weight(x.dtype, [n, x.shape[1], 3, 3], 9 * x.shape[1], 1.0)], pads=[1, 1, 1, 1])
    if b.chance(0.5):
        scale, shift, mean = (b.constant(b.random(x.dtype, [n]), x.dtype) for _ in range(3))
        variance = b.constant(np.abs(b.random(x.dtype, [n])) + 0.1, x.dtype)
        y = b.node("BatchNormalization", [y, scale, shift, mean, variance])
    else:
        y = b.node("Mul", [y, b.weight(x.dtype, [n, 1, 1])])
        y = b.node("Add", [y, b.weight(x.dtype, [1, n, 1, 1])])
    if n == x.shape[1] and b.chance(0.6):
        y = b.node("Add", [y, x])
    b.node(b.choice(["Relu", "Clip", "Sigmoid", "LeakyRelu", "HardSwish"]), [y])


def squeeze_excite(b: Builder) -> None:
    x = image(b)
    if x.rank != 4:
        raise Reject("an image")
    c, m = x.shape[1], b.choice([1, 4, 8])
    s = b.node("GlobalAveragePool", [x])
    s = b.node("Relu", [b.node("Conv", [s, b.weight(x.dtype, [m, c, 1, 1], c, 1.0)])])
    s = b.node("Sigmoid", [b.node("Conv", [s, b.weight(x.dtype, [c, m, 1, 1], m, 1.0)])])
    b.node("Mul", [x, s])


def pad_behind(b: Builder) -> None:
    """Pad, Concat or a slice behind a reduction or a softmax."""
    a = b.pick(ranks=(2, 3, 4))
    axis = b.axis(a.rank)
    if b.chance(0.5):
        y = b.node("Softmax", [a], axis=axis)
    else:
        operands, attrs = b.axes_operand([axis], 18)
        y = b.node(b.choice(["ReduceMean", "ReduceMax"]), [a, *operands], keepdims=1, **attrs)
    pads = [b.integer(0, 2) for _ in range(2 * y.rank)]
    b.node("Pad", [y, b.constant(np.array(pads)), b.constant(b.choice([0.0, 0.7, -1.0]), a.dtype)])


def shuffle(b: Builder) -> None:
    """Channel shuffle: reshape, transpose, reshape."""
    x = image(b)
    c = x.shape[1]
    g = b.choice([g for g in (1, 2, 3, 4) if c % g == 0])
    if 0 in x.shape:
        raise Reject("empty")
    y = b.node("Reshape", [x, b.constant(np.array([x.shape[0], g, c // g, *x.shape[2:]]))])
    y = b.node("Transpose", [y], perm=[0, 2, 1, *range(3, y.rank)])
    b.node("Reshape", [y, b.constant(np.array(x.shape))])


RULES = [
    (1, softmax), (1.5, layer_norm), (0.8, rms_norm), (1, gelu), (1, silu), (2, conv_norm), (0.8, squeeze_excite),
    (1, pad_behind), (0.6, shuffle),
]  # fmt: skip
