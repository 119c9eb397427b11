"""What exporters of models with open sizes write: rows counted together, heads, masks of a length, positions."""

from __future__ import annotations

import numpy as np

from fuzz.build import F32, I64, Builder, Reject, Value


def _three(b: Builder) -> Value:
    """[batch, rows, channels], the first two perhaps open."""
    fitting = [v for v in b.values if v.dtype == b.float and v.rank == 3]
    if fitting and b.chance(0.5):
        return b.choice(fitting)
    return b.input(b.float, [b.size([1, 2, 3]), b.size([1, 7, 8, 9]), b.choice([4, 6, 8, 12, 16, 17, 24, 32])])


def rows_together(b: Builder) -> None:
    """[batch, rows, c] -> [batch*rows, c] -> a product -> [batch, rows, n]."""
    a = _three(b)
    flat = b.node("Reshape", [a, b.constant(np.array([-1, a.shape[2]]))])
    n = b.choice([5, 8, 16, 17, 33])
    y = b.node("Gemm", [flat, b.weight(a.dtype, [a.shape[2], n], int(a.shape[2]), 1.0), b.weight(a.dtype, [n], 1, 1.0)])
    b.node("Reshape", [y, b.constant(np.array([a.shape[0], a.shape[1], n]))])


def heads(b: Builder) -> None:
    """[batch, rows, h*d] -> [batch, h, rows, d]."""
    a = _three(b)
    h = b.choice([h for h in (1, 2, 3, 4) if a.shape[2] % h == 0])
    first = b.choice([0, int(a.shape[0])])
    second = b.choice([-1, 0, int(a.shape[1])])
    four = b.node("Reshape", [a, b.constant(np.array([first, second, h, a.shape[2] // h]))])
    b.node("Transpose", [four], perm=[0, 2, 1, 3])


def positions(b: Builder) -> None:
    """A table of positions, as many of its rows as the input has; or a Range that indexes it."""
    a = _three(b)
    length, width = a.shape[1], a.shape[2]
    table = b.constant(b.random(a.dtype, [70, width]), a.dtype)
    end = b.constant(np.array([length]))
    if b.chance(0.5):
        rows = b.node("Slice", [table, b.constant(np.array([0])), end, b.constant(np.array([0]))])
    else:
        stop = b.constant(np.array(int(length)))
        rows = b.node("Gather", [table, b.node("Range", [b.constant(np.array(0)), stop, b.constant(np.array(1))])])
    b.node("Add", [a, rows])


def causal(b: Builder) -> None:
    """A mask of length by length: ones, Trilu, Where; added to scores."""
    a = _three(b)
    turned = b.node("Transpose", [a], perm=[0, 2, 1])
    scores = b.node("MatMul", [a, turned])
    shape = b.constant(np.array([int(a.shape[1]), int(a.shape[1])]))
    ones = b.node("Expand", [b.constant(1.0, a.dtype), shape])
    mask = b.node("Trilu", [ones], upper=0)
    keep = b.node("Greater", [mask, b.constant(0.0, a.dtype)])
    filled = b.node("Where", [keep, scores, b.constant(-1e4, a.dtype)])
    weights = b.node("Softmax", [filled], axis=-1)
    if b.chance(0.7):
        b.node("MatMul", [weights, a])


def padded_mask(b: Builder) -> None:
    """Integers of a mask become a bias of scores: (1 - mask) * -10000."""
    a = _three(b)
    mask = b.input(I64, [a.shape[0], a.shape[1]], "range 0 2")
    real = b.node("Cast", [mask], to=a.dtype)
    four = b.node("Unsqueeze", [real, b.constant(np.array([1]))]) if b.opset >= 13 else None
    if four is None:
        raise Reject("opset 13")
    bias = b.node("Mul", [b.node("Sub", [b.constant(1.0, a.dtype), four]), b.constant(-1e4, a.dtype)])
    scores = b.node("MatMul", [a, b.node("Transpose", [a], perm=[0, 2, 1])])
    b.node("Softmax", [b.node("Add", [scores, bias])], axis=-1)


def pyramid(b: Builder) -> None:
    """A picture halved, doubled and added to itself: its size must be even."""
    c = b.choice([1, 3, 8])
    x = b.input(b.float, [b.size([1, 2]), c, b.size([8, 16]), b.size([8, 16])])
    half = b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    twice = b.node(
        "Resize", [half, None, b.constant(np.array([1, 1, 2, 2]), F32)], mode=b.choice(["nearest", "linear"])
    )
    b.node("Add", [x, twice])


RULES = [(3, rows_together), (2, heads), (2, positions), (1.5, causal), (1, padded_mask), (0.5, pyramid)]
