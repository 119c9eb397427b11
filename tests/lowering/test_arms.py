"""Both arms of a choice: right for every number, and vectors where an arm is one number for a whole loop."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt

SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)
EDGES = np.array([0.0, -0.0, 1e30, -1e30, 1e-45, -1e-45, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.0, 2.0], np.float32)


def model(shape: tuple[int, ...], nodes: list[onnx.NodeProto], **weights: np.ndarray) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(shape[-1])
    x = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.3, rng.choice(EDGES, shape), x)


def same(got: np.ndarray, exact: np.ndarray) -> None:
    np.testing.assert_array_equal(got, exact.astype(np.float32))


@pytest.mark.parametrize("size", SIZES)
def test_slopes_of_channels(size: int) -> None:
    slope = np.resize(np.array([0.25, -2.0, 0.0, 1e30], np.float32), (size, 1, 1))
    x = numbers((2, size, 3, 5))
    node = helper.make_node("PRelu", ["x", "s"], ["y"])
    got = tvmopt.compile(model(x.shape, [node], s=slope), verify=False, cache=False)(x)
    with np.errstate(all="ignore"):
        exact = np.where(x < 0, x * slope, x)
    np.testing.assert_array_equal(np.abs(got), np.abs(exact))  # TVM multiplies -0 by the slope, too


@pytest.mark.parametrize("size", SIZES)
def test_choices_between_a_tensor_and_one_number_for_each_row(size: int) -> None:
    x, other = numbers((3, 5, size)), np.resize(EDGES, (3, 5, 1))
    nodes = [
        helper.make_node("Greater", ["x", "limit"], ["c"]),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Where", ["c", "e", "o"], ["y"]),
    ]
    got = tvmopt.compile(model(x.shape, nodes, o=other, limit=np.float32(0.1).reshape(())), verify=False, cache=False)(
        x
    )
    with np.errstate(all="ignore"):
        exact = np.where(x > np.float32(0.1), np.exp(x.astype(np.float64)), other).astype(np.float32)
    np.testing.assert_allclose(got, exact, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_thresholds(size: int) -> None:
    x = numbers((7, size))
    compiled = tvmopt.compile(
        model(x.shape, [helper.make_node("ThresholdedRelu", ["x"], ["y"])]), verify=False, cache=False
    )
    same(compiled(x), np.where(x > 1, x, 0))
    shrink = helper.make_node("Shrink", ["x"], ["y"], lambd=0.5, bias=0.25)
    compiled = tvmopt.compile(model(x.shape, [shrink]), verify=False, cache=False)
    quarter = np.float32(0.25)
    same(compiled(x), np.where(x < -0.5, x + quarter, np.where(x > 0.5, x - quarter, 0)))


@pytest.mark.parametrize("op", ["PRelu", "ThresholdedRelu", "Shrink"])
def test_they_are_vectors(op: str, tmp_path: Path) -> None:
    inputs = ["x", "s"] if op == "PRelu" else ["x"]
    proto = model((1, 24, 32, 32), [helper.make_node(op, inputs, ["y"])], s=np.ones((24, 1, 1), np.float32))
    (kernel,) = tvmopt.compile(proto, verify=False, cache=False, target="x86-64-v3").report.kernels
    tvmopt.compile(proto, verify=False, cache=False, target="x86-64-v3", dump_code={kernel.name: tmp_path})
    assert re.search(r"select <8 x i1>", (tmp_path / f"{kernel.name}.ll").read_text())
