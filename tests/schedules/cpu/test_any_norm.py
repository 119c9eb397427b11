"""Norms in float64, in 16-bit numbers and over any axes, far from zero too, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tvmopt
from tvmopt.errors import UnsupportedOp

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


@pytest.mark.parametrize(
    ("operator", "opened", "dtype"),
    [
        ("InstanceNormalization", (1,), "float32"),
        ("InstanceNormalization", (2, 3), "float16"),
        ("LayerNormalization", (0, 1, 2, 3), "float32"),
        ("GroupNormalization", (2, 3), "float32"),
        ("GroupNormalization", (2, 3), "float64"),
    ],
)
def test_norms_of_open_sizes_far_from_zero(operator: str, opened: tuple[int, ...], dtype: str) -> None:
    """The one-pass variance, E[x^2] - E[x]^2, is NaN or noise here: the mean is 400 times the spread."""
    x = np.random.default_rng(1).standard_normal((3, 6, 5, 7))
    names = [f"s{a}" if a in opened else n for a, n in enumerate(x.shape)]
    own = [names[3] if operator == "LayerNormalization" else names[1]]
    eps = float(np.float32(1e-3))
    attrs = {"num_groups": 3} if operator == "GroupNormalization" else {}
    kind = TYPES[dtype][0]
    graph = helper.make_graph(
        [node(operator, ["x", "g", "b"], ["y"], epsilon=eps, **attrs)], "g",
        [value("x", kind, names), value("g", kind, own), value("b", kind, own)], [value("y", kind, names)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    run = tvmopt.compile(model, verify=False, records=False).model.run
    for shape in (x.shape, tuple(1 if a in opened else n for a, n in enumerate(x.shape))):
        x = (np.random.default_rng(1).standard_normal(shape) * 4 + 1600).astype(dtype)
        wide = x.astype("float64")
        channels = shape[3 if operator == "LayerNormalization" else 1]
        gamma, beta = np.random.default_rng(2).standard_normal((2, channels)).astype(dtype)
        if operator == "LayerNormalization":
            want = normalised(wide, (3,), eps) * gamma + beta
        else:
            rows = wide.reshape(shape[0], attrs.get("num_groups", shape[1]), -1)
            want = normalised(rows, (2,), eps).reshape(shape) * gamma[:, None, None] + beta[:, None, None]
        found = run({"x": x, "g": gamma, "b": beta})["y"]
        tolerance = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-3}[dtype]
        assert found.dtype == x.dtype
        assert np.abs(found - want).max() <= tolerance * max(1.0, np.abs(want).max())


def test_a_group_norm_of_an_open_number_of_channels_is_refused_by_name() -> None:
    graph = helper.make_graph(
        [node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=3)], "g",
        [value("x", 1, [2, "c", 5]), value("g", 1, ["c"]), value("b", 1, ["c"])], [value("y", 1, [2, "c", 5])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(UnsupportedOp, match=r"(?s)GroupNormalization.*channels.*bind the size"):
        tvmopt.compile(model, verify=False, records=False)
