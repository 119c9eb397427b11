"""Ensembles of trees of ai.onnx.ml, all rows and trees at once; ONNX's own reference takes one node at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmopt.analysis.oracle.elementwise import sigmoid
from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unfit, Unsupported, Value

HOLDS: tuple[Callable[[Array, Array], Any], ...] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
)  # fmt: skip
NAMES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF")
LEAF = MEMBER = len(HOLDS)
"""The code behind the comparisons: a leaf of the older operators, and a node of TreeEnsemble that has a set."""
WAYS = ("AVERAGE", "SUM", "MIN", "MAX")
AT_ONCE = 1 << 20
"""How many walks, of a row through a tree, are evaluated at once."""


@dataclass
class _Nodes:
    """Nodes, a place each. Attributes: a code of a comparison, or LEAF; what NaN does; the next ones, if it holds not
    and if it does; entries in the order of their nodes, and of each node the first and the one behind the last."""

    codes: Array
    features: Array
    splits: Array
    tracks: Array
    next: Array
    sets: dict[int, Array]
    entries: Any = None

    def leaves(self, x: Array, roots: Array) -> Array:
        """Where the walks of each row end [rows, trees]."""
        at = np.broadcast_to(roots, (len(x), len(roots))).copy()
        kinds = np.unique(self.codes[self.next[:, 0] >= 0])
        for _ in range(len(self.codes) + 1):
            following = self.next[at]
            if (following[..., 0] < 0).all():
                return at
            values = np.take_along_axis(x, np.maximum(self.features[at], 0), 1)
            splits, holds = self.splits[at], np.zeros(at.shape, bool)
            for code in kinds[kinds < LEAF]:
                found = HOLDS[code](values, splits)
                holds |= found if len(kinds) == 1 else found & (self.codes[at] == code)
            for node, members in self.sets.items():
                here = at == node
                holds[here] = np.isin(values[here], members)
            holds |= np.isnan(values) & self.tracks[at]
            after = np.where(holds, following[..., 1], following[..., 0])
            at = np.where(after < 0, at, after)
        raise Unfit("its nodes lead in a circle")


def _combined(
    call: Call,
    nodes: _Nodes,
    x: Array,
    roots: Array,
    owners: Array,
    targets: Array,
    weights: Array,
    count: int,
    way: str,
) -> Array:
    """What the leaves make of each row [rows, count]; `owners`: the node of each entry, of a target and a weight."""
    if way not in WAYS:
        raise Unsupported(way)
    x = np.atleast_2d(x)
    if nodes.entries is None:
        order = np.argsort(owners, kind="stable")
        places = np.arange(len(nodes.codes))
        nodes.entries = order, *(np.searchsorted(owners[order], places, side) for side in ("left", "right"))
    order, first, last = nodes.entries
    start = {"MIN": np.inf, "MAX": -np.inf}.get(way, 0.0)
    sums = np.full((len(x), count), start, call.work if x.dtype.kind == "f" else np.float64)
    had, step = np.zeros(sums.shape, bool), max(1, AT_ONCE // max(1, len(roots)))
    for begin in range(0, len(x), step):
        at = nodes.leaves(x[begin : begin + step], roots)
        rows = np.broadcast_to(np.arange(begin, begin + len(at))[:, None], at.shape)
        for more in range(int((last - first)[at].max(initial=0))):
            here = first[at] + more < last[at]
            entry = order[(first[at] + more)[here]]
            place = rows[here], targets[entry]
            combine: Any = {"MIN": np.minimum, "MAX": np.maximum}.get(way, np.add)
            combine.at(sums, place, weights[entry])
            had[place] = True
    return np.where(had, sums, 0) / (len(roots) if way == "AVERAGE" else 1)


def _numbers(call: Call, name: str, kind: Any = np.float64) -> Array:
    found = call.get(f"{name}_as_tensor", call.get(name, ()))
    return np.ravel(np.asarray(found.array if isinstance(found, Value) else found)).astype(kind)


class _Parsed:
    """What was last read of nodes: an ensemble has millions, and a model is evaluated often."""

    KEPT = 4

    def __init__(self) -> None:
        self.found: dict[int, tuple[Any, Any]] = {}

    def __call__(self, call: Call, read: Callable[[], Any]) -> Any:
        key = id(call.attributes)
        if key not in self.found:
            while len(self.found) >= self.KEPT:
                del self.found[next(iter(self.found))]
            self.found[key] = call.attributes, read()  # the first keeps its number from being another's
        return self.found[key][1]


_parsed = _Parsed()


def _older(call: Call, part: str, x: Array, count: int, way: str) -> Array:
    """The sums of an operator that has its leaves among its nodes."""
    nodes, roots, owners, targets, weights = _parsed(call, lambda: _older_nodes(call, part))
    sums = _combined(call, nodes, x, roots, owners, targets, weights, count, way)
    base = _numbers(call, "base_values")
    return sums + base if base.size in (1, count) else sums


def _older_nodes(call: Call, part: str) -> tuple[_Nodes, Array, Array, Array, Array]:
    """Nodes and roots; of each entry the node, the target and the weight."""
    modes = np.asarray([m.decode() if isinstance(m, bytes) else str(m) for m in call.get("nodes_modes", ())])
    names, which = np.unique(modes, return_inverse=True)
    codes = np.array([NAMES.index(str(name)) for name in names])[which]
    keys = _key(call, "nodes_treeids", "nodes_nodeids")
    order = np.argsort(keys)

    def place(wanted: Array) -> Array:
        at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
        return np.asarray(order[at])

    following = np.stack([place(_key(call, "nodes_treeids", f"nodes_{way}nodeids")) for way in ("false", "true")], 1)
    following[codes == LEAF] = -1
    roots = np.setdiff1d(np.arange(len(codes)), following)
    features, splits = _numbers(call, "nodes_featureids", np.int64), _numbers(call, "nodes_values")
    nodes = _Nodes(codes, features, splits, _tracks(call, codes), following, {})
    owners = place(_key(call, f"{part}_treeids", f"{part}_nodeids"))
    targets, weights = _numbers(call, f"{part}_ids", np.int64), _numbers(call, f"{part}_weights")
    if part == "target" and call.get("n_targets", 1) == 1:  # of a leaf the first entry counts, as in onnxruntime
        owners, first = np.unique(owners, return_index=True)
        targets, weights = targets[first], weights[first]
    return nodes, roots, owners, targets, weights


def _key(call: Call, tree: str, node: str) -> Array:
    """One number for a tree and its node."""
    return (_numbers(call, tree, np.int64) << 32) + _numbers(call, node, np.int64)


def _tracks(call: Call, codes: Array) -> Array:
    told = _numbers(call, "nodes_missing_value_tracks_true", np.int64)
    return told != 0 if told.size else np.zeros(len(codes), bool)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _softmax_zero(scores: Array) -> Array:
    """Numbers next to 0 stay as they are."""
    largest = scores.max(1, keepdims=True)
    powers = np.where(np.abs(scores) <= 1e-7, scores * np.exp(-largest), np.exp(scores - largest))
    total = powers.sum(1, keepdims=True)
    return np.where(total == 0, 0.5, powers / np.where(total == 0, 1, total))


TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda scores: scores, "SOFTMAX": _softmax, "LOGISTIC": sigmoid, "SOFTMAX_ZERO": _softmax_zero,
}  # fmt: skip


def _transformed(call: Call, scores: Array, name: Any) -> Array:
    if name not in TRANSFORMS:
        raise Unsupported(f"post_transform {name}")
    return TRANSFORMS[name](scores)


def _regressor(call: Call, x: Array) -> Result:
    sums = _older(call, "target", x, int(call.get("n_targets", 1)), call.get("aggregate_function", "SUM"))
    return [Value(_transformed(call, sums, call.get("post_transform", "NONE")), np.dtype(np.float32))]


def _classifier(call: Call, x: Array) -> Result:
    """Of two classes of which one is summed, the label is the second one where the sum is above 0, or above a half
    where no leaf subtracts; the other class has 1 less the sum there, else its negative. onnxruntime has it so."""
    labels = np.asarray(call.get("classlabels_int64s", ()), np.int64)
    if not labels.size:
        raise Unsupported("labels that are strings")
    transform = call.get("post_transform", "NONE")
    ids, positive = set(call.get("class_ids", ())), bool((_numbers(call, "class_weights") >= 0).all())
    alone = len(labels) == 2 and len(ids) <= 1
    if alone and not any(ids):
        base = _numbers(call, "base_values")
        sums = _older(call, "class", x, 1, "SUM") + (base[-1] if base.size > 1 else 0)
        scores = np.concatenate([1 - sums if positive and transform != "LOGISTIC" else -sums, sums], 1)
        transform = "NONE" if transform in ("SOFTMAX", "SOFTMAX_ZERO") else transform
    else:
        scores = sums = _older(call, "class", x, len(labels), "SUM")
    place = (sums[:, -1] > (0.5 if positive else 0)).astype(np.int64) if alone else np.argmax(scores, 1)
    return [
        Value(labels[place], np.dtype(np.int64)),
        Value(_transformed(call, scores, transform), np.dtype(np.float32)),
    ]


def _ensemble(call: Call, x: Array) -> Result:
    nodes, owners, targets, weights = _parsed(call, lambda: _ensemble_nodes(call))
    roots, way = _numbers(call, "tree_roots", np.int64), WAYS[int(call.get("aggregate_function", 1))]
    sums = _combined(call, nodes, x, roots, owners, targets, weights, int(call.get("n_targets", 1)), way)
    names: Sequence[str] = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    return _transformed(call, sums, names[int(call.get("post_transform", 0))])


def _ensemble_nodes(call: Call) -> tuple[_Nodes, Array, Array, Array]:
    """Inner nodes, then leaves; of each leaf its place, the target and the weight."""
    codes, weights = _numbers(call, "nodes_modes", np.int64), _numbers(call, "leaf_weights")
    following = np.full((len(codes) + len(weights), 2), -1)
    for column, way in enumerate(("false", "true")):
        leafs = _numbers(call, f"nodes_{way}leafs", np.int64)
        following[: len(codes), column] = _numbers(call, f"nodes_{way}nodeids", np.int64) + len(codes) * (leafs != 0)
    members = _numbers(call, "membership_values")
    parts = np.split(members, np.flatnonzero(np.isnan(members)) + 1)
    sets = {int(node): part[:-1] for node, part in zip(np.flatnonzero(codes == MEMBER), parts, strict=False)}
    rest = np.zeros(len(weights), np.int64)
    nodes = _Nodes(
        np.append(codes, rest + LEAF), np.append(_numbers(call, "nodes_featureids", np.int64), rest),
        np.append(_numbers(call, "nodes_splits"), rest), np.append(_tracks(call, codes), rest != 0), following, sets,
    )  # fmt: skip
    return nodes, len(codes) + np.arange(len(weights)), _numbers(call, "leaf_targetids", np.int64), weights


TABLE: dict[str, Operator] = {
    "TreeEnsemble": _ensemble, "TreeEnsembleClassifier": _classifier, "TreeEnsembleRegressor": _regressor,
}  # fmt: skip
