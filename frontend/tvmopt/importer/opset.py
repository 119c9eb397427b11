"""Bringing old models to an opset that the converters know, with ONNX's own version converter."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference, version_converter

from tvmopt.importer.own import others
from tvmopt.importer.protos import byte_size, count, normal_domain, opset_versions, subgraphs

OLDEST, TARGET = 13, 17
"""Models below `OLDEST` are converted to `TARGET`: from 13 on axes are inputs and Softmax has its meaning."""

KEEP_BYTES = 4096
"""Initialisers up to this size travel with the graph: a converter may need to see them (axes, scales)."""

RESIZED = 11
"""From this opset on a Resize is told which places it reads; before, and in Upsample, these are the result's own by the
scale. ONNX's converter leaves out to say so, and gives them the new default, which is by centres."""

MISCONVERTED = frozenset({"Hardmax"})
"""Operators whose meaning changed and that ONNX's converter only relabels (flattening at `axis` until 12)."""

Weights = dict[str, TensorProto]


def convert_opset(model: onnx.ModelProto, weights: Weights) -> tuple[onnx.ModelProto, Weights]:
    """The model at opset :data:`TARGET` when it is older than :data:`OLDEST` and ONNX can convert it.

    Args:
        model: a model without initialisers.
        weights: its initialisers. Large ones stay out of the conversion: models above 2 GB convert too.

    Returns:
        The model and its initialisers, of which the conversion may have made some. A model that ONNX cannot
        convert stays as it is: most converters know the old forms too, and the check names what they do not.
    """
    version = opset_versions(model).get("", TARGET)
    if version >= OLDEST or others(model.functions):
        return model, weights
    used = _operators(model.graph)
    scans = "Scan" in used and version < 9  # with a batch axis, which is forgotten
    if scans or used & MISCONVERTED:
        return model, weights
    slim = onnx.ModelProto()
    slim.CopyFrom(model)
    del slim.functions[:]  # only our own ones, whose nodes are kept as they are
    for name, tensor in weights.items():
        if byte_size(tensor.data_type, count(tensor.dims)) <= KEEP_BYTES:
            slim.graph.initializer.append(tensor)
            slim.graph.initializer[-1].name = name
        else:
            slim.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tuple(tensor.dims)))
    try:
        with contextlib.suppress(Exception):  # conversion can do without, mostly
            slim = shape_inference.infer_shapes(slim)
        converted = version_converter.convert_version(slim, TARGET)
    except Exception:  # whatever the C++ says: the old opset is the fallback
        return model, weights
    graph = converted.graph
    if version < RESIZED:
        _say_places(graph)
    made = {t.name: t for t in graph.initializer if t.name not in weights}
    by_name = {v.name: v for v in graph.input}
    names = [v.name for v in model.graph.input]
    if any(name not in by_name for name in names) or [o.name for o in graph.output] != [
        o.name for o in model.graph.output
    ]:
        return model, weights
    inputs = [by_name[name] for name in names]
    for part in (graph.input, graph.initializer):
        del part[:]
    graph.input.extend(inputs)
    kept = opset_versions(converted)
    converted.opset_import.extend(o for o in model.opset_import if normal_domain(o.domain) not in kept)
    return converted, weights | made


def _operators(graph: onnx.GraphProto) -> set[str]:
    """Those of a graph and of all bodies in it."""
    return {n.op_type for n in graph.node}.union(*(_operators(g) for n in graph.node for g in subgraphs(n)))


def nearest_before(scales: Any) -> str:
    """Which of two pixels the nearest is before opset :data:`RESIZED`: as in onnxruntime and ONNX's tests of then, the
    first one of a picture that grows, and the second one of a picture that only shrinks."""
    known = scales is not None and np.size(scales) > 0
    return "ceil" if known and np.min(scales) < 1 and np.max(scales) <= 1 else "floor"


def _say_places(graph: onnx.GraphProto) -> None:
    """Write into each Resize which places it reads, as before opset :data:`RESIZED`."""
    known = {t.name: t for t in graph.initializer}
    known |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute}
    for node in graph.node:
        if node.op_type == "Resize" and not node.domain:
            scales = known.get(node.input[2]) if len(node.input) > 2 else None
            nearest = nearest_before(None if scales is None else numpy_helper.to_array(scales))
            said = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
            kept = [a for a in node.attribute if a.name not in said]
            del node.attribute[:]
            node.attribute.extend([*kept, *(helper.make_attribute(*pair) for pair in said.items())])
        for inner in subgraphs(node):
            _say_places(inner)
