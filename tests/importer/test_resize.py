"""A resize by a ratio that float32 rounds is as exact as one by two: its places and weights are constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.errors import ModelError


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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
def test_a_cubic_resize_of_integers_rounds_and_saturates(dtype: str) -> None:
    """It cut: half of the numbers were one too small, and what overshot 0 or 255 began again at the other end."""
    limits = np.iinfo(dtype)
    ends = (limits.min, limits.max) if limits.bits < 32 else (-(2**15), 2**15)
    x = np.random.default_rng(0).choice([*ends, 3, 90], (1, 2, 9, 11)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")
    infos = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", x.shape), ("y", (1, 2, 18, 16)))]
    proto = model([node], infos[:1], infos[1:], {"scales": np.float32([1, 1, 2, 1.5])})
    exact = Oracle(proto).run({"x": x}, ["y"])["y"]
    found = tvmopt.compile(proto, verify=False).model.run({"x": x})["y"]
    apart = np.abs(found.astype(np.float64) - exact.astype(np.float64))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.02  # float32 rounds at an edge


OF_CUBIC = [
    {"mode": "cubic", **more} for more in ({}, {"antialias": 1}, {"exclude_outside": 1}, {"cubic_coeff_a": -0.5})
]


@pytest.mark.parametrize("options", [{"mode": "linear"}, {"mode": "linear", "antialias": 1}, *OF_CUBIC])
@pytest.mark.parametrize(
    "transform", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
@pytest.mark.parametrize("scales", [(2, 2), (1.5, 0.7), (0.5, 0.5), (1, 3), (3, 1)])
def test_every_option_of_interpolation(options: dict[str, Any], transform: str, scales: tuple[float, float]) -> None:
    words = {"coordinate_transformation_mode": transform, **options}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **words)
    given = {"scales": np.array([1, 1, *scales], "f")}
    proto = model([node], [value("x", (1, 3, 9, 17))], [value("y", None)], given, opset=19)
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 17)).astype("f")
    exact = Oracle(proto).run({"x": x}, ["y"])["y"]
    found = tvmopt.compile(proto, verify=False).model.run({"x": x})["y"]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("shape", [(3, 2, 9), (9, 17), (2, 3, 5, 6, 7)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_other_ranks(mode: str, shape: tuple[int, ...]) -> None:
    scales = np.array([1.0, 1.0, 2.0, 1.5, 0.5][: len(shape)], "f")
    scales[-1] = 1.7
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    proto = model([node], [value("x", shape)], [value("y", None)], {"scales": scales})
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    exact = Oracle(proto).run({"x": x}, ["y"])["y"]
    found = tvmopt.compile(proto, verify=False).model.run({"x": x})["y"]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(dtype: str) -> None:
    """Halves are computed in float32 and rounded once, doubles as such."""
    kind = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float64": TensorProto.DOUBLE}[dtype]
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")
    given = {"scales": np.float32([1, 1, 2, 1.5])}
    proto = model([node], [value("x", (2, 3, 9, 17), kind)], [value("y", None, kind)], given)
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 17)).astype(helper.tensor_dtype_to_np_dtype(kind))
    exact = Oracle(proto).run({"x": x}, ["y"])["y"].astype("f8")
    found = tvmopt.compile(proto, verify=False).model.run({"x": x})["y"].astype("f8")
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 1e-14}[dtype]
    assert np.abs(found - exact).max() <= 1.01 * step * np.abs(exact).max()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((400,), (9,)), ((3, 400), (3, 17)), ((400, 3), (17, 3)), ((90, 200), (4, 9)), ((2, 3, 200), (2, 3, 7)),
        ((2, 300, 3), (2, 9, 3)), ((1, 2, 300, 9), (1, 2, 9, 9)), ((1, 2, 300, 90), (1, 2, 9, 45)),
        ((60, 2, 3, 90), (2, 2, 3, 5)), ((2, 40, 60, 50, 3), (2, 4, 5, 6, 3)), ((1, 2, 40, 60, 50), (1, 2, 3, 5, 4)),
    ],
)  # fmt: skip
def test_many_taps_along_any_axis(shape: tuple[int, ...], sizes: tuple[int, ...], mode: str) -> None:
    """As many as the tensor shrinks, times two or four."""
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, antialias=1)
    proto = model([node], [value("x", shape)], [value("y", None)], {"sizes": np.array(sizes)}, opset=19)
    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    exact = Oracle(proto).run({"x": x}, ["y"])["y"]
    compiled = tvmopt.compile(proto, verify=False).model
    np.testing.assert_allclose(compiled.run({"x": x})["y"], exact, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize(("shape", "sizes"), [((2, 300), 9), ((2, 3, 300), 9), ((2, 3, 300, 4), 9)])
def test_many_taps_of_an_open_number(shape: tuple[int, ...], sizes: int) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic", antialias=1)
    axis = shape.index(300)
    out = [sizes if i == axis else size for i, size in enumerate(shape)]
    scales = np.float32([a / b for a, b in zip(out, shape, strict=True)])
    proto = model([node], [value("x", ("n", *shape[1:]))], [value("y", ("n", *out[1:]))], {"scales": scales}, opset=19)
    compiled = tvmopt.compile(proto, verify=False).model
    for count in (1, 3):
        x = np.random.default_rng(count).standard_normal((count, *shape[1:])).astype("f")
        exact = Oracle(proto).run({"x": x}, ["y"])["y"]
        np.testing.assert_allclose(compiled.run({"x": x})["y"], exact, rtol=1e-5, atol=4e-6)


def test_an_open_number_of_pictures() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")
    given = {"scales": np.float32([1, 1, 2, 1.5])}
    proto = model([node], [value("x", ("n", 3, 9, 17))], [value("y", ("n", 3, 18, 25))], given)
    compiled = tvmopt.compile(proto, verify=False).model
    for count in (1, 2, 5):
        x = np.random.default_rng(count).standard_normal((count, 3, 9, 17)).astype("f")
        exact = Oracle(proto).run({"x": x}, ["y"])["y"]
        np.testing.assert_allclose(compiled.run({"x": x})["y"], exact, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("options", [{"mode": "cubic"}, {"mode": "linear", "antialias": 1}, {"mode": "linear"}])
def test_sizes_that_repeat_an_open_batch(options: dict[str, Any]) -> None:
    """torch's exporter writes the batch and the channels among the sizes: axes that stay as they are need no kernel,
    and the modes that want numbers want none of them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["kept"], end=2),
        helper.make_node("Concat", ["kept", "to"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **options),
    ]
    made = model(nodes, [value("x", ("n", "c", 9, 11))], [value("y", None)], {"to": np.array([4, 15])}, opset=18)
    compiled = tvmopt.compile(made, verify=False, records=False)
    assert len(compiled.report.kernels) == 2  # rows and columns
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((1, 1, 9, 11), (3, 2, 9, 11)):
        x = np.random.default_rng(shape[0]).standard_normal(shape).astype("float32")
        np.testing.assert_allclose(compiled.model.run({"x": x})["y"], session.run(None, {"x": x})[0], atol=1e-5)


@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
def test_a_cubic_resize_to_open_sizes(transform: str) -> None:
    """It was refused: tables of positions of vision transformers are resized so to pictures of open size."""
    options = {"mode": "cubic", "axes": [2, 3], "cubic_coeff_a": -0.5, "coordinate_transformation_mode": transform}
    nodes = [
        helper.make_node("Shape", ["z"], ["sizes"], start=2),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **options),
    ]
    inputs = [value("x", ("n", 3, "h", 6)), value("z", (1, 1, "p", "q"))]
    made = model(nodes, inputs, [value("y", None)], opset=18)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    rng = np.random.default_rng(0)
    for batch, high, wanted in ((1, 5, (9, 3)), (2, 1, (4, 17)), (3, 8, (8, 6)), (1, 2, (1, 1))):
        x = rng.standard_normal((batch, 3, high, 6)).astype("float32")
        feeds = {"x": x, "z": np.zeros((1, 1, *wanted), "float32")}
        np.testing.assert_allclose(compiled.run(feeds)["y"], Oracle(made).run(feeds)["y"], rtol=1e-5, atol=1e-5)


def test_a_cubic_resize_between_convolutions() -> None:
    """These are channels last, and the planes between them are not."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Resize", ["b", "", "scales"], ["c"], mode="cubic"),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    given = {name: rng.standard_normal((16, 16, 3, 3)).astype("f") / 12 for name in ("w", "v")}
    given["scales"] = np.float32([1, 1, 2, 2])
    proto = model(nodes, [value("x", (1, 16, 9, 17))], [value("y", None)], given)
    x = rng.standard_normal((1, 16, 9, 17)).astype("f")
    exact = Oracle(proto).run({"x": x}, ["y"])["y"]
    found = tvmopt.compile(proto, verify=False).model.run({"x": x})["y"]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=2e-5)


def of_a_region(mode: str, roi: list[float], **given: Any) -> Any:
    names = ["x", "roi", *("scales" if "scales" in given else "", "sizes" if "sizes" in given else "")]
    options = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    node = helper.make_node("Resize", names, ["y"], **options)
    return model([node], [value("x", (1, 2, 5, 6))], [value("y", None)], {"roi": np.array(roi, "f"), **given})


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "given",
    [
        {"scales": np.float32([1, 1, 2, 2.3])},
        {"scales": np.float32([1, 1, 0.5, 0.29])},  # 2 by 1 elements of 2.5 by 1.74
        {"sizes": np.array([1, 2, 7, 1], np.int64)},
    ],
)
@pytest.mark.parametrize(
    ("low", "high"), [((0.13, 0.22), (0.61, 0.87)), ((0.61, 0.87), (0.13, 0.22)), ((-0.3, 0.52), (1.2, 0.52))]
)
def test_a_region_of_any_order(
    mode: str, given: dict[str, Any], low: tuple[float, ...], high: tuple[float, ...]
) -> None:
    """It does not change the size that scales give; one that ends before it begins is turned round."""
    proto = of_a_region(mode, [0, 0, *low, 1, 1, *high], **given)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype("f")
    expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    found = tvmopt.compile(proto).model.run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_region_that_is_none_is_refused() -> None:
    with pytest.raises(ModelError, match="begins and ends at numbers"):
        tvmopt.compile(of_a_region("cubic", [0, 0, 0, np.nan, 1, 1, 1, 1], scales=np.float32([1, 1, 2, 2])))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 8, 9, 10])
@pytest.mark.parametrize("scales", [(2, 1.5), (3, 2), (0.6, 0.5)])
def test_before_opset_11_places_are_not_centres(mode: str, opset: int, scales: tuple[float, float]) -> None:
    """ONNX's converter to newer opsets does not say so, and centres are the default there."""
    factors = np.array([1, 1, *scales], "f")
    if opset < 9:
        node = helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=factors.tolist())
    else:
        node = helper.make_node("Upsample" if opset == 9 else "Resize", ["x", "scales"], ["y"], mode=mode)
    if "Upsample" in node.op_type and min(scales) < 1:
        pytest.skip("Upsample makes no picture smaller")
    given = {"scales": factors} if opset >= 9 else {}
    proto = model([node], [value("x", (1, 2, 5, 6))], [value("y", None)], given, opset=opset)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype("f")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = tvmopt.compile(proto).model.run({"x": x})["y"]
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("factors", [(1, 2), (2, 2), (3, 4), (5, 1), (7, 3), (1.5, 2.5)])
def test_the_nearest_of_pixels_that_are_repeated(transform: str, rounding: str, factors: tuple[float, float]) -> None:
    """Rules of rounding that repeat each pixel so many times are one operator, whatever they are called."""
    options = {"mode": "nearest", "coordinate_transformation_mode": transform, "nearest_mode": rounding}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **options)
    proto = model([node], [value("x", (1, 2, 5, 17))], [value("y", None)], {"scales": np.array([1, 1, *factors], "f")})
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 17)).astype("f")
    expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    np.testing.assert_array_equal(tvmopt.compile(proto).model.run({"x": x})["y"], expected)


@pytest.mark.parametrize("transform", ["asymmetric", "half_pixel", "pytorch_half_pixel"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("size", [10, "n"])
def test_scales_that_are_no_floats(transform: str, nearest: str, size: int | str) -> None:
    """Ten elements by 0.7 are seven, as engines multiply in float32. They compute the places of the nearest elements
    so, too: some are halfway there, and not in float64. A fifth of these took other elements than onnxruntime."""
    for scale in (0.7, 0.3, 2.3, 4 / 3, 1.7):
        options = {"mode": "nearest", "coordinate_transformation_mode": transform, "nearest_mode": nearest}
        node = helper.make_node("Resize", ["x", "", "s"], ["y"], **options)
        proto = model([node], [value("x", (1, size))], [value("y", (1, None))], {"s": np.float32([1, scale])})
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        made = tvmopt.compile(proto, records=False, threads=1).model
        for length in (10,) if size == 10 else (4, 10, 20, 33, 100, 135):
            x = np.arange(length, dtype=np.float32).reshape(1, -1)
            (want,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(made.run({"x": x})["y"], want, strict=True)


def test_the_oracle_resizes_a_long_signal() -> None:
    """Each axis was a product with a matrix: one of a million elements and three took terabytes."""
    x = np.arange(2.0, 1 << 20, dtype=np.float32).reshape(1, 1, -1)
    for mode in ("nearest", "linear"):
        node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
        proto = model([node], [value("x", x.shape)], [value("y", (1, 1, None))], {"s": np.float32([1, 1, 2])})
        found = Oracle(proto).run({"x": x}, ["y"])["y"]
        assert found.shape == (1, 1, 2 * x.size) and found[0, 0, 0] == 2 and np.ptp(found) == np.ptp(x)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize(("rows", "columns"), [(7, 5), (1, 4), (8, 1), (16, 33)])
def test_regions_that_a_run_computes(mode: str, rows: int, columns: int) -> None:
    """As TensorFlow's detectors cut out boxes: also beyond the picture, turned round, and of one element."""
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5, "mode": mode}
    node = helper.make_node("Resize", ["x", "roi", "", "to"], ["y"], **options)
    given = {"to": np.array([1, 3, rows, columns])}
    shapes = {"x": (1, 3, 17, 9), "roi": (8,)}
    proto = model([node], [value(n, s) for n, s in shapes.items()], [value("y", (1, 3, rows, columns))], given)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    made = tvmopt.compile(proto, records=False, threads=1).model
    rng = np.random.default_rng(0)
    for box in ((0.1, 0.2, 0.83, 0.71), (-0.31, 0.4, 0.5, 1.37), (0.9, 0.77, 0.13, 0.05), (0.0, 0.0, 1.0, 1.0)):
        roi = np.float32([0, 0, box[0], box[1], 1, 1, box[2], box[3]])
        feeds = {"x": rng.standard_normal(shapes["x"]).astype("f"), "roi": roi}
        (want,) = session.run(None, feeds)
        np.testing.assert_allclose(made.run(feeds)["y"], want, rtol=1e-4, atol=2e-5)


def test_one_box_after_the_other() -> None:
    """TensorFlow's exporter writes a loop over boxes whose number is a list of one element: a bound of a Slice."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,16,16] x, float[3,4] boxes) => (float[3,1,1,5,6] y)
        <int64 three = {3}, bool on = {1}, int64[4] to = {1,1,5,6}, int64 one = {1}, int64[1] along = {0},
         float[2] no = {0.0, 0.0}, float[2] all = {1.0, 1.0}, int64[1] four = {4}, int64[1] a = {0}, int64[1] b = {2}>
    { y = Loop(three, on) <body = g2 (int64[1] i, bool go) => (bool more, float[1,1,5,6] cut) {
        more = Identity(go)  next = Add(i, one)  row = Slice(boxes, i, next, along)  box = Reshape(row, four)
        begin = Slice(box, a, b)  end = Slice(box, b, four)  roi = Concat <axis = 0> (no, begin, all, end)
        cut = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, , to) }> }"""
    proto = parser.parse_model(text)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 1, 16, 16)).astype("f"),
             "boxes": np.float32([[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9], [0.5, 0.5, 1.2, 0.6]])}  # fmt: skip
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    found = tvmopt.compile(proto, records=False, threads=1).model.run(feeds)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-5)
