"""Integers that leave their type wrap around, whatever the next operator is, and whatever LLVM takes for granted."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt

OPERATORS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@pytest.mark.parametrize("kind", ["uint32", "uint64"])
def test_sums_and_products_without_a_sign_wrap_around(kind):
    element = {"uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64}[kind]
    top = np.iinfo(kind).max
    x = np.array([0, 1, 2, 7, 100, top, top - 1, top // 2, top // 2 + 1, top // 3], kind)
    constants = {"zero": 0, "three": 3, "half": top // 2 + 1, "top": top}
    nodes, expected = [], {}
    for name, number in constants.items():
        for op, function in OPERATORS.items():
            for turned in (False, True):
                out = f"{op}_{name}_{turned}"
                nodes.append(helper.make_node(op, [name, "x"] if turned else ["x", name], [out]))
                nodes.append(helper.make_node("Div", [out, "three"], [f"{out}_third"]))
                pair = (x, np.array(number, kind))
                expected[f"{out}_third"] = function(*(reversed(pair) if turned else pair)) // np.array(3, kind)
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.array(v, kind), n) for n, v in constants.items()]
    outputs = [value(n, element, x.shape) for n in expected]
    graph = helper.make_graph(nodes, "g", [value("x", element, x.shape)], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = tvmopt.compile(model, verify=False).model.run({"x": x})
    for name, want in expected.items():
        np.testing.assert_array_equal(found[name], want, name)
