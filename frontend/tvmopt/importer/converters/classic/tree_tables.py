"""TreeEnsemble of ai.onnx.ml (version 5): tables of inner nodes and of leaves, and the roots of the trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.classic.forests import AGGREGATES, COMPARISONS, EQ, Forest, leaf_sums, tracks_of
from tvmopt.importer.converters.classic.scores import transformed
from tvmopt.importer.converters.common import Build, dtype_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

Array = np.ndarray[Any, Any]
NUMBERED = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""What the numbers of a TreeEnsemble's `aggregate_function` and `post_transform` stand for."""
INNER = tuple(f"nodes_{key}" for key in (
    "splits", "modes", "featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs"))  # fmt: skip
OUTER = ("leaf_targetids", "leaf_weights")
"""Those of a TreeEnsemble: with an entry for each inner node, and for each leaf."""


def ensemble(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TreeEnsemble: sums, means, least or largest of the trees' leaves, of the input's type."""
    b, found = Build(bb, ctx.name), _of_tables(ctx, attrs)
    way, transform = int(attrs.get("aggregate_function", 1)), int(attrs.get("post_transform", 0))
    if not (0 <= way < len(AGGREGATES) and 0 <= transform < len(NUMBERED)):
        told = f"aggregate_function is {way} and post_transform {transform}"
        raise ctx.unsupported(told, "numbers from 0 to 3, and from 0 to 4")
    sums = leaf_sums(b, ctx, inputs[0], found, int(attrs.get("n_targets") or 1), AGGREGATES[way], of_input=True)
    return b.cast(transformed(b, ctx, sums, NUMBERED[transform]), dtype_of(inputs[0]))


def _of_tables(ctx: Context, attrs: dict[str, Any]) -> Forest:
    """The trees of a TreeEnsemble: its inner nodes, then its leaves, then what members of sets are compared with."""
    tables = {key: np.ravel(attrs[key]) for key in (*INNER, *OUTER)}
    count, leaves = len(tables["nodes_modes"]), len(tables["leaf_weights"])
    tracks = attrs.get("nodes_missing_value_tracks_true") or ()
    lengths = {key: len(tables[key]) for key in INNER} | ({"tracks": len(tracks)} if tracks else {})
    if set(lengths.values()) != {count} or len(tables["leaf_targetids"]) != leaves:
        raise ctx.unsupported(f"its tables are not equally long: {lengths}", "export the model again")
    roots, targets = np.ravel(attrs["tree_roots"]), tables["leaf_targetids"]
    ways = np.empty((count + leaves, 2), np.int64)
    ways[count:] = np.arange(count, count + leaves)[:, None]
    inside = len(roots) > 0 and ((roots >= 0) & (roots < count)).all() and (targets >= 0).all()
    for column, key in enumerate(("false", "true")):
        of_leaf, places = tables[f"nodes_{key}leafs"] != 0, tables[f"nodes_{key}nodeids"]
        inside = inside and ((places >= 0) & (places < np.where(of_leaf, leaves, count))).all()
        ways[:count, column] = places + count * of_leaf
    modes, features = tables["nodes_modes"].astype(np.int64), tables["nodes_featureids"]
    inside = inside and ((features >= 0) & (features < 1 << 31)).all() and (targets < 1 << 31).all()
    if not inside or not _ends(ways, count, roots):
        raise ctx.unsupported("its nodes are no trees", "export the model again")
    if unknown := set(modes.tolist()) - set(range(len(COMPARISONS) + 1)):
        raise ctx.unsupported(f"its nodes compare by {min(unknown)}", f"numbers from 0 to {len(COMPARISONS)}")
    comparisons = np.array([*COMPARISONS, EQ, ""])[np.append(modes, np.full(leaves, -1))]
    entries = np.stack([np.arange(leaves), np.arange(1, leaves + 1)], 1)
    found = Forest(
        comparisons=comparisons,
        features=np.append(features, np.full(leaves, -1)),
        thresholds=np.append(tables["nodes_splits"].astype(np.float64), np.zeros(leaves)),
        ways=ways,
        tracks=tracks_of(attrs, comparisons),
        leaves=np.concatenate([np.zeros((count, 2), np.int64), entries]),
        targets=targets,
        weights=tables["leaf_weights"],
        roots=roots,
    )
    return _with_sets(ctx, found, np.flatnonzero(modes == len(COMPARISONS)), attrs.get("membership_values"))


def _with_sets(ctx: Context, forest: Forest, nodes: Array, members: Any) -> Forest:
    """A forest in which nodes ask whether a feature is in a set, each as a chain of nodes that ask for one member.

    Args:
        nodes: those nodes. members: the members of each set, with NaN behind them.
    """
    values = np.ravel(np.asarray(() if members is None else members, np.float64))
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(nodes):
        raise ctx.unsupported(f"it has {len(nodes)} nodes with sets, and {len(ends)} sets", "export the model again")
    thresholds, ways, more = forest.thresholds.copy(), forest.ways.copy(), _Chains(len(forest.features))
    for node, first, end in zip(nodes, np.append(0, ends + 1)[:-1], ends, strict=True):
        other, one = forest.ways[node]
        thresholds[node] = values[first] if first < end else np.nan
        ways[node] = (more.add(node, values[first + 1 : end], other, one), one)
    again, added = np.array(more.nodes, np.int64), len(more.nodes)
    return replace(
        forest,
        comparisons=np.append(forest.comparisons, np.full(added, EQ)),
        features=np.append(forest.features, forest.features[again]),
        thresholds=np.append(thresholds, more.thresholds),
        ways=np.concatenate([ways, np.array(more.ways, np.int64).reshape(added, 2)]),
        tracks=np.append(forest.tracks, forest.tracks[again]),
        leaves=np.concatenate([forest.leaves, np.zeros((added, 2), np.int64)]),
    )


class _Chains:
    """Further nodes, behind the last of a forest: the node whose feature each compares, its threshold and ways."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.nodes: list[int] = []
        self.thresholds: list[float] = []
        self.ways: list[tuple[int, int]] = []

    def add(self, node: int, members: Array, other: int, one: int) -> int:
        """Nodes that lead to `one` where a feature is one of the members, else to `other`; the first of them."""
        first = self.count + len(self.nodes)
        for index, member in enumerate(members):
            self.nodes.append(node)
            self.thresholds.append(member)
            self.ways.append((first + index + 1 if index + 1 < len(members) else other, one))
        return first if len(members) else other


def _ends(ways: Array, count: int, roots: Array) -> bool:
    """Whether each way from a root ends at a leaf; the first `count` rows are inner nodes."""
    reached = np.zeros(len(ways), bool)
    todo = [int(root) for root in roots]
    while todo:
        node = todo.pop()
        if node < count and not reached[node]:
            reached[node] = True
            todo += ways[node].tolist()
    inner = ways[:count][reached[:count]]
    waits = np.bincount(inner.ravel(), minlength=len(ways))  # from how many ways a node is reached
    ready = [int(node) for node in np.flatnonzero(reached & (waits == 0))]
    passed = 0
    while ready:
        node = ready.pop()
        passed += 1
        for after in ways[node].tolist():
            waits[after] -= 1
            if after < count and waits[after] == 0:
                ready.append(after)
    return passed == int(reached.sum())


CONVERTERS: dict[tuple[str, str], Converter] = {("ai.onnx.ml", "TreeEnsemble"): ensemble}
