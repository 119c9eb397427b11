"""What few models have: sequences, patches, transforms of signals, casts like another tensor, onnxruntime's own."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto, helper

from fuzz.build import BOOL, F32, I32, I64, Builder, Reject, Value
from fuzz.rules.movement import any_value, ints
from fuzz.rules.windows import image


def cast_like(b: Builder) -> None:
    a = b.pick((F32, I32, I64))
    b.node("CastLike", [a, b.constant(np.zeros(1), b.choice([F32, I64, BOOL, TensorProto.DOUBLE]))])


def constants(b: Builder) -> None:
    """Constant, and ConstantOfShape of a shape that is computed."""
    a = b.pick()
    if b.chance(0.5):
        value = helper.make_tensor("value", a.dtype, [1], [b.number(-2, 2)])
        made = b.node("ConstantOfShape", [b.node("Shape", [a], offer=False)], value=value)
    else:
        array = b.random(a.dtype, a.shape[-1:])
        tensor = helper.make_tensor("value", a.dtype, array.shape, array.astype(np.float32).tolist())
        made = b.node("Constant", [], value=tensor)
    b.node("Add", [a, made])


def dropout(b: Builder) -> None:
    """As it stands in a model that has been trained: nothing is dropped; perhaps with its mask."""
    b.node("Dropout", [b.pick()], b.choice([1, 1, 2]))


def crop(b: Builder) -> None:
    b.since(18)
    a = any_value(b, (1, 2, 3, 4))
    axes = sorted({x % a.rank for x in b.axes(a.rank)})
    sizes = [b.integer(1, a.shape[x] + 3) for x in axes]
    b.node("CenterCropPad", [a, ints(b, sizes)], axes=[x - a.rank if b.chance(0.3) else x for x in axes])


def patches(b: Builder) -> None:
    b.since(18)
    block, size = [b.integer(1, 3) for _ in range(2)], [b.integer(3, 9) for _ in range(2)]
    strides = [b.integer(1, 2) for _ in range(2)]
    count = prod((s - k) // t + 1 for s, k, t in zip(size, block, strides, strict=True))
    x = b.fresh(b.float, [b.choice([1, 2]), b.choice([1, 3, 8]) * prod(block), count], 0.1)
    b.node("Col2Im", [x, ints(b, size), ints(b, block)], strides=strides)


def determinant(b: Builder) -> None:
    n = b.choice([1, 2, 3, 5])
    b.node("Det", [b.fresh(F32, [*b.choice([[], [3], [2, 4]]), n, n], 0.2)])


def affine_grid(b: Builder) -> None:
    b.since(20)
    x = image(b)
    if x.dtype != F32 or x.rank not in (4, 5):
        raise Reject("float32 pictures")
    axes = x.rank - 2
    grid = b.node(
        "AffineGrid", [b.fresh(F32, [x.shape[0], axes, axes + 1], 0.3), ints(b, list(x.shape))],
        align_corners=b.integer(0, 1),
    )  # fmt: skip
    if axes == 2:
        b.node("GridSample", [x, grid], align_corners=b.integer(0, 1))


def deformed(b: Builder) -> None:
    b.since(19)
    c, n, k = b.choice([1, 2, 4]), b.choice([1, 3, 8]), b.choice([1, 2, 3])
    h, w = b.integer(k, 9), b.integer(k, 9)
    x = b.fresh(F32, [1, c, h, w], 0.1)
    out = [h - k + 1, w - k + 1]
    offset = b.fresh(F32, [1, 2 * k * k, *out], 0.2)
    operands: list[Value | None] = [x, b.weight(F32, [n, c, k, k], c * k * k), offset]
    if b.chance(0.5):
        operands.append(b.weight(F32, [n]) if b.chance(0.5) else None)
        operands.append(b.fresh(F32, [1, k * k, *out], 0.2))
    b.node("DeformConv", operands, kernel_shape=[k, k])


def transform(b: Builder) -> None:
    b.since(20)
    a = b.fresh(F32, [b.choice([1, 2, 3]), b.choice([1, 2, 5, 8, 9, 16]), b.choice([1, 4, 7])], 0.2)
    five = b.node("Unsqueeze", [a, ints(b, [-1])])
    axis = b.choice([1, -2, 2, -3])
    b.node("DFT", [five, None, b.constant(np.array(axis, np.int64))], onesided=b.integer(0, 1))


def rotary_operator(b: Builder) -> None:
    b.since(23)
    n, h, s, d = b.choice([1, 2]), b.choice([1, 2, 4]), b.choice([1, 5, 8]), b.choice([4, 8, 16])
    x = b.input(F32, [n, h, s, d])
    caches = [b.weight(F32, [33, d // 2]) for _ in range(2)]
    places = b.input(I64, [n, s], "range 0 33")
    b.node("RotaryEmbedding", [x, *caches, places], interleaved=b.integer(0, 1))


def sequence(b: Builder) -> None:
    """Tensors gathered to a sequence, and one taken out, or all joined again."""
    a = b.pick(ranks=(1, 2, 3))
    parts = [a, *(b.like(a, exact=True) for _ in range(b.integer(0, 2)))]
    if any(p.shape != a.shape for p in parts):
        raise Reject("of one shape")
    name, out = b.name(), b.name()
    if b.chance(0.5):
        b.raw(helper.make_node("SequenceConstruct", [p.name for p in parts], [name]), [])
        count = len(parts)
    else:
        axis = b.integer(0, a.rank - 1)
        if not a.shape[axis]:
            raise Reject("empty")
        b.raw(helper.make_node("SplitToSequence", [a.name], [name], axis=axis, keepdims=1), [])
        count, a = a.shape[axis], Value("", a.dtype, tuple(1 if i == axis else d for i, d in enumerate(a.shape)))
    if b.chance(0.5):
        at = b.constant(np.array(b.integer(-count, count - 1), np.int64))
        b.raw(helper.make_node("SequenceAt", [name, at.name], [out]), [Value(out, a.dtype, a.shape)])
    else:
        joined = tuple(d * count if i == 0 else d for i, d in enumerate(a.shape))
        b.raw(helper.make_node("ConcatFromSequence", [name], [out], axis=0), [Value(out, a.dtype, joined)])


def contrib(b: Builder) -> None:
    """Operators of the domain com.microsoft, as onnxruntime's optimizer writes them."""
    a = b.pick((F32,), (2, 3))
    width, name = a.shape[-1], b.name()
    op = b.choice(["BiasGelu", "FastGelu", "QuickGelu", "FusedMatMul", "SkipLayerNormalization", "Gelu"])
    operands, attrs, shape = [a], {}, a.shape
    if op in ("BiasGelu", "FastGelu"):
        operands.append(b.weight(F32, [width]))
    elif op == "QuickGelu":
        attrs["alpha"] = b.number(0.5, 2.0)
    elif op == "FusedMatMul":
        n, turned = b.choice([1, 5, 8, 17]), b.integer(0, 1)
        operands.append(b.weight(F32, [n, width] if turned else [width, n], width))
        attrs, shape = {"alpha": b.number(0.2, 1.5), "transB": turned}, (*a.shape[:-1], n)
    elif op == "SkipLayerNormalization":
        if a.rank != 3:
            raise Reject("three axes")
        operands += [b.fresh(F32, a.shape, 0.2), b.weight(F32, [width]), b.weight(F32, [width])]
        attrs = {"epsilon": 1e-5}
    names = [v.name for v in operands]
    b.raw(helper.make_node(op, names, [name], domain="com.microsoft", **attrs), [Value(name, F32, tuple(shape))])


RULES = [
    (0.5, cast_like), (0.7, constants), (0.3, dropout), (0.5, crop), (0.4, patches), (0.3, determinant),
    (0.3, affine_grid), (0.4, deformed), (0.3, transform), (0.4, rotary_operator), (0.6, sequence), (1.0, contrib),
]  # fmt: skip
