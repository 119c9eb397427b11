"""Operators whose indices are data: they come from the caller, or are constants, from the front or the back."""

from __future__ import annotations

import numpy as np

from fuzz.build import I64, Builder, Reject, Value
from fuzz.rules.movement import any_value

REDUCTIONS = ("none", "none", "add", "mul", "max", "min")


def gather(b: Builder) -> None:
    a = any_value(b)
    axis = b.axis(a.rank)
    low = -a.shape[axis] if b.chance(0.3) else 0
    b.node("Gather", [a, b.indices(b.shape((0, 1, 1, 2), 64), low, a.shape[axis])], axis=axis)


def gather_elements(b: Builder) -> None:
    a = any_value(b)
    axis = b.axis(a.rank)
    shape = [b.integer(1, d) if d and b.chance(0.3) else d for d in a.shape]
    shape[axis] = b.choice([1, 2, 5, 8, 9])
    low = -a.shape[axis] if b.chance(0.3) else 0
    b.node("GatherElements", [a, b.indices(shape, low, a.shape[axis])], axis=axis)


def gather_nd(b: Builder) -> None:
    a = any_value(b, (1, 2, 3, 4))
    batch = b.integer(0, min(1, a.rank - 1))
    depth = b.integer(1, a.rank - batch)
    bound = min(a.shape[batch : batch + depth])
    lead = [*a.shape[:batch], *(b.choice([1, 3, 8]) for _ in range(b.integer(0, 2)))]
    indices = b.indices([*lead, depth], -bound if b.chance(0.3) else 0, bound)
    if indices.dtype != I64:
        indices = b.node("Cast", [indices], to=I64)
    b.node("GatherND", [a, indices], **({"batch_dims": batch} if batch else {}))


def scatter_elements(b: Builder) -> None:
    a = any_value(b)
    axis = b.integer(0, a.rank - 1)
    reduction = b.choice(REDUCTIONS) if b.opset >= 18 else "none"
    shape = [b.integer(1, d) if d else 0 for d in a.shape]
    if a.dtype not in (1, 6, 7):
        reduction = "none"
    indices = b.indices(shape, 0, a.shape[axis], axis if reduction == "none" else None)
    attrs = {"reduction": reduction} if b.opset >= 16 else {}
    updates = b.fresh(a.dtype, shape, 0.3)
    b.node("ScatterElements", [a, indices, updates], axis=axis - a.rank if b.chance(0.3) else axis, **attrs)


def scatter_nd(b: Builder) -> None:
    a = any_value(b, (1, 2, 3, 4))
    if not a.shape[0]:
        raise Reject("empty")
    count = b.integer(1, min(8, a.shape[0]))
    reduction = b.choice(REDUCTIONS) if b.opset >= 18 and a.dtype in (1, 6, 7) else "none"
    unique = reduction == "none"
    indices = b.indices([count, 1], 0, a.shape[0], 0 if unique else None)
    if indices.dtype != I64:
        indices = b.node("Cast", [indices], to=I64)
    attrs = {"reduction": reduction} if b.opset >= 16 else {}
    b.node("ScatterND", [a, indices, b.fresh(a.dtype, [count, *a.shape[1:]], 0.3)], **attrs)


def one_hot(b: Builder) -> None:
    depth = b.choice([1, 2, 7, 8, 17])
    indices = b.indices(b.shape((1, 2), 64), -depth, depth)
    values = b.constant(np.array([0, 1] if b.chance(0.6) else [-2, 3]), b.choice([1, I64, b.float]))
    b.node("OneHot", [indices, b.constant(np.array(depth, np.int64)), values], axis=b.axis(indices.rank + 1))


def roi_align(b: Builder) -> None:
    a = b.pick(ranks=(4,))
    if 0 in a.shape[2:] and 0 not in a.shape[:2]:
        return  # there is nothing to pool: refused
    count = b.choice([1, 3, 5])
    corners = b.rng.uniform(0, min(a.shape[2:]), (count, 4))
    corners = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1
    )
    batch = b.indices([count], 0, a.shape[0])
    if batch.dtype != I64:
        batch = b.node("Cast", [batch], to=I64)
    attrs = {
        "output_height": b.choice([1, 3, 7]),
        "output_width": b.choice([1, 2, 7]),
        "mode": b.choice(["avg", "max"]),
    }
    boxes = b.constant(corners, a.dtype)
    b.node("RoiAlign", [a, boxes, batch], sampling_ratio=b.integer(0, 2), spatial_scale=b.number(0.5, 1.0), **attrs)


def unpool(b: Builder) -> None:
    a = b.pick(ranks=(4,))
    if a.shape[2] < 2 or a.shape[3] < 2:
        raise Reject("small")
    value, indices = b.node("MaxPool", [a], 2, kernel_shape=[2, 2], strides=[2, 2])
    if b.chance(0.5):
        n = int(np.prod(value.shape))
        indices = b.input(I64, value.shape, f"range 0 {max(1, n)}")
    b.node("MaxUnpool", [value, indices], kernel_shape=[2, 2], strides=[2, 2])


def loss(b: Builder) -> None:
    a = b.pick(ranks=(2, 3, 4))
    classes = a.shape[1]
    target = b.indices([a.shape[0], *a.shape[2:]], 0, classes)
    attrs = {"reduction": b.choice(["none", "mean", "sum"])}
    if b.chance(0.3):
        attrs["ignore_index"] = b.integer(0, classes)
    operands: list[Value | None] = [a, target]
    if b.chance(0.3):
        operands.append(b.constant(np.abs(b.random(a.dtype, [classes])) + 0.1, a.dtype))
    b.node(b.choice(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]), operands, **attrs)


RULES = [
    (3, gather), (1.5, gather_elements), (1.2, gather_nd), (1.5, scatter_elements), (1.2, scatter_nd), (0.8, one_hot),
    (0.4, roi_align), (0.3, unpool), (0.4, loss),
]  # fmt: skip
