"""Which sizes of their inputs the operators of com.microsoft take for equal: rules of
:mod:`tvmopt.importer.open_shapes.agreements`, and of nobody else, for ONNX has no shape functions of these operators.

onnxruntime refuses what is refused here, most of it when a model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import onnx

from tvmopt.dims import Size
from tvmopt.importer.open_shapes.facts import Facts, alike, at, spread
from tvmopt.importer.open_shapes.node import Node, Shape


def _given(n: Node, index: int) -> bool:
    """Whether an input is given."""
    return index < len(n.node.input) and bool(n.node.input[index])


def _spread_over(what: str, small: Shape, large: Shape) -> Facts:
    """`small` broadcasts to `large`, which has as many axes or more."""
    if len(small) > len(large):
        yield f"{what} have {len(small)} and {len(large)} dimensions"
    else:
        yield from spread(what, small, large)


def _ranked(name: str, shape: Shape, *ranks: int) -> Facts:
    if len(shape) not in ranks:
        told = " or ".join(map(str, ranks))
        yield f"{name} has {len(shape)} dimensions, not {told}"


def _both(n: Node, first: int, second: int, name: str) -> Facts:
    if _given(n, first) != _given(n, second):
        yield f"{name} are given together or not at all"


def _whole(what: str, size: Size, parts: int) -> Facts:
    """A size divides into so many parts."""
    yield what, size // parts * parts, "==", size


def _numbers(n: Node, index: int, count: Size) -> Facts:
    """An input has so many elements."""
    if (found := at(n, index)) is not None:
        yield f"the elements of '{n.node.input[index]}' and what it is asked for", prod(found), "==", count


def _vector(n: Node, index: int, columns: Size) -> Facts:
    """An input is a vector with a number for each column."""
    if (found := at(n, index)) is not None:
        yield from alike(f"the shape of '{n.node.input[index]}' and the columns", found, (columns,))


def _added(n: Node, index: int, scores: Shape) -> Facts:
    """What is added to scores [B, H, S, T]: one for all batches or heads, or one for each."""
    if (found := at(n, index)) is not None:
        yield from _ranked(f"'{n.node.input[index]}'", found, 4)
        yield from alike("its attention_bias and its scores", found[2:], scores[2:])
        yield from _spread_over("its attention_bias and its scores", found, scores)


def _masked(n: Node, index: int, scores: Shape, ends: bool) -> Facts:
    """A mask of scores [B, H, S, T]: lengths, or a truth for each key, or for each query and key. With `ends`, an empty
    one masks nothing, nor does one that is the same for all keys, and lengths may be followed by as many beginnings."""
    batch, _, queries, keys = scores
    if (mask := at(n, index)) is None:
        return
    if len(mask) == 1:
        if not (ends and (mask[0] == 0 or mask[0] == 2 * batch)):
            yield "the elements of its mask and its batches", mask[0], "==", batch
        return
    if ends and len(mask) == 2 and mask[1] == 1:
        yield from _spread_over("its mask and its batches", mask, (batch, 1))
        return
    wanted = {2: (batch, keys), 3: (batch, queries, keys), 4: (batch, 1, queries, keys)}
    yield from _ranked("its mask", mask, 1, *wanted)
    yield from alike("its mask and its batches, queries and keys", mask, wanted[len(mask)])


def _product(n: Node) -> Facts:
    """FusedMatMul."""
    a, b = n.shapes[:2]
    if a and b and len(a) > 1 and len(b) > 1 and not (n.attrs.get("transBatchA", 0) or n.attrs.get("transBatchB", 0)):
        inner = a[-2 if n.attrs.get("transA", 0) else -1], b[-1 if n.attrs.get("transB", 0) else -2]
        yield "the columns of A and the rows of B", inner[0], "==", inner[1]


def _added_row(n: Node) -> Facts:
    """BiasGelu and FastGelu."""
    if (x := n.shapes[0]) is not None:
        yield from _vector(n, 1, x[-1])


def _bias_add(n: Node) -> Facts:
    """BiasAdd."""
    yield from _added_row(n)
    x, skip = n.shapes[0], at(n, 2)
    if x is not None and skip is not None:
        yield from alike("its input and its skip", x, skip)


def _rows(n: Node) -> Facts:
    """LayerNormalization: what broadcasts to the rows scales and shifts them."""
    x = n.shapes[0]
    for i in (1, 2):
        if x is not None and (found := at(n, i)) is not None:
            yield from _spread_over("its input and its scale or bias", found, x)


def _rows_and_skip(n: Node) -> Facts:
    """Rows, what is added to them, and a number for each of their columns."""
    x, skip = n.shapes[:2]
    if x is None:
        return
    if skip is not None:
        yield from _spread_over("its input and its skip", skip, x)
    for i in range(2, len(n.shapes)):
        yield from _vector(n, i, x[-1])


def _sizes(n: Node, *names: str) -> Facts:
    """Attributes that are sizes."""
    for name in names:
        if n.attrs[name] < 1:
            yield f"its {name} is {n.attrs[name]}; it is positive"


def _packed_product(n: Node) -> Facts:
    """MatMulNBits: the weights are packed, and how many rows they have is an attribute."""
    yield from _sizes(n, "K", "N", "block_size")
    k, columns, bits, x = n.attrs["K"], n.attrs["N"], n.attrs.get("bits", 4), n.shapes[0]
    groups = -(-k // n.attrs["block_size"])
    if x is not None:
        yield "the columns of its input and K", x[-1], "==", k
    if bits in (2, 4, 8):  # the converter refuses others
        yield from _numbers(n, 1, columns * groups * (n.attrs["block_size"] * bits // 8))
        kind = n.walk.types.get(n.node.input[3]) if _given(n, 3) else None
        packed = kind is not None and kind.tensor_type.elem_type == onnx.TensorProto.UINT8
        yield from _numbers(n, 3, columns * (-(-groups * bits // 8) if packed else groups))
    yield from _numbers(n, 2, columns * groups)
    if (order := at(n, 4)) is not None:
        yield "K and the elements of g_idx", k, "<=", prod(order)
    yield from _vector(n, 5, columns)


def _blocks_of_four(n: Node) -> Facts:
    """MatMulBnb4."""
    yield from _sizes(n, "K", "N", "block_size")
    size, x = n.attrs["K"] * n.attrs["N"], n.shapes[0]
    if x is not None:
        yield "the columns of its input and K", x[-1], "==", n.attrs["K"]
    if n.attrs["quant_type"] not in (0, 1):
        yield f"its quant_type is {n.attrs['quant_type']}; 0 is FP4 and 1 NF4"
    yield from _numbers(n, 1, (size + 1) // 2)
    yield from _numbers(n, 2, -(-size // n.attrs["block_size"]))


def _table(n: Node) -> Facts:
    """GatherBlockQuantized: a scale, and a zero point, for each block of the table."""
    table, scales, zeros = n.shapes[0], at(n, 2), at(n, 3)
    if table is None:
        return
    kind = n.walk.types[n.node.input[0]].tensor_type.elem_type
    bits, block = n.attrs.get("bits", 4), n.attrs.get("block_size", 128)
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1):
        yield f"it has codes of {bits} bits in blocks of {block}; blocks are powers of two from 16 on"
        return
    axes = n.attrs.get("gather_axis", 0), n.attrs.get("quantize_axis", 1)
    if any(not -len(table) <= axis < len(table) for axis in axes):
        yield f"it gathers along axis {axes[0]} and has blocks along {axes[1]}, of {len(table)} dimensions"
        return
    per, along = 8 // bits if kind == onnx.TensorProto.UINT8 else 1, axes[1] % len(table)
    wide = (*table[:-1], table[-1] * per)
    blocks = tuple((d + (block - 1)) // block if i == along else d for i, d in enumerate(wide))
    if scales is not None:
        yield from alike("its scales and the blocks of its table", scales, blocks)
    if zeros is not None:
        yield from alike(
            "its zero points and the blocks of its table", zeros, (*blocks[:-1], (blocks[-1] + (per - 1)) // per)
        )


def _embedded(n: Node) -> Facts:
    """EmbedLayerNormalization."""
    ids, segments, words, positions = n.shapes[:4]
    if _given(n, 1) and not _given(n, 4):
        yield "it has segments and no table of them"
    if ids is not None:
        yield from _ranked("input_ids", ids, 2)
        if positions is not None and not _given(n, 8):
            yield "its tokens and its positions", ids[1], "<=", positions[0]
        for name, found in (("segment_ids", segments), ("mask", at(n, 7))):
            if found is not None:
                yield from alike(f"its tokens and its {name}", ids, found)
        if (places := at(n, 8)) is not None:
            yield from _ranked("position_ids", places, 2)
            yield from _spread_over("its position_ids and its tokens", places, (ids[0], 1))
            yield "its position_ids and its tokens", places[1], "==", ids[1]
    if words is not None:
        for i in (3, 4):
            if (table := at(n, i)) is not None:
                yield "the columns of its tables", words[1], "==", table[1]
        for i in (5, 6):
            yield from _vector(n, i, words[1])


def _rotary(n: Node) -> Facts:
    """RotaryEmbedding: two tables alike with a row for each position, half as wide as what turns of a head; a position
    for each token, or that of the first."""
    x, positions, cos, sin = (at(n, i) for i in range(4))
    if x is None or cos is None or sin is None:
        return
    yield from _ranked("its input", x, 3, 4)
    yield from _ranked("cos_cache", cos, 2)
    yield from alike("its two tables", cos, sin)
    if positions is not None and prod(positions) != 1:
        yield from _ranked("position_ids", positions, 2)
        yield from _spread_over("its positions and its tokens", positions, (x[0], x[-2]))
    heads, turning = n.attrs.get("num_heads", 0) if len(x) == 3 else 1, n.attrs.get("rotary_embedding_dim", 0)
    if turning:
        if not heads:
            yield "it has a rotary_embedding_dim and no num_heads"
            return
        yield "twice a row of its tables and rotary_embedding_dim", cos[1] * 2, "==", turning
        yield "rotary_embedding_dim and the elements of a head", turning * heads, "<=", x[-1]
    elif heads:
        yield "twice a row of its tables and a head", cos[1] * 2 * heads, "==", x[-1]
    else:
        yield "its elements and whole heads of its tables", x[-1] // (2 * cos[1]) * (2 * cos[1]), "==", x[-1]
    if heads:
        yield from _whole("its elements and whole heads", x[-1], heads)


def _separate(n: Node) -> Facts:
    """MultiHeadAttention: queries, keys and values of 3 dimensions with the heads side by side, keys and values of 4
    dimensions, or keys and values (or all three) in one tensor of 5."""
    q, k, v = (at(n, i) for i in range(3))
    heads = n.attrs["num_heads"]
    yield from _both(n, 6, 7, "past_key and past_value")
    if q is None or (_given(n, 1) and k is None) or (_given(n, 2) and v is None):
        return
    yield from _ranked("its query", q, 3 if _given(n, 1) else 5)
    if _given(n, 2) and not _given(n, 1):
        yield "it has values and no keys"
    depth: Size
    if k is None:
        yield from alike("its query and [batch, tokens, heads, 3, depth]", q[2:4], (heads, 3))
        depth, width, keys = q[4], q[4], q[1]
    else:
        yield from _whole("the elements of Q and whole heads", q[2], heads)
        depth = q[2] // heads
        yield "the batches of Q and K", q[0], "==", k[0]
        yield from _ranked("its key", k, *((3, 4) if _given(n, 2) else (5,)))
        if v is None:
            yield from alike("its key and [batch, tokens, heads, 2, depth]", k[2:], (heads, 2, depth))
            width, keys = depth, k[1]
        elif len(k) == 4:
            yield from alike("its key and [batch, heads, tokens, depth]", (k[1], k[3]), (heads, depth))
            yield from alike("its keys and values", k[:3], v[:3])
            width, keys = v[3], k[2]
        else:
            yield "the elements of Q and K", q[2], "==", k[2]
            yield from _whole("the elements of V and whole heads", v[2], heads)
            yield from alike("the batches and positions of K and V", k[:2], v[:2])
            width, keys = v[2] // heads, k[1]
    if (bias := at(n, 3)) is not None:
        yield from _ranked("its bias", bias, 1)
        yield "its bias and its inputs", bias[0], "==", (2 * depth + width) * heads
    before: Size = 0
    pasts = at(n, 6), at(n, 7)
    if pasts[0] is not None and pasts[1] is not None:
        before = pasts[0][2]
        yield from alike("past_key and its keys", pasts[0], (q[0], heads, before, depth))
        yield from alike("past_value and its values", pasts[1], (q[0], heads, before, width))
    elif _given(n, 6):
        return
    scores = q[0], heads, q[1], keys + before
    yield from _masked(n, 4, scores, ends=False)
    yield from _added(n, 5, scores)


def _packed(
    mask: int, past: int, extra: int = -1, scales: Sequence[int] = (), columns: Sequence[int] = ()
) -> Callable[[Node], Facts]:
    """Attention and QAttention: one weight for queries, keys and values; inputs that are one number, and those that are
    one, or one for each column of the weight."""

    def facts(n: Node) -> Facts:
        x, w = n.shapes[:2]
        heads, sizes = n.attrs["num_heads"], list(n.attrs.get("qkv_hidden_sizes", ()))
        if x is None or w is None:
            return
        yield from _ranked("its input", x, 3)
        yield from _ranked("its weight", w, 2)
        yield "the columns of its input and the rows of its weights", x[2], "==", w[0]
        if sizes:
            if len(sizes) != 3 or sizes[0] != sizes[1] or any(s < 1 or s % heads for s in sizes):
                yield f"its qkv_hidden_sizes are {sizes} for {heads} heads"
                return
            yield "the columns of its weights and its qkv_hidden_sizes", w[1], "==", sum(sizes)
        else:
            yield from _whole("the columns of its weights and whole heads", w[1], 3 * heads)
        yield from _vector(n, 2, w[1])
        for i in scales:
            yield from _numbers(n, i, 1)
        for i in columns:
            if prod(at(n, i) or ()) != 1:
                yield from _vector(n, i, w[1])
        before: Size = 0
        if (cache := at(n, past)) is not None:
            before = cache[3]
            depth = (sizes[0] if sizes else w[1] // 3) // heads
            yield from alike("its past and its keys", cache, (2, x[0], heads, before, depth))
        elif _given(n, past):
            return
        scores = x[0], heads, x[1], x[1] + before
        yield from _masked(n, mask, scores, ends=True)
        yield from _added(n, extra, scores) if extra >= 0 else ()

    return facts


def _grouped(n: Node) -> Facts:
    """GroupQueryAttention: heads that share keys, rotary tables, a cache, a length for each batch."""
    q, k, v, *past = (at(n, i) for i in range(5))
    heads, shared = n.attrs["num_heads"], n.attrs["kv_num_heads"]
    yield from _both(n, 1, 2, "its key and value")
    yield from _both(n, 3, 4, "past_key and past_value")
    if heads % shared:
        yield f"its {heads} heads do not divide among {shared} of keys"
    if q is None:
        return
    yield from _ranked("its query", q, 3)
    parts = heads if _given(n, 1) else heads + 2 * shared
    yield from _whole("the elements of Q and whole heads", q[2], parts)
    depth = q[2] // parts
    for name, side in (("key", k), ("value", v)):
        if side is not None:
            yield from alike(f"its query and its {name}", (q[0], q[1], depth * shared), side)
    if _given(n, 3) and past[0] is None:
        return
    before = past[0][2] if past[0] is not None else 0
    for cache in past:
        if cache is not None:
            yield from alike("a cache and its keys", cache, (q[0], shared, before, depth))
    yield from _numbers(n, 5, q[0])
    yield from _numbers(n, 6, 1)
    yield from _added(n, 10, (q[0], heads, q[1], q[1] + before))
    if n.attrs.get("do_rotary", 0):
        if not (_given(n, 7) and _given(n, 8)):
            yield "it turns heads (do_rotary) and has no cos_cache and sin_cache"
        cos, sin = at(n, 7), at(n, 8)
        if cos is not None and sin is not None:
            yield from _ranked("cos_cache", cos, 2)
            yield from alike("its two tables", cos, sin)
            yield "twice a row of its tables and a head", cos[1] * 2, "<=", depth
        if (places := at(n, 9)) is not None:
            yield from alike("its position_ids and its tokens", places, q[:2])


def _recurrent(n: Node) -> Facts:
    """DynamicQuantizeLSTM: the weights lie as a product reads them, and have a scale a direction or a column."""
    x, w, r = (at(n, i) for i in range(3))
    if x is not None:
        yield from _ranked("X", x, 3)
    if r is None:
        return
    yield from _ranked("R", r, 3)
    directions, hidden, columns = r
    yield "the columns of R and four times its rows", columns, "==", hidden * 4
    if w is not None:
        yield from _ranked("W", w, 3)
        yield from alike("W and R", w, (directions, w[1], columns))
        if x is not None:
            yield "the columns of X and the rows of W", x[2], "==", w[1]
    if "hidden_size" in n.attrs:
        yield "the rows of R and its hidden_size", hidden, "==", n.attrs["hidden_size"]
    two = n.attrs.get("direction", "forward") == "bidirectional"
    yield "the directions of R and those that it names", directions, "==", 1 + two
    if functions := n.attrs.get("activations"):
        yield "its activations and three a direction", len(functions), "==", 3 * (1 + two)
    for i, size in ((3, (directions, 2 * columns)), (7, (directions, 3 * hidden))):
        if (found := at(n, i)) is not None:
            yield from alike(f"'{n.node.input[i]}' and R", found, size)
    if x is not None:
        if (lengths := at(n, 4)) is not None:
            yield from alike("its lengths and its sequences", lengths, (x[1],))
        for i in (5, 6):
            if (state := at(n, i)) is not None:
                yield from alike("an initial state, X and R", state, (directions, x[1], hidden))
    for i in range(8, 12):
        if (found := at(n, i)) is not None and found not in ((directions,), (directions, columns)):
            yield f"'{n.node.input[i]}' is {list(found)}, not one number a direction, or a column of R"


CONTRIB: dict[str, Callable[[Node], Facts]] = {
    "Attention": _packed(3, 4, 5),
    "BiasAdd": _bias_add,
    "BiasGelu": _added_row,
    "DynamicQuantizeLSTM": _recurrent,
    "EmbedLayerNormalization": _embedded,
    "FastGelu": _added_row,
    "FusedMatMul": _product,
    "GatherBlockQuantized": _table,
    "GroupQueryAttention": _grouped,
    "LayerNormalization": _rows,
    "MatMulBnb4": _blocks_of_four,
    "MatMulNBits": _packed_product,
    "MultiHeadAttention": _separate,
    "QAttention": _packed(5, 8, scales=(3, 6), columns=(4, 7)),
    "RotaryEmbedding": _rotary,
    "SkipLayerNormalization": _rows_and_skip,
    "SkipSimplifiedLayerNormalization": _rows_and_skip,
}
"""Of the operators that are imported as they are; the others become operators of ai.onnx, which ask."""
