"""Poolings of every padding mode: shapes, as Shape nodes see them too, and values against onnxruntime."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.importer import import_model
from tvmopt.importer.windows import windows

node = helper.make_node


def pooling(seed: int) -> onnx.ModelProto:
    """A random pooling of 1 to 3 axes, and the Shape of its result."""
    rng = random.Random(seed)
    op, n = rng.choice(["MaxPool", "AveragePool", "LpPool"]), rng.choice([1, 2, 2, 3])
    opset = rng.choice([11, 17, 19, 22]) if op == "MaxPool" else 22
    kernel = [rng.choice([1, 2, 3, 4]) for _ in range(n)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": [rng.choice([1, 2, 3]) for _ in range(n)]}
    attrs["ceil_mode"] = rng.choice([0, 1])
    mode = rng.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if mode == "NOTSET":
        attrs["pads"] = [rng.randrange(k) for k in kernel * 2]
        attrs["dilations"] = [rng.choice([1, 1, 2]) for _ in range(n)]
    else:
        attrs["auto_pad"] = mode
        attrs["strides"] = [
            min(s, k) for s, k in zip(attrs["strides"], kernel, strict=True)
        ]  # else onnxruntime refuses
    if op == "AveragePool":
        attrs["count_include_pad"] = rng.choice([0, 1])
    size = [rng.choice([7, 8, 9, 10, 13]) for _ in range(n)]
    nodes = [node(op, ["x"], ["y"], **attrs), node("Shape", ["y"], ["s"])]
    outputs = [value("y", None), value("s", None, TensorProto.INT64)]
    return model(nodes, [value("x", (1, 2, *size))], outputs, opset=opset)


@pytest.mark.parametrize("seed", range(40))
def test_poolings_agree_with_onnxruntime(seed: int) -> None:
    made = pooling(seed)
    shape = [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    y, s = run_relax(import_model(made), {"x": x})
    expected, _ = run_ort(made, {"x": x})
    assert y.shape == expected.shape == tuple(s)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_window_may_start_in_the_image_only() -> None:
    given = {"strides": [2], "pads": [2, 2], "ceil_mode": 1}
    found = windows(given, [14], [3])
    assert (found.out, found.over) == ((8,), (0,))  # the ninth would start at 16, behind 14 and the 2 in front
    assert windows(given | {"ceil_mode": 0}, [14], [3]).out == (8,)
    assert windows({"strides": [2], "ceil_mode": 1}, [8], [3]).over == (1,)


def test_the_odd_element_of_same_padding() -> None:
    for mode, pads in (("SAME_UPPER", (1, 2)), ("SAME_LOWER", (2, 1))):
        found = windows({"auto_pad": mode, "dilations": [3]}, [7], [2])
        assert (*found.begin, *found.end) == pads and found.out == (7,)


@pytest.mark.parametrize("shape", [(1, 7, "h", 5), (1, 16, "h", "w"), (2, 3, 9, 7), ("n", 5, "h")])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_the_largest_of_minus_infinities(shape: tuple[int | str, ...], kernel: int) -> None:
    pool = node(
        "MaxPool", ["x"], ["y"], kernel_shape=[kernel] * (len(shape) - 2), pads=[kernel // 2] * 2 * (len(shape) - 2)
    )
    made = model([pool], [value("x", shape)], [value("y", None)])
    x = np.full([9 if isinstance(size, str) else size for size in shape], -np.inf, np.float32)
    found = tvmopt.compile(made, threads=1, verify=False).model.run({"x": x})["y"]
    assert found.size and np.isneginf(found).all()
