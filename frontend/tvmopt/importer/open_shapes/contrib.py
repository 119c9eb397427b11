"""The types of operators of com.microsoft whose sizes may be open; ONNX has no schema of them."""

from __future__ import annotations

import onnx

from tvmopt.dims import Size
from tvmopt.importer.open_shapes.node import Node
from tvmopt.importer.protos import attributes, make_type
from tvmopt.importer.walk import Walk


def grouped_attention(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The types of GroupQueryAttention's outputs, where its query is known: the result, keys and values with the new
    ones behind the past ones. The depth of a cache is that of a head."""
    one = Node(walk, node)
    query, past = one.shapes[0], one.shapes[3] if len(one.shapes) > 3 else None
    if query is None or len(query) != 3:
        return {}
    heads, kv_heads = one.attrs["num_heads"], one.attrs["kv_num_heads"]
    depth = query[2] // (heads if node.input[1] else heads + 2 * kv_heads)
    before: Size = 0
    if past is not None:
        one.same(past[3], depth)
        one.same(past[0], query[0])
        before = past[2]
        if (values := one.shapes[4]) is not None:
            for a, b in zip(past, values, strict=True):
                one.same(a, b)
    table = one.shapes[7] if len(one.shapes) > 7 else None
    if table is not None and one.attrs.get("do_rotary", 0):
        walk.symbols.at_most(before + query[1], table[0], one.where)
    shapes = [(query[0], query[1], heads * depth), *[(query[0], kv_heads, before + query[1], depth)] * 2]
    elem = walk.types[node.input[0]].tensor_type.elem_type
    return {name: make_type(elem, walk.settled(s)) for name, s in zip(node.output, shapes, strict=False) if name}


def packed_rows(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The type of GatherBlockQuantized's rows, from a table of codes, several of which may share a byte."""
    table, at = (walk.open_shape(name) for name in node.input[:2])
    kind, scales = (walk.types.get(name) for name in (node.input[0], node.input[2]))
    if not table or at is None or kind is None or scales is None:
        return {}
    given = attributes(node)
    if given.get("bits", 4) not in (2, 4, 8):
        return {}
    axis = int(given.get("gather_axis", 0)) % len(table)
    bytes_ = kind.tensor_type.elem_type == onnx.TensorProto.UINT8
    wide = table[-1] * (8 // int(given.get("bits", 4)) if bytes_ else 1)
    shape = (*table[:axis], *at, *(*table[:-1], wide)[axis + 1 :])
    return {node.output[0]: make_type(scales.tensor_type.elem_type, shape)}
