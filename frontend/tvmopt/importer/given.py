"""What is known of a node's inputs while the graph is walked, in the words that rules about them need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tvmopt.importer.protos import attributes, count
from tvmopt.importer.walk import Walk

Texts = Iterator[str]

MOST_VALUES = 1 << 16
"""Constants of more elements are data: no rule looks at their values."""


class Given:
    """One node, its attributes, and the shapes and small constants of its inputs."""

    def __init__(self, walk: Walk, node: onnx.NodeProto) -> None:
        self.walk, self.node, self.attrs = walk, node, attributes(node)
        self.opset = walk.opsets.get("", 1)

    def _name(self, index: int) -> str:
        return self.node.input[index] if index < len(self.node.input) else ""

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return bool(self._name(index))

    def shape(self, index: int) -> tuple[int, ...] | None:
        """The static shape of an input; None where unknown or left out."""
        return self.walk.shape(self._name(index)) if self._name(index) else None

    def sizes(self, index: int) -> tuple[int | None, ...] | None:
        """The shape of an input, with None for its open sizes; None where it is unknown or left out."""
        shape = self.walk.open_shape(self._name(index)) if self._name(index) else None
        return None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)

    def rank(self, index: int) -> int | None:
        """The number of dimensions of an input; None where it is unknown or left out."""
        sizes = self.sizes(index)
        return None if sizes is None else len(sizes)

    def count(self, index: int) -> int:
        """Elements of an input, 0 where unknown."""
        shape = self.shape(index)
        return count(shape) if shape is not None else 0

    def array(self, index: int) -> npt.NDArray[Any] | None:
        """The value of a small constant input, else None."""
        name, shape = self._name(index), self.shape(index)
        if not name or shape is None or count(shape) > MOST_VALUES or not self.walk.is_constant(name):
            return None
        array = self.walk.array(name)
        return None if array is None or array.dtype.kind not in "biuf" else array

    def listed(self, name: str, index: int) -> Sequence[int] | None:
        """A list that is an attribute in old opsets and an input in new ones; None where unknown or left out."""
        if name in self.attrs:
            return [int(v) for v in self.attrs[name]]
        array = self.array(index)
        return None if array is None else [int(v) for v in array.ravel()]

    def axes_fit(self, axes: Sequence[Any] | npt.NDArray[Any], rank: int, distinct: bool = True) -> Texts:
        """Every axis lies in the rank, and, if they are to be `distinct`, none is named twice."""
        listed = [int(a) for a in axes]
        for axis in listed:
            if not -rank <= axis < rank:
                yield f"axis {axis} is outside its {rank} dimensions"
                return
        if distinct and len({a % rank for a in listed}) < len(listed):
            yield f"the axes {listed} name one axis twice"


Rule = Callable[[Given], Texts]
"""Yields what is wrong with a node, in words that complete "X does not fit its inputs: ...". """


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether `shape` broadcasts to `target` without changing it.

    >>> broadcasts((3, 1), (2, 3, 4)), broadcasts((3,), (3, 4)), broadcasts((2, 2), (2,))
    (True, False, False)
    """
    try:
        return np.broadcast_shapes(tuple(shape), tuple(target)) == tuple(target)
    except ValueError:
        return False
