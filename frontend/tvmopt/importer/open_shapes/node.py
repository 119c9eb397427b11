"""One node as a rule for shapes sees it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tvmopt.dims import Size
from tvmopt.importer.open_values import LARGEST, objects
from tvmopt.importer.protos import attributes, node_name
from tvmopt.importer.walk import Walk

Shape = tuple[Size, ...]
Shapes = Sequence[Shape | None]


class Node:
    """One node as a rule sees it."""

    def __init__(self, walk: Walk, node: onnx.NodeProto) -> None:
        self.walk, self.node, self.attrs = walk, node, attributes(node)
        self.where = node_name(node)
        self.shapes = [walk.open_shape(name) if name else None for name in node.input]

    def value(self, index: int) -> list[Size] | None:
        """The value of a small integer input as a flat list, None where it is left out or not known."""
        name = self.node.input[index] if index < len(self.node.input) else ""
        array = self.walk.sizes(name) if name else None
        if array is None or array.size > LARGEST:
            return None
        try:
            return list(objects(array).ravel())
        except (TypeError, ValueError):  # fractions, texts
            return None

    def given(self, index: int, name: str) -> list[Size] | None:
        """An input of newer opsets that was an attribute before."""
        return list(self.attrs[name]) if name in self.attrs else self.value(index)

    def reads_sizes(self) -> bool:
        """Whether an input is a tensor of open sizes."""
        return any(name in self.walk.open_values for name in self.node.input)

    def same(self, a: Size, b: Size) -> Size:
        """The one size that both are."""
        return self.walk.unify(a, b, self.where)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of tensors that are spread over each other."""
        rank = max(map(len, shapes))
        result = []
        for axis in range(-rank, 0):
            one: Size = 1
            for size in (s[axis] for s in shapes if len(s) >= -axis):
                one = size if one == 1 else one if size == 1 else self.same(one, size)
            result.append(one)
        return tuple(result)
