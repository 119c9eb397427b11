"""Pictures of any size scaled into a known one: the function evaluated by onnxruntime, the oracle, and the kernel."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import run_ort
from tests.importer.test_resampling import pictures, rows_first_in_pillow
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.importer.own import DOMAIN, define
from tvmopt.importer.pictures import FILTERS, SCALE

Array = np.ndarray[Any, Any]
SIZES = [(1, 1), (7, 9), (8, 15), (16, 17), (33, 31), (150, 9), (9, 150), (300, 40)]


def scaled(name: str, size: tuple[int, int], fill: int = 0, colours: int = 3, least: int = 1) -> onnx.ModelProto:
    """A model that scales its picture by its other input."""
    graph = helper.make_graph(
        [helper.make_node(SCALE[name], ["x", "geometry", "size", "fill"], ["y"], name="scale", domain=DOMAIN)], "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", "h", "w", colours]),
         helper.make_tensor_value_info("geometry", TensorProto.INT64, [4, 2])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, ["n", *size, colours])],
        [numpy_helper.from_array(np.array([*size, least]), "size"), numpy_helper.from_array(np.array([fill]), "fill")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    define(made, SCALE[name])
    return made


@cache
def kernel(name: str, size: tuple[int, int], fill: int = 0, colours: int = 3) -> Any:
    return tvmopt.compile(scaled(name, size, fill, colours), threads=1, verify=False).model


def by_all(name: str, x: Array, geometry: Any, size: tuple[int, int], fill: int = 0) -> Array:
    """What the kernel makes, which the oracle and onnxruntime make, too."""
    model = scaled(name, size, fill, x.shape[3])
    feeds = {"x": x, "geometry": np.array(geometry).T.copy()}
    found: Array = kernel(name, size, fill, x.shape[3]).run(feeds)["y"]
    np.testing.assert_array_equal(Oracle(model).run(feeds)["y"], found)
    np.testing.assert_array_equal(run_ort(model, feeds)[0], found)
    return found


@pytest.mark.parametrize("name", FILTERS)
def test_as_pillow(name: str) -> None:
    size = (16, 17)
    image = pytest.importorskip("PIL.Image")
    for given in SIZES:
        x = np.stack([pictures(*given, seed) for seed in range(2)])
        found = by_all(name, x, [[g, g, s, 0] for g, s in zip(given, size, strict=True)], size)
        less = [g - s for g, s in zip(given, size, strict=True)]
        if name == "linear" or (less[0] > max(0, 2 * less[1]) and not rows_first_in_pillow()):
            continue
        way = getattr(image.Resampling, name.upper())
        wanted = np.stack([np.asarray(image.fromarray(one).resize(size[::-1], way)) for one in x])
        assert np.abs(found.astype(int) - wanted).max() <= 1, given
        assert (found != wanted).mean() < 1e-4, given


def test_linear_as_opencv() -> None:
    """Two neighbours a side, whatever the scale."""
    cv2 = pytest.importorskip("cv2")
    for given in SIZES:
        x = pictures(*given)
        found = by_all("linear", x[None], [[given[0], given[0], 17, 0], [given[1], given[1], 16, 0]], (17, 16))[0]
        wanted = cv2.resize(x, (16, 17), interpolation=cv2.INTER_LINEAR)
        assert np.abs(found.astype(int) - wanted).max() <= 1, given


@pytest.mark.parametrize(("name", "colours"), [("nearest", 3), ("bilinear", 1), ("bicubic", 3)])
def test_crops_borders_and_fills(name: str, colours: int) -> None:
    """Parts of the result, places where there is no picture, and pixels of `fill` that are scaled with it."""
    size = (16, 17)
    for given in SIZES:
        x = pictures(*given)[None, ..., :colours]
        for rows, columns in [((0, 31, 7), (3, 40, 9)), ((0, 9, -3), (0, 12, -2)), ((20, 16, 0), (5, 17, 0))]:
            geometry = [
                [g, g + more, resized, begin] for g, (more, resized, begin) in zip(given, (rows, columns), strict=True)
            ]
            found = by_all(name, x, geometry, size, 114)
            if rows == (0, 9, -3):
                assert (found[:, :3] == 114).all() and (found[:, 12:] == 114).all() and (found[:, :, :2] == 114).all()


def test_a_wrong_geometry_stays_inside() -> None:
    """Nothing is read or written where there is nothing: the process lives, and the result has its size."""
    model = kernel("bicubic", (16, 17), 114, 3)
    for geometry in ([[0, 0, 0, 0]] * 2, [[-5, -9, -1, 2**31]] * 2, [[7, 2**20, 1, -4], [1, 1, 2**30, 2**29]]):
        found = model.run({"x": pictures(33, 31)[None], "geometry": np.array(geometry).T.copy()})["y"]
        assert found.shape == (1, 16, 17, 3)
