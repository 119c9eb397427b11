"""Norms in float64, in 16-bit numbers and over any axes, far from zero too, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tvmopt

node, value = helper.make_node, helper.make_tensor_value_info
TYPES = {"float64": (11, 1e-12), "float16": (10, 4e-3), "float32": (1, 2e-5)}


def compiled(nodes, x, weights):
    """The model of nodes on `x`, and weights by name."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes, "g", [value("x", kind, x.shape)], [value("y", kind, None)],
        [numpy_helper.from_array(np.asarray(w), k) for k, w in weights.items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.ClearField("shape")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return tvmopt.compile(model, verify=False, records=False).model


def normalised(x, axes, eps):
    d = x.astype("float64")
    d = d - d.mean(axes, keepdims=True)
    return d / np.sqrt((d * d).mean(axes, keepdims=True) + eps)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("operator", ["LayerNormalization", "InstanceNormalization", "GroupNormalization", "pieces"])
def test_norms_of_every_type(operator: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 6, 5, 7)) * 8).astype(dtype)
    gamma, beta = (rng.standard_normal(7 if operator == "LayerNormalization" else 6).astype(dtype) for _ in range(2))
    eps = float(np.float32(1e-3))
    groups = {"InstanceNormalization": 6, "GroupNormalization": 3}.get(operator, 0)
    if operator == "pieces":  # over axes that are not the last
        nodes = [
            node("ReduceMean", ["x", "axes"], ["m"]), node("Sub", ["x", "m"], ["d"]), node("Mul", ["d", "d"], ["s"]),
            node("ReduceMean", ["s", "axes"], ["v"]), node("Add", ["v", "eps"], ["e"]), node("Sqrt", ["e"], ["r"]),
            node("Div", ["d", "r"], ["y"]),
        ]  # fmt: skip
    else:
        attrs = {"num_groups": 3} if operator == "GroupNormalization" else {}
        nodes = [node(operator, ["x", "g", "b"], ["y"], epsilon=eps, **attrs)]
    weights = {"g": gamma, "b": beta, "axes": np.array([0, 2]), "eps": np.array(eps, dtype)}
    model = compiled(nodes, x, {k: w for k, w in weights.items() if any(k in n.input for n in nodes)})

    def expected(x):
        if operator == "pieces":
            return normalised(x, (0, 2), eps)
        if operator == "LayerNormalization":
            return normalised(x, (3,), eps) * gamma + beta
        flat = normalised(x.reshape(3, groups, -1), (2,), eps).reshape(x.shape)
        return flat * gamma[:, None, None] + beta[:, None, None]

    for offset in (0, 1000):
        if dtype == "float16" and offset and operator == "pieces":
            continue  # each step is rounded to float16
        moved = (x + offset).astype(dtype)
        want, found = expected(moved), model.run({"x": moved})["y"]
        tolerance = TYPES[dtype][1] * (1000 if offset and dtype != "float16" else 1)  # the mean's own last digit
        assert found.dtype == x.dtype
        assert np.abs(found - want).max() < tolerance * np.abs(want).max()
