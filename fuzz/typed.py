"""Every operator that takes integers, with every integer type that it takes, a node a model: the kind "integers"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx

from fuzz.build import ALL, BOOL, F32, I8, I16, I32, INTEGERS, SIGNED, U8, Builder, Reject, Value, numpy_type

OPSET = 22
Recipe = Callable[[Builder, int], None]
UNARY = (
    "Abs", "Neg", "Sign", "BitwiseNot", "Relu", "Identity", "Shrink", "Size", "Shape", "Trilu", "EyeLike", "Flatten",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "PRelu",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
EXTENTS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)


def _tensor(b: Builder, kind: int, rank: int = 2) -> Value:
    return b.input(kind, [int(b.choice(EXTENTS)) for _ in range(rank)])


def _numbers(b: Builder, *values: int) -> Value:
    return b.constant(np.array(values, np.int64))


def _unary(op: str) -> Recipe:
    return lambda b, kind: b.node(op, [_tensor(b, kind)])


def _binary(op: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        a = _tensor(b, kind)
        b.node(op, [a, b.input(kind, a.shape if b.chance(0.6) else a.shape[1:])])

    return build


def _divided(op: str, known: bool, **attrs: Any) -> Recipe:
    """By numbers from outside, or by constants: the ends of the type, and -1."""

    def build(b: Builder, kind: int) -> None:
        a, info = _tensor(b, kind), np.iinfo(numpy_type(kind))
        ends = np.array([info.min, info.max, 1, 3, max(info.min, -1), max(info.min, -3)], np.object_)
        data = b.rng.choice(ends[ends != 0], a.shape[1:]).astype(numpy_type(kind))
        b.node(op, [a, b.constant(data) if known else b.input(kind, a.shape, "positive")], **attrs)

    return build


def _power(b: Builder, kind: int) -> None:
    b.node("Pow", [_tensor(b, kind), b.constant(b.choice([0, 1, 2, 3]), b.choice([kind, F32]))])


def _shift(direction: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        a, bits = _tensor(b, kind), 8 * numpy_type(kind).itemsize
        b.node("BitShift", [a, b.constant(b.rng.integers(0, bits, a.shape), kind)], direction=direction)

    return build


def _cast(to: int) -> Recipe:
    return lambda b, kind: b.node("Cast", [_tensor(b, kind)], to=to)


def _cast_float(b: Builder, kind: int) -> None:
    """What a float holds, as an integer; only numbers that fit."""
    signed = -100 if kind in SIGNED else 0
    a = b.node("Clip", [_tensor(b, F32), b.constant(signed, F32), b.constant(100, F32)])
    b.node("Cast", [a], to=kind)


def _clip(b: Builder, kind: int) -> None:
    info = np.iinfo(numpy_type(kind))
    low, high = b.choice([(2, 6), (info.min, 3), (1, info.max)])
    b.node("Clip", [_tensor(b, kind), b.constant(low, kind), b.constant(high, kind)])


def _where(b: Builder, kind: int) -> None:
    a = _tensor(b, kind)
    b.node("Where", [b.input(BOOL, a.shape), a, b.input(kind, a.shape[1:])])


def _reduced(op: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        small = "range -9 10" if kind in SIGNED else "range 0 10"  # of which the result is in the type, too
        a = b.input(kind, [int(b.choice(EXTENTS)) for _ in range(3)], small if op.startswith("ReduceLog") else "")
        b.node(op, [a, _numbers(b, *b.choice([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]))], keepdims=b.integer(0, 1))

    return build


def _position(op: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        b.node(op, [_tensor(b, kind)], axis=b.integer(0, 1), select_last_index=b.integer(0, 1))

    return build


def _top(b: Builder, kind: int) -> None:
    a = _tensor(b, kind)
    k = _numbers(b, b.integer(1, a.shape[1]))
    b.node("TopK", [a, k], 2, largest=b.integer(0, 1))


def _running(b: Builder, kind: int) -> None:
    attrs = {"exclusive": b.integer(0, 1), "reverse": b.integer(0, 1)}
    b.node("CumSum", [_tensor(b, kind), b.constant(np.array(b.integer(0, 1), np.int32))], **attrs)


def _product(op: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        a = _tensor(b, kind)
        w = b.fresh(kind, [a.shape[1], int(b.choice(EXTENTS))], 0.5)
        b.node(op, [a, w], **({"equation": "ij,jk->ik"} if op == "Einsum" else {}))

    return build


def _pool(b: Builder, kind: int) -> None:
    b.node("MaxPool", [b.input(kind, [1, 3, 9, 17])], b.integer(1, 2), kernel_shape=[3, 2], pads=[1, 0, 1, 1])


def _picked(op: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        a = _tensor(b, kind)
        low = [-a.shape[0], a.shape[0]]
        if op == "GatherND":
            b.node(op, [a, b.indices([5, 1], *low)])
        else:
            shape = [5, a.shape[1]] if op == "GatherElements" else [5]
            b.node(op, [a, b.indices(shape, *low)], axis=0)

    return build


def _scattered(op: str, reduction: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        a = _tensor(b, kind)
        rows = min(3, a.shape[0])
        where = np.stack([b.rng.permutation(a.shape[0])[:rows] for _ in range(a.shape[1])], 1)
        if op == "ScatterND":
            operands = [a, b.constant(where[:, :1]), b.input(kind, [rows, a.shape[1]])]
        else:
            operands = [a, b.constant(where), b.input(kind, where.shape)]
        b.node(op, operands, reduction=reduction)

    return build


def _joined(b: Builder, kind: int) -> None:
    a = _tensor(b, kind)
    b.node("Concat", [a, b.input(kind, a.shape), a], axis=b.integer(0, 1))


def _split(b: Builder, kind: int) -> None:
    b.node("Split", [b.input(kind, [6, 8])], 2, axis=b.integer(0, 1), num_outputs=2)


def _padded(mode: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        operands = [b.input(kind, [7, 9]), _numbers(b, 1, 2, 0, 3)]
        b.node("Pad", operands + ([b.constant(5, kind)] if mode == "constant" else []), mode=mode)

    return build


def _moved(op: str, *numbers: tuple[int, ...], **attrs: Any) -> Recipe:
    """An operator that only moves elements of a [4, 8, 6, 10]."""
    return lambda b, kind: b.node(op, [b.input(kind, [4, 8, 6, 10]), *(_numbers(b, *n) for n in numbers)], **attrs)


def _resized(mode: str) -> Recipe:
    def build(b: Builder, kind: int) -> None:
        scales = b.constant(np.array([1, 1, 2, 1.5], np.float32))
        note = "range -99 99" if kind in SIGNED else "range 0 99"
        b.node("Resize", [b.input(kind, [1, 3, 7, 8], note), None, scales], mode=mode)

    return build


def _one_hot(b: Builder, kind: int) -> None:
    depth = _numbers(b, 7)
    b.node("OneHot", [b.input(kind, [5], "range 0 7"), depth, b.constant(np.array([2, 9]), b.choice(list(ALL[:12])))])


def _range(b: Builder, kind: int) -> None:
    b.node("Range", [b.constant(v, kind) for v in (2, 33, 3)])


def _reverse(b: Builder, kind: int) -> None:
    b.node("ReverseSequence", [b.input(kind, [8, 5]), _numbers(b, 1, 8, 3, 5, 2)], time_axis=0, batch_axis=1)


def _dequantized(b: Builder, kind: int) -> None:
    zero = [b.constant(b.integer(0, 9), kind)] if kind != I32 else []
    b.node("DequantizeLinear", [_tensor(b, kind), b.constant(0.05, F32), *zero])


def _quantized(b: Builder, kind: int) -> None:
    b.node("QuantizeLinear", [_tensor(b, F32), b.constant(0.03, F32), b.constant(b.integer(0, 9), kind)])


def _integer_product(b: Builder, kind: int) -> None:
    a, other = _tensor(b, kind), b.choice([U8, I8])
    w = b.fresh(other, [a.shape[1], int(b.choice(EXTENTS))], 0.5)
    b.node("MatMulInteger", [a, w, b.constant(b.integer(0, 9), kind), b.constant(b.integer(0, 9), other)])


RECIPES: dict[str, Recipe] = {
    **{op: _unary(op) for op in UNARY},
    **{op: _binary(op) for op in BINARY},
    **{f"{op} {how}": _divided(op, how == "known") for op in ("Div", "Mod") for how in ("given", "known")},
    "Mod as C": _divided("Mod", True, fmod=1),
    "Pow": _power,
    "BitShift left": _shift("LEFT"), "BitShift right": _shift("RIGHT"),
    **{f"Cast to {to}": _cast(to) for to in ALL},
    "Cast of floats": _cast_float,
    "Clip": _clip, "Where": _where,
    **{op: _reduced(op) for op in REDUCTIONS},
    **{op: _position(op) for op in ("ArgMax", "ArgMin")},
    "TopK": _top, "CumSum": _running, "MaxPool": _pool,
    **{op: _product(op) for op in ("MatMul", "Gemm", "Einsum")},
    **{op: _picked(op) for op in ("Gather", "GatherElements", "GatherND")},
    **{f"{op} {r}": _scattered(op, r) for op in ("ScatterElements", "ScatterND")
       for r in ("none", "add", "mul", "min", "max")},
    "Concat": _joined, "Split": _split,
    **{f"Pad {mode}": _padded(mode) for mode in ("constant", "edge", "reflect")},
    "Transpose": _moved("Transpose", perm=[2, 0, 3, 1]), "Tile": _moved("Tile", (1, 2, 1, 3)),
    "Slice": _moved("Slice", (1, 9), (4, 0), (0, 3), (2, -2)), "Reshape": _moved("Reshape", (8, -1)),
    "Expand": _moved("Expand", (2, 4, 8, 6, 10)), "Unsqueeze": _moved("Unsqueeze", (1, -1)),
    "SpaceToDepth": _moved("SpaceToDepth", blocksize=2), "DepthToSpace": _moved("DepthToSpace", blocksize=2),
    **{f"Resize {mode}": _resized(mode) for mode in ("nearest", "linear", "cubic")},
    "OneHot": _one_hot, "Range": _range, "ReverseSequence": _reverse,
    "DequantizeLinear": _dequantized, "QuantizeLinear": _quantized, "MatMulInteger": _integer_product,
}  # fmt: skip
GIVES = {"QuantizeLinear", "Cast of floats"}
"""Their integers are results."""

UNKNOWN = {("Range", I16)}
"""ONNX's shape inference does not know how long the result is."""


@cache
def cases() -> tuple[tuple[str, int], ...]:
    """(recipe, integer type) of each that the standard allows."""
    return tuple(_cases())


def _cases() -> Iterator[tuple[str, int]]:
    for name in RECIPES:
        schema = onnx.defs.get_schema(name.split()[0], OPSET)
        side = schema.outputs[0] if name in GIVES else schema.inputs[0]
        for kind in INTEGERS:
            spelled = f"tensor({onnx.TensorProto.DataType.Name(kind).lower()})"
            if spelled in side.types and (name, kind) not in UNKNOWN:
                yield name, kind


def model(seed: int, index: int) -> onnx.ModelProto:
    """The model number `index`: its recipe and type are those of ``cases()[index]``, counted round."""
    name, kind = cases()[index % len(cases())]
    for attempt in range(20):
        builder = Builder(np.random.default_rng([seed, index, attempt]), F32)
        builder.opset = OPSET
        try:
            RECIPES[name](builder, kind)
        except Reject:
            continue
        return builder.model()
    raise RuntimeError(f"no model for {name} of {kind}")
