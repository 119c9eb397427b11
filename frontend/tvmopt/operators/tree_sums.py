"""What the leaves of an ensemble of trees add up to, as one Relax operator.

    y = tvmopt.tree_sums(x, features, thresholds, ways, leaves, roots, targets, weights; count, comparison)

    x           [n, features] float32 or float64, as the thresholds are; y [n, count] float32
    features    [nodes] int32: the feature that a node compares with its threshold; -1: it is a leaf
    ways        [nodes, 3] int32: the node to go on with if the comparison is false, if it is true, and of NaN
    leaves      [nodes, 2] int32: the first entry of a leaf, and the one behind the last
    targets     [entries] int32, weights [entries] float32: y[row, target] += weight

A row goes through one tree after the other, and sums are added up in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmopt.operators.register import Loops

OP = "tvmopt.tree_sums"
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": lambda a, b: a <= b,
    "BRANCH_LT": lambda a, b: a < b,
    "BRANCH_GTE": lambda a, b: a >= b,
    "BRANCH_GT": lambda a, b: a > b,
    "BRANCH_EQ": lambda a, b: a == b,
    "BRANCH_NEQ": lambda a, b: a != b,
}
COMPARISONS = tuple(_COMPARE)


def tree_sums(x: Any, tables: Sequence[Any], count: int, comparison: str) -> Any:
    """The call; `tables` in the order above."""
    return TREE_SUMS.call([x, *tables], count=count, comparison=comparison)


def _walks(ins: Any, out: Any, count: int, compare: Callable[[Any, Any], Any]) -> Any:
    """The loops of :data:`OP`."""
    trees = ins[5].shape[0]
    with IRBuilder() as ib:
        x, features, thresholds, ways, leaves, roots, targets, weights, y = (T.buffer_proxy(b) for b in (*ins, out))
        with T.parallel(0, ins[0].shape[0]) as i:
            with T.serial(0, count) as c:
                y[i, c] = T.float32(0)
            node = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
            way = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
            with T.serial(0, trees) as t:
                node[0] = roots[t]
                with T.While(features[node[0]] >= 0):
                    value = x[i, features[node[0]]]
                    way[0] = tirx.Select(compare(value, thresholds[node[0]]), T.int32(1), T.int32(0))
                    with T.If(tirx.isnan(value)), T.Then():  # not `value == value`, which becomes True
                        way[0] = T.int32(2)
                    node[0] = ways[node[0], way[0]]
                with T.serial(leaves[node[0], 0], leaves[node[0], 1]) as e:
                    y[i, targets[e]] = y[i, targets[e]] + weights[e]
        return ib.get()


TREE_SUMS = Loops(
    OP,
    __name__,
    "trees are summed up",
    lambda shapes, told: ((shapes[0][0], told["count"]), "float32"),
    lambda ins, out, told: _walks(ins, out, told["count"], _COMPARE[told["comparison"]]),
)
