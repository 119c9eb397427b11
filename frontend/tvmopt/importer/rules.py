"""Operators that the folding walk knows more about than their schema says, such as Shape and Dropout.

A rule gives the nodes that stand for its node (mostly none: a constant or another name was recorded), or None
where it does not apply.
"""

from __future__ import annotations

import numpy as np
import onnx

from tvmopt.dims import OpenSize
from tvmopt.importer import masked
from tvmopt.importer.open_values import shape_value
from tvmopt.importer.protos import attributes, count, node_name
from tvmopt.importer.walk import Nodes, Rule, Walk


def _constant(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Constant, in all its forms."""
    value = next((v for k, v in attributes(node).items() if k.startswith("value")), None)
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, str) or (isinstance(value, tuple) and value and isinstance(value[0], str)):
        array = np.array(value, dtype=object)
    elif isinstance(value, float | int | tuple):
        floats = any(a.name.startswith("value_float") for a in node.attribute)
        array = np.array(value, dtype=np.float32 if floats else np.int64)
    else:
        return None
    walk.set_constant(node.output[0], array)
    return []


def _identity(walk: Walk, node: onnx.NodeProto) -> Nodes:
    return walk.bind(node.output[0], node.input[0])


def _dropout(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Dropout at inference is the identity, and its mask is all ones."""
    if len(node.input) > 2 and node.input[2]:
        training, ratio = walk.array(node.input[2]), walk.array(node.input[1]) if node.input[1] else None
        if training is None or (bool(training.any()) and (ratio is None or bool((ratio != 0).any()))):
            return None
    if len(node.output) > 1 and node.output[1]:
        shape = walk.shape(node.input[0])
        if shape is None or count(shape) > 1 << 24 or walk.opsets.get("", 1) < 10:
            return None
        walk.set_constant(node.output[1], np.ones(shape, bool))
    return walk.bind(node.output[0], node.input[0])


def _shape(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Shape of a static tensor, and with start and end a part of it."""
    shape = walk.shape(node.input[0])
    if shape is None:
        return _open(walk, node)
    given = attributes(node)
    walk.set_constant(node.output[0], np.array(shape[given.get("start", 0) : given.get("end")], np.int64))
    return []


def _size(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    shape = walk.shape(node.input[0])
    if shape is None:
        return _open(walk, node)
    if (elements := count(shape)) > np.iinfo(np.int64).max:
        return None  # the tensor itself is refused
    walk.set_constant(node.output[0], np.array(elements, np.int64))
    return []


def _open(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Shape or Size of a tensor with open sizes: a value that the walk computes with."""
    shape = walk.open_shape(node.input[0])
    if shape is None:
        return None
    walk.set_open_value(node, shape_value(node, shape), onnx.TensorProto.INT64)
    return []


def _concat(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Concat of something and nothing (a cache of length 0) is the something, and so is Concat of one tensor."""
    if len(node.input) == 1:  # torch's older exporter, for a cache that began as an empty tensor
        return walk.bind(node.output[0], node.input[0])
    axis = attributes(node).get("axis", 1)
    shapes = [walk.shape(i) for i in node.input]
    if any(s is None or not -len(s) <= axis < len(s) for s in shapes):
        return None
    kept = [i for i, s in zip(node.input, shapes, strict=True) if s and s[axis]]
    if not kept or len(kept) == len(node.input):
        return None
    if len(kept) == 1:
        return walk.bind(node.output[0], kept[0])
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    copy.input.extend(kept)
    return walk.infer_and_emit(copy)


def _split(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Split of a shape that has open sizes, as TensorFlow's frames are computed: a Slice for each part."""
    x, given, version = node.input[0], attributes(node), walk.opsets.get("", 1)
    if len(node.input) > 1 and node.input[1] in walk.open_values:
        return _split_open(walk, node)
    if x not in walk.open_values or walk.open_values[x].ndim != 1 or version < 10:
        return None
    length, parts = walk.open_values[x].size, len(node.output)
    told = walk.array(node.input[1]) if len(node.input) > 1 and node.input[1] else given.get("split")
    if told is None and len(node.input) > 1 and node.input[1]:
        return None
    size = -(-length // parts)
    sizes = [int(n) for n in told] if told is not None else [min(size, length - i * size) for i in range(parts)]
    if len(sizes) != parts or sum(sizes) != length or min(sizes) < 0:
        return None
    nodes: Nodes = []
    for i, name in enumerate(node.output):
        bounds = [walk.fresh(f"{node_name(node)}/{what}") for what in ("from", "to", "axis")]
        for bound, number in zip(bounds, (sum(sizes[:i]), sum(sizes[: i + 1]), 0), strict=True):
            walk.set_constant(bound, np.array([number]))
        if name:
            nodes.append(onnx.helper.make_node("Slice", [x, *bounds], [name], name=f"{node_name(node)}/{i}"))
    return nodes


def _split_open(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """Split into parts of open sizes, as ``torch.split(y, [h, w])`` cuts rows and columns apart: a Slice for each."""
    x, told = node.input
    sizes, shape, axis = walk.open_values[told], walk.open_shape(x), attributes(node).get("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape) or sizes.shape != (len(node.output),):
        return None
    try:
        walk.unify(sum(sizes), shape[axis], node_name(node))
    except OpenSize:
        return None
    prefix = node_name(node)
    axes, begin = walk.fresh(f"{prefix}/axis"), walk.fresh(f"{prefix}/begin")
    walk.set_constant(axes, np.array([axis]))
    walk.set_constant(begin, np.array([0]))
    nodes: Nodes = []
    for i, name in enumerate(node.output):
        place, part, end = (walk.fresh(f"{prefix}/{i}/{what}") for what in ("place", "size", "end"))
        walk.set_constant(place, np.array([i]))
        nodes.append(onnx.helper.make_node("Gather", [told, place], [part], name=part, axis=0))
        nodes.append(onnx.helper.make_node("Add", [begin, part], [end], name=end))
        if name:
            nodes.append(onnx.helper.make_node("Slice", [x, begin, end, axes], [name], name=f"{prefix}/{i}"))
        begin = end
    return nodes


def _all_places(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """NonZero of an open ConstantOfShape that is not 0: the places of all its elements, so that no value decides how
    many there are. PyTorch's older exporter counts so along an axis that an assignment takes whole (Longformer)."""
    maker = walk.maker(node.input[0])
    shape = walk.open_shape(node.input[0])
    if maker is None or maker.op_type != "ConstantOfShape" or maker.domain or not shape or walk.opsets.get("", 1) < 11:
        return None
    if not (attributes(maker).get("value", np.zeros(1)) != 0).all():
        return None
    nodes: Nodes = []

    def add(op: str, *inputs: str | list[int] | int, output: str = "", **given: int) -> str:
        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else walk.fresh(f"{node_name(node)}/constant"))
            if not isinstance(value, str):
                walk.set_constant(names[-1], np.array(value, np.int64))
        output = output or walk.fresh(f"{node_name(node)}/{op}")
        nodes.append(onnx.helper.make_node(op, names, [output], name=output, **given))
        return output

    sizes, rows = add("Shape", node.input[0]), []
    for axis in range(len(shape)):
        along = add("Range", 0, add("Gather", sizes, axis), 1)
        if len(shape) > 1:
            along = add("Reshape", along, [-1 if i == axis else 1 for i in range(len(shape))])
            along = add("Expand", along, sizes)
        rows.append(add("Reshape", along, [1, -1]))
    add("Concat", *rows, output=node.output[0], axis=0)
    return nodes


def _optional(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """An Optional that has an element is that, for who looks into it; an empty one stays what it is."""
    outputs = {v.name for v in walk.model.graph.output}
    if not node.input or not node.input[0] or node.output[0] in outputs:
        return None
    return walk.bind(node.output[0], node.input[0])


def _has_element(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """OptionalHasElement: true of what is no optional, so that an If which asks is one of its branches."""
    name = node.input[0] if node.input else ""
    kind = walk.types.get(name)
    if name and (kind is None or kind.WhichOneof("value") not in ("tensor_type", "sequence_type")):
        return None
    walk.set_constant(node.output[0], np.array(bool(name)))
    return []


def _element(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """OptionalGetElement of what is no optional."""
    kind = walk.types.get(node.input[0])
    if kind is None or kind.WhichOneof("value") not in ("tensor_type", "sequence_type"):
        return None
    return walk.bind(node.output[0], node.input[0])


HANDLERS: dict[tuple[str, str], Rule] = {
    ("", "Split"): _split,
    ("", "Constant"): _constant,
    ("", "Identity"): _identity,
    ("", "Dropout"): _dropout,
    ("", "Shape"): _shape,
    ("", "Size"): _size,
    ("", "Concat"): _concat,
    ("", "NonZero"): _all_places,
    ("", "ScatterND"): masked.assigned,
    ("", "Optional"): _optional,
    ("", "OptionalHasElement"): _has_element,
    ("", "OptionalGetElement"): _element,
}
"""Operators that the walk knows more about than their schema says."""
