"""Sizes that values decide: none, one, a few or many elements are selected, and something is made of them.

A size that is found has two numbers to build with, as an open one has, and no name: no input can have it, and a shape
with it is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from fuzz.build import BOOL, F32, I64, Builder, Reject, Value
from fuzz.rules.control import ACTIVATIONS
from fuzz.sized import Size

FOUND = (41, 43, 47, 53)
APART = 10
"""By how much the second number is larger: not by as much as that of any open size."""
THRESHOLDS = (-100.0, 0.0, 0.0, 1.5, 3.0, 100.0)
REDUCTIONS = (
    *("ReduceSum", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd", "ReduceLogSumExp"),
    *("ReduceSumSquare", "ReduceL1"),
)


def size(b: Any) -> Size:
    """A new size that values decide, of an :class:`fuzz.opened.OpenBuilder`."""
    taken = {int(d) for v in b.values for d in v.shape}
    free = [n for n in FOUND if n not in taken]
    if not free:
        raise Reject("enough sizes were found")
    made = Size(free[0], free[0] + APART)
    b.derived[int(made)] = made
    return made


def is_found(d: int) -> bool:
    """Whether values decide a size."""
    return isinstance(d, Size) and not d.text and d.other - d == APART and d in FOUND


def _floats(b: Builder, ranks: tuple[int, ...]) -> Value:
    return b.pick((b.float,), ranks, 0.5)


def _flags(b: Builder, a: Value) -> Value:
    """Booleans of the shape of a tensor: none true, one, or many."""
    way = b.choice(["above", "above", "above", "largest", "input"])
    if way == "input":
        return b.input(BOOL, a.shape)
    if way == "largest":
        return b.node("Equal", [a, b.node("ReduceMax", [a], keepdims=0)], offer=False)
    return b.node("Greater", [a, b.constant(b.choice(THRESHOLDS), a.dtype)], offer=False)


def _scores(b: Builder, n: int) -> Value:
    """[n] floats."""
    fitting = [v for v in b.values if v.dtype == b.float and v.shape == (n,)]
    return b.choice(fitting) if fitting and b.chance(0.4) else b.input(b.float, [n])


def _where(b: Builder, flags: Value) -> Value:
    """NonZero: [rank, found]."""
    return _made(b, "NonZero", [flags], I64, (flags.rank, size(b)))


def _made(b: Builder, op: str, operands: list[Value], kind: int, shape: tuple[int, ...], **attrs: object) -> Value:
    name = b.name()
    value = Value(name, kind, shape)
    b.raw(helper.make_node(op, [v.name for v in operands], [name], **attrs), [value])
    return value


def _places(b: Builder, n: int) -> Value:
    """[found]: which of n."""
    places = _where(b, _flags(b, _scores(b, n)))
    if b.chance(0.5):
        return b.node("Squeeze", [places, b.constant(np.array([0]))])
    return b.node("Reshape", [places, b.constant(np.array([-1]))])


def rows(b: Builder) -> None:
    """Rows along an axis, by NonZero and Gather or by Compress."""
    a = _floats(b, (1, 2, 2, 3, 4))
    axis = b.axis(a.rank)
    if b.chance(0.4):
        flags = _flags(b, _scores(b, a.shape[axis]))
        shape = list(a.shape)
        shape[axis] = size(b)
        _made(b, "Compress", [a, flags], a.dtype, tuple(shape), axis=axis)
    else:
        b.node("Gather", [a, _places(b, a.shape[axis])], axis=axis)


def elements(b: Builder) -> None:
    """Elements of a whole tensor, or where they are."""
    a = _floats(b, (1, 2, 2, 3))
    flags = _flags(b, a)
    if b.chance(0.3):
        flat = [b.node("Reshape", [v, b.constant(np.array([-1]))], offer=False) for v in (a, flags)]
        _made(b, "Compress", flat, a.dtype, (size(b),))
        return
    places = b.node("Transpose", [_where(b, flags)], perm=[1, 0])
    if b.chance(0.7):
        b.node("GatherND", [a, places])


def boxes(b: Builder) -> None:
    """NonMaxSuppression, and the boxes that are left."""
    n, classes = b.size([1, 7, 16, 33]), b.choice([1, 1, 3])
    given = b.input(F32, [1, n, 4])
    scores = b.input(F32, [1, classes, n])
    numbers = [b.constant(np.array(b.choice([0, 1, 3, 50]))), b.constant(b.number(0.1, 0.9), F32),
               b.constant(b.choice([-9.0, 0.5, 99.0]), F32)]  # fmt: skip
    left = _made(b, "NonMaxSuppression", [given, scores, *numbers], I64, (size(b), 3))
    column = b.node("Gather", [left, b.constant(np.array(2))], axis=1)
    b.node("Gather", [b.node("Squeeze", [given, b.constant(np.array([0]))]), column], axis=0)


def scattered(b: Builder) -> None:
    """Selected rows back into their tensor, changed."""
    a = _floats(b, (1, 2, 2, 3))
    places = _places(b, a.shape[0])
    taken = b.node(b.choice(ACTIVATIONS), [b.node("Gather", [a, places], axis=0)])
    if a.rank == 1 and b.chance(0.5):
        b.node("ScatterElements", [a, places, taken], axis=0)
    else:
        b.node("ScatterND", [a, b.node("Unsqueeze", [places, b.constant(np.array([1]))]), taken])


def _selected(b: Builder, ranks: tuple[int, ...] = (1, 2, 3, 4)) -> tuple[Value, int]:
    """A tensor of floats, and an axis of it whose size values decide."""
    fitting = [
        (v, i) for v in b.values if v.dtype == b.float and v.rank in ranks for i, d in enumerate(v.shape) if is_found(d)
    ]
    if not fitting:
        raise Reject("nothing was selected")
    return b.choice(fitting)


def reduced(b: Builder) -> None:
    """Over what was selected."""
    a, axis = _selected(b)
    op = b.choice(REDUCTIONS)
    axes = sorted({axis, *([b.integer(0, a.rank - 1)] if b.chance(0.3) else [])})
    operands, attrs = b.axes_operand(axes, 13 if op == "ReduceSum" else 18)
    b.node(op, [a, *operands], keepdims=int(b.chance(0.5)), **attrs)


def ordered(b: Builder) -> None:
    """Along what was selected: sums so far, softmax, the last and the first elements."""
    a, axis = _selected(b)
    op = b.choice(["CumSum", "Softmax", "LogSoftmax", "Slice", "Slice", "Pad", "Tile"])
    if op == "CumSum":
        b.node(op, [a, b.constant(np.array(axis))], exclusive=b.integer(0, 1), reverse=b.integer(0, 1))
    elif op == "Slice":
        begin, end, step = b.choice([(0, 1, 1), (-1, 1 << 62, 1), (1, 1 << 62, 1), (0, 5, 2), (-1, -(1 << 62), -1)])
        b.node(op, [a, *(b.constant(np.array([v])) for v in (begin, end, axis, step))])
    elif op == "Pad":
        pads = np.zeros(2 * a.rank, np.int64)
        pads[[axis, axis + a.rank]] = b.integer(0, 2), b.integer(0, 3)
        b.node(op, [a, b.constant(pads), b.constant(0.5, a.dtype)])
    elif op == "Tile":
        b.node(op, [a, b.constant(np.array([b.choice([1, 2, 3]) if i == axis else 1 for i in range(a.rank)]))])
    else:
        b.node(op, [a], axis=axis)


def joined(b: Builder) -> None:
    """Rows of a constant before or behind those that were selected, or the selected ones twice."""
    a, axis = _selected(b)
    shape = [b.choice([1, 2, 5]) if i == axis else d for i, d in enumerate(a.shape)]
    other = a if b.chance(0.3) else b.fresh(a.dtype, shape, 0.5)
    b.node("Concat", [a, other] if b.chance(0.5) else [other, a], axis=axis)


def multiplied(b: Builder) -> None:
    """Products: selected rows by weights, by themselves over the selection, normed rows, pictures of a selection."""
    a, axis = _selected(b, (2, 3, 4))
    way = b.choice(["weights", "weights", "gram", "norm", "conv"])
    if way == "gram" and a.rank == 2:
        turned = b.node("Transpose", [a], perm=[1, 0], offer=False)
        b.node("MatMul", [turned, a] if b.chance(0.5) else [a, turned])
    elif way == "norm" and axis != a.rank - 1:
        scale = b.weight(a.dtype, [a.shape[-1]], 1, 1.0)
        b.since(17)
        b.node("LayerNormalization", [a, scale], axis=-1)
    elif way == "conv" and a.rank >= 3:
        kernel = [b.choice([1, 3])] * (a.rank - 2)
        weight = b.weight(a.dtype, [b.choice([1, 8, 17]), a.shape[1], *kernel], a.shape[1] * kernel[0], 1.0)
        b.node("Conv", [a, weight], pads=[kernel[0] // 2] * 2 * len(kernel))
    else:
        b.node("MatMul", [a, b.weight(a.dtype, [a.shape[-1], b.choice([1, 7, 16, 33])], int(a.shape[-1]), 1.0)])


def counted(b: Builder) -> None:
    """How many there are, as numbers: a Range, a mask, ones of that shape, an element's place."""
    a, axis = _selected(b)
    count = b.constant(np.array(int(a.shape[axis])))
    way = b.choice(["range", "cast", "ones", "arg"])
    if way == "range":
        b.node("Range", [b.constant(np.array(0)), count, b.constant(np.array(1))])
    elif way == "cast":
        b.node("Cast", [count], to=b.float)
    elif way == "ones":
        b.node("Expand", [b.constant(1.0, a.dtype), b.node("Shape", [a], offer=False)])
    else:
        b.node(b.choice(["ArgMax", "ArgMin"]), [a], axis=axis, keepdims=b.integer(0, 1))


def scanned(b: Builder) -> None:
    """A Scan over what was selected."""
    a, axis = _selected(b, (2, 3))
    inner = tuple(d for i, d in enumerate(a.shape) if i != axis)
    if any(isinstance(d, Size) for d in inner):
        raise Reject("an open size inside")
    start, name, collected = b.fresh(a.dtype, inner, 0.5), b.name(), b.name()
    s, x, s2, o = (f"{name}_{w}" for w in ("s", "x", "s2", "o"))
    nodes = [helper.make_node(b.choice(["Add", "Mul", "Max"]), [s, x], [s2]),
             helper.make_node(b.choice(ACTIVATIONS), [s2], [o])]  # fmt: skip
    info = helper.make_tensor_value_info
    body = helper.make_graph(nodes, "body", [info(s, a.dtype, inner), info(x, a.dtype, inner)],
                             [info(s2, a.dtype, inner), info(o, a.dtype, inner)])  # fmt: skip
    b.raw(
        helper.make_node("Scan", [start.name, a.name], [name, collected], body=body, scan_input_axes=[axis],
                         num_scan_inputs=1),
        [Value(name, a.dtype, inner), Value(collected, a.dtype, (a.shape[axis], *inner))],
    )  # fmt: skip


SELECTIONS = [(3, rows), (2, elements), (1, boxes), (1, scattered)]
RULES = [
    *SELECTIONS, (4, reduced), (3, ordered), (2, joined), (3, multiplied), (2, counted), (1, scanned)
]  # fmt: skip
