"""Shapes of what chooses elements by their values: as long as a run finds, and at most as long as what is chosen from.

    NonZero(x)               [rank, found0]    found0 <= elements of x
    NonMaxSuppression(b, s)  [found1, 3]       found1 <= pictures * classes * boxes
    Compress(x, condition)   [found2, ...]     found2 <= length of the condition

Everything behind it is computed with these sizes, like with those of a model's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from tvmopt.dims import Size
from tvmopt.importer.open_shapes.node import Node, Shape
from tvmopt.importer.protos import make_type
from tvmopt.importer.walk import Walk


def _nonzero(n: Node) -> tuple[Size, Callable[[Size], Shape]] | None:
    own = n.shapes[0]
    return None if not own else (math.prod(own), lambda found: (len(own), found))


def _compress(n: Node) -> tuple[Size, Callable[[Size], Shape]] | None:
    own, condition = n.shapes
    if own is None or condition is None or len(condition) != 1 or (not own and "axis" in n.attrs):
        return None  # what is no vector is refused where the operator is imported
    if "axis" not in n.attrs:
        return n.walk.symbols.least(math.prod(own), condition[0]), lambda found: (found,)
    axis = n.attrs["axis"] % len(own)
    return n.walk.symbols.least(own[axis], condition[0]), lambda found: (*own[:axis], found, *own[axis + 1 :])


def _suppression(n: Node) -> tuple[Size, Callable[[Size], Shape]] | None:
    boxes, scores = n.shapes[:2]
    limit = n.walk.array(n.node.input[2]) if len(n.node.input) > 2 and n.node.input[2] else np.zeros(1)
    if boxes is None or scores is None or limit is None or limit.size != 1 or limit.reshape(-1)[0] < 1:
        return None
    each = n.walk.symbols.least(boxes[1], int(limit.reshape(-1)[0]))
    return math.prod((*scores[:2], each)), lambda found: (found, 3)


RULES = {"NonZero": _nonzero, "Compress": _compress, "NonMaxSuppression": _suppression}
"""By operator of ai.onnx: what the new size is at most, and the shape with it."""


def selected_types(walk: Walk, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
    """Give the result of such a node its shape, with a new size in it; not within the body of a loop or branch."""
    rule = RULES.get(node.op_type)
    if rule is None or node.domain or walk.depth or node.output[0] not in types:
        return
    if all(walk.is_constant(i) for i in node.input if i):
        return
    found = rule(Node(walk, node))
    if found is not None:
        most, shape = found
        same = (node.op_type, *node.input)  # exporters repeat a mask's NonZero for all that it selects from
        size = walk.symbols.selections.get(same) or walk.symbols.find(most)
        walk.symbols.selections[same] = size
        kind = types[node.output[0]].tensor_type.elem_type
        types[node.output[0]] = make_type(kind, walk.settled(shape(size)))
