"""The mean of a picture as the global pooling that it is: quantisers know the pooling, and leave a mean in floats."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.importer.protos import attributes, drop_unused_weights


def means_as_poolings(model: onnx.ModelProto) -> list[str]:
    """Each ReduceMean over all axes of a picture becomes GlobalAveragePool, in place; the names of these nodes.

    A picture is ``[batch, channels, height, width]``, or has more axes: in three, the mean over the last is most often
    a norm's. torch's newer exporter writes the pooling in front of a classifier, and those of gates, as means.

    Args:
        model: of opset 13 or more.
    """
    graph = model.graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*onnx.shape_inference.infer_shapes(model).graph.value_info, *graph.input)
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT and value.type.tensor_type.HasField("shape")
    }
    weights = {tensor.name: tensor for tensor in graph.initializer}
    changed = []
    for index, node in reversed(list(enumerate(graph.node))):
        rank = ranks.get(node.input[0], 0) if node.op_type == "ReduceMean" and not node.domain else 0
        if rank < 4:
            continue
        given = attributes(node)
        if len(node.input) > 1:
            axes = numpy_helper.to_array(weights[node.input[1]]) if node.input[1] in weights else ()
        else:
            axes = given.get("axes", ())
        if sorted(int(axis) % rank for axis in axes) != list(range(2, rank)):
            continue
        result, read = node.output[0], list(node.input[:1])
        pooling = helper.make_node("GlobalAveragePool", read, [result], name=node.name)
        if not given.get("keepdims", 1):
            kept = numpy_helper.from_array(np.arange(2, rank), f"{result}/axes")
            graph.initializer.append(kept)
            pooling.output[0] = f"{result}/pooled"
            squeezed = helper.make_node(
                "Squeeze", [pooling.output[0], kept.name], [result], name=f"{node.name or result}/squeeze"
            )
            graph.node.insert(index + 1, squeezed)
        node.CopyFrom(pooling)
        changed.append(node.name)
    drop_unused_weights(model)
    return changed[::-1]
