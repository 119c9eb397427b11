"""Shapes with open sizes, where ONNX's own inference gives up - for the folding walk.

ONNX carries a named size through operators that keep it, and leaves it out wherever something is computed of it:
behind a convolution, a reshape, a concatenation. One rule an operator says what the shape is; a rule gives None where
it cannot.

node       what a rule is given
moving     concatenations, reshapes, slices, pads ...
spatial    convolutions, poolings, Resize, recurrences, STFT
contrib    the operators of com.microsoft
classic    ai.onnx.ml
own        our own operators: pictures of bytes, a detector's boxes
selection  what chooses elements by their values: new sizes
agreements which sizes of its inputs an operator takes for equal; contrib_agreements: those of com.microsoft
facts      the words that these rules are written in
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import onnx

from tvmopt.dims import OpenSize, Size, is_open
from tvmopt.importer.open_shapes import moving, spatial
from tvmopt.importer.open_shapes.agreements import agree
from tvmopt.importer.open_shapes.classic import classic_types
from tvmopt.importer.open_shapes.contrib import contrib_types, grouped_attention, packed_rows
from tvmopt.importer.open_shapes.node import Node, Shape, Shapes
from tvmopt.importer.open_shapes.own import own_types
from tvmopt.importer.open_shapes.selection import selected_types
from tvmopt.importer.protos import words
from tvmopt.importer.symbols import Undecided
from tvmopt.importer.walk import Walk


def _followed(n: Node) -> None:
    """Keep book of integers that are known to stay below a size, until they index a table: it has as many rows."""
    name, below = n.node.output[0], n.walk.below
    known = below.get(n.node.input[0]) if n.node.input else None
    kind = n.node.op_type
    if kind == "Range":
        limit = n.value(1)
        known = limit[0] if limit else None
    elif kind == "Add":
        other = n.value(1) if n.node.input[0] in below else n.value(0)
        known = known if known is not None else below.get(n.node.input[1])
        known = known + other[0] if known is not None and other and len(other) == 1 else None
    elif kind == "Gather":
        table, known = n.shapes[0], below.get(n.node.input[1])
        if known is not None and table is not None:
            n.walk.symbols.at_most(known, table[n.attrs.get("axis", 0)], n.where)
        return
    elif kind not in SAME_VALUES:
        return
    if known is not None:
        below[name] = known


def _elementwise(n: Node) -> Shapes | None:
    if any(s is None for s in n.shapes):
        return None
    return [n.broadcast([s for s in n.shapes if s is not None])]


def _matmul(n: Node, second: int = 1) -> Shapes | None:
    a, b = n.shapes[0], n.shapes[second]
    if not a or not b:
        return None
    n.same(a[-1], b[-2] if len(b) > 1 else b[-1])
    batch = n.broadcast([a[:-2], b[:-2]]) if max(len(a), len(b)) > 2 else ()
    return [(*batch, *(a[-2:-1]), *(b[-1:] if len(b) > 1 else ()))]


def _gemm(n: Node) -> Shapes | None:
    a, b = n.shapes[0], n.shapes[1]
    if a is None or b is None:
        return None
    (m, k), (k2, columns) = a[:: -1 if n.attrs.get("transA", 0) else 1], b[:: -1 if n.attrs.get("transB", 0) else 1]
    n.same(k, k2)
    added = n.shapes[2] if len(n.shapes) > 2 else None
    return [
        tuple(
            own if c == 1 else n.same(own, c) for own, c in zip((m, columns), (1, 1, *(added or ()))[-2:], strict=True)
        )
    ]


def _like_first(n: Node) -> Shapes | None:
    return None if n.shapes[0] is None else [n.shapes[0]]


def _norm(n: Node) -> Shapes | None:
    return None if n.shapes[0] is None else [n.shapes[0], *[None] * (len(n.node.output) - 1)]


def _einsum(n: Node) -> Shapes | None:
    terms, arrow, result = n.attrs["equation"].replace(" ", "").partition("->")
    if not arrow or "." in terms or any(s is None for s in n.shapes):
        return None
    sizes: dict[str, Size] = {}
    for letters, shape in zip(terms.split(","), n.shapes, strict=True):
        for letter, size in zip(letters, shape or (), strict=True):
            (sizes[letter],) = n.broadcast([(sizes.get(letter, 1),), (size,)])
    return [tuple(sizes[letter] for letter in result)]


def _grid_sample(n: Node) -> Shapes | None:
    """As many elements as the grid has places, for each channel of the picture."""
    own, grid = n.shapes
    if own is None or grid is None:
        return None
    return [(n.same(own[0], grid[0]), own[1], *grid[1:-1])]


def _attention(n: Node) -> Shapes | None:
    """Q, K and V of 4 dimensions, or of 3 with the heads side by side; ONNX's inference counts an open width as 0."""
    q, k, v, *more = n.shapes
    if q is None or k is None or v is None:
        return None
    past = next((s[2] for s in more[1:] if s is not None), 0)
    if len(q) == 3:
        queries, heads = n.attrs["q_num_heads"], n.attrs["kv_num_heads"]
        q, k, v = ((s[0], h, s[1], s[2] // h) for s, h in ((q, queries), (k, heads), (v, heads)))
        y: Shape = (q[0], q[2], queries * v[3])
    else:
        y = (*q[:3], v[3])
    whole = past + k[2]
    shapes = [y, (*k[:2], whole, k[3]), (*v[:2], whole, v[3]), (*q[:3], whole)]
    return [shape if name else None for name, shape in zip(n.node.output, shapes, strict=False)]


ELEMENTWISE = words(
    """Add Sub Mul Div Pow Mod And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual Where Max Min Sum Mean PRelu
    BitShift BitwiseAnd BitwiseOr BitwiseXor"""
)


RULES: dict[str, Callable[[Node], Shapes | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    "QLinearMatMul": partial(_matmul, second=3),
    "Gemm": _gemm,
    "Concat": moving.concat,
    "Reshape": moving.reshape,
    "Expand": moving.expand,
    "ConstantOfShape": moving.constant_of_shape,
    "Range": moving.range_,
    "Slice": moving.slice_,
    "Flatten": moving.flatten,
    "Squeeze": moving.squeeze,
    "Tile": moving.tile,
    "Pad": moving.pad,
    "Split": moving.split,
    **dict.fromkeys(("Conv", "ConvInteger"), spatial.conv),
    "QLinearConv": partial(spatial.conv, second=3),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), spatial.pool),
    "ConvTranspose": spatial.conv_transpose,
    **dict.fromkeys(("Resize", "Upsample"), spatial.resize),
    "DepthToSpace": spatial.depth_to_space,
    "SpaceToDepth": spatial.space_to_depth,
    "TopK": moving.top_k,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), spatial.recurrent),
    "OneHot": moving.one_hot,
    "STFT": spatial.stft,
    "Attention": _attention,
    "Einsum": _einsum,
    "GridSample": _grid_sample,
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "Softmax", "LogSoftmax"), _norm),
    **dict.fromkeys(("CumSum", "Trilu", "ScatterND", "ScatterElements"), _like_first),
}
"""By operator of ai.onnx."""


SAME_VALUES = words("Unsqueeze Squeeze Reshape Expand Cast Identity Slice Flatten Tile Transpose")
"""Operators whose result has only elements of their first input."""


ALWAYS = ELEMENTWISE | words(
    """MatMul MatMulInteger QLinearMatMul Gemm Concat Slice TopK Reshape Expand MaxPool AveragePool LpPool LSTM GRU RNN
    Pad Attention"""
)
"""Rules that know more than ONNX's inference even where that names each size: which sizes must be equal, where a slice
ends."""


def open_types(walk: Walk, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> list[Shape | None]:
    """The shapes of a node's outputs by its rule; none where there is no rule, no open size, or nothing to add.

    Raises:
        Undecided: whether two sizes are equal, as they must be, is decided by values.
    """
    rule = RULES.get(node.op_type)
    if node.domain or not walk.symbols:
        return []
    if node.op_type in SAME_VALUES or node.op_type in ("Range", "Add", "Gather"):
        with suppress(OpenSize):  # what values decide is no bound that a call is checked for: the run checks indices
            _followed(Node(walk, node))
    if rule is None:
        return []
    known = all(walk.shape_of_type(types.get(o)) is not None for o in node.output if o)
    if known and node.op_type not in ALWAYS:
        return []
    one = Node(walk, node)
    if not any(s is not None and is_open(s) for s in one.shapes) and (known or not one.reads_sizes()):
        return []
    try:
        return [None if shape is None else walk.settled(shape) for shape in rule(one) or []]
    except Undecided:
        raise
    except (OpenSize, ValueError, IndexError, KeyError, ZeroDivisionError, TypeError):
        return []


__all__ = [
    "agree",
    "classic_types",
    "contrib_types",
    "grouped_attention",
    "open_types",
    "own_types",
    "packed_rows",
    "selected_types",
]
