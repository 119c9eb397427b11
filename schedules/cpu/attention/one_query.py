"""One query a head, as a decoder's step has it: the heads of a group read a row of K and V once, nothing is transposed.
Where tokens of several texts are computed together, each has tasks of its own and sees as many keys as its place tells.

With one query the strips of `compute.py` would compute V - 1 scores of V for nothing. Here the lanes are the depth::

    a[i, j]  += q[i, d..] * k[j, d..]       g heads i by V / g keys j: V accumulators, one load of K for g heads
    s[i, j]   = sum over the lanes of a     V accumulators become one vector: neighbours are added log2(V) times
    m = max_j s;  s = exp(s - m);  l = sum_j s
    o[i, d..] = sum_j s[i, j] * v[j, d..]

A task is a group of heads and a run of keys, so that a long text keeps every core busy even where there is one head of
keys, and bits do not depend on the number of threads. What the tasks of a head found is put together behind them::

    M = max_r m[r];  e[r] = exp(m[r] - M);  out[i, d..] = (sum_r e[r] * o[r, i, d..]) / (sum_r e[r] * l[r])

registers  V accumulators + g of q + V / g of k <= vector_regs      16 + 4 + 4 = 24 <= 32
floor      K and V once a group: 2 * keys * depth * 4 bytes over the bandwidth of memory
adding up  3 instructions a score (2 shuffles and an addition for two vectors), beside depth / V multiply-adds
together   one number a run for as many of K and V as it has keys
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

from tvm import tirx

from tvmopt.lowering import math
from tvmopt.lowering.loops import (
    const_index,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    seq,
    splat,
    spread,
    store,
    vector,
)
from tvmopt.lowering.lower_extrema import larger
from tvmopt.schedules.cpu._attention_plan import AttentionPlan, ceil_div, is_one, with_mask

Expr = Any
TOGETHER = "attention_together"
"""The block that puts together what the tasks found."""
LEAST_LANES = 4
"""Lanes along the depth below which the strips are kept."""
HEADS = 4
"""Heads of a tile at most."""
ACCUMULATORS = 16
"""Vectors of a tile of the output at most."""


def tiles_of(heads: int) -> list[range]:
    """The heads of a task in tiles as equal as can be.

    >>> [[len(tile) for tile in tiles_of(heads)] for heads in (1, 3, 5, 7, 8)]
    [[1], [3], [2, 3], [3, 4], [4, 4]]
    """
    count = -(-heads // HEADS)
    return [range(heads * i // count, heads * (i + 1) // count) for i in range(count)]


def fits(p: AttentionPlan) -> bool:
    """Whether there are loops for one query of this plan."""
    return _lanes(p) >= LEAST_LANES


def _lanes(p: AttentionPlan) -> int:
    return gcd(p.depth, p.lanes)


class OneQuery:
    """Writes the statements of a task - a run of keys of one query, for `p.shared` heads - and those behind all tasks.

    Args:
        kernel: the kernel's writer, for its buffers; what is made here is among its locals.

    Attributes:
        found: buffers of what the tasks found: the outputs [batch, task, head, depth] that nothing is divided by yet,
            and of each the largest score and the sum of the weights.
    """

    def __init__(self, kernel: Any) -> None:
        p: AttentionPlan = kernel.p
        self.p, self.kernel, self.k_lanes = p, kernel, _lanes(p)
        self.query_row, run = kernel.query_of(kernel.chunk)
        self.start, self.head = run * p.run, kernel.h * p.shared
        self.keys = tirx.min(kernel.own_keys() - self.start, const_index(p.run))
        self.tiles = tiles_of(p.shared)
        self.row = ceil_div(p.run, p.lanes) * p.lanes  # scores of a head, whole vectors
        tasks = kernel.of_one_query(0)
        self.parts = new_buffer("parts", p.batch, tasks, p.heads, p.depth_v)
        self.weights = new_buffer("weights", p.batch, tasks, p.heads, 2)
        self.found = [self.parts, self.weights]
        self.query = self._local("query", p.shared * p.depth)
        self.scores = self._local("scores", p.shared * self.row)
        self.dots = self._local("dots", self.k_lanes * self.k_lanes)
        self.sums = self._local("sums", self.k_lanes)
        self.top = self._local("most", p.lanes)
        self.total = self._local("norm", p.lanes)
        self.out = self._local("result", ACCUMULATORS * p.v_lanes)
        self.steps = self._local("steps", self.row) if kernel.key_rows.has_steps else None

    def _local(self, name: str, size: Any) -> Any:
        buffer = new_buffer(f"one_{name}", size)
        self.kernel.locals.append(buffer)
        return buffer

    def task(self) -> Any:
        """The statements; none where a text has fewer runs of keys than the longest one."""
        p = self.p
        body = seq([
            loop(p.shared, self._take, "i"),
            *(self._scored(tile) for tile in self.tiles),
            *self._times_steps(self.kernel.key_rows),
            loop(p.shared, self._softmax, "i"),
            *self._times_steps(self.kernel.value_rows),
            *(self._output(tile) for tile in self.tiles),
        ])  # fmt: skip
        return body if p.apart is None else tirx.IfThenElse(self.keys > 0, body, None)

    def _at(self, i: Expr) -> tuple[Expr, Expr, Expr]:
        """Where a head of the task has its place in what was found."""
        return self.kernel.b, self.kernel.chunk, self.head + i

    def _take(self, i: Expr) -> Any:
        """The query of a head, scaled."""
        p, lanes = self.p, self.k_lanes

        def one(d: Expr) -> Any:
            value = load(self.kernel.q, self.kernel.b, self.query_row, self.head + i, vector(d * lanes, lanes))
            return store(self.query, value * splat(p.scale, lanes), vector(i * p.depth + d * lanes, lanes))

        return loop(p.depth // lanes, one, "d")

    # -- scores -------------------------------------------------------------------------------------

    def _scored(self, heads: range) -> Any:
        """The scores of some heads; a last tile of keys is moved up, so that some are computed twice."""
        keys, last = self.k_lanes // len(heads), self.keys - 1

        def moved(t: Expr) -> Any:
            return self._tile(heads, tirx.min(t * keys, self.keys - keys), lambda key: key)

        def clamped(t: Expr) -> Any:  # fewer keys than a tile: behind the last one, the last one again
            return self._tile(heads, t * keys, lambda key: tirx.min(key, last))

        tiles = ceil_div(self.keys, keys)
        return tirx.IfThenElse(self.keys >= keys, loop(tiles, moved, "t"), loop(const_index(1), clamped, "t"))

    def _tile(self, heads: range, key: Expr, place: Any) -> Any:
        """The scores of some heads and as many keys as leave an accumulator a lane; of three heads one has no use."""
        p, lanes, keys = self.p, self.k_lanes, self.k_lanes // len(heads)

        def dot(n: int) -> Expr:
            return vector(n * lanes, lanes)

        def step(d: Expr) -> Any:
            out = []
            for i, head in enumerate(heads):
                for j in range(keys):
                    key_row = self.kernel.key_rows.numbers(self._key(place(key + j)), d * lanes, lanes)
                    query = load(self.query, vector(head * p.depth + d * lanes, lanes))
                    at = dot(i * keys + j)
                    out.append(store(self.dots, load(self.dots, at) + key_row * query, at))
            return seq(out)

        zero = [store(self.dots, splat(0.0, lanes), dot(n)) for n in range(lanes)]
        ends = [
            store(self.scores, load(self.sums, vector(i * keys, keys)), vector(head * self.row + key, keys))
            for i, head in enumerate(heads)
        ]
        whole = vector(0, lanes)
        return seq(
            [
                *zero,
                loop(p.depth // lanes, step, "d"),
                *self._added_up(),
                store(self.sums, load(self.dots, whole), whole),
                *ends,
            ]
        )

    def _key(self, key: Expr) -> tuple[Expr, Expr, Expr]:
        """Where a key of the run, or its value, stands."""
        place: tuple[Expr, Expr, Expr] = self.kernel.key_at(self.start + key, self.head)
        return place

    def _added_up(self) -> list[Any]:
        """Vector 0 of the accumulators becomes their sums over the lanes, in order: neighbouring lanes of two vectors
        are added, which makes one vector of them, until there is one."""
        lanes, statements = self.k_lanes, []
        even, odd = (list(range(start, 2 * lanes, 2)) for start in (0, 1))
        count = lanes
        while count > 1:
            for n in range(count // 2):
                a, b = (load(self.dots, vector((2 * n + side) * lanes, lanes)) for side in (0, 1))
                pair = tirx.Shuffle([a, b], even) + tirx.Shuffle([a, b], odd)
                statements.append(store(self.dots, pair, vector(n * lanes, lanes)))
            count //= 2
        return statements

    def _times_steps(self, rows: Any) -> list[Any]:
        """Scores or weights times the steps of the keys or values, where rows have them; behind the last key is
        nothing."""
        lanes, steps = self.p.lanes, self.steps
        if steps is None:
            return []

        def take(j: Expr) -> Any:
            return store(steps, rows.step(self._key(j)), j)

        def scale(i: Expr) -> Any:
            def part(t: Expr) -> Any:
                here = vector(i * self.row + t * lanes, lanes)
                return store(self.scores, load(self.scores, here) * load(steps, vector(t * lanes, lanes)), here)

            return loop(ceil_div(self.keys, lanes), part, "t")

        return [loop(self.keys, take, "j"), loop(self.p.shared, scale, "i")]

    # -- softmax and output -------------------------------------------------------------------------

    def _softmax(self, i: Expr) -> Any:
        """Scores to weights, and their sum; behind the last key there is nothing."""
        lanes, kernel = self.p.lanes, self.kernel
        start, whole = i * self.row, vector(0, self.p.lanes)
        steps = []
        if kernel.bias is not None:
            steps.append(loop(self.keys, lambda j: store(self.scores, self._masked(i, j), start + j), "j"))
        vectors = ceil_div(self.keys, lanes)
        rest = vectors * lanes - self.keys
        steps.append(loop(rest, lambda j: store(self.scores, splat(float("-inf"), 1), start + self.keys + j), "j"))

        def place(t: Expr) -> Expr:
            return vector(start + t * lanes, lanes)

        steps.append(store(self.top, splat(float("-inf"), lanes), whole))
        steps.append(
            loop(
                vectors,
                lambda t: store(self.top, larger(load(self.top, whole), load(self.scores, place(t))), whole),
                "t",
            )
        )
        steps.append(loop(lanes, lambda n: store(self.top, larger(load(self.top, 0), load(self.top, n)), 0), "n"))
        steps.append(store(self.weights, load(self.top, 0), *self._at(i), 0))
        none = load(self.top, 0) == splat(float("-inf"), 1)  # a mask hides all of the run: its weights are 0
        steps.append(store(self.top, spread(tirx.Select(none, splat(0.0, 1), load(self.top, 0)), lanes), whole))
        steps.append(store(self.total, splat(0.0, lanes), whole))

        def weight(t: Expr) -> Any:
            value = math.exp_nonpositive(load(self.scores, place(t)) - load(self.top, whole))
            return seq([
                store(self.scores, value, place(t)),
                store(self.total, load(self.total, whole) + load(self.scores, place(t)), whole),
            ])  # fmt: skip

        steps.append(loop(vectors, weight, "t"))
        steps.append(
            loop(lanes - 1, lambda n: store(self.total, load(self.total, 0) + load(self.total, n + 1), 0), "n")
        )
        steps.append(store(self.weights, load(self.total, 0), *self._at(i), 1))
        return seq(steps)

    def _masked(self, i: Expr, j: Expr) -> Expr:
        """A score under the mask; the only query sees every key, causal or not."""
        p, kernel = self.p, self.kernel
        shape = p.bias or ()
        b = const_index(0) if is_one(shape[0]) else kernel.b
        h = const_index(0) if is_one(shape[1]) else self.head + i
        if p.bias_transposed:
            mask = load(kernel.bias, b, h, self.start + j, 0)
        else:
            mask = load(kernel.bias, b, h, 0, const_index(0) if is_one(shape[3]) else self.start + j)
        return with_mask(replace(p, lanes=1), load(self.scores, i * self.row + j), mask)

    def _output(self, heads: range) -> Any:
        """The weighted sums of V of some heads, some vectors of the depth at a time."""
        p, lanes = self.p, self.p.v_lanes
        vectors = p.depth_v // lanes
        wide = next(n for n in range(vectors, 0, -1) if vectors % n == 0 and n * len(heads) <= ACCUMULATORS)
        cells = [(i, n) for i in range(len(heads)) for n in range(wide)]

        def at(i: int, n: int) -> Expr:
            return vector((i * wide + n) * lanes, lanes)

        def part(block: Expr) -> Any:
            def depth(n: int) -> Expr:
                return vector((block * wide + n) * lanes, lanes)

            def step(j: Expr) -> Any:
                out = []
                for i, n in cells:
                    weight = spread(load(self.scores, heads[i] * self.row + j), lanes)
                    value = self.kernel.value_rows.numbers(self._key(j), (block * wide + n) * lanes, lanes)
                    out.append(store(self.out, load(self.out, at(i, n)) + weight * value, at(i, n)))
                return seq(out)

            zero = splat(0.0, lanes)
            ends = [
                store(self.parts, load(self.out, at(i, n)), *self._at(const_index(heads[i])), depth(n))
                for i, n in cells
            ]
            return seq([*(store(self.out, zero, at(i, n)) for i, n in cells), loop(self.keys, step, "j"), *ends])

        return loop(vectors // wide, part, "db")

    # -- behind all tasks ---------------------------------------------------------------------------

    def together(self) -> Any:
        """The block that puts together what the tasks found."""
        p, kernel = self.p, self.kernel
        b, h, query = (tirx.Var(n, "int64") for n in ("vb", "vh", "vq"))
        lanes, keys = p.v_lanes, kernel.keys_of(query)
        top, total, result = new_buffer("top", 1), new_buffer("total", 1), new_buffer("result", lanes)
        runs, first = ceil_div(keys, p.run), query * kernel.runs

        def weight(r: Expr) -> Any:
            scaled = math.exp_nonpositive(load(self.weights, b, first + r, h, 0) - load(top, 0))
            return seq([
                store(self.weights, scaled, b, first + r, h, 0),
                store(total, load(total, 0) + load(self.weights, b, first + r, h, 1)
                      * load(self.weights, b, first + r, h, 0), 0),
            ])  # fmt: skip

        def part(d: Expr) -> Any:
            here = vector(d * lanes, lanes)

            def add(r: Expr) -> Any:
                value = load(self.parts, b, first + r, h, here)
                scale = spread(load(self.weights, b, first + r, h, 0), lanes)
                return store(result, load(result, vector(0, lanes)) + value * scale, vector(0, lanes))

            found = load(result, vector(0, lanes)) * spread(load(total, 0), lanes)
            return seq([
                store(result, splat(0.0, lanes), vector(0, lanes)),
                loop(runs, add, "r"),
                store(kernel.out, found, b, query, h, here),
            ])  # fmt: skip

        body = seq([
            store(top, splat(float("-inf"), 1), 0),
            loop(runs, lambda r: store(top, larger(load(top, 0), load(self.weights, b, first + r, h, 0)), 0), "r"),
            store(total, splat(0.0, 1), 0),
            loop(runs, weight, "r"),
            store(total, splat(1.0, 1) / load(total, 0), 0),
            loop(p.depth_v // lanes, part, "d"),
        ])  # fmt: skip
        axes = [(b, p.batch), (query, kernel.of_one_query(0, p.queries)), (h, p.heads)]
        reads = [everything(buffer) for buffer in self.found]
        if kernel.places is not None:
            reads.append(everything(kernel.places))
        writes = [everything(kernel.out), everything(self.weights)]
        return nest(TOGETHER, axes, "bqh", reads, writes, body, [top, total, result], {})
