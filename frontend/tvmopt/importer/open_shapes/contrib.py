"""The types of operators of com.microsoft whose sizes may be open; ONNX has no schema of them."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from tvmopt.dims import Size
from tvmopt.importer.open_shapes.node import Node, Shape
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


def contrib_types(walk: Walk, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """The types of the outputs of an operator of com.microsoft whose inputs are known, and agree; of no operator that
    the functions above know. What a file declares of them may be wrong."""
    one = Node(walk, node)
    kind = walk.types.get(node.input[0]) if node.input else None
    rule = SHAPES.get(node.op_type)
    if rule is None or kind is None or one.shapes[0] is None:
        return {}
    try:
        shapes = rule(one)
    except (LookupError, ValueError, ArithmeticError, TypeError):  # they do not agree, or some are not known
        return {}
    elem = kind.tensor_type.elem_type
    if node.op_type in ("EmbedLayerNormalization", "QAttention"):  # of the words, and of the bias
        elem = walk.types[node.input[2]].tensor_type.elem_type
    if node.op_type in STEPS:
        elem = _stepped(walk, node)
    kinds = {1: onnx.TensorProto.INT32} if node.op_type == "EmbedLayerNormalization" else {}
    if node.op_type.startswith("Skip"):
        kinds = dict.fromkeys((1, 2), onnx.TensorProto.FLOAT)
    return {
        name: make_type(kinds.get(i, elem), walk.settled(shape))
        for i, (name, shape) in enumerate(zip(node.output, shapes, strict=False))
        if name and shape is not None
    }


def _stepped(walk: Walk, node: onnx.NodeProto) -> int:
    """The type of the result of an operator of `STEPS`: that of the scale, or of the zero point, which may be left
    out."""
    deciding = STEPS[node.op_type]
    if len(node.input) <= deciding or not node.input[deciding]:
        return int(onnx.TensorProto.UINT8)
    return int(walk.types[node.input[deciding]].tensor_type.elem_type)


def _known(n: Node, index: int) -> Shape:
    """The shape of an input.

    Raises:
        ValueError: it is left out, or not known.
    """
    shape = n.shapes[index] if index < len(n.shapes) else None
    if shape is None:
        raise ValueError(index)
    return shape


def _same(n: Node) -> list[Shape | None]:
    return [n.shapes[0]]


def _skipped(n: Node) -> list[Shape | None]:
    x = _known(n, 0)
    row = (*x[:-1], 1)
    return [x, row, row, x]


def _embedded(n: Node) -> list[Shape | None]:
    ids = _known(n, 0)
    rows = (*ids, _known(n, 2)[1])
    return [rows, ids[:1], rows]


def _product(n: Node) -> list[Shape | None]:
    """The sides are stored with their last axes, or their batch and their rows, in each other's places."""
    sides = []
    for index, side in enumerate("AB"):
        shape = list(_known(n, index))
        if n.attrs.get(f"transBatch{side}", 0):
            shape = [*shape[1:-1], shape[0], shape[-1]]
        if n.attrs.get(f"trans{side}", 0) and len(shape) > 1:
            shape[-2:] = shape[:-3:-1]
        sides.append(tuple(shape))
    a, b = sides
    batch = n.broadcast([a[:-2], b[:-2]]) if len(a) > 2 or len(b) > 2 else ()
    return [(*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))]


def _packed(past: int) -> Callable[[Node], list[Shape | None]]:
    def shapes(n: Node) -> list[Shape | None]:
        (batch, tokens, _), width, heads = _known(n, 0), _known(n, 1)[1], n.attrs["num_heads"]
        sizes = list(n.attrs.get("qkv_hidden_sizes", ())) or [width // 3] * 3
        before = _known(n, past)[3] if past < len(n.node.input) and n.node.input[past] else 0
        present = (2, batch, heads, before + tokens, sizes[0] // heads)
        return [(batch, tokens, sizes[2]), present if sizes[2] == sizes[0] else None]

    return shapes


def _separate(n: Node) -> list[Shape | None]:
    q, heads = _known(n, 0), n.attrs["num_heads"]
    if len(q) == 5:
        width, keys, depth = q[4], q[1], q[4]
    else:
        k, depth = _known(n, 1), q[2] // heads
        if len(k) == 5:
            width, keys = depth, k[1]
        else:
            v = _known(n, 2)
            width, keys = (v[3], k[2]) if len(k) == 4 else (v[2] // heads, k[1])
    before = _known(n, 6)[2] if len(n.node.input) > 6 and n.node.input[6] else 0
    caches = [(q[0], heads, before + keys, size) for size in (depth, width)]
    return [(q[0], q[1], heads * width), *caches]


def _recurrent(n: Node) -> list[Shape | None]:
    (steps, batch, _), (directions, hidden, _) = _known(n, 0), _known(n, 2)
    return [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2]


STEPS = {"DequantizeLinear": 1, "QuantizeLinear": 2}
"""The input that has the type of the result."""

SHAPES: dict[str, Callable[[Node], list[Shape | None]]] = {
    **dict.fromkeys(("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding"), _same),
    **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization"), _same),
    **dict.fromkeys(STEPS, _same),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skipped),
    "Attention": _packed(4),
    "DynamicQuantizeLSTM": _recurrent,
    "EmbedLayerNormalization": _embedded,
    "FusedMatMul": _product,
    "MultiHeadAttention": _separate,
    "QAttention": _packed(8),
}
"""The shapes of an operator's outputs, None for one that is not known."""
