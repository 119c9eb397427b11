"""Ensembles of trees of ai.onnx.ml: forests and boosted trees, of operators with `nodes_...` attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.classic.scores import both_classes, class_labels, label_of, transformed
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.operators.tree_sums import COMPARISONS, tree_sums

Array = np.ndarray[Any, Any]
LEAF = "LEAF"
NODES = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
LEAVES = ("treeids", "nodeids", "ids", "weights")
"""Attributes with an entry for each node, and for each number that a leaf adds."""


@dataclass(frozen=True)
class Forest:
    """All trees of an ensemble as arrays, a row a node; see :mod:`tvmopt.operators.tree_sums`."""

    features: Array
    thresholds: Array
    ways: Array
    leaves: Array
    roots: Array
    targets: Array
    weights: Array
    comparison: str


def forest(ctx: Context, attrs: dict[str, Any], part: str) -> Forest:
    """The trees of a node; `part`: "class" or "target", the prefix of what leaves add."""
    _check_tables(ctx, attrs, part)
    trees, nodes = (np.asarray(attrs[f"nodes_{key}"], np.int64) for key in ("treeids", "nodeids"))
    modes = np.array([m.decode() if isinstance(m, bytes) else str(m) for m in attrs["nodes_modes"]])
    leaf = modes == LEAF
    used = set(modes[~leaf])
    if len(used) > 1 or not used <= set(COMPARISONS):
        raise ctx.unsupported(f"its nodes compare by {sorted(used)}", f"one of {', '.join(COMPARISONS)} for all nodes")
    place = {key: index for index, key in enumerate(zip(trees.tolist(), nodes.tolist(), strict=True))}
    if len(place) != len(trees):
        raise ctx.unsupported("a node is there twice", "a number of its own for each node of a tree")
    ways = np.zeros((len(trees), 2), np.int32)
    for column, key in enumerate(("falsenodeids", "truenodeids")):
        for index in np.flatnonzero(~leaf):
            ways[index, column] = place.get((int(trees[index]), int(attrs[f"nodes_{key}"][index])), -1)
    if (ways[~leaf] < 0).any():
        raise ctx.unsupported("a node's branch leads to no node of its tree", "export the model again")
    reached = np.bincount(ways[~leaf].ravel(), minlength=len(trees))
    roots = np.flatnonzero(reached == 0)
    if (reached > 1).any() or len(roots) != len(set(trees.tolist())) or not _whole(ways, leaf, roots):
        raise ctx.unsupported("its nodes are no trees", "one root a tree, and one way to each node")
    tracks = np.asarray(attrs.get("nodes_missing_value_tracks_true") or np.zeros(len(trees)), np.int32)
    features = np.where(leaf, -1, np.asarray(attrs["nodes_featureids"], np.int32)).astype(np.int32)
    leaves, targets, weights = _leaves(attrs, part, place, len(trees))
    tracks = tracks | (used == {"BRANCH_NEQ"})  # NaN is no number, and so another one
    ways = np.concatenate([ways, np.where(tracks, ways[:, 1], ways[:, 0])[:, None]], 1).astype(np.int32)
    thresholds = np.asarray(_numbers(attrs, "nodes_values"), np.float64)
    comparison = used.pop() if used else COMPARISONS[0]
    return Forest(features, thresholds, ways, leaves, roots.astype(np.int32), targets, weights, comparison)


def _whole(ways: Array, leaf: Array, roots: Array) -> bool:
    """Whether the ways from the roots lead to all nodes: those of a circle have a way to each, but from no root."""
    count, level = 0, roots
    while level.size:  # each node has one way to it, so that no level has one twice
        count += level.size
        level = ways[level[~leaf[level]]].ravel()
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
    inner = [mode not in (LEAF, LEAF.encode()) for mode in attrs["nodes_modes"]]
    used = {"nodes_featureids": np.asarray(attrs["nodes_featureids"])[inner], f"{part}_ids": attrs[f"{part}_ids"]}
    for key, values in used.items():
        if wrong := [int(v) for v in values if not 0 <= v < 1 << 31]:
            raise ctx.unsupported(f"{wrong[0]}, of {key}, is no number of one", "export the model again")


def _numbers(attrs: dict[str, Any], key: str) -> Any:
    tensor = attrs.get(f"{key}_as_tensor")
    return attrs.get(key, ()) if tensor is None else np.ravel(tensor)


def _leaves(
    attrs: dict[str, Any], part: str, place: dict[tuple[int, int], int], count: int
) -> tuple[Array, Array, Array]:
    """What each leaf adds: its first entry and the one behind its last [nodes, 2]; targets and weights of entries."""
    keys = zip(attrs[f"{part}_treeids"], attrs[f"{part}_nodeids"], strict=True)
    owners = np.array([place[int(tree), int(node)] for tree, node in keys], np.int64)
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(count + 1)).astype(np.int32)
    targets = np.asarray(attrs[f"{part}_ids"], np.int32)[order]
    weights = np.asarray(_numbers(attrs, f"{part}_weights"), np.float32)[order]
    return np.stack([ends[:-1], ends[1:]], 1), targets, weights


def _sums(b: Build, ctx: Context, x: Any, found: Forest, targets: int) -> Any:
    """What the leaves add up to [n, targets]; inputs of float64 are compared as such: rounded, they may pass a
    threshold."""
    kind = "float64" if dtype_of(x) == "float64" else "float32"
    x = b.cast(x, kind)
    if len(shape_of(x)) == 1:
        x = b.reshape(x, (1, *shape_of(x)))
    features = shape_of(x)[1]
    if found.features.max(initial=-1) >= features:
        raise ctx.unsupported(f"it reads feature {found.features.max()} of {features}", "check --shape")
    thresholds = found.thresholds.astype(kind)
    tables = [(found.features, "int32"), (thresholds, kind), (found.ways, "int32"), (found.leaves, "int32"),
              (found.roots, "int32"), (found.targets, "int32"), (found.weights, "float32")]  # fmt: skip
    return b.emit(tree_sums(x, [const(array, dtype) for array, dtype in tables], targets, found.comparison))


def classifier(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TreeEnsembleClassifier: the label of the largest sum, and the scores; of two classes one may be summed alone."""
    b = Build(bb, ctx.name)
    labels, found = class_labels(ctx, attrs, "classlabels_int64s"), forest(ctx, attrs, "class")
    transform, base = attrs.get("post_transform", "NONE"), np.asarray(_numbers(attrs, "base_values"), np.float32)
    if len(labels) == 2 and not found.targets.any():
        sums = _sums(b, ctx, inputs[0], found, 1)
        sums = b.add(sums, const(base[-1:], "float32")) if base.size else sums
        sums = both_classes(b, sums, of_share=transform == "NONE")
    else:
        if found.targets.max(initial=0) >= len(labels):
            raise ctx.unsupported(f"a leaf adds to class {found.targets.max()} of {len(labels)}", "a label a class")
        sums = _sums(b, ctx, inputs[0], found, len(labels))
        sums = b.add(sums, const(base, "float32")) if base.size else sums
    return label_of(b, sums, labels), transformed(b, ctx, sums, transform)


def regressor(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TreeEnsembleRegressor: sums or means of the trees' leaves."""
    b, found = Build(bb, ctx.name), forest(ctx, attrs, "target")
    way, targets = attrs.get("aggregate_function", "SUM"), int(attrs.get("n_targets", 1))
    if way not in ("SUM", "AVERAGE"):
        raise ctx.unsupported(f"it takes the {way} of its trees", "SUM or AVERAGE")
    if found.targets.max(initial=0) >= targets:
        raise ctx.unsupported(f"a leaf adds to target {found.targets.max()} of {targets}", "export the model again")
    sums = _sums(b, ctx, inputs[0], found, targets)
    sums = b.mul(sums, 1.0 / len(found.roots)) if way == "AVERAGE" else sums
    base = np.asarray(_numbers(attrs, "base_values"), np.float32)
    return transformed(
        b, ctx, b.add(sums, const(base, "float32")) if base.size else sums, attrs.get("post_transform", "NONE")
    )


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "TreeEnsembleClassifier"): classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): regressor,
}
