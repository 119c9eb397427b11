"""A size is computed before what has it, however kernels are fused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.passes.helpers import build
from tvmopt.passes.order_sizes import order_sizes


@pytest.mark.parametrize("length", [1, 7, 33])
def test_a_window_of_a_length_that_a_run_computes(length):
    """ONNX's definition of a window: the numbers of a Range, which read no tensor, times what its length gives."""
    node = helper.make_node
    nodes = [
        node("Cast", ["x"], ["n"], to=TensorProto.FLOAT), node("Add", ["n", "one"], ["m"]),
        node("Div", ["tau", "m"], ["step"]), node("Range", ["zero", "n", "one"], ["r"]),
        node("Mul", ["r", "step"], ["angle"]), node("Cos", ["angle"], ["y"]),
    ]  # fmt: skip
    numbers = {"zero": 0.0, "one": 1.0, "tau": 6.25}
    constants = [helper.make_tensor(k, TensorProto.FLOAT, [], [v]) for k, v in numbers.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT32, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["length"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": np.array(length, np.int32)})["y"]
    np.testing.assert_allclose(found, np.cos(np.arange(length) * 6.25 / (length + 1)), rtol=1e-5, atol=1e-6)


def test_a_module_without_such_sizes_is_left_alone():
    module = build({"x": (3,)}, lambda bb, x: bb.emit(x))
    assert order_sizes(module) is module
