"""Every function of one element, in every floating type that ONNX gives it, against the oracle."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import tvmopt
from tvmopt.analysis.oracle.evaluate import Oracle

FUNCTIONS = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Celu",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
TYPES = {"float64": 1e-7, "float32": 2e-6, "float16": 2e-3}


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_one_element(dtype: str) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    spelled = {"float64": "tensor(double)", "float32": "tensor(float)", "float16": "tensor(float16)"}[dtype]
    takes = lambda f: any(spelled in c.allowed_type_strs for c in onnx.defs.get_schema(f, 20).type_constraints)  # noqa: E731
    nodes = [helper.make_node(f, ["x"], [f]) for f in FUNCTIONS if takes(f)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", number, [9, 17])], [value(n.output[0], number, [9, 17]) for n in nodes]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    rng = np.random.default_rng(0)
    for scale in (1.0, 0.01, 20.0):
        x = (rng.standard_normal((9, 17)) * scale).astype(dtype)
        found, expected = compiled.run({"x": x}), Oracle(model).run({"x": x})
        for name, want in expected.items():
            got, fine = found[name].astype("float64"), np.isfinite(want)
            assert (np.isfinite(got) == fine).all(), name
            largest = np.abs(want[fine]).max(initial=1e-30)
            cancels = 100 if name in ("Elu", "Celu", "Selu") and scale < 1 and dtype == "float32" else 1
            assert np.abs(got[fine] - want[fine]).max(initial=0) <= TYPES[dtype] * largest * cancels, (name, scale)
