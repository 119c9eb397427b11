"""Attention, whole and in pieces: masked, causal, with grouped heads, with keys and values of earlier steps."""

from __future__ import annotations

import numpy as np

from fuzz.build import BOOL, Builder, Value


def _heads(b: Builder) -> tuple[int, int, int, int, int]:
    """Batch, heads, rows, columns, depth."""
    return (
        b.size([1, 1, 2]), b.choice([1, 2, 3, 4]), b.size([1, 1, 5, 7, 8, 9, 16, 17]),
        b.size([1, 4, 7, 8, 15, 16, 17, 33]), b.choice([4, 7, 8, 16, 32]),
    )  # fmt: skip


def _mask(b: Builder, scores: Value) -> Value:
    how = b.integer(0, 3)
    rows, columns = scores.shape[-2:]
    if how == 0:  # added, from the caller
        return b.node(
            "Add", [scores, b.fresh(scores.dtype, b.choice([[rows, columns], [1, 1, rows, columns], [columns]]), 0.3)]
        )
    if how == 1:  # causal, a constant
        fill = -65504.0 if scores.dtype == 10 else b.choice([-3.4028235e38, -1e9, -10000.0])
        return b.node(
            "Add", [scores, b.constant(np.triu(np.full((rows, columns), fill), 1 + columns - rows), scores.dtype)]
        )
    if how == 2:  # chosen by a mask, a row of which may be all masked
        fill = b.constant(-65504.0 if scores.dtype == 10 else -1e9, scores.dtype)
        keep = b.input(BOOL, b.choice([[rows, columns], [1, 1, 1, columns]]))
        return b.node("Where", [keep, scores, fill])
    return scores


def pieces(b: Builder) -> None:
    """softmax(q k^T * scale + mask) v, as exporters write it."""
    n, h, rows, columns, depth = _heads(b)
    t = b.float
    if b.chance(0.6):
        q, k, v = (b.input(t, [n, h, s, depth]) for s in (rows, columns, columns))
    else:  # out of projections: [n, s, h * d] -> [n, h, s, d]

        def split(length: int) -> Value:
            x = b.input(t, [n, length, h * depth])
            four = b.node("Reshape", [x, b.constant(np.array([n, length, h, depth]))])
            return b.node("Transpose", [four], perm=[0, 2, 1, 3])

        q, k, v = split(rows), split(columns), split(columns)
    if b.chance(0.3):
        past = b.size([1, 3, 8])
        k, v = (b.node("Concat", [b.input(t, [n, h, past, depth]), x], axis=2) for x in (k, v))
    if b.chance(0.25) and h % 2 == 0:  # grouped heads: half as many keys
        k, v = (b.node("Slice", [x, *(b.constant(np.array([i])) for i in (0, h // 2, 1))]) for x in (k, v))

        def spread(x: Value) -> Value:
            five = b.node("Unsqueeze", [x, b.constant(np.array([2]))])
            wide = b.node("Expand", [five, b.constant(np.array([n, h // 2, 2, *x.shape[2:]]))])
            return b.node("Reshape", [wide, b.constant(np.array([n, h, *x.shape[2:]]))])

        k, v = spread(k), spread(v)
    scale = b.constant(float(depth) ** -0.5 if b.chance(0.7) else float(np.sqrt(depth)), t)
    scores = b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 1, 3, 2])])
    if b.chance(0.8):
        scores = (
            b.node("Mul", [scores, scale])
            if scale.data is not None and scale.data < 1
            else b.node("Div", [scores, scale])
        )
    weights = b.node("Softmax", [_mask(b, scores)], axis=-1)
    y = b.node("MatMul", [weights, v])
    if b.chance(0.5):
        y = b.node("Transpose", [y], perm=[0, 2, 1, 3])
        b.node("Reshape", [y, b.constant(np.array([n, y.shape[1], -1]))])


def operator(b: Builder) -> None:
    """ONNX's own Attention."""
    b.since(23)
    n, h, rows, columns, depth = _heads(b)
    groups = b.choice([g for g in (1, 2, h) if h % g == 0])
    t = b.float
    q, k, v = (
        b.input(t, [n, h, rows, depth]),
        b.input(t, [n, groups, columns, depth]),
        b.input(t, [n, groups, columns, depth]),
    )
    mask = None
    if b.chance(0.4):
        kind = BOOL if b.chance(0.4) else t
        mask = b.fresh(kind, [rows, columns], 0.3)
    attrs = {"is_causal": 1} if b.chance(0.3) else {}
    if b.chance(0.3):
        attrs["scale"] = b.number(0.05, 0.5)
    if b.chance(0.2):
        attrs["softcap"] = b.number(1.0, 20.0)
    b.node("Attention", [q, k, v, mask] if mask else [q, k, v], **attrs)


def rotary(b: Builder) -> None:
    """x * cos + rotate(x) * sin, in halves."""
    a = b.pick(ranks=(3, 4))
    d = a.shape[-1]
    if d % 2 or d < 2:
        a = b.input(b.float, [1, 2, 7, 8])
        d = 8
    halves = b.node("Split", [a], 2, axis=-1, **({"num_outputs": 2} if b.opset >= 18 else {}))
    turned = b.node("Concat", [b.node("Neg", [halves[1]]), halves[0]], axis=-1)
    cos, sin = (b.weight(a.dtype, [a.shape[-2], d]) for _ in range(2))
    b.node("Add", [b.node("Mul", [a, cos]), b.node("Mul", [turned, sin])])


RULES = [(3, pieces), (1, operator), (0.6, rotary)]
