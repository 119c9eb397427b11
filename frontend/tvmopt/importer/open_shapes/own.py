"""The types of our own operators (:mod:`tvmopt.importer.own`), of which ONNX has no schema."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from tvmopt.importer import boxes, pictures
from tvmopt.importer.own import INPUTS
from tvmopt.importer.pixels import ROWS
from tvmopt.importer.protos import make_type
from tvmopt.importer.walk import Walk


def own_types(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The type of the result of one of our operators, where it is known."""
    if len(node.input) != len(INPUTS[node.op_type]) or len(node.output) != 1:
        return {}
    if node.op_type in pictures.INPUTS:
        return _scaled(walk, node)
    return _selected(walk, node) if node.op_type in boxes.INPUTS else _resampled(walk, node)


def _scaled(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The type of scaled pictures, whose size is a constant."""
    given, size = walk.open_shape(node.input[0]), walk.array(node.input[2])
    if given is None or len(given) != 4 or size is None or size.size != 3:
        return {}
    return {node.output[0]: make_type(TensorProto.UINT8, walk.settled((given[0], *map(int, size[:2]), given[3])))}


def _selected(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The type of the numbers of selected boxes; how many pictures and boxes there are may be open."""
    given, scores, most = walk.open_shape(node.input[0]), walk.open_shape(node.input[1]), walk.array(node.input[2])
    if given is None or scores is None or most is None or most.size != 1 or (len(given), len(scores)) != (3, 3):
        return {}
    return {node.output[0]: make_type(TensorProto.INT64, walk.settled((given[0], int(most.reshape(-1)[0]))))}


def _resampled(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The type of the resampled pictures; their number, and what is not resampled, may be open."""
    x, places, *more = (walk.open_shape(name) for i, name in enumerate(node.input) if i != 2)
    known = [shape for shape in more if shape]
    if x is None or len(x) != 4 or not places or len(known) != len(more):
        return {}
    n, _, w, c = x
    shape = (n, places[0], w, c) if node.op_type == ROWS else (n, known[0][0], places[0], known[1][0])
    return {node.output[0]: make_type(TensorProto.UINT8, walk.settled(shape))}
