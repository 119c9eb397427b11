"""GELU in both forms against float64, where 1 + erf and 1 + tanh lose digits too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from scipy.special import ndtr

import tvmopt

EDGES = np.array([0.0, -0.0, 1e-30, -1e-30, 5.49, 5.51, -5.49, -5.51, 1e30, -1e30, np.inf, np.nan], "float32")


def model(approximate: str, count: int) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Gelu", ["x"], ["y"], approximate=approximate)], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("count", [1, 7, 16, 4099])
def test_against_float64(approximate, count):
    x = np.concatenate([EDGES, np.linspace(-12, 12, 4099 - len(EDGES), dtype="float32")])[-count:]
    x = x if count < 4099 else np.roll(x, 5)
    got = tvmopt.compile(model(approximate, len(x)), records=False).model.run({"x": x})["y"]
    wide = x.astype("float64")
    with np.errstate(all="ignore"):
        inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
        exact = wide * (ndtr(wide) if approximate == "none" else 1 / (1 + np.exp(-2 * inner)))
    assert (np.isnan(got) == np.isnan(exact)).all()
    known = np.isfinite(exact)
    assert (got[np.isinf(exact)] == exact[np.isinf(exact)]).all()
    assert (np.abs(got[known] - exact[known]) <= 2.2e-7 * np.abs(wide[known])).all()
