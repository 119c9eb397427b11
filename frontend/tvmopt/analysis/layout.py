"""Where to draw the boxes and arrows of a large directed graph, top to bottom - for the page of `inspect`.

Sugiyama's method in its plain form (Sugiyama, Tagawa and Toda, IEEE Trans. SMC 1981): layers by longest path,
order within a layer by barycentres, then positions. Positions are exact: to put every box of a layer nearest
(least squares) to its neighbours under "do not overlap" is an isotonic regression, solved by pooling adjacent
violators. An edge over several layers passes through one point a layer; the edges of one source share these
points, so that a mask read by twelve attentions is one line with twelve branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

SWEEPS = 12
GAP_X, GAP_Y = 28.0, 46.0
STRAIGHT = 4.0  # how much more a bend in a long edge costs than a box out of line; of 1, 2, 4, 8 BERT was narrowest
LANE = 10.0  # width that a passing edge takes


@dataclass(frozen=True)
class Layout:
    """Centres (x, y) of the boxes, a list of points for each edge, width and height of the whole."""

    centres: tuple[tuple[float, float], ...]
    routes: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


@dataclass
class _Vertex:
    """A box, or a point of a long edge (`box` < 0)."""

    box: int
    layer: int
    width: float
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    x: float = 0.0


def layout(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out boxes of (width, height); every edge goes from a lower index to a higher one.

    >>> found = layout([(100, 40), (100, 40), (100, 40)], [(0, 1), (1, 2)])
    >>> [round(x) for x, y in found.centres], found.height
    ([50, 50, 50], 212.0)
    """
    if not sizes:
        return Layout((), (), 0.0, 0.0)
    vertices, chains = _with_points(sizes, edges, _layers(len(sizes), edges))
    layers: list[list[int]] = [[] for _ in range(1 + max(v.layer for v in vertices))]
    for index, vertex in enumerate(vertices):
        layers[vertex.layer].append(index)
    _order(vertices, layers)
    _place(vertices, layers)
    return _finish(sizes, edges, vertices, chains, layers)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest path from the sources; then what has slack moves down to its first reader, unless it reads more
    tensors than are read of it: edges get no longer, and those of one source share more of their way.
    """
    edges = sorted(set(edges))
    layer, into, out = [0] * count, [0] * count, [0] * count
    for a, b in sorted(edges, key=lambda e: e[1]):
        layer[b] = max(layer[b], layer[a] + 1)
        out[a], into[b] = out[a] + 1, into[b] + 1
    for a, group in groupby(reversed(edges), key=lambda e: e[0]):  # readers before what they read
        first = min(layer[b] for _, b in group)
        if into[a] <= out[a]:
            layer[a] = first - 1
    return layer


def _with_points(
    sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], layer: Sequence[int]
) -> tuple[list[_Vertex], dict[int, list[int]]]:
    """Boxes, then the points of long edges, linked to their neighbours; each source's chain of points."""
    vertices = [_Vertex(i, layer[i], w) for i, (w, _) in enumerate(sizes)]
    longest: dict[int, int] = {}
    for a, b in edges:
        longest[a] = max(longest.get(a, 0), layer[b])
    chains: dict[int, list[int]] = {}
    for a, end in longest.items():
        chain = [a]
        for row in range(layer[a] + 1, end):
            vertices.append(_Vertex(-1, row, LANE))
            _link(vertices, chain[-1], len(vertices) - 1)
            chain.append(len(vertices) - 1)
        chains[a] = chain
    for a, b in dict.fromkeys(edges):
        _link(vertices, chains[a][layer[b] - layer[a] - 1], b)
    return vertices, chains


def _link(vertices: list[_Vertex], upper: int, lower: int) -> None:
    vertices[upper].below.append(lower)
    vertices[lower].above.append(upper)


def _order(vertices: list[_Vertex], layers: list[list[int]]) -> None:
    """Sort each layer by the mean place of its neighbours, down and up; the order that crosses least stays."""
    best, fewest = [list(row) for row in layers], _crossings(vertices, layers)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in layers if down else reversed(layers):
            place = {v: i for r in _near(vertices, row, layers, down) for i, v in enumerate(r)}
            keys = {}
            for i, v in enumerate(row):
                near = vertices[v].above if down else vertices[v].below
                keys[v] = sum(place[n] for n in near) / len(near) if near else float(i)
            row.sort(key=keys.__getitem__)
        now = _crossings(vertices, layers)
        if now < fewest:
            best, fewest = [list(row) for row in layers], now
        if not fewest:
            break
    layers[:] = best


def _near(vertices: list[_Vertex], row: list[int], layers: list[list[int]], above: bool) -> list[list[int]]:
    index = vertices[row[0]].layer + (-1 if above else 1)
    return [layers[index]] if 0 <= index < len(layers) else []


def _crossings(vertices: list[_Vertex], layers: list[list[int]]) -> int:
    """Pairs of edges that cross: inversions, counted layer by layer."""
    total = 0
    for row, following in pairwise(layers):
        place = {v: i for i, v in enumerate(following)}
        ends = [e for v in row for e in sorted(place[b] for b in vertices[v].below)]
        total += sum(a > b for i, a in enumerate(ends) for b in ends[i + 1 :])
    return total


def _place(vertices: list[_Vertex], layers: list[list[int]]) -> None:
    """x of everything: each layer in turn as near its neighbours above, below, and last both, as can be."""
    for row in layers:
        at = 0.0
        for v in row:
            vertices[v].x = at + vertices[v].width / 2
            at += vertices[v].width + GAP_X
        for v in row:
            vertices[v].x -= at / 2
    for sweep in range(4 * SWEEPS):
        down, both = sweep % 2 == 0, sweep >= 2 * SWEEPS
        for row in layers if down else reversed(layers):
            wishes, weights = [], []
            for v in row:
                own = vertices[v]
                near = (own.above + own.below if both else own.above if down else own.below) or [v]
                heavy = [STRAIGHT if own.box < 0 and vertices[n].box < 0 else 1.0 for n in near]
                wishes.append(sum(h * vertices[n].x for h, n in zip(heavy, near, strict=True)) / sum(heavy))
                weights.append(sum(heavy) if near != [v] else 0.1)
            for v, x in zip(row, spread([vertices[v].width for v in row], wishes, weights), strict=True):
                vertices[v].x = x


def spread(widths: Sequence[float], wishes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Centres nearest to the wishes (weighted least squares) that keep boxes in order and GAP_X apart.

    >>> spread([10, 10], [0, 0], [1, 1])
    [-19.0, 19.0]
    """
    offsets, at = [], 0.0
    for i, width in enumerate(widths):
        at += (widths[i - 1] + width) / 2 + GAP_X if i else 0.0
        offsets.append(at)
    pools: list[list[float]] = []  # weight, weighted sum, members
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        pools.append([weight, weight * (wish - offset), 1])
        while len(pools) > 1 and pools[-2][1] / pools[-2][0] > pools[-1][1] / pools[-1][0]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    level = [total / weight for weight, total, members in pools for _ in range(int(members))]
    return [value + offset for value, offset in zip(level, offsets, strict=True)]


def _finish(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    vertices: list[_Vertex],
    chains: dict[int, list[int]],
    layers: list[list[int]],
) -> Layout:
    left = min(v.x - v.width / 2 for v in vertices)
    y, middles, tops = 0.0, [], []
    for row in layers:
        tall = max((sizes[v][1] for v in row if vertices[v].box >= 0), default=0.0)
        middles.append(y + tall / 2)
        tops.append((y, y + tall))
        y += tall + GAP_Y
    centres = tuple((v.x - left, middles[v.layer]) for v in vertices[: len(sizes)])
    routes = []
    for a, b in edges:
        (xa, ya), (xb, yb) = centres[a], centres[b]
        points = [(xa, ya + sizes[a][1] / 2)]
        for v in chains[a][1 : vertices[b].layer - vertices[a].layer]:
            x = vertices[v].x - left
            points += [(x, tops[vertices[v].layer][0]), (x, tops[vertices[v].layer][1])]
        routes.append((*points, (xb, yb - sizes[b][1] / 2)))
    width = max(v.x - left + v.width / 2 for v in vertices)
    return Layout(centres, tuple(routes), width, y - GAP_Y)
