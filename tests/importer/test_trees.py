"""Ensembles of trees beside onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvmopt
from tests.importer.classic_check import ML, RNG, TREES, Array, agree, one, rows, the_same_numbers, trees
from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.errors import TvmoptError, UnsupportedOp
from tvmopt.importer import import_model
from tvmopt.importer.converters.classic.forests import AGGREGATES, COMPARISONS

__all__ = ["the_same_numbers"]


@pytest.mark.parametrize("mode", COMPARISONS)
@pytest.mark.parametrize("count", [1, 7, 33])
def test_regression_trees(mode: str, count: int) -> None:
    x = rows(count, 6)
    x[RNG.uniform(size=x.shape) < 0.1] = np.nan
    attrs = trees("target", 9, 6, 3, mode) | {"n_targets": 3}
    agree(one("TreeEnsembleRegressor", x, {"y": 1}, aggregate_function="AVERAGE", **attrs), x)
    attrs = trees("target", 9, 6, 3, mode, every=True) | {"n_targets": 3}
    agree(one("TreeEnsembleRegressor", x, {"y": 1}, base_values=[0.5, -1.0, 2.0], **attrs), x)


@pytest.mark.parametrize("way", ["MIN", "MAX", "AVERAGE"])
def test_nodes_compare_in_several_ways(way: str) -> None:
    x = rows(33, 6)
    x[RNG.uniform(size=x.shape) < 0.1] = np.nan
    attrs = trees("target", 9, 6, 3) | {"n_targets": 3, "aggregate_function": way}
    attrs["nodes_modes"] = [str(RNG.choice(COMPARISONS)) if m != "LEAF" else m for m in attrs["nodes_modes"]]
    agree(one("TreeEnsembleRegressor", x, {"y": 1}, **attrs), x)


def test_a_target_that_no_leaf_adds_to_is_its_base() -> None:
    """As ONNX says; onnxruntime gives 0."""
    x = rows(7, 6)
    attrs = trees("target", 9, 6, 1) | {"n_targets": 2, "base_values": [0.5, -1.0]}
    (found,) = run_relax(import_model(one("TreeEnsembleRegressor", x, {"y": 1}, **attrs)), {"x": x})
    assert (found[:, 1] == -1.0).all() and (found[:, 0] > 0.5).all()


@pytest.mark.parametrize("way", ["SUM", "AVERAGE", "MIN"])
def test_one_target_takes_one_entry_of_a_leaf(way: str) -> None:
    """As in onnxruntime: scikit-learn's converter writes the number of a leaf once for each of three classes."""
    x = rows(31, 4)
    attrs = trees("target", 5, 4, 1) | {"n_targets": 1, "aggregate_function": way}
    for key in ("treeids", "nodeids", "ids"):
        attrs[f"target_{key}"] = np.repeat(attrs[f"target_{key}"], 3).tolist()
    attrs["target_weights"] = RNG.uniform(0, 1, len(attrs["target_ids"])).tolist()
    made = one("TreeEnsembleRegressor", x, {"y": 1}, **attrs)
    (found,) = agree(made, x)
    np.testing.assert_allclose(Oracle(made).run({"x": x})["y"], found, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("tracks", [0, 1])
def test_a_set_is_a_chain_of_nodes_with_one_way_on(tracks: int) -> None:
    """As LightGBM's converter writes a split by categories: each node of the chain asks for one of them, and all lead
    to the same node where the answer is yes."""
    members, inner = [0, 3, 4, 7], 4
    tree = {
        "featureids": [0] * inner + [1] + [0] * 3, "values": [*map(float, members), 0.5, 0.0, 0.0, 0.0],
        "modes": ["BRANCH_EQ"] * inner + ["BRANCH_LEQ"] + ["LEAF"] * 3,
        "truenodeids": [inner] * inner + [5, 0, 0, 0], "falsenodeids": [1, 2, 3, 7, 6, 0, 0, 0],
    }  # fmt: skip
    attrs: dict[str, Any] = {f"nodes_{key}": values * 9 for key, values in tree.items()}
    attrs |= {"nodes_treeids": np.repeat(np.arange(9), 8).tolist(), "nodes_nodeids": [*range(8)] * 9,
              "nodes_missing_value_tracks_true": [tracks] * 72, "n_targets": 1,
              "target_treeids": np.repeat(np.arange(9), 3).tolist(), "target_nodeids": [5, 6, 7] * 9,
              "target_ids": [0] * 27, "target_weights": RNG.uniform(-1, 1, 27).tolist()}  # fmt: skip
    x = np.stack([np.arange(31) % 9, RNG.uniform(size=31)], 1).astype(np.float32)
    x[3, 0] = x[7, 1] = np.nan
    made = one("TreeEnsembleRegressor", x, {"y": 1}, **attrs)
    (found,) = agree(made, x)
    np.testing.assert_allclose(Oracle(made).run({"x": x})["y"], found, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [7, -3, 5]])
def test_classification_trees(transform: str, labels: list[int]) -> None:
    x = rows(31, 4)
    attrs = trees("class", 16, 4, 3) | {"classlabels_int64s": labels, "post_transform": transform}
    label, _ = agree(one("TreeEnsembleClassifier", x, TREES, **attrs), x)
    assert set(label) <= set(labels)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("summed", [0, 1])
@pytest.mark.parametrize("least", [0.0, -0.5])
def test_the_label_where_one_class_of_two_is_summed(transform: str, summed: int, least: float) -> None:
    """As in onnxruntime: above a half where no leaf subtracts, whatever becomes of the scores, and above 0 else."""
    x = rows(63, 4, edges=False)
    attrs = trees("class", 3, 4, 1) | {"classlabels_int64s": [7, -3], "post_transform": transform}
    attrs["class_ids"] = [summed] * len(attrs["class_ids"])
    attrs["class_weights"] = [w / 3 + least for w in attrs["class_weights"]]
    if least:
        attrs["class_weights"] = [3 * w + 1.0 for w in attrs["class_weights"]]
    made = one("TreeEnsembleClassifier", x, TREES, **attrs)
    label, _ = agree(made, x)
    assert set(label) == {7, -3}
    for mine, theirs in zip(Oracle(made).run({"x": x}).values(), run_ort(made, {"x": x}), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_two_classes_of_which_one_is_summed(transform: str) -> None:
    x = rows(15, 4, edges=False)
    attrs = trees("class", 5, 4, 1) | {"classlabels_int64s": [0, 1], "post_transform": transform}
    attrs["class_ids"] = [0] * len(attrs["class_ids"])
    attrs["class_weights"] = [w - 0.5 if transform == "LOGISTIC" else w / 5 for w in attrs["class_weights"]]
    agree(one("TreeEnsembleClassifier", x, TREES, **attrs), x)


def test_gpus_are_refused() -> None:
    """By name, and with what to do."""
    attrs = trees("target", 4, 4, 3) | {"n_targets": 3}
    made = one("TreeEnsembleRegressor", rows(4, 4), {"y": 1}, **attrs)
    with pytest.raises(UnsupportedOp, match="trees are summed up on CPUs only") as error:
        tvmopt.compile(made, target="nvidia-h100", verify=False)
    assert "--target cpu" in error.value.fix


def _with_a_circle(attrs: dict[str, Any]) -> None:
    """The tree 0 is two nodes that lead to each other, with a leaf each, and a third leaf."""
    tree = {
        "treeids": [0] * 5, "nodeids": [0, 1, 2, 3, 4], "featureids": [0] * 5, "values": [0.0] * 5,
        "modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"], "truenodeids": [1, 0, 0, 0, 0],
        "falsenodeids": [2, 3, 0, 0, 0], "missing_value_tracks_true": [0] * 5,
    }  # fmt: skip
    attrs.update({f"nodes_{key}": values for key, values in tree.items()})
    attrs.update(target_treeids=[0], target_nodeids=[4], target_ids=[0], target_weights=[1.0])


def test_numbers_of_float64_are_compared_as_such() -> None:
    """Rounded to float32, a number just beyond a threshold is at it."""
    attrs = trees("target", 3, 4, 1)
    edges = sorted({v for v, mode in zip(attrs["nodes_values"], attrs["nodes_modes"], strict=True) if mode != "LEAF"})
    near = np.float64(np.float32(edges))
    x = np.stack([np.concatenate([near, near + 1e-12, near - 1e-12])] * 4, 1)
    agree(one("TreeEnsembleRegressor", x, {"y": 1}, n_targets=1, **attrs), x)


def test_trees_that_are_none_are_refused() -> None:
    x = rows(2, 4)
    broken: dict[str, Callable[[dict[str, Any]], Any]] = {
        "no node of its tree": lambda a: a["nodes_truenodeids"].__setitem__(0, 999),
        "are no trees": lambda a: a["nodes_truenodeids"].__setitem__(0, a["nodes_falsenodeids"][0]),
        "is there twice": lambda a: a["nodes_nodeids"].__setitem__(1, 0),
        "compare by BRANCH_BEST": lambda a: a["nodes_modes"].__setitem__(0, "BRANCH_BEST"),
        "names no node": lambda a: a["target_nodeids"].__setitem__(0, 999),
        "feature 99 of 4": lambda a: a["nodes_featureids"].__setitem__(0, 99),
        "target 9 of 3": lambda a: a["target_ids"].__setitem__(0, 9),
        "-1, of nodes_featureids,": lambda a: a["nodes_featureids"].__setitem__(0, -1),
        "-1, of target_ids,": lambda a: a["target_ids"].__setitem__(0, -1),
        f"{1 << 32}, of target_ids,": lambda a: a["target_ids"].__setitem__(0, 1 << 32),
        "not equally long": lambda a: a["target_weights"].pop(),
        "not equally long: .*tracks_true 1": lambda a: a.update(nodes_missing_value_tracks_true=[1]),
        "nodes are no trees": _with_a_circle,
    }
    for told, spoil in broken.items():
        attrs = trees("target", 4, 4, 3)
        spoil(attrs)
        with pytest.raises(UnsupportedOp, match=told):
            import_model(one("TreeEnsembleRegressor", x, {"y": 1}, n_targets=3, **attrs))


def tables(count: int, features: int, targets: int, modes: list[str], dtype: Any, depth: int = 5) -> dict[str, Any]:
    """Attributes of a TreeEnsemble of random trees; nodes compare in ways drawn from `modes`."""
    old = trees("target", count, features, targets, depth=depth)
    inner = [place for place, mode in enumerate(old["nodes_modes"]) if mode != "LEAF"]
    keys = list(zip(old["nodes_treeids"], old["nodes_nodeids"], strict=True))
    leaves = list(dict.fromkeys(zip(old["target_treeids"], old["target_nodeids"], strict=True)))
    numbers = {keys[place]: number for number, place in enumerate(inner)}
    numbers |= {key: number for number, key in enumerate(leaves)}
    codes = [int(RNG.choice([[*COMPARISONS, "BRANCH_MEMBER"].index(mode) for mode in modes])) for _ in inner]
    members = [
        np.append(RNG.standard_normal(RNG.integers(4)).round(1), np.nan) for code in codes if code == len(COMPARISONS)
    ]
    made: dict[str, Any] = {
        "nodes_featureids": [old["nodes_featureids"][place] for place in inner],
        "nodes_missing_value_tracks_true": [old["nodes_missing_value_tracks_true"][place] for place in inner],
        "nodes_modes": numpy_helper.from_array(np.array(codes, np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([old["nodes_values"][place] for place in inner], dtype)),
        "leaf_weights": numpy_helper.from_array(RNG.uniform(-1, 1, len(leaves)).astype(dtype)),
        "leaf_targetids": RNG.integers(targets, size=len(leaves)).tolist(),
        "tree_roots": [numbers[tree, 0] for tree in range(count)],
        "n_targets": targets,
    }
    for way in ("true", "false"):
        ends = [(keys[place][0], old[f"nodes_{way}nodeids"][place]) for place in inner]
        made |= {f"nodes_{way}leafs": [int(end in leaves) for end in ends],
                 f"nodes_{way}nodeids": [numbers[end] for end in ends]}  # fmt: skip
    if members:
        made["membership_values"] = numpy_helper.from_array(np.concatenate(members).astype(dtype))
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("modes", [[mode] for mode in COMPARISONS] + [[*COMPARISONS]])
@pytest.mark.parametrize("count", [1, 8, 33])
def test_tables_of_trees(modes: list[str], dtype: Any, count: int) -> None:
    x = rows(33, 6).astype(dtype)
    x[RNG.uniform(size=x.shape) < 0.1] = np.nan
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for way in range(len(AGGREGATES)):
        attrs = tables(count, 6, 3, modes, dtype)
        agree(one("TreeEnsemble", x, {"y": kind}, version=5, aggregate_function=way, **attrs), x)


def expected(attrs: dict[str, Any], x: Array) -> Array:
    """What a TreeEnsemble is, one node after the other, as ONNX tells it."""
    arrays = {k: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.array(v) for k, v in attrs.items()}
    codes, sums = arrays["nodes_modes"], np.zeros((len(x), attrs["n_targets"]), x.dtype)
    sets: dict[int, Array] = {}
    if "membership_values" in arrays:
        ends = np.flatnonzero(np.isnan(arrays["membership_values"]))
        parts = np.split(arrays["membership_values"], ends + 1)
        sets = {int(node): part[:-1] for node, part in zip(np.flatnonzero(codes == 6), parts, strict=False)}
    compare: list[Callable[[Any, Any], bool]] = [
        lambda a, b: a <= b, lambda a, b: a < b, lambda a, b: a >= b, lambda a, b: a > b, lambda a, b: a == b,
        lambda a, b: a != b,
    ]  # fmt: skip
    for row, total in zip(x, sums, strict=True):
        for root in attrs["tree_roots"]:
            node, leaf = root, False
            while not leaf:
                v = row[arrays["nodes_featureids"][node]]
                code, split = codes[node], arrays["nodes_splits"][node]
                holds = v in sets[node] if code == 6 else compare[code](v, split)
                holds = holds or (np.isnan(v) and arrays["nodes_missing_value_tracks_true"][node] == 1)
                way = "true" if holds else "false"
                leaf, node = bool(arrays[f"nodes_{way}leafs"][node]), arrays[f"nodes_{way}nodeids"][node]
            total[arrays["leaf_targetids"][node]] += arrays["leaf_weights"][node]
    return sums


@pytest.mark.parametrize("modes", [["BRANCH_MEMBER"], ["BRANCH_MEMBER", "BRANCH_GT", "BRANCH_EQ"]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_members_of_sets(modes: list[str], dtype: Any) -> None:
    """Sets belong to nodes in the order of the nodes; onnxruntime gives a set to another node where trees are deep."""
    x = rows(33, 6).astype(dtype)
    x[RNG.uniform(size=x.shape) < 0.1] = np.nan
    attrs = tables(9, 6, 2, modes, dtype)
    made = one("TreeEnsemble", x, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}, version=5, **attrs)
    (found,) = run_relax(import_model(made), {"x": x})
    np.testing.assert_allclose(found, expected(attrs, x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("op", ["TreeEnsemble", "TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_the_oracle_says_what_onnxruntime_says(op: str) -> None:
    """All nodes of a level at once, of float64; each way of combining, comparing and making scores of sums."""
    x = rows(31, 6)
    x[RNG.uniform(size=x.shape) < 0.1] = np.nan
    for way, transform in zip(AGGREGATES, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"), strict=True):
        if op == "TreeEnsemble":
            attrs = tables(9, 6, 3, [*COMPARISONS], np.float32) | {"aggregate_function": AGGREGATES.index(way)}
            made = one(op, x, {"y": 1}, version=5, **attrs)
        else:
            labels = {"classlabels_int64s": [7, -3, 5], "post_transform": transform}
            regression = {"n_targets": 3, "aggregate_function": way, "base_values": [0.5, 0.0, -1.0]}
            part = "class" if op == "TreeEnsembleClassifier" else "target"
            attrs = trees(part, 9, 6, 3, every=True) | (labels if part == "class" else regression)
            attrs["nodes_modes"] = [str(RNG.choice(COMPARISONS)) if m != "LEAF" else m for m in attrs["nodes_modes"]]
            made = one(op, x, TREES if part == "class" else {"y": 1}, **attrs)
        exact = Oracle(made)
        found = exact.run({"x": x.astype(np.float64)})
        assert not exact.notes
        for name, theirs in zip(found, run_ort(made, {"x": x}), strict=True):
            np.testing.assert_allclose(found[name], theirs, rtol=2e-6, atol=2e-6)


def test_the_oracle_knows_sets() -> None:
    x = rows(33, 6).astype(np.float64)
    x[RNG.uniform(size=x.shape) < 0.1] = np.nan
    attrs = tables(9, 6, 2, ["BRANCH_MEMBER", "BRANCH_GT"], np.float64)
    made = one("TreeEnsemble", x, {"y": 11}, version=5, **attrs)
    np.testing.assert_allclose(Oracle(made).run({"x": x})["y"], expected(attrs, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_two_classes_of_which_one_is_summed_of_any_sign(transform: str) -> None:
    """Where leaves subtract, too, the other class has the negative of the sum, and no share."""
    x = rows(15, 4, edges=False)
    attrs = trees("class", 5, 4, 1) | {"classlabels_int64s": [0, 1], "post_transform": transform}
    attrs["class_ids"] = [0] * len(attrs["class_ids"])
    attrs["class_weights"] = [w - 0.5 for w in attrs["class_weights"]]
    made = one("TreeEnsembleClassifier", x, TREES, **attrs)
    agree(made, x)
    for mine, theirs in zip(Oracle(made).run({"x": x}).values(), run_ort(made, {"x": x}), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("mode", COMPARISONS)
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_beside_thresholds(mode: str, tracks: int, dtype: Any) -> None:
    """Thresholds and features that are 0, the smallest, infinite or NaN, each with the numbers beside it."""
    small, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    edges = np.array([0, -0.0, small, -small, 1, -1, large, -large, np.inf, -np.inf, np.nan], dtype)
    with np.errstate(over="ignore"):
        x = np.concatenate([edges, np.nextafter(edges, dtype(np.inf)), np.nextafter(edges, dtype(-np.inf))])[:, None]
    count = len(edges)
    attrs: dict[str, Any] = {
        "nodes_featureids": [0] * count, "nodes_missing_value_tracks_true": [tracks] * count,
        "nodes_modes": numpy_helper.from_array(np.full(count, COMPARISONS.index(mode), np.uint8)),
        "nodes_splits": numpy_helper.from_array(edges), "n_targets": count,
        "leaf_weights": numpy_helper.from_array(np.repeat(np.array([1, 0], dtype), count)),
        "leaf_targetids": [*range(count), *([0] * count)], "tree_roots": [*range(count)],
        "nodes_trueleafs": [1] * count, "nodes_falseleafs": [1] * count,
        "nodes_truenodeids": [*range(count)], "nodes_falsenodeids": [*range(count, 2 * count)],
    }  # fmt: skip
    made = one("TreeEnsemble", x, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}, version=5, **attrs)
    (found,) = run_relax(import_model(made), {"x": x})
    np.testing.assert_array_equal(found, expected(attrs, x))


def test_a_tree_that_is_a_leaf() -> None:
    """Both ways of its one node lead to it."""
    attrs = tables(2, 6, 1, ["BRANCH_LEQ"], np.float32)
    for key, more in {"nodes_featureids": 0, "nodes_missing_value_tracks_true": 0, "nodes_trueleafs": 1,
                      "nodes_falseleafs": 1, "nodes_truenodeids": 1, "nodes_falsenodeids": 1}.items():  # fmt: skip
        attrs[key].append(more)
    for key in ("nodes_modes", "nodes_splits"):
        array = numpy_helper.to_array(attrs[key])
        attrs[key] = numpy_helper.from_array(np.append(array, array[:1]))
    attrs["tree_roots"].append(len(attrs["nodes_featureids"]) - 1)
    x = rows(9, 6)
    agree(one("TreeEnsemble", x, {"y": 1}, version=5, **attrs), x)


def test_tables_that_are_no_trees_are_refused() -> None:
    x = rows(2, 4)

    def in_a_circle(attrs: dict[str, Any]) -> None:
        root = attrs["tree_roots"][0]
        attrs["nodes_trueleafs"][root], attrs["nodes_truenodeids"][root] = 0, root

    def modes(attrs: dict[str, Any], code: int) -> None:
        codes = numpy_helper.to_array(attrs["nodes_modes"]).copy()
        codes[0] = code
        attrs["nodes_modes"] = numpy_helper.from_array(codes)

    broken: dict[str, Callable[[dict[str, Any]], Any]] = {
        "its nodes are no trees": in_a_circle,
        "nodes are no trees": lambda a: a["nodes_truenodeids"].__setitem__(0, 9999),
        "are no trees": lambda a: a["nodes_falsenodeids"].__setitem__(0, -1),
        "no trees": lambda a: a["tree_roots"].append(99999),
        "no tree": lambda a: a["leaf_targetids"].__setitem__(0, -1),
        "feature 99 of 4": lambda a: a["nodes_featureids"].__setitem__(0, 99),
        "target 9 of 3": lambda a: a["leaf_targetids"].__setitem__(0, 9),
        "nodes_trueleafs' must have": lambda a: a["nodes_trueleafs"].pop(),
        "tracks_true' must have": lambda a: a["nodes_missing_value_tracks_true"].pop(),
        "1 nodes with sets, and 0 sets": lambda a: modes(a, 6),
        "compare by 77": lambda a: modes(a, 77),
        "aggregate_function is 9": lambda a: a.update(aggregate_function=9),
        "post_transform is 'PROBIT'": lambda a: a.update(post_transform=4),
    }
    for told, spoil in broken.items():
        attrs = tables(4, 4, 3, ["BRANCH_LEQ"], np.float32)
        spoil(attrs)
        with pytest.raises(TvmoptError, match=told):
            import_model(one("TreeEnsemble", x, {"y": 1}, version=5, **attrs))


def test_sums_of_open_rows() -> None:
    """From one row to more than threads share, in an artifact that was verified."""
    attrs = tables(20, 6, 3, [*COMPARISONS], np.float64)
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain=ML, **attrs)
    made = model([node], [value("x", ["n", 6], 11)], [value("y", None, 11)], domains={ML: 5})
    compiled = tvmopt.compile(made, records=False)
    for count in (1, 7, 64):
        x = RNG.standard_normal((count, 6)).round(1)
        np.testing.assert_allclose(compiled.model.run({"x": x})["y"], expected(attrs, x), rtol=1e-12, atol=1e-12)
