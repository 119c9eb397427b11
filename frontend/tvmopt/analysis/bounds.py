"""What integers an ONNX model can take at its inputs - for the inputs that verification, `run` and benchmarks draw.

A value that becomes an index, a length or a divisor on its way through the graph must be in range: onnxruntime refuses
others, and so do compiled models. The bounds are read off the operators and the shapes of what they index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import prod
from typing import Any

from tvmopt.importer.decoder import find
from tvmopt.importer.fit_networks import REAL_TYPES

Shape = tuple[int, ...]
Bound = tuple[int, int] | tuple[int, int, str]
"""The lowest value, and the first that is too large; of a decoder's positions also the cache whose length is the first
one: they are consecutive."""

UINT8, INTEGERS = 2, (6, 7)
"""ONNX's numbers of types, the integers int32 and int64."""
LENGTH = re.compile(r"[a-z]*(len|lens|length|lengths)")
"""A word in the name of an input of lengths."""
PIXELS: Bound = (0, 256)
"""Of pictures of bytes: every value."""
DIVISORS: Bound = (1, 4)
ALL: Bound = (1, 2)
"""Of a mask whose ones are counted: every token is there. Less than all would be fewer keys than the cache has."""

_FORWARD = {  # operators that hand their first input's values on
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Transpose", "Unsqueeze"),
}


class Use:
    """A node as a rule sees it: its attributes and the shapes of its inputs, () where unknown."""

    def __init__(self, node: Any, shapes: Mapping[str, Shape], numbers: Mapping[str, int]) -> None:
        self.node, self._shapes, self._numbers = node, shapes, numbers

    def attribute(self, name: str, default: int) -> int:
        return next((int(a.i) for a in self.node.attribute if a.name == name), default)

    def attributes(self, name: str) -> list[int]:
        """Those of an attribute that has several; none where it is not there."""
        return next((list(a.ints) for a in self.node.attribute if a.name == name), [])

    def shape(self, index: int) -> Shape:
        names = self.node.input
        return self._shapes.get(names[index], ()) if index < len(names) else ()

    def extent(self, index: int, axis: int) -> int:
        """The size of an axis of an input, 0 where unknown."""
        shape = self.shape(index)
        return shape[axis] if -len(shape) <= axis < len(shape) else 0

    def number(self, index: int) -> int:
        """An input that is a constant of one element, 0 where it is not."""
        names = self.node.input
        return self._numbers.get(names[index], 0) if index < len(names) else 0


def _up_to(size: int) -> Bound | None:
    return (0, size) if size > 0 else None


def _length(size: int) -> Bound | None:
    return (1, size + 1) if size > 0 else None


def _axis(use: Use) -> Bound | None:
    return _up_to(use.extent(0, use.attribute("axis", 0)))


def _position(use: Use) -> Bound | None:
    first = use.attribute("batch_dims", 0)
    sizes = use.shape(0)[first : first + use.extent(1, -1)]
    return _up_to(min(sizes)) if sizes else None


def _classes(use: Use) -> Bound | None:
    return _up_to(use.extent(0, 1))


def _categories(use: Use) -> Bound | None:
    """Of the categories that a node knows, where others are errors: those that follow on each other, from the least."""
    known = sorted(set(use.attributes("cats_int64s")))
    if not known or use.attribute("zeros", 1):
        return None
    gaps = [a + 1 for a, b in pairwise(known) if b != a + 1]
    return known[0], gaps[0] if gaps else known[-1] + 1


def _unpooled(use: Use) -> Bound | None:
    return _up_to(prod(use.shape(0)))  # the result has at least as many elements


def _cache(use: Use) -> Bound | None:
    axis = use.attribute("axis", -2)
    return _up_to(use.extent(0, axis) - use.extent(1, axis) + 1)


def _rotary(caches: int) -> Callable[[Use], Bound | None]:
    def rule(use: Use) -> Bound | None:
        offset = use.shape(1 if caches == 2 else 3) in ((), (1,))
        length = use.extent(0, 1 if len(use.shape(0)) == 3 else 2) if offset else 1
        return _up_to(use.extent(caches, 0) - length + 1)

    return rule


def _filled(use: Use) -> Bound | None:
    """GroupQueryAttention's number of valid keys, less one: all of them."""
    total = use.extent(3, 2) + use.extent(0, 1)
    return (total - 1, total) if total > 0 else None


Rule = Callable[[Use], Bound | None]
_LENGTHS: dict[int, Rule] = {4: lambda use: _length(use.extent(0, use.attribute("layout", 0)))}
_DIVISOR: Rule = lambda use: DIVISORS  # noqa: E731
RULES: dict[tuple[str, str], dict[int, Rule]] = {
    ("", "Gather"): {1: _axis},
    ("", "GatherElements"): {1: _axis},
    ("", "GatherND"): {1: _position},
    ("", "Scatter"): {1: _axis},
    ("", "ScatterElements"): {1: _axis},
    ("", "ScatterND"): {1: _position},
    ("", "TensorScatter"): {2: _cache},
    ("", "RoiAlign"): {2: lambda use: _up_to(use.extent(0, 0))},
    ("", "MaxUnpool"): {1: _unpooled},
    ("", "NegativeLogLikelihoodLoss"): {1: _classes},
    ("", "SoftmaxCrossEntropyLoss"): {1: _classes},
    ("", "OneHot"): {0: lambda use: _up_to(use.number(1))},
    ("", "ReverseSequence"): {1: lambda use: _length(use.extent(0, use.attribute("time_axis", 0)))},
    ("", "LSTM"): _LENGTHS,
    ("", "GRU"): _LENGTHS,
    ("", "RNN"): _LENGTHS,
    ("", "RotaryEmbedding"): {3: _rotary(1)},
    ("", "Attention"): {6: lambda use: _length(use.extent(1, -2))},
    ("", "Div"): {1: _DIVISOR},
    ("", "Mod"): {1: _DIVISOR},
    ("", "Range"): {2: _DIVISOR},
    ("", "Slice"): {4: lambda use: (1, 2)},
    ("ai.onnx.ml", "OneHotEncoder"): {0: _categories},
    ("tvmopt", "ResampleRows"): {0: lambda use: PIXELS},
    ("tvmopt", "ResampleColumns"): {0: lambda use: PIXELS},
    ("com.microsoft", "DynamicQuantizeLSTM"): _LENGTHS,
    ("com.microsoft", "RotaryEmbedding"): {1: _rotary(2)},
    ("com.microsoft", "GroupQueryAttention"): {5: _filled, 9: lambda use: _up_to(use.extent(7, 0))},
    ("com.microsoft", "EmbedLayerNormalization"): {
        0: lambda use: _up_to(use.extent(2, 0)),
        1: lambda use: _up_to(use.extent(4, 0)),
        8: lambda use: _up_to(use.extent(3, 0)),
    },
}
"""By domain and operator: of each input that is an index, a length or a divisor, what it may be."""


def integer_bounds(model: Any) -> dict[str, Bound]:
    """Bounds of the integer inputs of an ONNX model that index, measure or divide something: token ids, lengths; and of
    pictures of bytes, which have all values."""
    graph = model.graph
    shapes: dict[str, Shape] = {}
    numbers: dict[str, int] = {}
    users: dict[str, list[tuple[Any, int]]] = {}
    for scope in _graphs(graph):
        for tensor in scope.initializer:
            shapes[tensor.name] = tuple(tensor.dims)
            if prod(tensor.dims) == 1 and tensor.data_type in (6, 7):  # int32, int64
                numbers[tensor.name] = _number(tensor)
        for value in (*scope.value_info, *scope.input):
            shapes.setdefault(value.name, tuple(d.dim_value for d in value.type.tensor_type.shape.dim))
        for node in scope.node:
            for index, name in enumerate(node.input):
                users.setdefault(name, []).append((node, index))
    bounds = {}
    for value in graph.input:
        found = list(_found(value.name, users, shapes, numbers))
        if _is_counted(value.name, users):
            found.append(ALL)
        if not found and _is_picture(value):
            found.append(PIXELS)
        if not found and (length := _called_length(value, graph)):
            found.append(length)
        if found:
            low, high = max(f[0] for f in found), min(f[1] for f in found)
            bounds[value.name] = (low, max(high, low + 1))
    return bounds | _of_a_text(graph, bounds)


def _of_a_text(graph: Any, bounds: Mapping[str, Bound]) -> dict[str, Bound]:
    """Bounds of what belongs together in a decoder of one text: every token is there, and stands behind the past."""
    stored = {t.name for t in graph.initializer}
    roles = find((i for i in graph.input if i.name not in stored), graph.output)
    batch = next((i.type.tensor_type.shape.dim[0].dim_value for i in graph.input if i.name == roles.ids), 0)
    if not roles or batch != 1:
        return {}
    made: dict[str, Bound] = {roles.mask: ALL} if roles.mask else {}
    if roles.positions:
        low, high, *_ = bounds.get(roles.positions, (0, 1 << 31))
        made[roles.positions] = (low, high, roles.caches[0].past)
    return made


def _is_picture(value: Any) -> bool:
    """Whether an input has the form of pictures of bytes: uint8, four dimensions, one or three channels."""
    kind = value.type.tensor_type
    dims = [d.dim_value for d in kind.shape.dim]
    return kind.elem_type == UINT8 and len(dims) == 4 and bool({1, 3} & {dims[1], dims[3]})


def _called_length(value: Any, graph: Any) -> Bound | None:
    """Bounds of an input that is called so: lengths of the sequences of a real input, [sequences, steps, ...] or
    [steps, sequences, ...], at least half of the steps. Shorter ones are padding nearly everywhere."""
    kind = value.type.tensor_type
    words = re.split(r"[^a-z]+", value.name.lower())
    if kind.elem_type not in INTEGERS or len(kind.shape.dim) > 1 or not any(LENGTH.fullmatch(word) for word in words):
        return None
    count = kind.shape.dim[0].dim_value if kind.shape.dim else 1
    for other in graph.input:
        dims = [d.dim_value for d in other.type.tensor_type.shape.dim]
        if other.type.tensor_type.elem_type in REAL_TYPES and len(dims) > 1 and count in dims[:2]:
            steps = dims[1 - dims.index(count)]
            return (max(1, steps // 2), steps + 1) if steps else None
    return None


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                yield from _graphs(inner)


def _number(tensor: Any) -> int:
    from onnx import numpy_helper

    try:
        return int(numpy_helper.to_array(tensor).reshape(-1)[0])
    except Exception:  # its data lies in a file that was not loaded
        return 0


def _is_counted(name: str, users: Mapping[str, list[tuple[Any, int]]]) -> bool:
    """Whether a mask's sum becomes the number of valid keys of GroupQueryAttention."""
    todo, summed = [name], False
    while todo:
        for node, index in users.get(todo.pop(), ()):
            if node.op_type == "GroupQueryAttention" and index == 5:
                return summed
            if node.op_type in ("ReduceSum", "Sub", *_FORWARD) and index == 0:
                summed |= node.op_type == "ReduceSum"
                todo += node.output
    return False


def _found(
    name: str, users: Mapping[str, list[tuple[Any, int]]], shapes: Mapping[str, Shape], numbers: Mapping[str, int]
) -> Iterator[Bound]:
    todo, seen = [name], {name}
    while todo:
        for node, index in users.get(todo.pop(), ()):
            domain = "" if node.domain == "ai.onnx" else node.domain
            rule = RULES.get((domain, node.op_type), {}).get(index)
            bound = rule(Use(node, shapes, numbers)) if rule else None
            if bound is not None:
                yield bound
            elif node.op_type in _FORWARD and (index == 0 or node.op_type == "Concat"):
                todo += [output for output in node.output if output not in seen]
                seen.update(node.output)
