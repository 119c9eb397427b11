"""Data movement: what copies, cuts, joins and repeats, and never computes."""

from __future__ import annotations

from math import prod

import numpy as np

from fuzz.build import ALL, BOOL, I64, Builder, Reject, Value


def any_value(b: Builder, ranks: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Value:
    return b.pick(ALL if b.chance(0.15) else (), ranks)


def ints(b: Builder, values: list[int]) -> Value:
    return b.constant(np.array(values, np.int64))


def transpose(b: Builder) -> None:
    a = any_value(b)
    b.node("Transpose", [a], **({"perm": [int(i) for i in b.rng.permutation(a.rank)]} if b.chance(0.9) else {}))


def reshape(b: Builder) -> None:
    a = any_value(b)
    size = prod(a.shape)
    if not size:
        raise Reject("empty")
    dims, left = [], size
    for _ in range(b.integer(0, 3)):
        d = b.choice([d for d in range(1, left + 1) if left % d == 0][:24])
        dims.append(d)
        left //= d
    dims.insert(b.integer(0, len(dims)), left)
    if b.chance(0.4):
        dims[b.integer(0, len(dims) - 1)] = -1
    elif b.chance(0.2) and dims[0] == a.shape[0]:
        dims[0] = 0
    b.node("Reshape", [a, ints(b, dims)])


def squeeze(b: Builder) -> None:
    a = any_value(b)
    if b.chance(0.5):
        ones = [i for i, d in enumerate(a.shape) if d == 1]
        chosen = [i for i in ones if b.chance(0.6)]
        if not chosen:
            raise Reject("no axis of size 1")
        operands, attrs = b.axes_operand(chosen, 13)
        b.node("Squeeze", [a, *operands], **attrs)
    elif b.chance(0.7):
        rank = a.rank + b.integer(1, 2)
        axes = sorted(int(i) for i in b.rng.permutation(rank)[: rank - a.rank])
        operands, attrs = b.axes_operand([i - rank if b.chance(0.3) else i for i in axes], 13)
        b.node("Unsqueeze", [a, *operands], **attrs)
    else:
        b.node("Flatten", [a], axis=b.axis(a.rank))


def cut(b: Builder) -> None:
    a = any_value(b)
    axes = sorted({x % a.rank for x in b.axes(a.rank)})
    starts, ends, steps = [], [], []
    for axis in axes:
        size = a.shape[axis]
        step = b.choice([1, 1, 1, 2, 3, -1, -2, -3])
        start, end = sorted((b.integer(0, size), b.integer(0, size)))
        if step < 0:
            start, end = end, start
        start, end = (v - size if b.chance(0.3) and v < size else v for v in (start, end))
        if b.chance(0.3):
            start, end = (0, (1 << 63) - 1) if step > 0 else (size - 1, -(1 << 63))
        elif b.chance(0.2):  # beyond the axis, which is its end
            far = b.choice([1, 2, 7, 1 << 40])
            start, end = (start - far - size, end + far + size) if step > 0 else (start + far + size, -far - size)
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    operands = [a, ints(b, starts), ints(b, ends), ints(b, [x - a.rank if b.chance(0.2) else x for x in axes])]
    b.node("Slice", operands + ([ints(b, steps)] if any(s != 1 for s in steps) or b.chance(0.2) else []))


def join(b: Builder) -> None:
    a = any_value(b)
    axis = b.axis(a.rank)
    parts = [a]
    for _ in range(b.integer(1, 3)):
        fitting = [
            v for v in b.values
            if v.dtype == a.dtype and v.rank == a.rank
            and all(x == y for i, (x, y) in enumerate(zip(v.shape, a.shape, strict=True)) if i != axis % a.rank)
        ]  # fmt: skip
        shape = list(a.shape)
        shape[axis] = b.choice([1, 2, 3, 7, 8])
        parts.append(b.choice(fitting) if fitting and b.chance(0.6) else b.fresh(a.dtype, shape, 0.5))
    b.node("Concat", [parts[i] for i in b.rng.permutation(len(parts))], axis=axis)


def split(b: Builder) -> None:
    a = any_value(b)
    axis = b.axis(a.rank)
    size = a.shape[axis]
    if size < 2:
        raise Reject("nothing to split")
    count = b.integer(2, min(3, size))
    cuts = sorted(int(c) for c in b.rng.choice(np.arange(1, size), count - 1, replace=False))
    sizes = [e - s for s, e in zip([0, *cuts], [*cuts, size], strict=True)]
    if size % count == 0 and b.chance(0.5):
        b.node("Split", [a], count, axis=axis, **({"num_outputs": count} if b.opset >= 18 else {}))
    else:
        b.node("Split", [a, ints(b, sizes)], count, axis=axis)


def pad(b: Builder) -> None:
    mode = b.choice(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "wrap":
        b.since(19)
    a = any_value(b, (1, 2, 3, 4))
    most = [min(4, d - 1 if mode == "reflect" else d) if mode != "constant" else 4 for d in a.shape]
    pads = [b.integer(0, max(0, m)) if b.chance(0.6) else 0 for m in most * 2]
    if mode == "constant" and b.chance(0.2):
        at = b.integer(0, 2 * a.rank - 1)
        pads[at] = -min(1, a.shape[at % a.rank] - 1)
    operands: list[Value | None] = [a, ints(b, pads)]
    if mode == "constant" and b.chance(0.6):
        operands.append(b.constant(b.choice([0, 1, 7]) if a.dtype != BOOL else True, a.dtype))
    b.node("Pad", operands, mode=mode)


def expand(b: Builder) -> None:
    a = any_value(b)
    if b.chance(0.5):
        shape = [b.choice([2, 3, 5]) if d == 1 and b.chance(0.7) else b.choice([1, d]) for d in a.shape]
        shape = [b.choice([1, 2, 3])] * b.integer(0, 1) + shape
        b.node("Expand", [a, ints(b, shape)])
    else:
        b.node("Tile", [a, ints(b, [b.choice([1, 1, 2, 3]) for _ in a.shape])])


def depth(b: Builder) -> None:
    a = b.pick(ranks=(4,))
    block = b.choice([1, 2, 3])
    if b.chance(0.5):
        if a.shape[1] % block**2:
            raise Reject("channels do not divide")
        b.node("DepthToSpace", [a], blocksize=block, mode=b.choice(["DCR", "CRD"]))
    else:
        if a.shape[2] % block or a.shape[3] % block:
            raise Reject("sizes do not divide")
        b.node("SpaceToDepth", [a], blocksize=block)


def trilu(b: Builder) -> None:
    a = any_value(b, (2, 3, 4))
    operands = [a] + (
        [b.constant(np.array(b.integer(-20, 20) if b.chance(0.5) else b.integer(-3, 3)))] if b.chance(0.8) else []
    )
    b.node("Trilu", operands, upper=b.integer(0, 1))


def eye(b: Builder) -> None:
    a = b.pick(ranks=(2,))
    b.node("EyeLike", [a], k=b.integer(-3, 3), dtype=b.choice([a.dtype, I64, 1]))


def sizes_of(b: Builder) -> None:
    """Shape arithmetic, as exporters write it."""
    a = any_value(b)
    shape = b.node("Shape", [a], offer=False)
    if prod(a.shape) and b.chance(0.6):
        b.node("Reshape", [any_like(b, a), shape])
    else:
        b.node("Cast", [shape], to=1)


def any_like(b: Builder, a: Value) -> Value:
    fitting = [v for v in b.values if prod(v.shape) == prod(a.shape)]
    return b.choice(fitting)


def reverse(b: Builder) -> None:
    a = b.pick(ranks=(2, 3, 4))
    batch, time = b.choice([(0, 1), (1, 0)])
    length = a.shape[time]
    lengths = b.constant(b.rng.integers(1, length + 1, a.shape[batch]), I64) if length else None
    if lengths is None:
        raise Reject("empty")
    b.node("ReverseSequence", [a, lengths], batch_axis=batch, time_axis=time)


RULES = [
    (4, transpose), (4, reshape), (2.5, squeeze), (4, cut), (3.5, join), (2, split), (3, pad), (2, expand),
    (1.2, depth), (1.5, trilu), (0.4, eye), (1, sizes_of), (0.4, reverse),
]  # fmt: skip
