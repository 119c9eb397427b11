"""Norms and reductions of pictures whose height and width are open, in the lanes of vectors, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importer.onnx_check import model, value
from tvmopt import api

Array = np.ndarray[Any, Any]
CHANNELS = 8
SIZES = [(1, 1), (1, 7), (2, 4), (3, 3), (1, 15), (4, 4), (17, 1), (1, 31), (4, 8), (3, 11), (9, 7), (8, 8), (5, 13),
         (127, 1), (3, 43), (7, 110)]  # fmt: skip
"""Of 1 to 770 numbers, around whole vectors of 4, 8 and 16, and four of them."""


def normalised(x: Array, groups: int, scale: Array, bias: Array) -> Array:
    """A group norm of (batch, channels, height, width)."""
    rows = x.reshape(len(x), groups, -1)
    rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    return rows.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]


REDUCTIONS = {"ReduceMean": np.mean, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}
NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "instance": ("InstanceNormalization", {}),
    "groups of 4": ("GroupNormalization", {"num_groups": 2}),
    "one group": ("GroupNormalization", {"num_groups": 1}),
    "pool": ("GlobalAveragePool", {}),
    **{name: (name, {}) for name in REDUCTIONS},
}


def expected(name: str, x: Array, scale: Array, bias: Array) -> Array:
    wide, groups = x.astype(np.float64), {"instance": CHANNELS, "groups of 4": 2, "one group": 1}.get(name)
    if groups is not None:
        return normalised(wide, groups, scale, bias)
    return REDUCTIONS.get(name, np.mean)(wide, axis=(2, 3), keepdims=True)


def compiled(name: str, threads: int = 1) -> Any:
    op, attributes = NODES[name]
    norm = op.endswith("Normalization")
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {k: rng.standard_normal(CHANNELS).astype(np.float32) for k in ("scale", "bias")}
    inputs = ["x", "scale", "bias"] if norm else ["x", "axes"] if op in REDUCTIONS else ["x"]
    given = {k: v for k, v in (weights | {"axes": np.int64([2, 3])}).items() if k in inputs}
    x = value("x", ("batch", CHANNELS, "height", "width"))
    made = model([helper.make_node(op, inputs, ["y"], **attributes)], [x], [value("y", None)], given, opset=21)
    ranges = {"batch": "1..8@1", "height": "1..256@16", "width": "1..256@16"}
    found = api.compile(made, shape=ranges, threads=threads, verify=False, records=False)
    assert [k.family for k in found.report.kernels] == ["rows"]
    return found.model, weights["scale"], weights["bias"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NODES)
def test_rows_of_any_length(name: str, threads: int) -> None:
    run, scale, bias = compiled(name, threads)
    rng = np.random.default_rng(2)
    for height, width in SIZES:
        for batch, offset in ((1, 0.0), (3, 0.0), (2, 1000.0)):
            x = (rng.standard_normal((batch, CHANNELS, height, width)) + offset).astype(np.float32)
            want = expected(name, x, scale, bias)
            near = 2e-5 * max(1.0, np.abs(want).max())  # of numbers around 1000, half an ulp is 3e-5
            if name not in ("ReduceMax", "ReduceMin"):
                near = max(near, 1e-4 if offset and name in ("instance", "groups of 4", "one group") else near)
            np.testing.assert_allclose(run(x), want, rtol=2e-5, atol=near)


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_row(name: str, number: float) -> None:
    run, scale, bias = compiled(name)
    for height, width in ((3, 3), (4, 8), (5, 13)):
        x = np.random.default_rng(3).standard_normal((2, CHANNELS, height, width)).astype(np.float32)
        x[1, 5, -1, -1] = number
        with np.errstate(invalid="ignore"):
            want = expected(name, x, scale, bias)
        np.testing.assert_allclose(run(x), want, rtol=2e-5, atol=2e-5)


def test_channels_may_be_open_too() -> None:
    sizes = ("batch", "channels", "height", "width")
    node = helper.make_node("InstanceNormalization", ["x", "scale", "bias"], ["y"])
    inputs = [value("x", sizes), value("scale", ("channels",)), value("bias", ("channels",))]
    made = model([node], inputs, [value("y", None)], opset=21)
    found = api.compile(made, shape={size: "1..64@8" for size in sizes}, verify=False, records=False)
    assert [k.family for k in found.report.kernels] == ["rows"]
    rng = np.random.default_rng(4)
    for shape in ((1, 1, 1, 1), (2, 3, 5, 13), (3, 17, 1, 9)):
        x, scale, bias = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[1:2], shape[1:2]))
        want = normalised(x.astype(np.float64), shape[1], scale, bias)
        np.testing.assert_allclose(found.model(x, scale, bias), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_axes_of_a_scale_may_be_open(op: str, axis: int, bias: bool) -> None:
    """A scale as long as the open axes, and a bias of each sample's own."""
    layer, sizes = op.startswith("Layer"), ("batch", "rows", "columns")
    names = ["x", "scale", "bias"] if bias and layer else ["x", "scale"]
    inputs = [value("x", sizes), value("scale", sizes[axis:]), value("bias", sizes)][: len(names)]
    made = model([helper.make_node(op, names, ["y"], axis=axis)], inputs, [value("y", None)], opset=23)
    run = api.compile(made, shape={size: "1..64@8" for size in sizes}, verify=False, records=False).model
    rng = np.random.default_rng(5)
    for shape in ((1, 1, 1), (2, 3, 5), (3, 7, 17), (2, 33, 8)):
        x, scale, shift = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[axis:], shape))
        over = tuple(range(axis % 3, 3))
        wide = x.astype(np.float64)
        wide = wide - wide.mean(over, keepdims=True) if layer else wide
        want = wide / np.sqrt(np.square(wide).mean(over, keepdims=True) + 1e-5) * scale
        found = run(*(x, scale, shift)[: len(names)])
        np.testing.assert_allclose(found, want + shift if "bias" in names else want, rtol=2e-5, atol=2e-5)
