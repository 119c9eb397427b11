"""The flow of a compiled model: every kernel that the report lists runs, as often as it says; views are no kernels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt


def model(*nodes: onnx.NodeProto, output: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((64, 64), dtype=np.float32),
        "heads": np.array([16, 4, 2, 32], np.int64),
        "rows": np.array([-1, 32], np.int64),
        "flat": np.array([1, -1], np.int64),
    }
    value = helper.make_tensor_value_info
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        list(nodes), "views", [value("x", TensorProto.FLOAT, [64, 64])], [value("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(a, n) for n, a in constants.items() if n in used],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("threads", [1, 2])
def test_reshapes_between_kernels_are_views(threads: int) -> None:
    compiled = tvmopt.compile(
        model(
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Reshape", ["a", "heads"], ["b"]),
            helper.make_node("ReduceMax", ["b"], ["c"], axes=[2], keepdims=0),
            helper.make_node("Reshape", ["c", "rows"], ["d"]),
            helper.make_node("Softmax", ["d"], ["e"]),
            helper.make_node("Sigmoid", ["e"], ["y"]),
            output=(64, 32),
        ),
        threads=threads,
    )
    ran = Counter(step.kernel for step in compiled.report.flow.steps)
    assert ran == {kernel.name: kernel.calls for kernel in compiled.report.kernels}
    assert not [name for name in ran if "reshape" in name]


def test_a_reshape_that_is_the_output_is_a_copy() -> None:
    compiled = tvmopt.compile(
        model(
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Reshape", ["a", "flat"], ["y"]),
            output=(1, 4096),
        )
    )
    ran = Counter(step.kernel for step in compiled.report.flow.steps)
    assert ran == {kernel.name: kernel.calls for kernel in compiled.report.kernels}


def test_branches_share_no_storage_and_both_are_in_the_flow() -> None:
    value = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node(first, ["x"], [f"{name}a"]), helper.make_node("Softmax", [f"{name}a"], [f"{name}b"])],
            name, [], [value(f"{name}b", TensorProto.FLOAT, [8, 64])],
        )
        for name, first in (("then", "Softplus"), ("else", "Exp"))
    }  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("If", ["c"], ["r"], then_branch=branches["then"], else_branch=branches["else"]),
            helper.make_node("Softmax", ["r"], ["y"], axis=0),
        ],
        "choice", [value("x", TensorProto.FLOAT, [8, 64]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [8, 64])],
    )  # fmt: skip
    compiled = tvmopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), threads=1, verify=False
    )
    flow = compiled.report.flow
    ran = Counter(step.kernel for step in flow.steps)
    assert ran == {kernel.name: kernel.calls for kernel in compiled.report.kernels}
    assert compiled.report.activation_bytes == sum(flow.storages)
    assert sum(flow.storages) >= 4 * 8 * 64 * 4, "no two tensors share memory: two a branch at least"
