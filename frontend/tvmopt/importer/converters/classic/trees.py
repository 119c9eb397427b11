"""TreeEnsembleClassifier and TreeEnsembleRegressor of ai.onnx.ml: forests and boosted trees.

Leaves are among the nodes, and each node has the number of its tree and one of its own. TreeEnsemble, which has other
tables, is in :mod:`tree_tables`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.classic.forests import COMPARISONS, Forest, leaf_sums, tracks_of
from tvmopt.importer.converters.classic.scores import TRANSFORMS, both_classes, class_labels, label_of, transformed
from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

Array = np.ndarray[Any, Any]
LEAF = "LEAF"
NODES = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
LEAVES = ("treeids", "nodeids", "ids", "weights")
"""Attributes with an entry for each node, and for each number that a leaf adds."""


def forest(ctx: Context, attrs: dict[str, Any], part: str) -> Forest:
    """The trees of a node; `part`: "class" or "target", the prefix of what leaves add."""
    _check_tables(ctx, attrs, part)
    trees, nodes = (np.asarray(attrs[f"nodes_{key}"], np.int64) for key in ("treeids", "nodeids"))
    modes = np.array([m.decode() if isinstance(m, bytes) else str(m) for m in attrs["nodes_modes"]])
    leaf = modes == LEAF
    if unknown := set(modes[~leaf]) - set(COMPARISONS):
        raise ctx.unsupported(f"its nodes compare by {min(unknown)}", f"one of {', '.join(COMPARISONS)}")
    keys = _Keys(trees, nodes)
    if keys.has_twins:
        raise ctx.unsupported("a node is there twice", "a number of its own for each node of a tree")
    ways = np.zeros((len(trees), 2), np.int64)
    for column, key in enumerate(("falsenodeids", "truenodeids")):
        ways[~leaf, column] = keys.places(trees[~leaf], np.asarray(attrs[f"nodes_{key}"], np.int64)[~leaf])
    if (ways[~leaf] < 0).any():
        raise ctx.unsupported("a node's branch leads to no node of its tree", "export the model again")
    reached = np.bincount(ways[~leaf].ravel(), minlength=len(trees))
    roots = np.flatnonzero(reached == 0)
    if len(roots) != len(set(trees.tolist())) or not _whole(ways, leaf, roots, reached):
        raise ctx.unsupported("its nodes are no trees", "one root a tree, and no way back")
    leaves, targets, weights = _leaves(ctx, attrs, part, keys)
    comparisons = np.where(leaf, "", modes)
    return Forest(
        comparisons=comparisons,
        features=np.where(leaf, -1, np.asarray(attrs["nodes_featureids"], np.int64)),
        thresholds=np.asarray(_numbers(attrs, "nodes_values"), np.float64),
        ways=ways,
        tracks=tracks_of(attrs, comparisons),
        leaves=leaves,
        targets=targets,
        weights=weights,
        roots=roots,
    )


class _Keys:
    """Where the node of a number is, of a tree; numbers are below 2^31."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self.order = np.lexsort((nodes, trees))
        self.keys = self._of(trees, nodes)[self.order]

    @staticmethod
    def _of(trees: Array, nodes: Array) -> Array:
        return (trees << 32) + nodes

    @property
    def has_twins(self) -> bool:
        return bool((self.keys[1:] == self.keys[:-1]).any())

    def places(self, trees: Array, nodes: Array) -> Array:
        """The place of each node, or -1."""
        keys = self._of(trees, nodes)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.order[at], -1)


def _whole(ways: Array, leaf: Array, roots: Array, reached: Array) -> bool:
    """Whether the ways from the roots lead to all nodes, and none leads back.

    Several ways may lead to a node: a set of categories is a chain of nodes that ask for one each, and of which all
    have the same next node where the answer is yes (LightGBM).

    Args:
        reached: how many ways lead to each node.
    """
    count, level, waits = 0, roots, reached.copy()
    while level.size:  # the nodes that all ways to them have been followed to: never one of a circle
        count += level.size
        after = ways[level[~leaf[level]]].ravel()
        np.subtract.at(waits, after, 1)
        level = np.unique(after[waits[after] == 0])
    return count == len(leaf)


def _check_tables(ctx: Context, attrs: dict[str, Any], part: str) -> None:
    """Refuse tables of different lengths, and numbers of features and targets that are none: they are addresses."""
    for owner, columns in (("nodes", NODES), (part, LEAVES)):
        lengths = {f"{owner}_{key}": len(_numbers(attrs, f"{owner}_{key}")) for key in columns}
        tracks = attrs.get("nodes_missing_value_tracks_true") if owner == "nodes" else None
        lengths |= {"nodes_missing_value_tracks_true": len(tracks)} if tracks else {}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} {length}" for key, length in lengths.items())
            raise ctx.unsupported(f"its tables are not equally long: {told}", "export the model again")
    inner = np.array([mode not in (LEAF, LEAF.encode()) for mode in attrs["nodes_modes"]], bool)
    used = {"nodes_featureids": np.asarray(attrs["nodes_featureids"])[inner], f"{part}_ids": attrs[f"{part}_ids"]}
    for key, values in used.items():
        if wrong := [int(v) for v in values if not 0 <= v < 1 << 31]:
            raise ctx.unsupported(f"{wrong[0]}, of {key}, is no number of one", "export the model again")


def _numbers(attrs: dict[str, Any], key: str) -> Any:
    tensor = attrs.get(f"{key}_as_tensor")
    return attrs.get(key, ()) if tensor is None else np.ravel(tensor)


def _leaves(ctx: Context, attrs: dict[str, Any], part: str, keys: _Keys) -> tuple[Array, Array, Array]:
    """What each leaf adds: its first entry and the one behind its last [nodes, 2]; targets and weights of entries."""
    owners = keys.places(*(np.asarray(attrs[f"{part}_{key}"], np.int64) for key in ("treeids", "nodeids")))
    if (owners < 0).any():
        raise ctx.unsupported("a leaf's entry names no node of its tree", "export the model again")
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(len(keys.order) + 1))
    targets = np.asarray(attrs[f"{part}_ids"], np.int64)[order]
    weights = np.asarray(_numbers(attrs, f"{part}_weights"), np.float32)[order]
    return np.stack([ends[:-1], ends[1:]], 1), targets, weights


def _first_entries(leaves: Array) -> Array:
    """Of each leaf the first entry alone, as onnxruntime reads leaves for one target: scikit-learn's converter writes
    the number of a leaf once for each class."""
    return np.stack([leaves[:, 0], np.minimum(leaves[:, 0] + 1, leaves[:, 1])], 1)


def classifier(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TreeEnsembleClassifier: the label of the largest sum, and the scores; of two classes one may be summed alone.

    Then the label is the second one where the sum is larger than 0, or than a half if no leaf subtracts, as in
    onnxruntime; and of transforms there is LOGISTIC only.
    """
    b = Build(bb, ctx.name)
    labels, found = class_labels(ctx, attrs, "classlabels_int64s"), forest(ctx, attrs, "class")
    transform, base = attrs.get("post_transform", "NONE"), np.asarray(_numbers(attrs, "base_values"), np.float32)
    if found.targets.max(initial=0) >= len(labels):
        raise ctx.unsupported(f"a leaf adds to class {found.targets.max()} of {len(labels)}", "a label a class")
    alone = len(labels) == 2 and bool((found.targets == found.targets[:1]).all())
    positive = bool((found.weights >= 0).all())
    first = alone and not found.targets.any()
    sums = leaf_sums(b, ctx, inputs[0], found, 1 if first else len(labels))
    if base.size:
        sums = b.add(sums, const(base[-1:] if first else base, "float32"))
    label = label_of(b, sums, labels) if not alone else _of_two(b, sums, labels, 0.5 if positive else 0.0)
    if first:
        sums = both_classes(b, sums, of_share=transform != "LOGISTIC" and positive)
        transform = transform if transform == "LOGISTIC" or transform not in TRANSFORMS else "NONE"
    return label, transformed(b, ctx, sums, transform)


def _of_two(b: Build, sums: Any, labels: list[int], edge: float) -> Any:
    """The second label where the last column is above an edge, else the first one [n], int64."""
    columns = shape_of(sums)[1]
    score = b.reshape(b.slice(sums, 1, columns - 1, columns), (shape_of(sums)[0],))
    return b.where(b.greater(score, edge), const(np.int64(labels[1]), "int64"), const(np.int64(labels[0]), "int64"))


def regressor(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TreeEnsembleRegressor: sums or means of the trees' leaves."""
    b, found = Build(bb, ctx.name), forest(ctx, attrs, "target")
    way, targets = attrs.get("aggregate_function", "SUM"), int(attrs.get("n_targets", 1))
    if targets == 1:
        found = replace(found, leaves=_first_entries(found.leaves))
    sums = leaf_sums(b, ctx, inputs[0], found, targets, way)
    base = np.asarray(_numbers(attrs, "base_values"), np.float32)
    return transformed(
        b, ctx, b.add(sums, const(base, "float32")) if base.size else sums, attrs.get("post_transform", "NONE")
    )


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "TreeEnsembleClassifier"): classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): regressor,
}
