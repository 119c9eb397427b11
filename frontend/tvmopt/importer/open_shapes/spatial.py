"""Shapes with open sizes of what reads windows of an image or a signal, or its steps: convolutions, poolings, Resize,
recurrences, STFT.
"""

from __future__ import annotations

import numpy as np

from tvmopt.dims import is_open
from tvmopt.importer.fractions import floor_product
from tvmopt.importer.open_shapes.node import Node, Shapes
from tvmopt.importer.windows import windows


def conv(n: Node, second: int = 1) -> Shapes | None:
    own, weight = n.shapes[0], n.shapes[second]
    if own is None or weight is None or is_open(weight[1:]):
        return None
    return [(own[0], weight[0], *windows(n.attrs, own[2:], n.attrs.get("kernel_shape") or weight[2:]).out)]


def pool(n: Node) -> Shapes | None:
    own = n.shapes[0]
    if own is None:
        return None
    shape = (*own[:2], *windows(n.attrs, own[2:], n.attrs["kernel_shape"]).out)
    return [shape] * len(n.node.output)


def conv_transpose(n: Node) -> Shapes | None:
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


def resize(n: Node) -> Shapes | None:
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
            found = floor_product(own[axis], float(scale))
            if found is None:
                return None
            result[axis], most = found
            if most is not None:
                n.walk.symbols.at_most(own[axis], most, n.where)
        return [tuple(result)]
    sizes = n.value(3)
    if sizes is None or n.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return [tuple(result)]


def depth_to_space(n: Node) -> Shapes | None:
    own, k = n.shapes[0], n.attrs["blocksize"]
    return None if own is None else [(own[0], own[1] // (k * k), own[2] * k, own[3] * k)]


def space_to_depth(n: Node) -> Shapes | None:
    own, k = n.shapes[0], n.attrs["blocksize"]
    return None if own is None else [(own[0], own[1] * k * k, own[2] // k, own[3] // k)]


def recurrent(n: Node) -> Shapes | None:
    x, weight, recurrence = n.shapes[:3]
    if x is None or recurrence is None:
        return None
    if weight is not None:
        n.same(x[2], weight[2])
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


def stft(n: Node) -> Shapes | None:
    own, step, length = n.shapes[0], n.value(1), n.value(3)
    window = n.shapes[2] if len(n.shapes) > 2 else None
    size = length[0] if length else window[0] if window else None
    if own is None or not step or not isinstance(size, int):
        return None
    n.walk.symbols.at_most(size, own[1], n.where)
    return [(own[0], (own[1] - size) // step[0] + 1, size // 2 + 1 if n.attrs.get("onesided", 1) else size, 2)]
