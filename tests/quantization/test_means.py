"""Means of pictures as poolings, and what lies between the kernels of a network that ends in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import run_ort
from tests.quantization.models import network
from tvmopt.quantization.means import means_as_poolings


def mean(shape: list[int | str], axes: list[int] | None, keepdims: int, opset: int) -> onnx.ModelProto:
    """A mean of ``x``, and twice it as the result."""
    given = {} if axes is None or opset >= 18 else {"axes": axes}
    read = ["x", "axes"] if axes is not None and opset >= 18 else ["x"]
    rank = len(shape) if keepdims else len(shape) - len(range(len(shape)) if axes is None else axes)
    nodes = [
        helper.make_node("ReduceMean", read, ["m"], name="mean", keepdims=keepdims, **given),
        helper.make_node("Mul", ["m", "two"], ["y"]),
    ]
    weights = {"two": np.full(1, 2, np.float32), **({"axes": np.array(axes)} if len(read) > 1 else {})}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [([2, 5, 7, 9], [2, 3]), ([2, 5, 7, 9], [-1, -2]), ([1, 3, 1, 15], [3, 2]), ([1, 3, 4, 5, 6], [2, -1, 3])],
)
def test_a_mean_over_all_of_a_picture(shape, axes, keepdims, opset) -> None:  # type: ignore[no-untyped-def]
    model = mean(shape, axes, keepdims, opset)
    x = {"x": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}
    expected = run_ort(model, x)
    assert means_as_poolings(model) == ["mean"]
    onnx.checker.check_model(model, full_check=True)
    assert "ReduceMean" not in {n.op_type for n in model.graph.node}
    np.testing.assert_allclose(run_ort(model, x)[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ([2, 5, 7, 9], [3]), ([2, 5, 7, 9], [1]), ([2, 5, 7, 9], [1, 2, 3]), ([2, 5, 7, 9], None),
        ([2, 5, 9], [2]), ([5, 9], [1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("opset", [17, 18])
def test_other_means_stay(shape, axes, opset) -> None:  # type: ignore[no-untyped-def]
    model = mean(shape, axes, 1, opset)
    before = model.SerializeToString()
    assert means_as_poolings(model) == []
    assert model.SerializeToString() == before


@pytest.mark.parametrize("method", ["onnxruntime", "nncf"])
def test_no_floats_lie_between_the_kernels(tmp_path: Path, method: str) -> None:
    """A residual, its Relu and the mean in front of the classifier: torch's exporter writes ResNets so. Quantisers
    left the sum, the Relu and the mean in floats."""
    if method == "nncf":
        pytest.importorskip("nncf")
    model = network(opset=18)
    graph = model.graph
    (pool,) = (n for n in graph.node if n.op_type == "GlobalAveragePool")
    weights = {
        "w4": np.random.default_rng(3).standard_normal((16, 16, 1, 1)).astype(np.float32) / 4, "axes": np.array([2, 3]),
    }  # fmt: skip
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    at = list(graph.node).index(pool)
    added = [
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("Conv", ["r2", "w4"], ["c4"], name="third"),
        helper.make_node("Add", ["c4", "r2"], ["sum"], name="residual"),
        helper.make_node("Relu", ["sum"], ["r4"], name="relu4"),
        helper.make_node("ReduceMean", ["r4", "axes"], ["p"], name="mean", keepdims=1),
    ]
    graph.node.remove(pool)
    for offset, node in enumerate(added):
        graph.node.insert(at + offset, node)
    source, data, output = tmp_path / "float.onnx", tmp_path / "data.npz", tmp_path / "int8.onnx"
    onnx.save(model, source)
    np.savez(data, x=np.random.default_rng(1).standard_normal((12, 3, 16, 16)).astype(np.float32))
    tvmopt.quantize(source, output, data=data, method=method)
    flow = tvmopt.explain(output, int8="all").flow
    between = {v.dtype for v in flow.values if v.kind == "activation"}
    assert between <= {"uint8", "int8"}, between
