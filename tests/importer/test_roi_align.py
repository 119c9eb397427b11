"""RoiAlign against onnxruntime: both modes, both kinds of coordinates, fixed and adaptive numbers of samples."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvmopt
from tvmopt.errors import InputError, UnsupportedOp


def model_and_feeds(x, rois, opset=16, **attributes):
    """The regions are inputs, all of picture 0."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], **attributes)],
        "g",
        [value("x", 1, x.shape), value("r", 1, rois.shape), value("b", TensorProto.INT64, [len(rois)])],
        [value("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {"x": x, "r": rois, "b": np.zeros(len(rois), "int64")}


def ours(x, rois, **options):
    model, feeds = model_and_feeds(x, rois, **options)
    return tvmopt.compile(model, verify=False, records=False).model.run(feeds)["y"]


def theirs(x, rois, **options):
    model, feeds = model_and_feeds(x, rois, **options)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def boxes(rng, count, reach):
    corners = rng.uniform(-2, reach + 2, (count, 2, 2)).astype("float32")
    return np.concatenate([corners.min(1), corners.max(1)], 1)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("size", [(2, 1), (7, 17)])
def test_regions_are_scaled_before_they_are_moved(mode, coordinates, size):
    scale, rng = 0.735, np.random.default_rng(size)
    x = rng.standard_normal((1, 3, *size)).astype("float32")
    tiny = np.array([[0, 0, 0, 0], [0.25, 0.7, 0.5, 0.73]], "float32")
    rois = np.concatenate([boxes(rng, 8, max(size) / scale), tiny])
    for ratio in (0, 3):
        options = {
            "mode": mode, "coordinate_transformation_mode": coordinates, "spatial_scale": scale,
            "sampling_ratio": ratio, "output_height": 3, "output_width": 2,
        }  # fmt: skip
        np.testing.assert_allclose(ours(x, rois, **options), theirs(x, rois, **options), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_pictures_of_open_sizes(mode):
    value, rng = helper.make_tensor_value_info, np.random.default_rng(0)
    options = {"mode": mode, "output_height": 3, "output_width": 2, "spatial_scale": 0.5}
    graph = helper.make_graph(
        [helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], **options)],
        "g",
        [value("x", 1, ["n", 3, "h", "w"]), value("r", 1, ["k", 4]), value("b", TensorProto.INT64, ["k"])],
        [value("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for pictures, height, width, count in ((1, 1, 1, 1), (2, 7, 16, 5), (3, 33, 9, 16)):
        feeds = {
            "x": rng.standard_normal((pictures, 3, height, width)).astype("float32"),
            "r": boxes(rng, count, 2 * max(height, width)),
            "b": rng.integers(0, pictures, count),
        }
        np.testing.assert_allclose(compiled.run(feeds)["y"], session.run(None, feeds)[0], rtol=2e-4, atol=2e-5)
    for wrong in (-1, 3, 1 << 40):
        feeds["b"][-1] = wrong
        with pytest.raises(InputError, match="an index is out of range"):
            compiled.run(feeds)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_a_sample_at_the_far_edge_is_the_last_pixel(mode, ratio):
    """Both coordinates of a sample at 8 of 8 pixels are those of pixel 7; they were pixel 0 and its neighbour, times -7
    and 8."""
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype("float32")
    rois = np.array([[1, 1, 100, 3.5], [6, 6, 10, 10], [1, 7, 2, 9]], "float32")
    options = {"mode": mode, "sampling_ratio": ratio, "output_height": 1, "output_width": 3}
    np.testing.assert_allclose(ours(x, rois, **options), theirs(x, rois, **options), rtol=2e-4, atol=2e-5)


def test_older_opsets_do_not_move_by_half_a_pixel():
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype("float32")
    rois = np.array([[0.5, 1.25, 6.0, 7.5], [1, 1, 1.2, 1.3]], "float32")
    options = {"opset": 15, "spatial_scale": 0.5, "output_height": 2, "output_width": 2}
    np.testing.assert_allclose(ours(x, rois, **options), theirs(x, rois, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [np.nan, 1e30])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_coordinates_that_are_no_numbers_stay_inside(wrong, mode):
    """Whatever a region says, the picture is read inside, and other regions keep their values."""
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype("float32")
    good = np.array([[0.5, 1.25, 6.0, 7.5]], "float32")
    options = {"mode": mode, "sampling_ratio": 2, "output_height": 2, "output_width": 2}
    for column in (0, 3):
        bad = good.copy()
        bad[0, column] = wrong
        found = ours(x, np.concatenate([bad, good]), **options)
        np.testing.assert_allclose(found[1:], theirs(x, good, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_the_largest_corner_compares_as_the_reference_does(wrong, ratio):
    """An infinite corner of weight 0 is no number, and neither is a result only where that one comes first."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, 2, 9, 8)).astype("float32")
    x[0, :, rng.integers(0, 9, 12), rng.integers(0, 8, 12)] = wrong
    whole = np.floor(boxes(rng, 9, 7)).clip(0, 7)
    rois = np.concatenate([boxes(rng, 9, 7).clip(0.1, 6.9), whole])
    options = {
        "mode": "max", "coordinate_transformation_mode": "output_half_pixel",
        "sampling_ratio": ratio, "output_height": 3, "output_width": 2,
    }  # fmt: skip
    np.testing.assert_allclose(ours(x, rois, **options), theirs(x, rois, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ratio", [0, 2])
def test_the_largest_of_infinities_below_zero_is_infinite(ratio):
    x = np.full((1, 2, 5, 5), -np.inf, "float32")
    rois = np.array([[0.5, 0.5, 3.5, 3.5], [0.25, 1.0, 0.75, 2.0]], "float32")
    options = {"mode": "max", "sampling_ratio": ratio, "output_height": 2, "output_width": 2}
    found = ours(x, rois, **options)
    assert (found == -np.inf).all()
    np.testing.assert_array_equal(found, theirs(x, rois, **options))


def test_a_scale_that_is_no_number_is_refused():
    model, _ = model_and_feeds(np.ones((1, 1, 4, 4), "float32"), np.ones((1, 4), "float32"), spatial_scale=np.inf)
    with pytest.raises(UnsupportedOp, match="spatial_scale is inf"):
        tvmopt.compile(model, verify=False, records=False)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_a_sample_outside_is_the_first_number_by_nothing(wrong, mode, ratio):
    """As in ONNX's reference, onnxruntime and torchvision: 0 times an infinite number is none."""
    x = np.random.default_rng(3).standard_normal((1, 2, 6, 5)).astype("float32")
    x[0, 1, 0, 0] = wrong
    rois = np.array([[-9, -9, -4, -5], [2, 2, 9, 9], [1, 1, 4, 4], [3, 3, 3, 3]], "float32")
    options = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 4}
    model, feeds = model_and_feeds(x, rois, **options)
    with np.errstate(invalid="ignore"):
        expected = ReferenceEvaluator(model).run(None, feeds)[0]
    assert np.isnan(expected).any()
    np.testing.assert_allclose(ours(x, rois, **options), expected, rtol=2e-4, atol=2e-5)
