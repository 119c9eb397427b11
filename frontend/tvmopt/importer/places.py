"""Places that a run computes and that are a known number of elements apart - for the folding walk: what is cut there
has a known length.

    for i in range(n): row = x[i : min(n, i + 1)]         Slice(x, i, Min(n, i + 1))  ->  Gather(x, i)
                       place = range(i, i + 2)            Range(i, i + 2, 1)          ->  i + [0, 1]

In the body of a loop the number of the trip is a symbol like that of an open size, and what its counters are follows
from it: the lengths above are sizes that the walk computes. When the body has been walked, the symbol is forgotten, and
a run computes these numbers like any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tvmopt.dims import Dim, Size, is_open
from tvmopt.importer.branches import VIEWS
from tvmopt.importer.counting import counters
from tvmopt.importer.fractions import sizes_in
from tvmopt.importer.open_shapes.node import Node
from tvmopt.importer.open_values import BEYOND, objects
from tvmopt.importer.protos import count, node_name
from tvmopt.importer.symbols import UNKNOWN
from tvmopt.importer.walk import Nodes, Rule, Walk

WHOLE = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)

MOST = 64
"""Elements that are cut at a place that a run computes."""

FAR = 1 << 30
"""A place behind every axis: to look there ends the call."""


@contextmanager
def numbered(walk: Walk, node: onnx.NodeProto, formals: Sequence[str]) -> Iterator[None]:
    """While the body of a loop is walked: its counters, inputs named `formals`, are sizes."""
    found, trips = counters(walk, node)
    place = walk.symbols.place(UNKNOWN if trips is None else trips - 1)
    for index, (first, step) in found.items():
        kind = walk.types[formals[index]]
        shape = walk.shape(formals[index])
        if kind.tensor_type.elem_type in WHOLE and shape is not None and count(shape) == 1:
            walk.open_values[formals[index]] = objects([first + step * place]).reshape(shape)
    try:
        yield
    finally:
        _forget(walk, place)


def _forget(walk: Walk, place: Dim) -> None:
    """Sizes that differ from trip to trip are none behind the body."""
    for name in [n for n, array in walk.open_values.items() if walk.symbols.in_place(*array.ravel())]:
        del walk.open_values[name]
    for name in [n for n, array in walk.fractions.items() if walk.symbols.in_place(*sizes_in(array))]:
        del walk.fractions[name]
    walk.below = {name: size for name, size in walk.below.items() if not walk.symbols.in_place(size)}
    for name, kind in walk.types.items():
        shape = walk.shape_of_type(kind)
        if shape is not None and walk.symbols.in_place(*shape):
            walk.types[name] = unknown = onnx.TypeProto()
            unknown.CopyFrom(kind)
            for dim, size in zip(unknown.tensor_type.shape.dim, shape, strict=True):
                if walk.symbols.in_place(size):
                    dim.Clear()
    walk.symbols.forget(place)


def _slice(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A Slice between places that a run computes: a Gather along each axis where they are a known number of elements
    apart, else a Compress, whose length values decide; what else it cuts is cut before."""
    n = Node(walk, node)
    own, steps = n.shapes[0], n.value(4)
    if own is None or any(kind in n.attrs for kind in ("starts", "ends")) or (steps is None and _given(node, 4)):
        return None
    size = _elements(walk, node.input[1])
    axes = n.value(3) if _given(node, 3) else list(range(size or 0))
    if not size or size > len(own) or axes is None or is_open(axes) or _elements(walk, node.input[2]) != size:
        return None
    steps = steps or [1] * size
    if len(axes) != size or len(steps) != size:
        return None
    cuts = [_cut(walk, node, k, own[axis % len(own)], steps[k]) for k, axis in enumerate(axes)]
    moving = [k for k, cut in enumerate(cuts) if cut is not None]
    free = [k for k, cut in enumerate(cuts) if cut is None and _free(walk, node, k)]
    if any(not isinstance(steps[k], int) or steps[k] < 1 for k in free) or (walk.depth and free):
        return None
    left = [k for k in range(size) if k not in (*moving, *free)]
    if not (moving or free) or (moving and not all(_known(walk, node, k) for k in left)):
        return None
    made = _Made(walk, node_name(node))
    x = node.input[0]
    if left:
        bounds = [made.number([_at(walk, name, k) for k in left], name) for name in node.input[1:3]]
        more = [made.number([values[k] for k in left]) for values in (axes, steps)]
        x = made.node("Slice", x, *bounds, *more)
    for k in moving:
        cut = cuts[k]
        assert cut is not None
        x = made.node("Gather", x, made.places(node.input[1], k, cut), axis=int(axes[k]))
    for k in free:
        x = made.node("Compress", x, made.between(node, k, int(axes[k]) % len(own), steps[k]), axis=int(axes[k]))
    made.nodes[-1].output[0] = node.output[0]
    return made.nodes


def _range(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A Range whose ends a run computes, a known number of elements apart."""
    step = walk.array(node.input[2])
    kind = walk.types.get(node.input[0])
    if step is None or step.size != 1 or kind is None or kind.tensor_type.elem_type not in WHOLE:
        return None
    by = int(step.reshape(-1)[0])
    ends = [_at(walk, name, 0) for name in node.input[:2]]
    if not by or (None not in ends and not walk.symbols.in_place(*ends)):
        return None
    length = _steps(_apart(walk, node.input[0], node.input[1], 0), by)
    if length is None:
        return None
    made = _Made(walk, node_name(node))
    made.places(node.input[0], 0, _Cut(length, by))
    made.nodes[-1].output[0] = node.output[0]
    return made.nodes


@dataclass(frozen=True)
class _Cut:
    """So many elements, each so far from the one before. Where a run has to look that none of them is left out: how far
    the end is from the start."""

    length: int
    step: int
    checked: int = 0


def _cut(walk: Walk, node: onnx.NodeProto, k: int, size: Size, step: Size) -> _Cut | None:
    """What a Slice cuts along its axis number `k`; None where its bounds are known, or how much it cuts is not.

    Where nothing says that all of it lies inside of the axis, that is for the run to see: a shorter result would be
    another shape.
    """
    if not isinstance(step, int) or step < 1 or _known(walk, node, k):
        return None
    start, end = (_at(walk, name, k) for name in node.input[1:3])
    symbols = walk.symbols
    if start is not None and end is not None:
        if not symbols.in_place(start, end):
            return None
        if symbols.between(start)[0] >= 0:
            last = symbols.least(size if isinstance(end, int) and end >= BEYOND else end, size)
            if isinstance(last - start, int):
                length = _steps(last - start, step)
                return None if length is None else _Cut(length, step)
    apart = _apart(walk, node.input[1], node.input[2], k)
    length = _steps(apart, step)
    return _Cut(length, step, apart) if length is not None and isinstance(apart, int) else None


def _steps(apart: Size | None, step: int) -> int | None:
    """How many elements are cut on a way so long; None where that is not known, or nothing, or too much."""
    length = None if apart is None else -(-apart // step)
    return length if isinstance(length, int) and 1 <= length <= MOST else None


def _known(walk: Walk, node: onnx.NodeProto, k: int) -> bool:
    """Whether a Slice's bounds along its axis number `k` are numbers."""
    return all(isinstance(_at(walk, name, k), int) for name in node.input[1:3])


def _free(walk: Walk, node: onnx.NodeProto, k: int) -> bool:
    """Whether a bound of a Slice along its axis number `k` is a number that only a run knows, and no size."""
    return any(_at(walk, name, k) is None for name in node.input[1:3])


def _at(walk: Walk, name: str, k: int) -> Size | None:
    """The element number `k` of a tensor, if it is a number or a size, and there is one."""
    sizes = walk.sizes(name)
    if sizes is None or sizes.dtype.kind not in "iuO" or sizes.size <= k:
        return None
    return objects(sizes.ravel()[k : k + 1])[0]


def _apart(walk: Walk, start: str, end: str, k: int) -> Size | None:
    """How far two computed places are apart: the elements number `k` of two tensors."""
    first, last = (_at(walk, name, k) for name in (start, end))
    if first is not None and last is not None:
        return last - first
    if any(_elements(walk, name) != 1 for name in (start, end)):
        return None
    makers = {output: maker for maker in walk.nodes for output in maker.output}
    (root, before), (other, behind) = (_root(walk, makers, name) for name in (start, end))
    return behind - before if root == other else None


def _root(walk: Walk, makers: dict[str, onnx.NodeProto], name: str) -> tuple[str, int]:
    """A tensor of one integer, and what is added to it to make this one."""
    total = 0
    while True:
        name = walk.alias.get(name, name)
        maker = makers.get(name)
        if maker is None:
            return name, total
        if maker.op_type in VIEWS and all(
            walk.types[i].tensor_type.elem_type in WHOLE for i in (maker.input[0], name) if i in walk.types
        ):
            name = maker.input[0]
        elif maker.op_type in ("Add", "Sub"):
            numbers = [walk.array(i) for i in maker.input]
            at = 0 if numbers[0] is not None and maker.op_type == "Add" else 1
            number = numbers[at]
            if number is None or number.size != 1:
                return name, total
            total += int(number.reshape(-1)[0]) * (1 if maker.op_type == "Add" else -1)
            name = maker.input[1 - at]
        else:
            return name, total


def _given(node: onnx.NodeProto, index: int) -> bool:
    return len(node.input) > index and bool(node.input[index])


def _elements(walk: Walk, name: str) -> int | None:
    shape = walk.shape(name)
    return None if shape is None else count(shape)


class _Made:
    """Nodes in place of one."""

    def __init__(self, walk: Walk, prefix: str) -> None:
        self.walk, self.prefix = walk, prefix
        self.nodes: Nodes = []

    def node(self, kind: str, *inputs: str, **attributes: int) -> str:
        name = self.walk.fresh(f"{self.prefix}/{kind}")
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def number(self, value: object, like: str = "") -> str:
        """A constant, of the type of another tensor or int64."""
        kind = self.walk.types[like].tensor_type.elem_type if like else onnx.TensorProto.INT64
        name = self.walk.fresh(f"{self.prefix}/number")
        self.walk.set_constant(name, np.array(value, helper.tensor_dtype_to_np_dtype(kind)))
        return name

    def places(self, starts: str, k: int, cut: _Cut) -> str:
        """A vector of the places that are cut, from element number `k` of `starts` on.

        In a checked cut that begins before the end of the axis, counted from there, and does not end before it, no
        place is one: ONNX would take the end for one from the front.
        """
        if _elements(self.walk, starts) == 1:
            first = self.node("Reshape", starts, self.number([1]))
        else:
            first = self.node("Gather", starts, self.number([k]), axis=0)
        if cut.checked:
            below = self.node("Less", first, self.number([0], starts))
            ends = self.node("Less", self.number([-1 - cut.checked], starts), first)
            wrong = self.node("And", below, ends)
            first = self.node("Where", wrong, self.number([FAR], starts), first)
        if cut.length > 1:
            first = self.node("Add", first, self.number(np.arange(cut.length) * cut.step, starts))
        return first

    def between(self, node: onnx.NodeProto, k: int, axis: int, step: int) -> str:
        """Which elements of axis `axis` a Slice takes, as truth values, where its bounds number `k` are any numbers:
        negative ones count from the end, and those outside of the axis are its ends."""
        length = self.node("Gather", self.node("Shape", node.input[0]), self.number(axis), axis=0)
        zero, one = self.number(0), self.number(1)
        all_of_them = self.node("Range", zero, length, one)

        def bound(name: str) -> str:
            whole = self.node("Cast", name, to=onnx.TensorProto.INT64)
            at = self.node("Gather", whole, self.number(k), axis=0)
            return self.node("Where", self.node("Less", at, zero), self.node("Add", at, length), at)

        start, end = (bound(name) for name in node.input[1:3])
        chosen = self.node("And", self.node("Less", all_of_them, end), self._not_less(all_of_them, start))
        if step > 1:
            first = self.node("Where", self.node("Less", start, zero), zero, start)
            far = self.node("Mod", self.node("Sub", all_of_them, first), self.number(step))
            chosen = self.node("And", chosen, self.node("Equal", far, zero))
        return chosen

    def _not_less(self, a: str, b: str) -> str:
        return self.node("Not", self.node("Less", a, b))


HANDLERS: dict[tuple[str, str], Rule] = {("", "Slice"): _slice, ("", "Range"): _range}
"""What is cut, and counted, from a computed place on."""
