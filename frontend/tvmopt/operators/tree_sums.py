"""What the leaves of an ensemble of trees add up to, as one Relax operator.

    y = tvmopt.tree_sums(x, nodes, roots, leaves, targets, weights;
                         count, inner, trees, kind, sums, negatives, one_entry)

    x           [n, features] float32 or float64; y [n, count] float32 or float64, as `kind`
    nodes       [nodes, 4 or 5] int32: a feature, the nodes to go on with where the feature is larger than the threshold
                or NaN, and where it is not, and the bits of the threshold, which has x's type; a feature behind the
                last stands for the negative of one. The first `inner` nodes compare, and the others are leaves, which
                lead to themselves.
    roots       [trees, to a multiple of WALKS] int32; what is behind the last tree are leaves
    leaves      [leaves + 1] int32: the first entry of each leaf; entries of the next leaf follow
    targets     [entries] int32, weights [entries] as y: y[row, target] += weight
    trees       how many there are
    sums        "SUM", or "MIN" or "MAX" of the weights in place of their sum; 0 where no leaf has the target
    negatives   links name features behind the last
    one_entry   each leaf has one, so that `leaves` is not read

A row goes through `WALKS` trees at once, as each step waits for the one before it and for memory. No step branches, and
walks that are at a leaf stay there until all are at one. Sums are added up in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmopt.operators.register import Loops

OP = "tvmopt.tree_sums"
WALKS = 8
"""How many trees a row goes through at once."""
STEPS = 2
"""How many steps it goes before it looks whether all walks are at a leaf."""
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"SUM": lambda a, b: a + b, "MIN": tirx.min, "MAX": tirx.max}


def tree_sums(x: Any, tables: Sequence[Any], told: dict[str, Any]) -> Any:
    """The call; tables and what is known in the order above."""
    return TREE_SUMS.call([x, *tables], **told)


def _walks(ins: Any, out: Any, told: dict[str, Any]) -> Any:
    """The loops of :data:`OP`."""
    trees, count, kind, sums = told["trees"], told["count"], told["kind"], told["sums"]
    features, dtype = int(ins[0].shape[1]), ins[0].dtype
    zero = tirx.const(0, kind)
    none = zero if sums == "SUM" else tirx.const(float("nan"), kind)  # no leaf has had the target yet
    with IRBuilder() as ib:
        x, nodes, roots, leaves, targets, weights, y = (T.buffer_proxy(b) for b in (*ins, out))
        with T.parallel(0, ins[0].shape[0]) as i:
            node = T.buffer_proxy(T.alloc_buffer((WALKS,), "int32", scope="local"))
            total = T.buffer_proxy(T.alloc_buffer((count,), kind, scope="local"))
            if told["negatives"]:
                row = T.buffer_proxy(T.alloc_buffer((2 * features,), dtype, scope="local"))
                with T.serial(0, features) as f:
                    row[f] = x[i, f]
                with T.serial(0, features) as f:
                    row[features + f] = -x[i, f]
            with T.serial(0, count) as c:
                total[c] = none

            def step(w: Any) -> Any:
                at = node[w]
                value = row[nodes[at, 0]] if told["negatives"] else x[i, nodes[at, 0]]
                bits = nodes[at, 3] if dtype == "float32" else nodes[at, tirx.Ramp(3, 1, 2)]
                return tirx.Select(value <= tirx.reinterpret(dtype, bits), nodes[at, 2], nodes[at, 1])

            def combine(entry: Any) -> None:
                target = targets[entry] if count > 1 else 0
                both = _COMBINE[sums](total[target], weights[entry])
                total[target] = both if sums == "SUM" else tirx.Select(tirx.isnan(total[target]), weights[entry], both)

            with T.serial(0, (trees + WALKS - 1) // WALKS) as group:
                with T.unroll(0, WALKS) as w:
                    node[w] = roots[group * WALKS + w]
                with T.While(reduce(tirx.min, [node[w] for w in range(WALKS)]) < told["inner"]):
                    for _ in range(STEPS):
                        with T.unroll(0, WALKS) as w:
                            node[w] = step(w)
                with T.serial(0, tirx.min(WALKS, trees - group * WALKS)) as w:
                    leaf = node[w] - told["inner"]
                    if told["one_entry"]:
                        combine(leaf)
                    else:
                        with T.serial(leaves[leaf], leaves[leaf + 1]) as entry:
                            combine(entry)
            with T.serial(0, count) as c:
                y[i, c] = total[c] if sums == "SUM" else tirx.Select(tirx.isnan(total[c]), zero, total[c])
        return ib.get()


TREE_SUMS = Loops(
    OP,
    __name__,
    "trees are summed up",
    lambda shapes, told: ((shapes[0][0], told["count"]), told["kind"]),
    _walks,
)
