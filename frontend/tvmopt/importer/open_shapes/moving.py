"""Shapes with open sizes of what moves, repeats, cuts or makes elements."""

from __future__ import annotations

import math

from tvmopt.dims import Dim, Size, is_open, parts_of
from tvmopt.importer.open_shapes.node import Node, Shapes
from tvmopt.importer.open_values import BEYOND, behind, from_the_end
from tvmopt.importer.walk import Walk


def concat(n: Node) -> Shapes | None:
    if any(s is None for s in n.shapes):
        return None
    shapes = [s for s in n.shapes if s is not None]
    axis = n.attrs.get("axis", 1) % len(shapes[0])
    result = list(shapes[0])
    for other in shapes[1:]:
        result = [r + o if i == axis else n.same(r, o) for i, (r, o) in enumerate(zip(result, other, strict=True))]
    return [tuple(result)]


def reshape(n: Node) -> Shapes | None:
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


def expand(n: Node) -> Shapes | None:
    own, wanted = n.shapes[0], n.value(1)
    return None if own is None or wanted is None else [n.broadcast([own, tuple(wanted)])]


def constant_of_shape(n: Node) -> Shapes | None:
    wanted = n.value(0)
    return None if wanted is None else [tuple(wanted)]


def range_(n: Node) -> Shapes | None:
    values = [n.value(i) for i in range(3)]
    if any(v is None for v in values):
        return None
    start, limit, step = (v[0] for v in values if v)
    if not isinstance(step, int) or step == 0:
        return None
    if step < 0:  # downwards: as many as upwards from the limit
        start, limit, step = limit, start, -step
    count = (limit - start + step - 1) // step  # of open sizes the call is refused where it is negative
    return [(n.walk.symbols.most_of(count, 0) if n.walk.symbols.is_decided(count) else count,)]


def slice_(n: Node) -> Shapes | None:
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
            result[axis] = n.walk.symbols.least(start + 1, size)
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
    text. One that is not always on the same side of 0 counts from the start, or from the end where it is never above 0;
    a call in which it would count from elsewhere is refused.

    Raises:
        OpenSize: values decide that, or it differs from trip to trip of a loop.
    """

    def inside(place: Size) -> Size:
        if isinstance(place, int) and place >= BEYOND:
            return size
        if isinstance(place, int) and place <= -BEYOND:
            return 0
        if place == size:
            return size
        if from_the_end(place):
            walk.symbols.at_most(place, -1, where)
            return walk.symbols.most_of(size + place, 0)
        walk.symbols.at_most(0, place, where)
        if isinstance(place, Dim) and isinstance(size, int):
            walk.symbols.at_most(place, size, where)
            return place
        return walk.symbols.least(place, size)

    rest = behind(end)
    return inside(start), inside(end) if rest is None else walk.symbols.most_of(size - rest, 0)


def flatten(n: Node) -> Shapes | None:
    own = n.shapes[0]
    if own is None:
        return None
    axis = n.attrs.get("axis", 1)
    axis += len(own) if axis < 0 else 0
    return [(math.prod(own[:axis]), math.prod(own[axis:]))]


def squeeze(n: Node) -> Shapes | None:
    """Without axes it removes every 1: an open size stays, so that it is 2 or more in every call."""
    own = n.shapes[0]
    if own is None or "axes" in n.attrs or any(n.node.input[1:]):
        return None
    for size in own:
        if isinstance(size, Dim):
            n.walk.symbols.at_most(2, size, n.where)
    return [tuple(size for size in own if size != 1)]


def tile(n: Node) -> Shapes | None:
    own, repeats = n.shapes[0], n.value(1)
    return None if own is None or repeats is None else [tuple(d * r for d, r in zip(own, repeats, strict=True))]


def pad(n: Node) -> Shapes | None:
    own, pads = n.shapes[0], n.given(1, "pads")
    if own is None or pads is None:
        return None
    axes = [a % len(own) for a in n.value(3) or range(len(own))]
    result = list(own)
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[len(axes) + i]
        if n.attrs.get("mode") == "reflect":  # as many elements have to lie behind the first
            for amount in (before, after):
                n.walk.symbols.at_most(amount + 1, result[axis], n.where)
        result[axis] += before + after
    return [tuple(result)]


def split(n: Node) -> Shapes | None:
    own, parts = n.shapes[0], n.given(1, "split")
    if own is None:
        return None
    axis, count = n.attrs.get("axis", 0) % len(own), len(n.node.output)
    if parts is None:
        alike = is_open((own[axis],)) and "num_outputs" not in n.attrs  # which is a condition then
        parts = [own[axis] // count] * count if alike else parts_of(own[axis], count)
    return [tuple(part if i == axis else d for i, d in enumerate(own)) for part in parts]


def top_k(n: Node) -> Shapes | None:
    own, k = n.shapes[0], n.given(1, "k")
    if own is None or k is None:
        return None
    axis = n.attrs.get("axis", -1) % len(own)
    n.walk.symbols.at_most(k[0], own[axis], n.where)
    return [tuple(k[0] if i == axis else d for i, d in enumerate(own))] * 2


def one_hot(n: Node) -> Shapes | None:
    own, depth = n.shapes[0], n.value(1)
    if own is None or depth is None:
        return None
    axis = n.attrs.get("axis", -1) % (len(own) + 1)
    return [(*own[:axis], depth[0], *own[axis:])]
