"""A resize by a ratio that float32 rounds is as exact as one by two: its places and weights are constants."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.analysis.oracle.evaluate import Oracle


@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(("height", "width"), [(300, 450), (480, 640), (17, 33)])
def test_places_are_exact(transform: str, height: int, width: int) -> None:
    """240 to 300 was 2e-5 off, twice what onnxruntime is."""
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode=transform
    )
    given = {"sizes": np.array([1, 2, height, width], np.int64)}
    proto = model([node], [value("x", (1, 2, 240, 320))], [value("y", (1, 2, height, width))], given)
    x = np.random.default_rng(0).standard_normal((1, 2, 240, 320)).astype("f")
    exact = Oracle(proto).run({"x": x}, ["y"])["y"]
    found = tvmopt.compile(proto, verify=False).model.run({"x": x})["y"]
    assert np.sqrt(np.mean(np.square(found - exact))) < 8e-6
