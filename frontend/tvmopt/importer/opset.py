"""Bringing old models to an opset that the converters know, with ONNX's own version converter."""

from __future__ import annotations

import contextlib

import onnx
from onnx import TensorProto, helper, shape_inference, version_converter

from tvmopt.importer.own import others
from tvmopt.importer.protos import byte_size, count, normal_domain, opset_versions

OLDEST, TARGET = 13, 17
"""Models below `OLDEST` are converted to `TARGET`: from 13 on axes are inputs and Softmax has its meaning."""

KEEP_BYTES = 4096
"""Initialisers up to this size travel with the graph: a converter may need to see them (axes, scales)."""

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
    scans = any(n.op_type == "Scan" for n in model.graph.node) and version < 9  # with a batch axis, which is forgotten
    relabelled = any(n.op_type in MISCONVERTED for n in model.graph.node)
    if version >= OLDEST or others(model.functions) or scans or relabelled:
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
