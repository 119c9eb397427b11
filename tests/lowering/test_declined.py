"""A family that declines an operator says why, under the node's name; what all decline gets TVM's loops, it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.lowering import STAGE, STOCK
from tvmopt.report import Report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a product of int32, a dilated transposed convolution, and a 3-d one with a weight that is an input."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int, dtype: str = "float32") -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "whole"),
        helper.make_node("ConvTranspose", ["s", "k"], ["b"], "up", dilations=[2], kernel_shape=[3]),
        helper.make_node("Conv", ["v", "k3"], ["c"], "volume", kernel_shape=[3, 3, 3]),
        helper.make_node("Conv", ["y", "kd"], ["z"], "plain", kernel_shape=[3, 3]),
        helper.make_node("MaxPool", ["z"], ["d"], "pool", kernel_shape=[2, 2]),  # a layer alone would stay in NCHW
    ]
    inputs = {
        "x": (TensorProto.INT32, [4, 32]),
        "y": (1, [1, 8, 9, 9]),
        "s": (1, [1, 8, 9]),
        "v": (1, [1, 2, 9, 9, 9]),
        "k3": (1, [6, 2, 3, 3, 3]),
    }
    outputs = {"a": (TensorProto.INT32, [4, 16]), "b": (1, [1, 4, 13]), "c": (1, [1, 6, 7, 7, 7])}
    outputs["d"] = (1, [1, 4, 6, 6])
    graph = helper.make_graph(
        nodes,
        "declines",
        [helper.make_tensor_value_info(name, *t) for name, t in inputs.items()],
        [helper.make_tensor_value_info(name, *t) for name, t in outputs.items()],
        [
            weight("w", 32, 16, dtype="int32"),
            weight("k", 8, 4, 3),
            weight("kd", 4, 8, 3, 3),
        ],
    )
    path: Path = tmp_path_factory.mktemp("declined") / "declines.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return tvmopt.explain(path, target="znver5")


def reasons(report: Report, node: str) -> list[str]:
    return [d.reason for d in report.decisions if (d.stage, d.verdict, d.node) == (STAGE, "declined", node)]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("whole", "gemm: int32 operands"),
        ("up", "conv2d: a dilated transposed convolution of one axis"),
        ("volume", "conv2d: a convolution of three axes"),
    ],
)
def test_the_family_and_its_reason_stand_under_the_node(report: Report, node: str, reason: str) -> None:
    first, last = reasons(report, node)
    assert first == reason
    assert last.endswith(STOCK)


def test_a_family_behind_the_one_that_declined_takes_it(report: Report) -> None:
    assert reasons(report, "plain") == ["winograd: the direct form is as fast"]
    (family,) = {k.family for k in report.kernels if k.nodes == (("plain",),) and k.flops}
    assert family == "conv2d"
