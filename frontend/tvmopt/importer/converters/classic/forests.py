"""Ensembles of trees as arrays, and their sums: what the operators of ai.onnx.ml for trees have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context
from tvmopt.operators.tree_sums import WALKS, tree_sums

Array = np.ndarray[Any, Any]
COMPARISONS = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEQ, LT, GTE, GT, EQ, NEQ = COMPARISONS
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class Forest:
    """All trees of an ensemble, a row a node; from no node a way leads back to it.

    Attributes:
        comparisons: how a node compares its feature with its threshold; "" of a leaf.
        features, thresholds: what it compares.
        ways: [nodes, 2], the node to go on with where the comparison is false, and where it is true.
        tracks: NaN takes the way of the comparison that is true.
        leaves: [nodes, 2], the first entry of a leaf, and the one behind its last.
        targets, weights: an entry adds a weight to a target.
        roots: the first node of each tree.
    """

    comparisons: Array
    features: Array
    thresholds: Array
    ways: Array
    tracks: Array
    leaves: Array
    targets: Array
    weights: Array
    roots: Array


def tracks_of(attrs: dict[str, Any], comparisons: Array) -> Array:
    """Which nodes NaN takes the way of a true comparison from; it is no number, and so another one than any."""
    tracks = np.zeros(len(comparisons), bool)
    told = np.asarray(attrs.get("nodes_missing_value_tracks_true") or (), np.int64)
    tracks[: len(told)] = told != 0
    return np.asarray(tracks | (comparisons == NEQ))


def leaf_sums(
    b: Build, ctx: Context, x: Any, forest: Forest, targets: int, way: str = "SUM", of_input: bool = False
) -> Any:
    """What the leaves add up to [n, targets]; inputs of float64 are compared as such: rounded, they may pass a
    threshold.

    Args:
        way: one of AGGREGATES. of_input: sums have the input's type, and are float32 else.
    """
    kind = "float64" if dtype_of(x) == "float64" else "float32"
    made = kind if of_input else "float32"
    x = b.cast(x, kind)
    if len(shape_of(x)) == 1:
        x = b.reshape(x, (1, *shape_of(x)))
    features = shape_of(x)[1]
    if forest.features.max(initial=-1) >= features:
        raise ctx.unsupported(f"it reads feature {forest.features.max()} of {features}", "check --shape")
    if forest.targets.max(initial=0) >= targets:
        raise ctx.unsupported(f"a leaf adds to target {forest.targets.max()} of {targets}", "export the model again")
    if way not in AGGREGATES:
        raise ctx.unsupported(f"it takes the {way} of its trees", f"one of {', '.join(AGGREGATES)}")
    thresholds, links, leaves = _by_one_comparison(forest, kind, int(features))
    counts = forest.leaves[leaves, 1] - forest.leaves[leaves, 0]
    ends = np.append(0, np.cumsum(counts))
    entries = np.arange(ends[-1]) + np.repeat(forest.leaves[leaves, 0] - ends[:-1], counts)
    inner, trees = len(links) - len(leaves), len(forest.roots)
    place = _places(forest, inner)
    roots = np.full(-(-max(trees, 1) // WALKS) * WALKS, inner)
    roots[:trees] = place[forest.roots]
    nodes = np.concatenate([links.astype(np.int32), thresholds[:, None].view(np.int32)], 1)
    tables = [(nodes, "int32"), (roots, "int32"), (ends, "int32"),
              (forest.targets[entries], "int32"), (forest.weights[entries], made)]  # fmt: skip
    told = {
        "count": targets, "inner": inner, "trees": trees, "kind": made, "sums": "SUM" if way == "AVERAGE" else way,
        "negatives": bool((links[:, 0] >= features).any()), "one_entry": bool((counts == 1).all()),
    }  # fmt: skip
    sums = b.emit(tree_sums(x, [const(array, dtype) for array, dtype in tables], told))
    return b.mul(sums, 1.0 / trees) if way == "AVERAGE" else sums


def _places(forest: Forest, inner: int) -> Array:
    """The new number of each node: first those that compare, and, from `inner` on, the leaves."""
    leaf = forest.comparisons == ""
    place = np.empty(len(leaf), np.int64)
    place[~leaf] = np.arange(len(leaf) - leaf.sum())
    place[leaf] = inner + np.arange(leaf.sum())
    return place


def _by_one_comparison(forest: Forest, kind: str, features: int) -> tuple[Array, Array, Array]:
    """Thresholds and links as :mod:`tvmopt.operators.tree_sums` has them, and the leaves, by the forest's numbers.

    There, a node asks whether `v <= t`, and NaN goes where the answer is no. So `x < t` is `x <= t'` for the number t'
    below t; `x > t` and `x >= t` are the opposites of the two, with exchanged ways. Where NaN goes the other way, the
    node asks for the opposite of the negative: `x <= t` unless `-x <= (-t)'`, and `x < t` unless `-x <= -t`. And
    `x == t` are two nodes.
    """
    inner, how = np.flatnonzero(forest.comparisons != ""), forest.comparisons[forest.comparisons != ""]
    thresholds = forest.thresholds[inner].astype(kind)
    never = np.isnan(thresholds)  # the comparison does not hold, whatever the feature is
    pairs = np.flatnonzero(np.isin(how, (EQ, NEQ)) & ~never)
    first_leaf = len(inner) + len(pairs)
    ways = _places(forest, first_leaf)[forest.ways[inner]]
    nan = np.where(forest.tracks[inner], ways[:, 1], ways[:, 0])
    turned = np.isin(how, (GT, GTE, NEQ))
    no, yes = np.where(turned, ways[:, 1], ways[:, 0]), np.where(turned, ways[:, 0], ways[:, 1])
    strict = np.isin(how, (LT, GTE)) & ~never
    no, yes = np.where(never, nan, no), np.where(never, np.where(how == NEQ, ways[:, 1], ways[:, 0]), yes)
    thresholds[never] = np.inf

    second = len(inner) + np.arange(len(pairs))
    other, same, of_nan = no[pairs], yes[pairs], nan[pairs]
    stays = of_nan == other  # `x <= t` and then `x < t`; else NaN passes `x < t`, and then `x <= t`
    no[pairs], yes[pairs] = np.where(stays, other, second), np.where(stays, second, other)
    nan[pairs], strict[pairs] = no[pairs], ~stays
    no = np.append(no, np.where(stays, same, other))
    yes = np.append(yes, np.where(stays, other, same))
    nan = np.append(nan, same)
    strict = np.append(strict, stays)
    thresholds = np.append(thresholds, thresholds[pairs])
    of_feature = np.append(forest.features[inner], forest.features[inner][pairs])

    turned = nan != no
    signed = np.where(turned, -thresholds, thresholds)
    ends = np.where(turned ^ strict, _below(signed), signed)
    leaves = np.flatnonzero(forest.comparisons == "")
    itself = first_leaf + np.arange(len(leaves))
    links = np.concatenate([
        np.stack([of_feature + features * turned, np.where(turned, yes, no), np.where(turned, no, yes)], 1),
        np.stack([np.zeros(len(leaves), np.int64), itself, itself], 1),
    ])  # fmt: skip
    return np.append(ends, np.zeros(len(leaves), kind)), links, leaves


def _below(numbers: Array) -> Array:
    """The next smaller number of each; NaN, which none is smaller or equal to, of the smallest."""
    with np.errstate(over="ignore"):
        below = np.nextafter(numbers, numbers.dtype.type(-np.inf))
    below[np.isneginf(numbers)] = np.nan
    return np.asarray(below)
