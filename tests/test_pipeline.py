"""Limits of the pipeline that no single pass shows."""

from __future__ import annotations

from onnx import TensorProto, helper

from tvmopt.importer import import_model
from tvmopt.pipeline import MOST_FUSED, lower
from tvmopt.targets import Machine


def test_a_long_chain_is_several_kernels() -> None:
    """One kernel of 200 Tanh was nested too deeply for the steps behind fusion, and took minutes."""
    nodes = [helper.make_node("Relu" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(3 * MOST_FUSED + 1)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64)) for name in ("v0", nodes[-1].output[0])]
    made = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), ir_version=10)
    assert len(lower(import_model(made).module, Machine.load("cpu")).kernels) > 1
