"""GridSample in every mode against the oracle in float64, and the oracle against onnxruntime."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tvmopt
from tests.importer import onnx_check
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.errors import UnsupportedOp
from tvmopt.runtime.model import Model

SIZES = [((2, 3, 5, 7), (2, 4, 9, 2)), ((1, 2, 1, 1), (1, 3, 3, 2)), ((1, 1, 8, 1), (1, 1, 17, 2)),
         ((1, 2, 3, 4, 5), (1, 2, 3, 4, 3)),
         ((2, 17, 5, 7), (2, 4, 9, 2)), ((1, 9, 3, 4, 5), (1, 2, 3, 4, 3))]  # fmt: skip
MODES = list(itertools.product(("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1)))


def made(x_shape, grid_shape, **attributes):
    info = helper.make_tensor_value_info
    node = helper.make_node("GridSample", ["x", "g"], ["y"], **attributes)
    out = [*x_shape[:2], *grid_shape[1:-1]]
    graph = helper.make_graph([node], "g", [info("x", 1, x_shape), info("g", 1, grid_shape)], [info("y", 1, out)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("shapes", SIZES, ids=str)
@pytest.mark.parametrize(("mode", "padding", "corners"), MODES)
def test_against_float64_and_onnxruntime(shapes, mode, padding, corners, tmp_path):
    if mode == "cubic" and len(shapes[0]) == 5:
        pytest.skip("the standard has cubic interpolation of pictures only")
    model = made(*shapes, mode=mode, padding_mode=padding, align_corners=corners)
    onnx.save(model, tmp_path / "m.onnx")
    ours = Model(tvmopt.compile(tmp_path / "m.onnx", verify=False).artifact)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    for spread in (0.7, 4.0, 1e18):
        feeds = {
            "x": rng.standard_normal(shapes[0]).astype("f"),
            "g": (spread * rng.standard_normal(shapes[1])).astype("f"),
        }
        exact, found = Oracle(model).run(feeds)["y"], ours.run(feeds)["y"]
        assert np.isfinite(found).all()
        if spread < 10:
            np.testing.assert_allclose(theirs.run(None, feeds)[0], exact, atol=2e-5)
        if spread < 10 or padding != "reflection":  # where 1e18 is reflected to, rounding decides
            np.testing.assert_allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize("channels", [1, 20])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_no_number_as_a_coordinate(padding, channels, tmp_path):
    model = made((1, channels, 3, 3), (1, 1, 3, 2), mode="cubic", padding_mode=padding)
    onnx.save(model, tmp_path / "m.onnx")
    ours = Model(tvmopt.compile(tmp_path / "m.onnx", verify=False).artifact)
    grid = np.array([[[[0, np.nan], [np.inf, 0], [0, 0]]]], "f")
    x = np.tile(np.arange(9, dtype="f").reshape(1, 1, 3, 3), (1, channels, 1, 1))
    for found in ours.run({"x": x, "g": grid})["y"].reshape(channels, 3):
        assert np.isnan(found[0]) and not np.isfinite(found[1]) and abs(found[2] - 4) < 1e-5


def kernels(model):
    return {kernel.name for kernel in tvmopt.compile(model, verify=False, records=False).report.kernels}


def test_a_coordinate_is_read_in_front_of_the_choice_between_taps(tmp_path):
    """In an arm of the choice its place was that of the arm's own tap: other taps read numbers before the grid."""
    nodes = [helper.make_node("GridSample", ["x", "g"], ["y"], mode="cubic", padding_mode="border", align_corners=1)]
    shapes = {"x": [3, 8, 4, 9], "g": [3, 8, 9, 2]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, [3, 8, 8, 9])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    names = [f"grid_table{number}" for number in ("", 1, 2, 3)]
    tvmopt.compile(model, target="x86-64-v4", verify=False, dump_code={name: tmp_path / name for name in names})
    for name in names:
        text = (tmp_path / name / f"{name}.tir.py").read_text()
        (stored,) = [line for line in text.splitlines() if line.strip().startswith("grid_table[")]
        assert stored.count("arg0[") <= 1, name


def test_vectors_of_channels_where_they_pay():
    """Few channels, and few points of a large picture, stay in the layout of the model."""
    assert "sample_channels" in kernels(made((1, 4, 9, 9), (1, 9, 9, 2)))
    for shapes in (((1, 3, 9, 9), (1, 9, 9, 2)), ((1, 64, 9, 9), (1, 1, 5, 2))):
        assert not any("sample_channels" in name for name in kernels(made(*shapes)))


@pytest.mark.parametrize("channels", [4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64])
def test_widths_of_channels(channels):
    """What lies outside counts as 0, whatever stands at the border: infinity and NaN do not get into it."""
    model, rng = made((2, channels, 6, 6), (2, 7, 3, 2)), np.random.default_rng(channels)
    x = rng.standard_normal((2, channels, 6, 6)).astype("f")
    grid = (1.3 * rng.standard_normal((2, 7, 3, 2))).astype("f")
    x[:, 0, 0, 0], x[:, 1, -1, -1], x[:, 2, 0, -1] = np.inf, np.nan, 3e38
    grid[0, 0] = [[-1.0, -1.0], [-40.0, -40.0], [40.0, 40.0]]
    ours = tvmopt.compile(model, verify=False, records=False).model.run({"x": x, "g": grid})["y"]
    with np.errstate(all="ignore"):
        exact = Oracle(model).run({"x": x, "g": grid})["y"]
    assert (ours[0, :, 0, 1:] == 0).all()
    np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_open_number_of_pictures_with_channels(mode):
    model, rng = made((1, 20, 5, 7), (1, 4, 9, 2), mode=mode), np.random.default_rng(0)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    ours = tvmopt.compile(model, verify=False, records=False).model
    for n in (1, 2, 5):
        feeds = {
            "x": rng.standard_normal((n, 20, 5, 7)).astype("f"),
            "g": rng.uniform(-1.2, 1.2, (n, 4, 9, 2)).astype("f"),
        }
        np.testing.assert_allclose(ours.run(feeds)["y"], Oracle(model).run(feeds)["y"], atol=2e-5)


OPEN = [("nearest", "zeros", 0), ("linear", "border", 1), ("linear", "reflection", 1), ("cubic", "reflection", 0)]


@pytest.mark.parametrize(("mode", "padding", "corners"), OPEN)
def test_open_sizes(mode, padding, corners, tmp_path):
    model = made(*SIZES[0], mode=mode, padding_mode=padding, align_corners=corners)
    for value, names in zip((*model.graph.input, *model.graph.output), ("n.hw", "nrc.", "n.rc"), strict=True):
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if name != ".":
                dim.dim_param = name
    onnx.save(model, tmp_path / "m.onnx")
    ours = Model(tvmopt.compile(tmp_path / "m.onnx", verify=False).artifact)
    rng = np.random.default_rng(3)
    for x_shape, grid_shape in [
        ((2, 3, 5, 7), (2, 4, 9, 2)),
        ((1, 3, 1, 8), (1, 31, 1, 2)),
        ((1, 3, 9, 1), (1, 1, 1, 2)),
    ]:
        for spread in (0.7, 4.0):
            feeds = {
                "x": rng.standard_normal(x_shape).astype("f"),
                "g": (spread * rng.standard_normal(grid_shape)).astype("f"),
            }
            exact = Oracle(model).run(feeds)["y"]
            np.testing.assert_allclose(ours.run(feeds)["y"], exact, atol=2e-5)


@pytest.mark.parametrize("size", [(1, 1, 1, 3), (1, 1, 2, 1, 3)])
def test_the_corners_of_an_axis_of_one_element_are_nowhere(size):
    """onnxruntime takes 1, ONNX's reference -1; TVM ended with an AssertionError."""
    rank = len(size) - 2
    node = helper.make_node("AffineGrid", ["t", "s"], ["y"], align_corners=1)
    made = onnx_check.model(
        [node],
        [onnx_check.value("t", (1, rank, rank + 1))],
        [onnx_check.value("y", None)],
        {"s": np.int64(size)},
        opset=20,
    )
    with pytest.raises(UnsupportedOp, match="axis of one element"):
        tvmopt.compile(made, verify=False)
    folded = onnx.ModelProto.FromString(made.SerializeToString())  # of a constant matrix ONNX's reference makes NaN
    folded.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, rank, rank + 1), np.float32), "t"))
    del folded.graph.input[:]
    with pytest.raises(UnsupportedOp, match="axis of one element"):
        tvmopt.compile(folded, verify=False)
    made.graph.node[0].attribute[0].i = 0
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    theta = np.random.default_rng(0).standard_normal((1, rank, rank + 1)).astype(np.float32)
    found = tvmopt.compile(made, threads=1, verify=False).model.run({"t": theta})["y"]
    np.testing.assert_allclose(found, session.run(None, {"t": theta})[0], rtol=1e-5, atol=1e-5)
