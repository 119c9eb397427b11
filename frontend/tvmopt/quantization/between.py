"""What stands between the products of a model and is computed in floats in a quantised one, too.

To round each step of a LayerNorm or a GELU to 8 bits gains no time, as they are parts of the kernels of products, and
costs much: ``mean(x*x) - mean(x)**2`` is the difference of two nearly equal numbers. Nor does it help to round what no
product reads any more: a detector that joins boxes (up to 640) and scores (up to 1) would give both one scale. So in
bytes are products and, in front of them, poolings, data movement, and sums and gates of two branches.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from tvmopt.quantization.losses import PRODUCTS

MOVING = frozenset((
    "AveragePool", "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GlobalAveragePool",
    "GlobalMaxPool", "Identity", "MaxPool", "Pad", "Relu", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample",
))  # fmt: skip
"""Operators whose results have the scale of what they read."""


def in_floats(model: onnx.ModelProto, excluded: Collection[str] = ()) -> list[str]:
    """The names of the nodes that stay in floats: those that are excluded, and what only they read, are among them.

    Two values are of two branches where no product, sum of branches or input is the last one before both: a residual
    and what is added to it, a gate and what it opens, but not the parts of a GELU.

    Args:
        model: every node has a name, makers stand before readers.
    """
    sources = {value.name: frozenset({value.name}) for value in model.graph.input}
    bytes_ = set[str]()
    for node in model.graph.node:
        read = [sources[name] for name in node.input if sources.get(name)]
        branches = node.op_type in ("Add", "Mul") and len(read) == 2 and not read[0] & read[1]
        if branches or node.op_type in PRODUCTS:
            own = frozenset({node.output[0]})
        else:
            own = frozenset[str]().union(*read)
        if branches or node.op_type in PRODUCTS | MOVING:
            bytes_.add(node.name)
        sources |= dict.fromkeys(filter(None, node.output), own)
    wanted = set[str]()  # values that a product reads, at the end
    for node in reversed(model.graph.node):
        product = node.op_type in PRODUCTS and node.name not in excluded
        if product or (node.name in bytes_ and wanted.intersection(node.output)):
            wanted.update(node.input)
        else:
            bytes_.discard(node.name)
    kept = {n.name for n in model.graph.node if n.op_type in PRODUCTS} - set(excluded)
    return [n.name for n in model.graph.node if n.name not in kept | bytes_]


def unrounded(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Take out, in place, each Q/DQ pair of which only nodes of these names read, or which only makes an output."""
    graph, ends = model.graph, {value.name for value in model.graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in [n for n in graph.node if n.op_type == "DequantizeLinear"]:
        (result,), first = node.output, makers.get(node.input[0])
        if (
            first is None
            or first.op_type != "QuantizeLinear"
            or any(r.name not in names for r in readers.get(result, ()))
        ):
            continue
        source = first.input[0]
        if result in ends:
            if len(readers[source]) > 1 or len(readers[first.output[0]]) > 1 or source not in makers or source in ends:
                continue
            outputs = makers[source].output
            outputs[list(outputs).index(source)] = result
        else:
            for reader in readers.get(result, ()):
                for index, name in enumerate(reader.input):
                    if name == result:
                        reader.input[index] = source
        graph.node.remove(node)
        readers[first.output[0]].remove(node)
        if not readers[first.output[0]]:
            graph.node.remove(first)
    read = {name for node in graph.node for name in node.input} | ends
    for scale in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(scale)
