"""Which sizes of its inputs an operator takes for equal - for the folding walk.

    Conv(x [1, n, 17], w [4, 6, 5])     n == 6         the channels of the image and of the weights
    GatherElements(x [n, 5], i [7, 3])  7 <= n         no index beyond the data, but along the axis
    DepthToSpace(x [1, n, 3, 3])        4*(n//4) == n  whole blocks

Kernels trust these: at other sizes they would read and write beside their tensors. Numbers that contradict what is told
here are refused (ONNX's inference and :mod:`tvmopt.importer.fit` do not compare all of them); open sizes are solved for
a symbol, or become a condition that is checked at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import onnx

from tvmopt.dims import OpenSize, Size, is_open
from tvmopt.importer.contrib_schemas import DOMAIN
from tvmopt.importer.open_shapes.contrib_agreements import CONTRIB
from tvmopt.importer.open_shapes.facts import Facts, alike, at, spread
from tvmopt.importer.open_shapes.node import Node
from tvmopt.importer.protos import normal_domain
from tvmopt.importer.symbols import Undecided
from tvmopt.importer.walk import Walk
from tvmopt.importer.windows import windows


def _one_each(n: Node, size: Size, *indices: int, what: str) -> Facts:
    """These inputs are vectors of so many numbers."""
    for i in indices:
        if (found := at(n, i)) is not None:
            (elements,) = found
            yield f"the {what} and the elements of '{n.node.input[i]}'", size, "==", elements


def _convolution(data: int = 0, weight: int = 1, bias: int = 2, each: Sequence[int] = ()) -> Callable[[Node], Facts]:
    def facts(n: Node) -> Facts:
        x, w, group = n.shapes[data], n.shapes[weight], n.attrs.get("group", 1)
        if w is None:
            return
        transposed = n.node.op_type == "ConvTranspose"
        if kernel := n.attrs.get("kernel_shape"):
            yield from alike("its kernel_shape and its weights", w[2:], kernel)
        if x is not None:
            yield "the channels of its input and its weights", x[1], "==", w[0] if transposed else w[1] * group
        results = w[1] * group if transposed else w[0]
        if group > 1:
            yield "its weights and whole groups", w[0] // group * group, "==", w[0]
        if bias:
            yield from _one_each(n, results, bias, what="channels of its result")
        for i in each:
            if (at(n, i) or (1,)) != (1,):
                yield from _one_each(n, results, i, what="channels of its result")

    return facts


def _deformed(n: Node) -> Facts:
    yield from _convolution(bias=3)(n)
    x, w, offset, _, mask = (at(n, i) for i in range(5))
    if x is None or w is None:
        return
    places = w[2] * w[3] * n.attrs.get("offset_group", 1)
    for found, many in ((offset, 2 * places), (mask, places)):
        if found is not None:
            yield from alike(
                "its offsets or mask and its windows", (x[0], many, *windows(n.attrs, x[2:], w[2:]).out), found
            )


def _per_channel(*indices: int) -> Callable[[Node], Facts]:
    def facts(n: Node) -> Facts:
        x = n.shapes[0]
        if x is not None:
            yield from _one_each(n, x[1] if len(x) > 1 else 1, *indices, what="channels of its input")

    return facts


def _group_norm(n: Node) -> Facts:
    if n.walk.opsets.get("", 1) >= 21:
        yield from _per_channel(1, 2)(n)


def _scaled_rows(n: Node) -> Facts:
    x = n.shapes[0]
    for i in (1, 2):
        if x is not None and (found := at(n, i)) is not None:
            yield from spread("its input and its scale or bias", found, x)


def _quantised(n: Node) -> Facts:
    """One scale, one per slice of `axis`, or one per block along it."""
    x, scale, zero = (at(n, i) for i in range(3))
    block = n.attrs.get("block_size", 0)
    if scale is not None and zero is not None and ({*scale} | {*zero}) - {1}:
        yield from alike("its scales and zero points", scale, zero)
    if x is None or not scale or (scale == (1,) and not block):
        return
    axis = n.attrs.get("axis", 1) % len(x)
    if not block:
        yield from _one_each(n, x[axis], 1, what=f"slices of axis {axis}")
    else:
        blocks = [(d + (block - 1)) // block if i == axis else d for i, d in enumerate(x)]
        yield from alike("its blocks and scales", blocks, scale)


def _integer_product(left: int, right: int, zeros: Sequence[tuple[int, int]]) -> Callable[[Node], Facts]:
    """A product of integers; zero points or scales of the rows and columns, where there is more than one."""

    def facts(n: Node) -> Facts:
        a, b = n.shapes[left], n.shapes[right]
        if not a or not b:
            return
        yield "the columns of A and the rows of B", a[-1], "==", b[-2] if len(b) > 1 else b[-1]
        for i, side in zeros:
            found, whole = at(n, i), (a, b)[side]
            size = whole[-1 if side or len(whole) < 2 else -2]
            if found is not None and len(found) == 1 and found != (1,):
                yield f"the {('rows of A', 'columns of B')[side]} and '{n.node.input[i]}'", size, "==", found[0]

    return facts


def _recurrent(n: Node) -> Facts:
    _, w, r, b = (at(n, i) for i in range(4))
    if r is None:
        return
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[n.node.op_type]
    directions, rows, hidden = r
    yield "the rows of R and its hidden size", rows, "==", hidden * gates
    if w is not None:
        yield from alike("W and R", w, (directions, rows, w[2]))
    if b is not None:
        yield from alike("B and R", b, (directions, 2 * rows))
    for i in (5, 6):
        if (state := at(n, i)) is not None:
            batch = state[0 if n.attrs.get("layout", 0) else 1]
            wanted = (batch, directions, hidden) if n.attrs.get("layout", 0) else (directions, batch, hidden)
            yield from alike("an initial state and R", state, wanted)
    if (peepholes := at(n, 7)) is not None:
        yield from alike("P and R", peepholes, (directions, 3 * hidden))


def _attention(n: Node) -> Facts:
    """Q, K and V of 4 dimensions, or of 3 with the heads side by side; the cache before K and V; the mask."""
    q, k, v, mask, *past = (at(n, i) for i in range(6))
    if q is None or k is None or v is None:
        return
    queries, keys = n.attrs.get("q_num_heads", 1), n.attrs.get("kv_num_heads", 1)
    flat = len(q) == 3
    yield from alike("the batches of Q, K and V", (q[0], q[0]), (k[0], v[0]))
    if flat:
        for name, shape, heads in (("Q", q, queries), ("K", k, keys), ("V", v, keys)):
            yield f"the elements of {name} and whole heads", shape[2] // heads * heads, "==", shape[2]
    yield "a head of Q and one of K", q[-1] * (keys if flat else 1), "==", k[-1] * (queries if flat else 1)
    yield "the positions of K and V", k[-2], "==", v[-2]
    if not flat:
        yield "the heads of K and V", k[1], "==", v[1]
    for cache, side in zip(past, (k, v), strict=True):
        if cache is not None:
            wanted = (side[0], keys, cache[3] * keys) if flat else (side[0], side[1], cache[3])
            yield from alike("a cache and what follows it", wanted, (cache[0], cache[1], side[-1]))
    first, second = past
    if first is not None and second is not None:
        yield "the positions of the caches", first[2], "==", second[2]
    if mask is not None and (len(n.node.input) < 5 or not n.node.input[4] or first is not None):
        scores = (q[0], queries if flat else q[1], q[-2])
        yield from spread("its mask and its scores", mask[:-1], scores)
        yield "its mask and the positions of K", mask[-1], "<=", k[-2] + (first[2] if first is not None else 0)


def _linear_attention(n: Node) -> Facts:
    """Q, K and V of 3 dimensions, the heads side by side; the state before them; what decays it, and is learnt."""
    q, k, v, past, *rest = (at(n, i) for i in range(6))
    if q is None or k is None or v is None:
        return
    queries, heads = n.attrs["q_num_heads"], n.attrs["kv_num_heads"]
    for name, shape in zip(("K", "V", "decay", "beta"), (k, v, *rest), strict=True):
        if shape is not None:
            yield from alike(f"the batches and the tokens of Q and {name}", q[:2], shape[:2])
    yield "a head of Q and one of K", q[2] * heads, "==", k[2] * queries
    if past is not None:
        yield from alike("its state and its inputs", (past[0], past[2] * heads, past[3] * heads), (q[0], k[2], v[2]))


def _causal_conv(n: Node) -> Facts:
    x, w, bias, past = (at(n, i) for i in range(4))
    if x is None or w is None:
        return
    yield "the channels of its input and of its weight", x[1], "==", w[0]
    if bias is not None:
        yield "its channels and its bias", x[1], "==", bias[0]
    if past is not None:
        yield from alike("its state and its input", past, (*x[:2], w[2] - 1))


def _gather_elements(n: Node) -> Facts:
    data, index, updates = (at(n, i) for i in range(3))
    if index is not None and updates is not None:
        yield from alike("its indices and updates", index, updates)
    if data is None or index is None:
        return
    axis = n.attrs.get("axis", 0) % len(data)
    for i, (one, other) in enumerate(zip(index, data, strict=True)):
        if i != axis:
            yield "its indices and data", one, "<=", other


def _tensor_scatter(n: Node) -> Facts:
    cache, update, places = (at(n, i) for i in range(3))
    if cache is None:
        return
    axis = n.attrs.get("axis", -2) % len(cache)
    if update is not None:
        yield from alike(
            "its cache and its update", cache[:axis] + cache[axis + 1 :], update[:axis] + update[axis + 1 :]
        )
        yield "its update and its cache", update[axis], "<=", cache[axis]
    if places is not None:
        yield "its cache and its write_indices", cache[0], "==", places[0]


def _rotary(n: Node) -> Facts:
    """A row of the tables for each token, or for each position; the elements of a head, or of the part that turns."""
    x, cos, sin, positions = (at(n, i) for i in range(4))
    if x is None or cos is None or sin is None:
        return
    yield from alike("its two tables", cos, sin)
    if positions is not None:
        yield from spread("its positions and its tokens", positions, (x[0], x[-2]))
    else:
        yield from alike("its tables and its tokens", cos[:2], (x[0], x[-2]))
    heads = n.attrs.get("num_heads", 0) if len(x) == 3 else 1
    if not n.attrs.get("rotary_embedding_dim", 0) and heads:
        yield "a row of its tables and half a head", cos[-1] * 2 * heads, "==", x[-1]
    elif not heads:
        whole = x[-1] // (2 * cos[-1]) * (2 * cos[-1])
        yield "its elements and whole heads of its tables", whole, "==", x[-1]


def _regions(n: Node) -> Facts:
    if (rois := at(n, 1)) is not None:
        yield "the columns of its regions, and 5", rois[1], "==", 5


def _same_shape(n: Node) -> Facts:
    a, b = n.shapes
    if a is not None and b is not None:
        yield from alike("its two inputs", a, b)


def _gather_nd(n: Node) -> Facts:
    data, index = n.shapes
    if data is not None and index is not None:
        batch = n.attrs.get("batch_dims", 0)
        yield from alike("its indices and data", index[:batch], data[:batch])


def _scatter_nd(n: Node) -> Facts:
    data, index, updates = n.shapes
    if data is not None and index is not None and updates is not None and isinstance(index[-1], int):
        yield from alike("its updates and indices", updates, (*index[:-1], *data[index[-1] :]))


def _grid(n: Node) -> Facts:
    image, grid = n.shapes
    if image is not None and grid is not None:
        yield "the batches of its image and its grid", image[0], "==", grid[0]
        yield "the axes of its image and its grid", len(image) - 2, "==", grid[-1]


def _rois(n: Node) -> Facts:
    _, boxes, which = n.shapes
    if boxes is not None:
        yield "the corners of a box", boxes[1], "==", 4
        if which is not None:
            yield "its boxes and batch indices", boxes[0], "==", which[0]


def _suppression(n: Node) -> Facts:
    boxes, scores = n.shapes[:2]
    if boxes is not None:
        pictures, count, corners = boxes
        yield "the corners of a box", corners, "==", 4
        if scores is not None:
            images, _, scored = scores
            yield from alike("its boxes and scores", (pictures, count), (images, scored))


def _unpool(n: Node) -> Facts:
    x, index = n.shapes[:2]
    if x is not None and index is not None:
        yield from alike("its indices and data", x, index)


def _lengths(n: Node) -> Facts:
    x, lengths = n.shapes
    axes = [n.attrs.get("time_axis", 0), n.attrs.get("batch_axis", 1)]
    if sorted(axes) != [0, 1]:
        yield f"its time_axis {axes[0]} and batch_axis {axes[1]} are not 0 and 1"
    if x is not None and lengths is not None:
        yield "the sequences and their lengths", x[n.attrs.get("batch_axis", 1)], "==", lengths[0]


def _pixels(n: Node) -> Facts:
    (x,) = n.shapes
    for size in (x or ())[2:]:
        yield "one pixel and the size of its picture", 1, "<=", size


def _loss(n: Node) -> Facts:
    scores, target, weight = (at(n, i) for i in range(3))
    if scores is not None and target is not None:
        yield from alike("its scores and target", (scores[0], *scores[2:]), target)
        if weight is not None:
            yield "its scores and weights", scores[1], "==", weight[0]


def _einsum(n: Node) -> Facts:
    """Axes of one letter are alike; those under an ellipsis count from the right. An axis of one element is spread."""
    terms = n.attrs["equation"].replace(" ", "").partition("->")[0]
    sizes: dict[str | int, Size] = {}
    for term, shape in zip(terms.split(","), n.shapes, strict=True):
        if shape is None:
            continue
        before, dots, after = term.partition("...")
        hidden = range(len(before) + len(after) - len(shape), 0) if dots else ()
        for letter, size in zip((*before, *hidden, *after), shape, strict=True):
            if term.count(str(letter)) > 1 or 1 not in (size, sizes.get(letter, 1)):
                yield f"the axes '{letter}'", sizes.get(letter, size), "==", size
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]


def _blocks(n: Node) -> Facts:
    x, k = n.shapes[0], n.attrs["blocksize"]
    if x is not None:
        parts = [(x[1], k * k)] if n.node.op_type == "DepthToSpace" else [(x[2], k), (x[3], k)]
        for size, part in parts:
            yield f"its input and whole blocks of {k} x {k}", size // part * part, "==", size


def _col2im(n: Node) -> Facts:
    x, image, block = n.shapes[0], n.value(1), n.value(2)
    if x is not None and image and block and not is_open((*image, *block)) and 0 not in block:
        yield "its rows and whole blocks", x[1] // prod(block) * prod(block), "==", x[1]
        yield "its columns and the blocks of its image", x[2], "==", prod(windows(n.attrs, image, block).out)


def _reshape(n: Node) -> Facts:
    """What -1 stands for times the other sizes is the whole."""
    own, wanted = n.shapes[0], n.given(1, "shape")
    if own is None or wanted is None or -1 not in wanted:
        return
    copied = not n.attrs.get("allowzero", 0)
    sizes = [own[i] if d == 0 and copied and i < len(own) else d for i, d in enumerate(wanted) if d != -1]
    if (rest := prod(sizes)) != 0:
        yield "the elements of its input and its result", prod(own) // rest * rest, "==", prod(own)


def _squeezed(n: Node) -> Facts:
    x, axes = n.shapes[0], n.given(1, "axes")
    if x is not None and axes is not None:
        for axis in map(int, axes):
            yield "an axis that is removed", x[axis], "==", 1


def _split(n: Node) -> Facts:
    """The parts make the whole; where nothing tells their sizes, and not even their number, they are alike."""
    x, parts, count = n.shapes[0], n.given(1, "split"), len(n.node.output)
    if x is None:
        return
    size = x[n.attrs.get("axis", 0) % len(x)]
    if parts is not None:
        yield "its parts and the axis", sum(parts), "==", size
    elif "num_outputs" not in n.attrs and is_open((size,)):
        yield "its parts, which are alike, and the axis", size // count * count, "==", size


def _square(n: Node) -> Facts:
    x = n.shapes[0]
    if x is not None:
        yield "the rows and columns of its matrices", x[-2], "==", x[-1]


def _bounds(n: Node) -> Facts:
    """Clip's bounds are one number each."""
    for i in (1, 2):
        for size in at(n, i) or ():
            yield "the elements of a bound", size, "==", 1


def _affine(n: Node) -> Facts:
    theta, size = n.shapes[0], n.value(1)
    if theta is not None and size:
        yield "its matrices and the batch of its grid", theta[0], "==", size[0]


def _columns(*names: str) -> Callable[[Node], Facts]:
    """Attributes with a number for each column, or with one for all."""

    def facts(n: Node) -> Facts:
        x = n.shapes[0]
        for name in names:
            if x and len(given := n.attrs.get(name) or ()) > 1:
                yield f"the columns of its input and {name}", x[-1], "==", len(given)

    return facts


def _rows_beside(n: Node) -> Facts:
    """Columns of several inputs side by side; a vector is a column."""
    first = n.shapes[0]
    for name, shape in zip(n.node.input, n.shapes, strict=True):
        if first and shape:
            yield f"the rows of its first input and '{name}'", first[0], "==", shape[0]


OTHER_DOMAINS: dict[tuple[str, str], Callable[[Node], Facts]] = {
    ("ai.onnx.ml", "FeatureVectorizer"): _rows_beside,
    ("ai.onnx.ml", "Imputer"): _columns("imputed_value_floats", "imputed_value_int64s"),
    ("ai.onnx.ml", "Scaler"): _columns("offset", "scale"),
    **{(DOMAIN, name): rule for name, rule in CONTRIB.items()},
}
"""Of the operators that are imported as they are; most of these domains become operators of ai.onnx, which ask."""

RULES: dict[str, Callable[[Node], Facts]] = {
    "AffineGrid": _affine,
    "Attention": _attention,
    "BatchNormalization": _per_channel(1, 2, 3, 4),
    "CausalConvWithState": _causal_conv,
    "Clip": _bounds,
    "Col2Im": _col2im,
    "Conv": _convolution(),
    "ConvInteger": _convolution(bias=0, each=(3,)),
    "ConvTranspose": _convolution(),
    "DeformConv": _deformed,
    "DepthToSpace": _blocks,
    "DequantizeLinear": _quantised,
    "Det": _square,
    "Einsum": _einsum,
    "GRU": _recurrent,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _pixels),
    "GridSample": _grid,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _per_channel(1, 2),
    "LSTM": _recurrent,
    "LayerNormalization": _scaled_rows,
    "LinearAttention": _linear_attention,
    "MatMulInteger": _integer_product(0, 1, ((2, 0), (3, 1))),
    "MaxRoiPool": _regions,
    "MaxUnpool": _unpool,
    "NegativeLogLikelihoodLoss": _loss,
    "NonMaxSuppression": _suppression,
    "QLinearConv": _convolution(0, 3, 8, (4, 5)),
    "QLinearMatMul": _integer_product(0, 3, ((1, 0), (2, 0), (4, 1), (5, 1))),
    "QuantizeLinear": _quantised,
    "RMSNormalization": _scaled_rows,
    "RNN": _recurrent,
    "Reshape": _reshape,
    "ReverseSequence": _lengths,
    "RoiAlign": _rois,
    "RotaryEmbedding": _rotary,
    **dict.fromkeys(("Scatter", "ScatterElements"), _gather_elements),
    "ScatterND": _scatter_nd,
    "SoftmaxCrossEntropyLoss": _loss,
    "SpaceToDepth": _blocks,
    "Split": _split,
    "Squeeze": _squeezed,
    "SwiGLU": _same_shape,
    "TensorScatter": _tensor_scatter,
}
"""Of the operators of ai.onnx; elementwise operators, products and concatenations are in the rules for shapes."""


def agree(walk: Walk, node: onnx.NodeProto) -> str:
    """Take note of what a node asks of sizes; what contradicts it, in words, or the empty string.

    Raises:
        Undecided: whether two sizes are equal is decided by values, in a run.
    """
    domain = normal_domain(node.domain)
    rule = OTHER_DOMAINS.get((domain, node.op_type)) if domain else RULES.get(node.op_type)
    if rule is None:
        return ""
    one = Node(walk, node)
    try:
        for fact in rule(one):
            if isinstance(fact, str):
                return fact
            what, a, sign, b = fact
            a, b = walk.settled((a, b))
            if isinstance(a, int) and isinstance(b, int):
                if (a != b) if sign == "==" else (a > b):
                    return f"{what} do not agree: {a} and {b}"
            elif sign == "==":
                one.same(a, b)
            else:
                walk.symbols.at_most(a, b, one.where)
    except Undecided:
        raise
    except OpenSize as error:
        raise Undecided(str(error)) from error
    except (ValueError, LookupError, ArithmeticError, TypeError):
        return "the ranks of its inputs do not belong together"
    return ""
