"""The types of our own operators of pictures of bytes (:mod:`tvmopt.importer.pixels`), of which ONNX has no schema."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from tvmopt.importer.pixels import INPUTS, ROWS
from tvmopt.importer.protos import make_type
from tvmopt.importer.walk import Walk


def resampled(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The type of the resampled pictures; their number, and what is not resampled, may be open."""
    if len(node.input) != len(INPUTS[node.op_type]) or len(node.output) != 1:
        return {}
    x, places, *more = (walk.open_shape(name) for i, name in enumerate(node.input) if i != 2)
    known = [shape for shape in more if shape]
    if x is None or len(x) != 4 or not places or len(known) != len(more):
        return {}
    n, _, w, c = x
    shape = (n, places[0], w, c) if node.op_type == ROWS else (n, known[0][0], places[0], known[1][0])
    return {node.output[0]: make_type(TensorProto.UINT8, walk.settled(shape))}
