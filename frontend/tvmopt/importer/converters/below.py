"""What is known of integers that operators of the model compute as indices: they need no check before they are used.

A NonZero gives positions in its input, a TopK, ArgMax or ArgMin places along an axis, none of them negative. Detectors
gather with them a few hundred times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
from tvm import relax
from tvm_ffi import structural_equal

from tvmopt.importer.protos import attributes, normal_domain

PLACES = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}
"""Operators, and which output has places along an axis of the first input."""
SAME_NUMBERS = {
    *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Gather", "GatherND", "GatherElements"),
    *("Expand", "Tile", "Identity", "Compress"),
}
"""Operators whose results are numbers of their first input, and no others."""


@dataclass(frozen=True)
class Below:
    """Integers from 0 to a size - 1.

    Attributes:
        sizes: TVM's; one for all numbers, or one for each component of a position.
        axis: of the components: the first one as NonZero gives them, -1 where a GatherND wants them.
    """

    sizes: tuple[Any, ...]
    axis: int | None = None

    def inside(self, sizes: list[Any]) -> bool:
        """Whether they are indices of axes of these sizes, one for each component of the last axis.

        >>> Below((3, 4), axis=-1).inside([3, 5]), Below((3, 4), axis=-1).inside([4]), Below((3,)).inside([3, 4])
        (True, False, True)
        """
        if self.axis is None:
            return all(_fits(self.sizes[0], size) for size in sizes)
        return self.axis == -1 and len(sizes) == len(self.sizes) and all(map(_fits, self.sizes, sizes))


def _fits(size: Any, other: Any) -> bool:
    """Whether a size is at most the other one, for certain."""
    try:
        return int(size) <= int(other)
    except TypeError:  # one is open: a symbol is the same as itself alone, whatever it is called
        return type(size) is type(other) and bool(structural_equal(size, other))


def below(node: onnx.NodeProto, inputs: list[Any], known: list[Below | None]) -> list[Below | None]:
    """What is known of each output.

    Args:
        inputs: of the node, as they were converted; `known`: what is known of them.
    """
    nothing: list[Below | None] = [None] * len(node.output)
    if normal_domain(node.domain) or not inputs:
        return nothing
    shape = getattr(getattr(inputs[0], "ty", None), "shape", None)
    sizes = tuple(shape.values) if isinstance(shape, relax.ShapeExpr) else ()
    first, given = known[0], attributes(node)
    if node.op_type == "NonZero" and sizes:
        return [Below(sizes, axis=0 if len(sizes) > 1 else None)]
    if node.op_type in PLACES and sizes:
        axis = given.get("axis", -1 if node.op_type == "TopK" else 0)
        place = PLACES[node.op_type]
        return [Below((sizes[axis],)) if k == place else None for k in range(len(node.output))]
    if first is None:
        return nothing
    if node.op_type == "Cast" and given.get("to") == onnx.TensorProto.INT64:
        return [first]
    if first.axis is None:
        return [first] if node.op_type in SAME_NUMBERS else nothing
    if node.op_type == "Transpose" and first.axis == 0 and list(given.get("perm", (1, 0))) == [1, 0]:
        return [Below(first.sizes, axis=-1)]
    return nothing
