"""Shapes with open sizes, where ONNX's own inference gives up - for the folding walk.

ONNX carries a named size through operators that keep it, and leaves it out wherever something is computed of it:
behind a convolution, a reshape, a concatenation. One rule an operator says what the shape is; a rule gives None where
it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx

from tvmopt.dims import Dim, OpenSize, Size, is_open
from tvmopt.importer.open_values import BEYOND, LARGEST, objects
from tvmopt.importer.protos import attributes, make_type, node_name, words
from tvmopt.importer.walk import Walk
from tvmopt.importer.windows import windows

Shape = tuple[Size, ...]
Shapes = Sequence[Shape | None]


class Node:
    """One node as a rule sees it."""

    def __init__(self, walk: Walk, node: onnx.NodeProto) -> None:
        self.walk, self.node, self.attrs = walk, node, attributes(node)
        self.where = node_name(node)
        self.shapes = [walk.open_shape(name) if name else None for name in node.input]

    def value(self, index: int) -> list[Size] | None:
        """The value of a small integer input as a flat list, None where it is left out or not known."""
        name = self.node.input[index] if index < len(self.node.input) else ""
        array = self.walk.sizes(name) if name else None
        if array is None or array.size > LARGEST:
            return None
        try:
            return list(objects(array).ravel())
        except (TypeError, ValueError):  # fractions, texts
            return None

    def given(self, index: int, name: str) -> list[Size] | None:
        """An input of newer opsets that was an attribute before."""
        return list(self.attrs[name]) if name in self.attrs else self.value(index)

    def reads_sizes(self) -> bool:
        """Whether an input is a tensor of open sizes."""
        return any(name in self.walk.open_values for name in self.node.input)

    def same(self, a: Size, b: Size) -> Size:
        """The one size that both are."""
        return self.walk.unify(a, b, self.where)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of tensors that are spread over each other."""
        rank = max(map(len, shapes))
        result = []
        for axis in range(-rank, 0):
            one: Size = 1
            for size in (s[axis] for s in shapes if len(s) >= -axis):
                one = size if one == 1 else one if size == 1 else self.same(one, size)
            result.append(one)
        return tuple(result)


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
    return [(m, columns)]


def _concat(n: Node) -> Shapes | None:
    if any(s is None for s in n.shapes):
        return None
    shapes = [s for s in n.shapes if s is not None]
    axis = n.attrs.get("axis", 1) % len(shapes[0])
    result = list(shapes[0])
    for other in shapes[1:]:
        result = [r + o if i == axis else n.same(r, o) for i, (r, o) in enumerate(zip(result, other, strict=True))]
    return [tuple(result)]


def _reshape(n: Node) -> Shapes | None:
    own, wanted = n.shapes[0], n.given(1, "shape")
    if own is None or wanted is None:
        return None
    copied = not n.attrs.get("allowzero", 0)
    result = [own[i] if d == 0 and copied and i < len(own) else d for i, d in enumerate(wanted)]
    total = math.prod(own)
    if -1 in result:
        at = result.index(-1)
        result[at] = total // math.prod(d for i, d in enumerate(result) if i != at)
    elif is_open(own):
        n.same(math.prod(result), total)
    return [tuple(result)]


def _expand(n: Node) -> Shapes | None:
    own, wanted = n.shapes[0], n.value(1)
    return None if own is None or wanted is None else [n.broadcast([own, tuple(wanted)])]


def _constant_of_shape(n: Node) -> Shapes | None:
    wanted = n.value(0)
    return None if wanted is None else [tuple(wanted)]


def _range(n: Node) -> Shapes | None:
    values = [n.value(i) for i in range(3)]
    if any(v is None for v in values):
        return None
    start, limit, step = (v[0] for v in values if v)
    return [((limit - start + step - 1) // step,)] if isinstance(step, int) and step > 0 else None


def _slice(n: Node) -> Shapes | None:
    own, starts, ends = n.shapes[0], n.given(1, "starts"), n.given(2, "ends")
    if own is None or starts is None or ends is None:
        return None
    axes = n.given(3, "axes") or list(range(len(starts)))
    steps = n.value(4) or [1] * len(starts)
    result = list(own)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = result[axis]
        if step != 0 and all(isinstance(known, int) for known in (size, start, end, step)):
            result[axis] = len(range(size)[slice(start, end, step)])
            continue
        if step == -1 and end <= -BEYOND and (start == -1 or start >= BEYOND):
            continue  # reversed as a whole
        if step == -1 and end <= -BEYOND and isinstance(start, int) and start >= 0:  # the first ones, reversed
            n.walk.symbols.at_most(start + 1, size, n.where)
            result[axis] = start + 1
            continue
        if not isinstance(step, int) or step < 1:
            return None
        first, last = slice_bounds(n.walk, size, start, end, n.where)
        count = (last - first + step - 1) // step
        result[axis] = n.walk.symbols.most_of(count, 0)
    return [tuple(result)]


def slice_bounds(walk: Walk, size: Size, start: Size, end: Size, where: str) -> tuple[Size, Size]:
    """Where a slice of step 1 or more begins and ends in an axis of this size.

    An open end of an axis of known size is taken to be inside: a table of positions is as long as the model's longest
    text.
    """

    def inside(place: Size) -> Size:
        if isinstance(place, int) and place >= BEYOND:
            return size
        if isinstance(place, int) and place <= -BEYOND:
            return 0
        if place == size:
            return size
        if walk.is_less(place, 0):
            return walk.symbols.most_of(size + place, 0)
        if isinstance(place, Dim) and isinstance(size, int):
            walk.symbols.at_most(place, size, where)
            return place
        return walk.symbols.least(place, size)

    return inside(start), inside(end)


def _flatten(n: Node) -> Shapes | None:
    own = n.shapes[0]
    if own is None:
        return None
    axis = n.attrs.get("axis", 1)
    axis += len(own) if axis < 0 else 0
    return [(math.prod(own[:axis]), math.prod(own[axis:]))]


def _tile(n: Node) -> Shapes | None:
    own, repeats = n.shapes[0], n.value(1)
    return None if own is None or repeats is None else [tuple(d * r for d, r in zip(own, repeats, strict=True))]


def _pad(n: Node) -> Shapes | None:
    own, pads = n.shapes[0], n.given(1, "pads")
    if own is None or pads is None:
        return None
    axes = [a % len(own) for a in n.value(3) or range(len(own))]
    result = list(own)
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[len(axes) + i]
        if n.attrs.get("mode") == "reflect":  # as many elements have to lie behind the first
            n.walk.symbols.at_most(max(before, after) + 1, result[axis], n.where)
        result[axis] += before + after
    return [tuple(result)]


def _split(n: Node) -> Shapes | None:
    own, parts = n.shapes[0], n.given(1, "split")
    if own is None:
        return None
    axis, count = n.attrs.get("axis", 0) % len(own), len(n.node.output)
    if parts is None:
        size = own[axis]
        if isinstance(size, Dim) and size != size // count * count:
            return None
        step = (size + count - 1) // count
        parts = [step] * (count - 1) + [size - step * (count - 1)]
    return [tuple(part if i == axis else d for i, d in enumerate(own)) for part in parts]


def _conv(n: Node, second: int = 1) -> Shapes | None:
    own, weight = n.shapes[0], n.shapes[second]
    if own is None or weight is None or is_open(weight):
        return None
    return [(own[0], weight[0], *windows(n.attrs, own[2:], n.attrs.get("kernel_shape") or weight[2:]).out)]


def _pool(n: Node) -> Shapes | None:
    own = n.shapes[0]
    if own is None:
        return None
    shape = (*own[:2], *windows(n.attrs, own[2:], n.attrs["kernel_shape"]).out)
    return [shape] * len(n.node.output)


def _conv_transpose(n: Node) -> Shapes | None:
    own, weight = n.shapes[0], n.shapes[1]
    given = n.attrs
    if own is None or weight is None or "output_shape" in given or given.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    rank = len(own) - 2
    strides, dilations = given.get("strides") or [1] * rank, given.get("dilations") or [1] * rank
    pads, extra = given.get("pads") or [0] * (2 * rank), given.get("output_padding") or [0] * rank
    kernel = given.get("kernel_shape") or weight[2:]
    sizes = [
        (own[2 + i] - 1) * strides[i] + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[rank + i]
        for i in range(rank)
    ]
    return [(own[0], weight[1] * given.get("group", 1), *sizes)]


def _resize(n: Node) -> Shapes | None:
    own = n.shapes[0]
    if own is None:
        return None
    upsample = n.node.op_type == "Upsample"
    at = 1 if upsample or n.walk.opsets.get("", 1) < 11 else 2
    name = n.node.input[at] if at < len(n.node.input) else ""
    scales = n.attrs.get("scales") if upsample and "scales" in n.attrs else n.walk.array(name) if name else None
    axes = [a % len(own) for a in n.attrs.get("axes", range(len(own)))]
    result = list(own)
    if scales is not None and np.size(scales):
        for axis, scale in zip(axes, np.ravel(scales), strict=True):
            result[axis] = scaled(own[axis], float(scale))
        return None if any(d is None for d in result) else [tuple(result)]
    sizes = n.value(3)
    if sizes is None or n.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return [tuple(result)]


def scaled(size: Size, scale: float) -> Size | None:
    """``floor(size * scale)``; None for an open size and a scale that is no ratio of small integers."""
    if not isinstance(size, Dim):
        return math.floor(size * scale)
    above, below = float(scale).as_integer_ratio()
    return size * above // below if below <= 1024 else None


def _depth_to_space(n: Node) -> Shapes | None:
    own, k = n.shapes[0], n.attrs["blocksize"]
    return None if own is None else [(own[0], own[1] // (k * k), own[2] * k, own[3] * k)]


def _space_to_depth(n: Node) -> Shapes | None:
    own, k = n.shapes[0], n.attrs["blocksize"]
    return None if own is None else [(own[0], own[1] * k * k, own[2] // k, own[3] // k)]


def _top_k(n: Node) -> Shapes | None:
    own, k = n.shapes[0], n.given(1, "k")
    if own is None or k is None:
        return None
    axis = n.attrs.get("axis", -1) % len(own)
    n.walk.symbols.at_most(k[0], own[axis], n.where)
    return [tuple(k[0] if i == axis else d for i, d in enumerate(own))] * 2


def _one_hot(n: Node) -> Shapes | None:
    own, depth = n.shapes[0], n.value(1)
    if own is None or depth is None:
        return None
    axis = n.attrs.get("axis", -1) % (len(own) + 1)
    return [(*own[:axis], depth[0], *own[axis:])]


def _recurrent(n: Node) -> Shapes | None:
    x, recurrence = n.shapes[0], n.shapes[2]
    if x is None or recurrence is None:
        return None
    (directions, hidden), batch_first = (recurrence[0], recurrence[2]), bool(n.attrs.get("layout", 0))
    batch, steps = x[:2] if batch_first else (x[1], x[0])
    lengths, *states = (n.shapes[i] if i < len(n.shapes) else None for i in (4, 5, 6))
    if lengths is not None:
        batch = n.same(batch, lengths[0])
    for state in states:
        if state is not None:
            batch = n.same(batch, state[0 if batch_first else 1])
    last = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    whole = (batch, steps, directions, hidden) if batch_first else (steps, directions, batch, hidden)
    return [whole, last, last][: len(n.node.output)]


def _stft(n: Node) -> Shapes | None:
    own, step, length = n.shapes[0], n.value(1), n.value(3)
    window = n.shapes[2] if len(n.shapes) > 2 else None
    size = length[0] if length else window[0] if window else None
    if own is None or not step or not isinstance(size, int):
        return None
    n.walk.symbols.at_most(size, own[1], n.where)
    return [(own[0], (own[1] - size) // step[0] + 1, size // 2 + 1 if n.attrs.get("onesided", 1) else size, 2)]


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


ELEMENTWISE = words(
    """Add Sub Mul Div Pow Mod And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual Where Max Min Sum Mean PRelu
    BitShift BitwiseAnd BitwiseOr BitwiseXor"""
)

RULES: dict[str, Callable[[Node], Shapes | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    "QLinearMatMul": partial(_matmul, second=3),
    "Gemm": _gemm,
    "Concat": _concat,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Slice": _slice,
    "Flatten": _flatten,
    "Tile": _tile,
    "Pad": _pad,
    "Split": _split,
    **dict.fromkeys(("Conv", "ConvInteger"), _conv),
    "QLinearConv": partial(_conv, second=3),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "TopK": _top_k,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "OneHot": _one_hot,
    "STFT": _stft,
    "Einsum": _einsum,
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "Softmax", "LogSoftmax"), _norm),
    **dict.fromkeys(("CumSum", "Trilu", "ScatterND", "ScatterElements"), _like_first),
}
"""By operator of ai.onnx."""

SAME_VALUES = words("Unsqueeze Squeeze Reshape Expand Cast Identity Slice Flatten Tile Transpose")
"""Operators whose result has only elements of their first input."""

ALWAYS = ELEMENTWISE | words("MatMul Gemm Concat Slice TopK Reshape Expand MaxPool AveragePool LpPool LSTM GRU RNN Pad")
"""Rules that know more than ONNX's inference even where that names each size: which sizes must be equal, where a slice
ends."""


def open_types(walk: Walk, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> list[Shape | None]:
    """The shapes of a node's outputs by its rule; none where there is no rule, no open size, or nothing to add."""
    rule = RULES.get(node.op_type)
    if node.domain or not walk.symbols.names:
        return []
    if node.op_type in SAME_VALUES or node.op_type in ("Range", "Add", "Gather"):
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
    except (OpenSize, ValueError, IndexError, KeyError, ZeroDivisionError, TypeError):
        return []
