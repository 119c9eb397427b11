"""Rules of :mod:`.fit` for the layers of networks: windows, normalisation, recurrence, attention, quantisation,
scattering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto

from tvmopt.importer.given import Given, Rule, Texts, broadcasts
from tvmopt.importer.protos import MOST_ELEMENTS, count
from tvmopt.importer.windows import POOLS, windows

Shape = tuple[int, ...]

REAL_TYPES = (0, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
"""0 leaves it to the operator."""
ANY_WINDOW = 1 << 40
"""In place of an open size: every window fits."""


def _pool(given: Given) -> Texts:
    shape, kernel = given.sizes(0), given.attrs.get("kernel_shape")
    if shape is None or kernel is None:
        return
    n = len(kernel)
    if len(shape) != n + 2:
        yield f"its input has {len(shape)} dimensions, its kernel {n}"
        return
    yield from _window_lists(given, n)
    pads = given.attrs.get("pads") or ()
    if len(pads) == 2 * n and any(not 0 <= p < k for p, k in zip(pads, [*kernel, *kernel], strict=True)):
        yield f"the pads {list(pads)} are not smaller than the kernel {list(kernel)}, or negative"
    elif not len(pads) or len(pads) == 2 * n:
        yield from _small_enough(given, shape, tuple(kernel))


def _global_pool(given: Given) -> Texts:
    yield from _has_pixels(given.shape(0))


def _regions(given: Given) -> Texts:
    yield from _has_pixels(given.sizes(0), given.sizes(1) or ())


def _has_pixels(shape: Sequence[int | None] | None, results: Sequence[int | None] = ()) -> Texts:
    """An image of which results are made has pixels; `results`: further axes of these."""
    if shape is not None and 0 in shape[2:] and 0 not in (*shape[:2], *results):
        yield f"its image {_told(shape)} is empty: there is nothing to pool"


def _told(sizes: Sequence[int | None]) -> str:
    """Sizes as an error lists them."""
    return f"[{', '.join('any' if size is None else str(size) for size in sizes)}]"


def _window_lists(given: Given, n: int) -> Texts:
    """Strides, dilations and pads have a number for each axis of the image."""
    for name, wanted in (("strides", n), ("dilations", n), ("pads", 2 * n), ("output_padding", n)):
        found = given.attrs.get(name)
        if found and len(found) != wanted:
            yield f"it has {len(found)} {name} for {n} axes of the image"
        elif found and max(map(abs, found)) > MOST_ELEMENTS:
            yield f"its {name} are {list(found)}; at most {MOST_ELEMENTS} elements of an axis are supported"


def _small_enough(given: Given, shape: Sequence[int | None], kernel: Shape) -> Texts:
    """The window is no larger than what is known of the padded image. Beside open sizes a pool that no window fits into
    has no elements; a number of windows below 0 is none."""
    sizes = [ANY_WINDOW if size is None else size for size in shape[2:]]
    found = windows(given.attrs, sizes, kernel)
    if min(found.out, default=1) < (0 if None in shape and given.node.op_type in POOLS else 1):
        axes = zip(shape[2:], found.begin, found.end, strict=True)
        padded = _told([None if size is None else size + b + e for size, b, e in axes])
        yield f"its window is larger than the padded image, {padded}: no window of {list(kernel)} fits"


def _convolution(data: int, weight: int, bias: int, transposed: bool = False) -> Rule:
    """A convolution whose image, weights and bias are these inputs."""

    def rule(given: Given) -> Texts:
        x, w, added = given.sizes(data), given.shape(weight), given.shape(bias) if bias else None
        groups = given.attrs.get("group", 1)
        if w is None:
            return
        kernel, outputs = w[2:], (w[1] * groups if transposed else w[0]) if len(w) > 2 else 0
        if len(w) < 3 or (x is not None and len(x) != len(w)):
            yield f"its weights have {len(w)} dimensions and its input {len(x) if x is not None else 'any'}"
            return
        if tuple(given.attrs.get("kernel_shape", kernel)) != kernel:
            yield f"kernel_shape is {list(given.attrs['kernel_shape'])}, but its weights are {list(w)}"
        yield from _window_lists(given, len(kernel))
        channels = w[0] if transposed else w[1] * groups
        if x is not None and x[1] not in (None, channels):
            yield f"the channels do not match with group {groups}: the input has {x[1]}, the weights take {channels}"
        if (w[0]) % groups:
            yield f"its {w[0]} weights do not divide into {groups} groups"
        if added is not None and added != (outputs,):
            yield f"its bias has shape {list(added)}, not [{outputs}]"
        if x is not None and not transposed and len(kernel) == len(x) - 2:
            yield from _small_enough(given, x, kernel)

    return rule


def _per_channel(*indices: int) -> Rule:
    """These inputs have one number a channel (axis 1 of the first input)."""

    def rule(given: Given) -> Texts:
        shape = given.shape(0)
        if shape is None:
            return
        channels = shape[1] if len(shape) > 1 else 1
        for i in indices:
            if (found := given.shape(i)) is not None and found != (channels,):
                yield f"'{given.node.input[i]}' has shape {list(found)}, not [{channels}], one number a channel"

    return rule


def _group_norm(given: Given) -> Texts:
    shape, groups = given.shape(0), int(given.attrs.get("num_groups", 1))
    if shape is None:
        return
    if len(shape) < 2 or shape[1] % groups:
        yield f"its input {list(shape)} does not divide into {groups} groups of channels"
        return
    wanted = shape[1] if given.opset >= 21 else groups
    for i in (1, 2):
        if (found := given.shape(i)) is not None and found != (wanted,):
            yield f"'{given.node.input[i]}' has shape {list(found)}, not [{wanted}]"


def _layer_norm(given: Given) -> Texts:
    rank, shape = given.rank(0), given.shape(0)
    if rank is not None:
        yield from given.axes_fit([given.attrs.get("axis", -1)], rank)
    for i in (1, 2):
        if shape is not None and (found := given.shape(i)) is not None and not broadcasts(found, shape):
            yield f"'{given.node.input[i]}' is {list(found)}, which does not broadcast to {list(shape)}"


def _recurrence(kind: str, gates: int) -> Rule:
    """LSTM, GRU or RNN; X is [steps, batch, size], or with layout 1 [batch, steps, size]."""

    def rule(given: Given) -> Texts:
        x, w, r = given.sizes(0), given.shape(1), given.shape(2)
        if r is None or len(r) != 3:
            yield from () if r is None else [f"R has shape {list(r)}; it has 3 dimensions"]
            return
        directions = 2 if given.attrs.get("direction") == "bidirectional" else 1
        hidden = int(given.attrs.get("hidden_size", r[2]))
        layout, batch, steps, size = given.attrs.get("layout", 0), None, None, w[2] if w and len(w) == 3 else None
        if x is not None:
            if len(x) != 3:
                yield f"X has shape {list(x)}; it has 3 dimensions"
                return
            (batch, steps) = (x[0], x[1]) if layout else (x[1], x[0])
            size = size if x[2] is None else x[2]
        state = (batch, directions, hidden) if layout else (directions, batch, hidden)
        wanted: Mapping[int, tuple[str, Sequence[int | None]]] = {
            1: ("W", (directions, gates * hidden, size)),
            2: ("R", (directions, gates * hidden, hidden)),
            3: ("B", (directions, 2 * gates * hidden)),
            4: ("sequence_lens", (batch,)),
            5: ("initial_h", state),
            6: ("initial_c", state),
            7: ("P", (directions, 3 * hidden)),
        }
        for i, (name, dims) in wanted.items():
            found = given.shape(i)
            if found is not None and None not in dims and found != tuple(dims):
                yield f"{name} has shape {list(found)}, not {list(dims)} (hidden_size {hidden})"
        lengths = given.array(4)
        if lengths is not None and steps is not None and ((lengths < 0) | (lengths > steps)).any():
            yield f"its sequence_lens are {lengths.tolist()[:8]} for {steps} steps"
        names = given.attrs.get("activations")
        per = {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]
        if names and len(names) != per * directions:
            yield f"it has {len(names)} activations, not {per * directions}"

    return rule


def _real_type(given: Given, name: str) -> Texts:
    """An attribute that says in which type to compute names a real one."""
    kind = int(given.attrs.get(name, 0))
    if kind not in REAL_TYPES:
        yield f"its {name} is {kind}, which is the number of no real type"


def _attention(given: Given) -> Texts:
    """Attention of opset 23: q, k and v of 4 dimensions, or of 3 with the heads side by side."""
    yield from _real_type(given, "softmax_precision")
    if (scale := float(given.attrs.get("scale", 1.0))) <= 0 or not np.isfinite(scale):
        yield f"its scale is {scale:g}, of which both sides are multiplied by the root"
    if not np.isfinite(softcap := float(given.attrs.get("softcap", 0.0))):
        yield f"its softcap is {softcap:g}, by which scores are divided and multiplied"
    shapes = [given.shape(i) for i in range(3)]
    counts = given.attrs.get("q_num_heads"), given.attrs.get("kv_num_heads"), given.attrs.get("kv_num_heads")
    split: list[Shape] = []
    for name, shape, heads in zip("QKV", shapes, counts, strict=True):
        if shape is None:
            return
        if len(shape) == 3 and heads:
            if shape[2] % heads:
                yield f"the {shape[2]} elements of {name} do not divide into {heads} heads"
                return
            shape = (shape[0], heads, shape[1], shape[2] // heads)
        if len(shape) != 4:
            yield f"{name} has shape {list(shape)}; it has 4 dimensions, or 3 and its number of heads as an attribute"
            return
        split.append(shape)
    q, k, v = split
    if not q[0] == k[0] == v[0]:
        yield f"Q, K and V have batches of {q[0]}, {k[0]} and {v[0]}"
    if q[3] != k[3]:
        yield f"a head of Q has {q[3]} elements and one of K {k[3]}"
    if k[1] != v[1] or k[2] != v[2]:
        yield f"K has {k[1]} heads of {k[2]} positions, V {v[1]} of {v[2]}"
    if not k[1] or q[1] % k[1]:
        yield f"the {q[1]} heads of Q do not divide among the {k[1]} of K and V"
    yield from _cache_and_mask(given, q, k, v)


def _linear_attention(given: Given) -> Texts:
    """Q, K and V of 3 dimensions, the heads side by side; the state before them; what decays it, and is learnt."""
    q, k, v, past, decay, beta = (given.shape(i) for i in range(6))
    queries, heads = given.attrs.get("q_num_heads", 0), given.attrs.get("kv_num_heads", 0)
    if q is None or k is None or v is None:
        return
    if not len(q) == len(k) == len(v) == 3:
        yield f"Q, K and V have shapes {list(q)}, {list(k)} and {list(v)}; each has 3 dimensions"
        return
    if heads < 1 or queries < 1 or queries % heads:
        yield f"q_num_heads is {queries} and kv_num_heads {heads}"
        return
    for name, shape, into in (("Q", q, queries), ("K", k, heads), ("V", v, heads)):
        if shape[2] % into:
            yield f"the {shape[2]} elements of {name} do not divide into {into} heads"
            return
    if q[2] // queries != k[2] // heads:
        yield f"a head of Q has {q[2] // queries} elements and one of K {k[2] // heads}"
    beside = (("K", k, (k[2],)), ("V", v, (v[2],)), ("decay", decay, (heads, k[2])), ("beta", beta, (heads, 1)))
    for name, found, widths in beside:
        if found is not None and (len(found) != 3 or found[:2] != q[:2] or found[2] not in widths):
            wanted = [[*q[:2], width] for width in dict.fromkeys(widths)]
            yield f"{name} has shape {list(found)}, not {' or '.join(map(str, wanted))}"
    whole = (q[0], heads, k[2] // heads, v[2] // heads)
    if past is not None and past != whole:
        yield f"past_state has shape {list(past)}, not {list(whole)}"


def _causal_conv(given: Given) -> Texts:
    x, w, bias, past = (given.shape(i) for i in range(4))
    if x is None or w is None:
        return
    if len(x) != 3 or len(w) != 3 or w[0] != x[1] or w[1] != 1:
        yield f"shapes {list(x)} and {list(w)} are not [batch, channels, length] and [channels, 1, k]"
        return
    for name, found, wanted in (("bias", bias, (x[1],)), ("past_state", past, (*x[:2], w[2] - 1))):
        if found is not None and found != wanted:
            yield f"{name} has shape {list(found)}, not {list(wanted)}"


def _cache_and_mask(given: Given, q: Shape, k: Shape, v: Shape) -> Texts:
    past, mask = given.shape(4), given.shape(3)
    earlier = past[2] if past is not None and len(past) == 4 else 0
    for i, name, like in ((4, "past_key", k), (5, "past_value", v)):
        found = given.shape(i)
        if found is not None and found != (like[0], like[1], earlier, like[3]):
            yield f"{name} has shape {list(found)}, not {[like[0], like[1], earlier, like[3]]}"
    whole = (q[0], q[1], q[2], k[2] + earlier)
    if mask is None or (given.has(4) and past is None):
        return
    if not 1 <= len(mask) <= 4 or mask[-1] > whole[3]:
        yield f"its mask has shape {list(mask)} for scores of {list(whole)}"
    elif not broadcasts((*mask[:-1], 1), (*whole[:-1], 1)):
        yield f"its mask {list(mask)} does not broadcast to its scores, {list(whole)}"


def _rotary(given: Given) -> Texts:
    """RotaryEmbedding of opset 23: a position for each token, which the caches are asked for."""
    shape, positions = given.shape(0), given.shape(3)
    if shape is None or positions is None or len(shape) not in (3, 4):
        return
    tokens = (shape[0], shape[-2])
    if len(positions) != 2 or not broadcasts(positions, tokens):
        yield f"its positions have shape {list(positions)} for tokens of {list(tokens)}"


def _quantised(given: Given) -> Texts:
    """QuantizeLinear and DequantizeLinear: one scale, one per slice of `axis`, or one per block along it."""
    x, scale, zero = given.shape(0), given.shape(1), given.shape(2)
    yield from _real_type(given, "precision")
    yield from _scales(given, 1, divides=given.node.op_type == "QuantizeLinear")
    if scale is not None and zero is not None and scale != zero and (count(scale), count(zero)) != (1, 1):
        yield f"its scale has shape {list(scale)} and its zero point {list(zero)}"
    if x is None or scale is None or not len(scale):
        return
    axis, block = int(given.attrs.get("axis", 1)), int(given.attrs.get("block_size", 0))
    if scale == (1,) and not block:
        return
    if block or len(scale) > 1:
        yield from _blocks(given, x, scale, axis, block)
    else:
        problems = list(given.axes_fit([axis], len(x)))
        yield from problems
        if not problems and scale[0] != x[axis]:
            yield f"it has {scale[0]} scales for the {x[axis]} slices of axis {axis}"


def _scales(given: Given, index: int, divides: bool) -> Texts:
    """Scales are finite numbers; those that numbers are divided by, positive ones."""
    if (values := given.array(index)) is None:
        return
    numbers = values.astype(np.float64).ravel()
    if (wrong := ~np.isfinite(numbers) | (divides & (numbers <= 0))).any():
        yield f"a scale is {values.ravel()[wrong][0]}; scales are {'positive' if divides else 'finite'}"


def _quantised_product(given: Given) -> Texts:
    """QLinearConv and QLinearMatMul: the scales of both operands and of the result."""
    for index in (1, 4, 6):
        yield from _scales(given, index, divides=index == 6)
    known = [given.array(index) for index in (1, 4, 6)]
    if not any(values is None or not values.size for values in known):
        a, b, result = (np.abs(values.astype(np.float64)) for values in known if values is not None)
        largest = a.max() * b.max() * max(1.0, 1.0 / (result.min() or 1.0)) * 2.0**31
        if np.isfinite(largest) and largest > np.finfo(np.float32).max:
            yield f"its scales multiply sums of bytes to {largest:.3g}, beyond float32"


def _blocks(given: Given, x: Shape, scale: Shape, axis: int, block: int) -> Texts:
    problems = list(given.axes_fit([axis], len(x)))
    yield from problems
    if problems:
        return
    if block < 1 or len(scale) != len(x):
        yield f"its scale has shape {list(scale)} and its block_size is {block}"
        return
    wanted = tuple(-(-s // block) if i == axis % len(x) else s for i, s in enumerate(x))
    if scale != wanted:
        yield f"its scale has shape {list(scale)}, not {list(wanted)} for blocks of {block} along axis {axis}"


def _tensor_scatter(given: Given) -> Texts:
    """TensorScatter: an update as large as the cache but along `axis`, where it is no longer, and a place each."""
    cache, update, places = given.shape(0), given.shape(1), given.shape(2)
    if cache is None or update is None:
        return
    axis = given.attrs.get("axis", -2)
    problems = list(given.axes_fit([axis], len(cache)))
    yield from problems
    if problems:
        return
    if axis % len(cache) == 0:
        yield "its axis is that of the batches"
    elif len(update) != len(cache) or any(
        u > c if a == axis % len(cache) else u != c for a, (u, c) in enumerate(zip(update, cache, strict=True))
    ):
        yield f"an update of {list(update)} does not fit into a cache of {list(cache)} along axis {axis}"
    elif places is not None and places != cache[:1]:
        yield f"its write_indices have shape {list(places)}, not [{cache[0]}]"


def _gather_elements(given: Given) -> Texts:
    """GatherElements and ScatterElements: as many dimensions everywhere, and none beyond the data's but at `axis`."""
    data, index, updates = given.shape(0), given.shape(1), given.shape(2)
    if data is None or index is None:
        return
    axis = given.attrs.get("axis", 0)
    problems = list(given.axes_fit([axis], len(data)))
    yield from problems
    if problems:
        return
    if len(index) != len(data):
        yield f"its indices have {len(index)} dimensions and its data {len(data)}"
    elif count(index) and any(i > d for a, (i, d) in enumerate(zip(index, data, strict=True)) if a != axis % len(data)):
        yield f"its indices {list(index)} reach beyond its data, {list(data)}"
    if updates is not None and updates != index:
        yield f"its updates have shape {list(updates)} and its indices {list(index)}"


def _scatter_nd(given: Given) -> Texts:
    data, index, updates = given.shape(0), given.shape(1), given.shape(2)
    if data is None or index is None:
        return
    if not data or not index or index[-1] > len(data):
        yield f"indices of shape {list(index)} do not fit data of {list(data)}"
    elif updates is not None and updates != (*index[:-1], *data[index[-1] :]):
        yield f"its updates have shape {list(updates)}, not {[*index[:-1], *data[index[-1] :]]}"


def _gather_nd(given: Given) -> Texts:
    data, index, batch = given.shape(0), given.shape(1), int(given.attrs.get("batch_dims", 0))
    if data is None or index is None:
        return
    if not 0 <= batch < min(len(data), len(index)):
        yield f"batch_dims is {batch} for data of {list(data)} and indices of {list(index)}"
    elif not 1 <= index[-1] <= len(data) - batch or data[:batch] != index[:batch]:
        yield f"indices of shape {list(index)} do not fit data of {list(data)} with batch_dims {batch}"


def _unpool(given: Given) -> Texts:
    data, index = given.shape(0), given.shape(1)
    if data is not None and index is not None and data != index:
        yield f"its indices have shape {list(index)} and its data {list(data)}"


def _suppression(given: Given) -> Texts:
    boxes, scores = given.shape(0), given.shape(1)
    if boxes is not None and (len(boxes) != 3 or boxes[2] != 4):
        yield f"its boxes have shape {list(boxes)}, not [batches, boxes, 4]"
    elif scores is not None and (len(scores) != 3 or (boxes and (scores[0], scores[2]) != boxes[:2])):
        yield f"its scores have shape {list(scores)} and its boxes {list(boxes or ())}"


def _grid(given: Given) -> Texts:
    image, grid = given.shape(0), given.shape(1)
    if image is None or grid is None:
        return
    if len(image) < 3 or len(grid) != len(image) or grid[-1] != len(image) - 2 or grid[0] != image[0]:
        yield f"a grid of {list(grid)} does not fit an image of {list(image)}"
    elif 0 in image[2:] and count(grid):
        yield f"its image {list(image)} is empty, so there is nothing to sample"


def _deformed(given: Given) -> Texts:
    x, w, offset, bias, mask = (given.shape(i) for i in range(5))
    if x is None or w is None or offset is None or len(x) != 4 or len(w) != 4:
        return
    groups, parts = int(given.attrs.get("group", 1)), int(given.attrs.get("offset_group", 1))
    if w[1] * groups != x[1] or w[0] % groups or parts < 1 or x[1] % parts:
        yield f"weights of {list(w)} do not fit {x[1]} channels in {groups} groups and {parts} groups of offsets"
        return
    if lists := list(_window_lists(given, 2)):
        yield from lists
        return
    found = windows(given.attrs, x[2:], w[2:])
    wanted = (x[0], parts * w[2] * w[3] * 2, *found.out)
    if offset != wanted:
        yield f"its offsets have shape {list(offset)}, not {list(wanted)}"
    if mask is not None and mask != (x[0], parts * w[2] * w[3], *found.out):
        yield f"its mask has shape {list(mask)}, not {[x[0], parts * w[2] * w[3], *found.out]}"
    if bias is not None and bias != (w[0],):
        yield f"its bias has shape {list(bias)}, not [{w[0]}]"


def _loss(given: Given) -> Texts:
    scores, target, weight = given.shape(0), given.shape(1), given.shape(2)
    if scores is None or target is None:
        return
    if len(scores) < 2 or target != (scores[0], *scores[2:]):
        yield f"a target of {list(target)} does not fit scores of {list(scores)}"
    elif weight is not None and weight != (scores[1],):
        yield f"its weights have shape {list(weight)}, not [{scores[1]}]"


RULES: dict[str, Rule] = {
    "Attention": _attention,
    "AveragePool": _pool,
    "BatchNormalization": _per_channel(1, 2, 3, 4),
    "CausalConvWithState": _causal_conv,
    "Conv": _convolution(0, 1, 2),
    "ConvInteger": _convolution(0, 1, 0),
    "ConvTranspose": _convolution(0, 1, 2, transposed=True),
    "DeformConv": _deformed,
    "DequantizeLinear": _quantised,
    "GRU": _recurrence("GRU", 3),
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GlobalAveragePool": _global_pool,
    "GlobalLpPool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "GridSample": _grid,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _per_channel(1, 2),
    "LSTM": _recurrence("LSTM", 4),
    "LayerNormalization": _layer_norm,
    "LinearAttention": _linear_attention,
    "LpPool": _pool,
    "MaxPool": _pool,
    "MaxUnpool": _unpool,
    "NegativeLogLikelihoodLoss": _loss,
    "NonMaxSuppression": _suppression,
    "QLinearConv": _convolution(0, 3, 8),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), _quantised_product),
    "QuantizeLinear": _quantised,
    "RoiAlign": _regions,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    "RotaryEmbedding": _rotary,
    "RNN": _recurrence("RNN", 1),
    **dict.fromkeys(("Scatter", "ScatterElements"), _gather_elements),
    "ScatterND": _scatter_nd,
    "SoftmaxCrossEntropyLoss": _loss,
    "TensorScatter": _tensor_scatter,
}
"""What each layer asks of its inputs."""
