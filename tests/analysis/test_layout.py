"""Layouts: boxes apart, arrows downwards and around boxes, quick for the largest graphs."""

import itertools
import random
import time

import pytest

from tvmopt.analysis.layout import GAP_X, layout, spread


def _chain_with_skips(count, reach, seed=0):
    rng = random.Random(seed)
    edges = {(i, i + 1) for i in range(count - 1)}
    edges |= {(i, min(count - 1, i + rng.randint(2, reach))) for i in range(0, count - 2, 3)}
    return [(a, b) for a, b in sorted(edges) if a < b]


def _tree(count):
    return [((i - 1) // 2, i) for i in range(1, count)]


GRAPHS = {
    "one": (1, []), "apart": (5, []), "chain": (7, [(i, i + 1) for i in range(6)]),
    "diamond": (4, [(0, 1), (0, 2), (1, 3), (2, 3)]), "tree": (31, _tree(31)),
    "skips": (60, _chain_with_skips(60, 9)), "twice": (2, [(0, 1), (0, 1)]),
    "fan": (14, [(0, i) for i in range(1, 13)] + [(i, i + 1) for i in range(1, 13)]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_do_not_touch_and_arrows_go_down(name):
    count, edges = GRAPHS[name]
    sizes = [(100 + 20 * (i % 3), 40 + 10 * (i % 4)) for i in range(count)]
    found = layout(sizes, edges)
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(found.centres, sizes, strict=True)]
    for i, (a0, b0, a1, b1) in enumerate(boxes):
        assert a0 >= -1e-6 and a1 <= found.width + 1e-6 and b0 >= -1e-6 and b1 <= found.height + 1e-6
        for c0, d0, c1, d1 in boxes[:i]:
            assert a0 >= c1 + GAP_X - 1e-6 or c0 >= a1 + GAP_X - 1e-6 or b0 > d1 or d0 > b1
    for (a, b), route in zip(edges, found.routes, strict=True):
        assert route[0] == pytest.approx((found.centres[a][0], boxes[a][3]))
        assert route[-1] == pytest.approx((found.centres[b][0], boxes[b][1]))
        assert all(p[1] <= q[1] for p, q in itertools.pairwise(route))
        for x, y in route[1:-1]:
            assert not any(l < x < r and t < y < u for l, t, r, u in boxes)


def test_a_chain_is_a_straight_line_and_a_diamond_has_no_crossing():
    xs = {round(x, 3) for x, _ in layout([(80, 30)] * 9, [(i, i + 1) for i in range(8)]).centres}
    assert len(xs) == 1
    found = layout([(80, 30)] * 6, [(0, 1), (0, 2), (1, 4), (2, 3), (3, 5), (4, 5)])
    assert (found.centres[1][0] < found.centres[2][0]) == (found.centres[4][0] < found.centres[3][0])


def test_edges_of_one_source_share_their_way():
    edges = [(i, i + 1) for i in range(9)] + [(0, 5), (0, 9)]
    found = layout([(80, 30)] * 10, edges)
    short, long = (set(found.routes[edges.index(e)][1:-1]) for e in ((0, 5), (0, 9)))
    assert short and short < long


def test_spread_is_the_least_squares_answer():
    assert spread([10, 10], [0, 100], [1, 1]) == [0, 100]
    gap = 10 + GAP_X
    assert spread([10, 10], [0, 0], [3, 1]) == pytest.approx([-gap / 4, 3 * gap / 4])
    assert spread([10, 10, 10], [5, 5, 5], [1, 1, 1]) == pytest.approx([5 - gap, 5, 5 + gap])


def test_a_graph_of_densenets_size_takes_seconds_at_most():
    start = time.process_time()
    layout([(236, 80)] * 1500, _chain_with_skips(1500, 30))
    assert time.process_time() - start < 20
