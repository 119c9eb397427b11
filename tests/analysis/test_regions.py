"""The oracle's RoiAlign against ONNX's reference and onnxruntime, and of regions that no engine can sample."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.values import EXACT

Array = np.ndarray[Any, Any]


def model_of(x: Array, regions: Array, opset: int, **attributes: Any) -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], **attributes)],
        "g",
        [value("x", 1, x.shape), value("r", 1, regions.shape), value("b", TensorProto.INT64, [len(regions)])],
        [value("y", 1, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def oracle(x: Array, regions: Array, opset: int = 16, **attributes: Any) -> Array:
    feeds = {"x": x, "r": regions, "b": np.arange(len(regions)) % len(x)}
    return Oracle(model_of(x, regions, opset, **attributes), EXACT).run(feeds)["y"]


def regions_of(rng: np.random.Generator, count: int, reach: int) -> Array:
    corners = rng.uniform(-3, reach + 3, (count, 2, 2)).astype(np.float32)
    tiny = [[1, 1, 1, 1], [4, 4, 3, 3], [-9, -9, -5, -6]]
    return np.concatenate([np.concatenate([corners.min(1), corners.max(1)], 1), np.array(tiny, np.float32)])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("size", [(1, 1), (7, 17)])
def test_like_other_implementations(mode: str, ratio: int, opset: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng((ratio, opset))
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    regions = regions_of(rng, 9, max(size))
    given: dict[str, Any] = {
        "mode": mode,
        "sampling_ratio": ratio,
        "output_height": 3,
        "output_width": 2,
        "spatial_scale": 0.735,
    }
    model = model_of(x, regions, opset, **given)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x, "r": regions, "b": np.arange(len(regions)) % len(x)})[0]
    np.testing.assert_allclose(oracle(x, regions, opset, **given), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_none(mode: str, ratio: int, wrong: float) -> None:
    """One in a corner of the picture, one within, in some of the channels."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 4, 6, 5)).astype(np.float32)
    x[0, 1, 0, 0] = x[0, 2, 2, 3] = x[0, 3, 3, 3] = x[0, 3, 0, 0] = wrong
    regions = regions_of(rng, 20, 6)
    given: dict[str, Any] = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 4}
    with np.errstate(invalid="ignore"):
        feeds = {"x": x, "r": regions, "b": np.zeros(len(regions), np.int64)}
        expected = ReferenceEvaluator(model_of(x, regions, 16, **given)).run(None, feeds)[0]
    assert not np.isfinite(expected).all()
    np.testing.assert_allclose(oracle(x, regions, **given), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_of_any_size_take_no_time(mode: str) -> None:
    """A sample a pixel of a region of 1e30 pixels; ONNX's reference writes each of them down."""
    x = np.ones((1, 2, 9, 9), np.float32)
    wide = [[0, 0, 1e30, 1e30], [-1e6, -1e6, 1e6, 1e6], [1, 1, -1e30, -1e30], [np.nan, 0, 1, 1]]
    started = time.process_time()
    found = oracle(x, np.array(wide, np.float32), mode=mode, output_height=2, output_width=2)
    assert time.process_time() - started < 5
    assert np.isfinite(found).all()
    assert found[2].max() == 0
