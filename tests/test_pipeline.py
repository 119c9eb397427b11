"""Limits of the pipeline that no single pass shows."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.importer import import_model
from tvmopt.pipeline import MOST_FUSED, lower
from tvmopt.targets import Machine


def test_a_long_chain_is_several_kernels() -> None:
    """One kernel of 200 Tanh was nested too deeply for the steps behind fusion, and took minutes."""
    nodes = [helper.make_node("Relu" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(3 * MOST_FUSED + 1)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64)) for name in ("v0", nodes[-1].output[0])]
    made = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=10)
    assert len(lower(import_model(made).module, Machine.load("cpu")).kernels) > 1


def test_branches_do_not_share_storage() -> None:
    """TVM's plan reused in one branch what only the other had allocated: the second choice read address 0."""

    def branch(name: str) -> onnx.GraphProto:
        nodes = []
        for i, source in enumerate(("x", f"{name}0", f"{name}1")):
            nodes += [helper.make_node("MatMul", [source, "w"], [f"{name}m{i}"])]
            nodes += [helper.make_node("Softmax", [f"{name}m{i}"], [f"{name}{i}"])]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}2", TensorProto.FLOAT, (4, 16))]
        )

    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    kinds = (("x", TensorProto.FLOAT, (4, 16)), ("c", TensorProto.BOOL, ()))
    inputs, output = [helper.make_tensor_value_info(*k) for k in kinds], helper.make_tensor_value_info("y", 1, (4, 16))
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((16, 16)).astype("float32"), "w")
    graph = helper.make_graph([choice], "g", inputs, [output], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = tvmopt.compile(made, verify=False, records=False).model
    x = rng.standard_normal((4, 16)).astype("float32")
    results = [model.run({"x": x, "c": np.array(taken)})["y"] for taken in (False, True, False)]
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])
    np.testing.assert_allclose(results[0].sum(-1), 1, rtol=1e-5)
