"""Nodes and trees of ai.onnx.ml, and their results beside onnxruntime's - for the tests of classic models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.importer import import_model
from tvmopt.importer.converters.classic.forests import COMPARISONS

ML = "ai.onnx.ml"
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def one(op: str, x: Array, outputs: dict[str, int], version: int = 3, **attrs: Any) -> onnx.ModelProto:
    """A model of one node whose rows are open."""
    node = helper.make_node(op, ["x"], list(outputs), domain=ML, name="node", **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    made = [value(name, None, elem) for name, elem in outputs.items()]
    return model([node], [value("x", [*x.shape], kind)], made, domains={ML: version})


def agree(made: onnx.ModelProto, x: Array, tolerance: float = 2e-6) -> list[Array]:
    """Our results, which are onnxruntime's."""
    found, wanted = run_relax(import_model(made), {"x": x}), run_ort(made, {"x": x})
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    return found


def rows(count: int, features: int, edges: bool = True) -> Array:
    x = RNG.standard_normal((count, features)).astype(np.float32).round(1)
    if edges and count > 4:
        x[0], x[1, 0], x[2, -1], x[3] = 0, np.inf, -np.inf, 3e38
    return x


@pytest.fixture(autouse=True)
def the_same_numbers() -> None:
    """A test draws the same, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


TREES = {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}


def trees(
    part: str, count: int, features: int, outputs: int, mode: str = COMPARISONS[0], depth: int = 5, every: bool = False
) -> Any:
    """Attributes of an ensemble of random trees of different depths; thresholds are numbers that inputs have.

    Args:
        every: each leaf adds to all outputs, else to one or two of them.
    """
    columns: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes",
        "truenodeids", "falsenodeids", "missing_value_tracks_true")}  # fmt: skip
    leaves: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(count):
        todo, following = [(0, 0)], 1
        while todo:
            number, level = todo.pop()
            leaf = level == depth or (level > 0 and RNG.uniform() < 0.3)
            ways = (0, 0) if leaf else (following, following + 1)
            threshold = round(float(RNG.standard_normal()), 1)
            row = (tree, number, RNG.integers(features), threshold, "LEAF" if leaf else mode, *ways,
                   RNG.integers(2))  # fmt: skip
            for column, entry in zip(columns.values(), row, strict=True):
                column.append(entry if isinstance(entry, str) else entry.item() if hasattr(entry, "item") else entry)
            if leaf:
                some = {int(RNG.integers(outputs)), int(RNG.integers(outputs))}
                for target in range(outputs) if every else sorted(some):
                    for column, entry in zip(leaves.values(), (tree, number, target, RNG.uniform(0, 1)), strict=True):
                        column.append(entry)
            else:
                todo += [(way, level + 1) for way in ways]
                following += 2
    return {f"nodes_{k}": v for k, v in columns.items()} | {f"{part}_{k}": v for k, v in leaves.items()}
