"""Reductions, softmax, norms, scans and sorting, along any axes."""

from __future__ import annotations

from math import prod

import numpy as np

from fuzz.build import I32, I64, Builder, Reject

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip


def reduce(b: Builder) -> None:
    op = b.choice(REDUCTIONS if b.chance(0.5) else REDUCTIONS[:4])
    a = b.pick((I32, I64) if b.chance(0.1) else ())
    operands, attrs = [a], {}
    if b.chance(0.9):
        more, attrs = b.axes_operand(b.axes(a.rank), 13 if op == "ReduceSum" else 18)
        operands += more
    elif b.opset >= 18 and b.chance(0.3):
        operands, attrs = [a, b.constant(np.zeros(0, np.int64))], {"noop_with_empty_axes": b.integer(0, 1)}
    if b.chance(0.8):
        attrs["keepdims"] = b.integer(0, 1)
    if op == "ReduceProd" and prod(a.shape) > 200:
        raise Reject("a product of many numbers")
    b.node(op, operands, **attrs)


def arg(b: Builder) -> None:
    a = b.pick()
    attrs = {"axis": b.axis(a.rank), "keepdims": b.integer(0, 1)}
    if b.chance(0.3):
        attrs["select_last_index"] = 1
    b.node(b.choice(["ArgMax", "ArgMin"]), [a], **attrs)


def softmax(b: Builder) -> None:
    a = b.pick()
    attrs = {"axis": b.axis(a.rank)} if b.chance(0.8) else {}
    b.node(b.choice(["Softmax", "Softmax", "Softmax", "LogSoftmax", "Hardmax"]), [a], **attrs)


def layer_norm(b: Builder) -> None:
    op = b.choice(["LayerNormalization", "LayerNormalization", "RMSNormalization"])
    a = b.pick(ranks=(2, 3, 4))
    axis = b.integer(1, a.rank - 1) if b.chance(0.3) else a.rank - 1
    shape = a.shape[axis:]
    operands = [a, b.weight(a.dtype, shape)]
    if op == "LayerNormalization" and b.chance(0.7):
        operands.append(b.weight(a.dtype, shape))
    attrs = {"axis": axis if b.chance(0.5) else axis - a.rank}
    if b.chance(0.7):
        attrs["epsilon"] = float(np.float32(b.choice([1e-5, 1e-6, 1e-12, 1e-3])))
    b.node(op, operands, **attrs)


def channel_norm(b: Builder) -> None:
    op = b.choice(["BatchNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization"])
    a = b.pick(ranks=(3, 4, 4, 5) if op != "BatchNormalization" else (2, 3, 4, 5))
    c = a.shape[1]
    attrs = {"epsilon": float(np.float32(b.choice([1e-5, 1e-3])))}
    operands = [a, b.weight(a.dtype, [c]), b.weight(a.dtype, [c])]
    if op == "BatchNormalization":
        operands += [b.weight(a.dtype, [c]), b.constant(np.abs(b.random(a.dtype, [c])) + 0.1, a.dtype)]
    if op == "GroupNormalization":
        b.since(21)
        attrs["num_groups"] = b.choice([g for g in range(1, c + 1) if c % g == 0] or [1])
    b.node(op, operands, **attrs)


def other_norm(b: Builder) -> None:
    op = b.choice(["LpNormalization", "MeanVarianceNormalization", "LRN"])
    a = b.pick(ranks=(4,) if op != "LpNormalization" else (1, 2, 3, 4))
    if op == "LpNormalization":
        b.node(op, [a], axis=b.axis(a.rank), p=b.integer(1, 2))
    elif op == "LRN":
        b.node(
            op,
            [a],
            size=b.choice([1, 3, 5, 7]),
            alpha=b.number(1e-4, 1e-1),
            beta=b.number(0.3, 1.0),
            bias=b.number(0.5, 2),
        )
    else:
        b.node(op, [a], **({"axes": b.axes(4)} if b.chance(0.5) else {}))


def cumulate(b: Builder) -> None:
    a = b.pick((I32, I64) if b.chance(0.2) else ())
    axis = b.constant(b.axis(a.rank), b.choice([I32, I64]))
    b.node("CumSum", [a, axis], exclusive=b.integer(0, 1), reverse=b.integer(0, 1))


def top_k(b: Builder) -> None:
    a = b.pick((I32, I64) if b.chance(0.15) else ())
    axis = b.axis(a.rank)
    if not a.shape[axis]:
        raise Reject("empty")
    k = b.constant(np.array([b.integer(1, a.shape[axis])], np.int64))
    b.node("TopK", [a, k], 2, axis=axis, largest=b.integer(0, 1))


RULES = [
    (7, reduce), (1.5, arg), (4, softmax), (2.5, layer_norm), (3, channel_norm), (1.5, other_norm), (1.5, cumulate),
    (1, top_k),
]  # fmt: skip
