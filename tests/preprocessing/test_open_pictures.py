"""Stages for pictures of any size, and letterboxes: beside Pillow, the stages of one size, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import run_ort
from tests.importer.test_resampling import pictures
from tests.preprocessing.models import identity, prepared
from tests.preprocessing.test_stages import convolution
from tvmopt.errors import InputError, UnsupportedOp
from tvmopt.preprocessing.behind import with_stages_behind
from tvmopt.preprocessing.picture import parse
from tvmopt.preprocessing.stages import staged

Image = pytest.importorskip("PIL.Image")
Array = np.ndarray[Any, Any]
SIZES = [(1, 1), (7, 9), (8, 15), (17, 16), (31, 33), (48, 64), (200, 9), (9, 200)]


def bilinear(x: Array, size: tuple[int, int]) -> Array:
    return np.asarray(Image.fromarray(x).resize(size[::-1], Image.Resampling.BILINEAR))


def letterboxed(x: Array, size: tuple[int, int], fill: int) -> Array:
    """As Ultralytics does it, but for the filter."""
    scale = min(size[0] / x.shape[0], size[1] / x.shape[1])
    high, wide = (max(1, round(side * scale)) for side in x.shape[:2])
    top, left = (round((s - r) / 2 - 0.1) for s, r in zip(size, (high, wide), strict=True))
    found = np.full((*size, 3), fill, np.uint8)
    found[top : top + high, left : left + wide] = bilinear(x, (high, wide))
    return found


def bytes_of(text: str, x: Array, size: tuple[int, int]) -> Array:
    """What a model [1, 3, height, width] is given of one picture."""
    found: Array = prepared(f"image:{text},scale=1", x[None], [1, 3, *size])[0].transpose(1, 2, 0)
    return found


@pytest.mark.parametrize("given", SIZES)
@pytest.mark.parametrize(
    "text",
    [
        "resize=33x31",
        "resize=40,crop=33x31",
        "resize=40,crop=33x31,centre=floor",
        "crop=33x31,pad=zero",
        "crop=33x31,pad=zero,centre=floor",
        "resize=20,crop=33x31,pad=zero,filter=nearest",
    ],
)
def test_as_with_one_size(text: str, given: tuple[int, int]) -> None:
    x = pictures(*given)
    wanted = bytes_of(f"{text},from={given[0]}x{given[1]}", x, (33, 31))
    np.testing.assert_array_equal(bytes_of(f"{text},from=any", x, (33, 31)), wanted)


@pytest.mark.parametrize("given", SIZES)
def test_letterbox(given: tuple[int, int]) -> None:
    x, size = pictures(*given), (32, 48)
    for come in ("any", f"{given[0]}x{given[1]}"):
        wanted = letterboxed(x, size, 114)
        np.testing.assert_array_equal(bytes_of(f"letterbox=32x48,from={come}", x, size), wanted)
        side = max(given)
        square = np.full((side, side, 3), 9, np.uint8)
        square[: given[0], : given[1]] = x
        found = bytes_of(f"letterbox=32,place=first,fill=9,from={come}", x, (32, 32))
        np.testing.assert_array_equal(found, bilinear(square, (32, 32)))


def test_layouts_channels_and_bytes() -> None:
    x = pictures(48, 64)
    wanted = bilinear(x, (9, 8)).transpose(2, 0, 1)
    turned = np.ascontiguousarray(x.transpose(2, 0, 1)[None])
    text = "image:resize=9x8,from=any"
    found = prepared(f"{text},scale=1,layout=NCHW,pixels=bgr", turned, [1, 3, 9, 8])[0]
    np.testing.assert_array_equal(found, wanted[::-1])
    np.testing.assert_array_equal(
        prepared(text, x[None], [1, 9, 8, 3], TensorProto.UINT8)[0].transpose(2, 0, 1), wanted
    )
    grey = prepared(f"{text},scale=1,pixels=grey", x[None, ..., :1], [1, 3, 9, 8])[0]
    np.testing.assert_array_equal(grey, np.repeat(wanted[:1], 3, 0))


def test_a_model_of_any_size_is_only_scaled() -> None:
    model = staged(identity([1, 3, "h", "w"]), {"": "image:from=any"})
    assert [n.op_type for n in model.graph.node] == ["Cast", "Mul", "Transpose", "Identity"]
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim][1:3] == ["h", "w"]


def test_a_range_of_shape_is_any_size() -> None:
    model = staged(identity([1, 3, 33, 31]), {"": "image:resize=33x31"}, {"x": (1, "1..64", 64, 3)})
    assert "ScalePictureBilinear" in [n.op_type for n in model.graph.node]


@pytest.mark.parametrize(
    ("text", "shape", "told"),
    [
        ("image:resize=40,from=any", [1, 3, "h", "w"], "gives each picture another size"),
        ("image:crop=33x31,from=any", [1, 3, 33, 31], "may be smaller than the crop"),
        ("image:resize=20,crop=33x31,from=any", [1, 3, 33, 31], "may be smaller than the crop"),
        ("image:from=any", [1, 3, 33, 31], "letterbox=33x31 keeps their ratio"),
        ("image:letterbox=32,from=any", [1, 3, 33, 31], "makes pictures of 32x32, and the model takes 33x31"),
        ("image:resize=33x31", [1, 3, 33, 31], "from=any"),
    ],
)
def test_what_does_not_fit_is_told(text: str, shape: Any, told: str) -> None:
    with pytest.raises(InputError) as error:
        staged(identity(shape), {"": text})
    assert told in str(error.value) and text in error.value.where and error.value.fix


def test_old_models_are_refused() -> None:
    with pytest.raises(InputError, match="opset 10"):
        staged(identity([1, 3, 33, 31], opset=10), {"": "image:resize=33x31,from=any"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("image:letterbox=32,crop=9", "crop has no place beside letterbox"),
        ("image:resize=9,fill=3", "fill is of a letterbox"),
        ("image:letterbox=32,fill=256", "no value of fill"),
        ("image:letterbox=32,place=left", "no value of place"),
    ],
)
def test_words_that_do_not_go_together(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        parse(text)
    assert error.value.fix


def test_compiled() -> None:
    """Verified with pictures of several sizes; the numbers are those of the model on Pillow's."""
    text = "image:letterbox=33x31,mean=0.5,std=0.25,from=any"
    compiled = tvmopt.compile(
        convolution("n"), preprocess=text, shape={"x": ("1..3", "1..256", "1..256", 3)}, threads=2
    )
    assert compiled.report.accuracy["verified"]
    plain = tvmopt.compile(convolution(), threads=1, verify=False)
    for given in SIZES:
        x = np.stack([pictures(*given, seed) for seed in range(2)])
        found = compiled(x)
        for one, y in zip(x, found, strict=True):
            ready = ((letterboxed(one, (33, 31), 114).astype(np.float32) / 255 - 0.5) / 0.25).transpose(2, 0, 1)
            np.testing.assert_allclose(y, plain(ready[None])[0], rtol=0, atol=1e-4)


def detector(size: tuple[int, int]) -> onnx.ModelProto:
    """A model whose only box, (cx, cy, w, h) and one score, is in its other input, whatever the picture shows."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["grey"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["grey", "zero"], ["nothing"]),
        helper.make_node("Reshape", ["nothing", "one"], ["nothing3"]),
        helper.make_node("Add", ["box", "nothing3"], ["y"]),
    ]
    inputs = [value("x", TensorProto.FLOAT, [1, 3, *size]), value("box", TensorProto.FLOAT, [1, 5, 2])]
    weights = [
        onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
        onnx.numpy_helper.from_array(np.array([1, 1, 1]), "one"),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, [1, 5, 2])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def fitted(h: int, w: int) -> tuple[float, ...]:
    """Of a letterbox of 32: how much rows and columns are scaled, and where they begin."""
    high, wide = (round(side * 32 / max(h, w)) for side in (h, w))
    return high / h, wide / w, (32 - high) // 2, (32 - wide) // 2


PLACES: dict[str, Any] = {
    "letterbox=32": fitted,
    "letterbox=32,place=first": lambda h, w: (32 / max(h, w), 32 / max(h, w), 0, 0),
    "resize=32x32": lambda h, w: (32 / h, 32 / w, 0, 0),
    "resize=40,crop=32": lambda h, w: (
        int(40 * h / min(h, w)) / h, int(40 * w / min(h, w)) / w,
        -round((int(40 * h / min(h, w)) - 32) / 2), -round((int(40 * w / min(h, w)) - 32) / 2),
    ),
}  # fmt: skip
"""Where a picture of h x w lies in the model's, by the stage in front of it."""


@pytest.mark.parametrize("text", PLACES)
@pytest.mark.parametrize("given", [(48, 64), (90, 33), (320, 481)])
def test_boxes_are_in_the_pixels_of_the_picture(text: str, given: tuple[int, int]) -> None:
    down, across, top, left = PLACES[text](*given)
    corners = np.array([[3, 5, given[1] - 9, given[0] - 7], [-20, -30, given[1] + 20, given[0] + 30]], np.float32)
    inside = corners * ([across, down] * 2) + [left, top] * 2
    box = np.concatenate([(inside[:, :2] + inside[:, 2:]) / 2, inside[:, 2:] - inside[:, :2], [[0.9], [0.8]]], 1)
    feeds = {"x": pictures(*given)[None], "box": box.T[None].astype(np.float32)}
    wanted = [corners[0], [0, 0, given[1], given[0]]]
    for come in ("any", f"{given[0]}x{given[1]}"):
        for units, result in (("", wanted), (",in=picture", wanted), (",in=model", inside)):
            made = staged(detector((32, 32)), {"x": f"image:{text},from={come}"}, places=True)
            with_stages_behind(made, {"": f"boxes:head=yolov8,iou=1,most=2{units}"}, {})
            onnx.checker.check_model(made, full_check=True)
            np.testing.assert_allclose(run_ort(made, feeds)[0][0], result, rtol=0, atol=1e-3)


def test_boxes_without_a_stage_in_front() -> None:
    made = detector((32, 32))
    with pytest.raises(InputError, match="no stage in front of the model"):
        with_stages_behind(made, {"": "boxes:head=yolov8,in=picture"}, {})


def test_boxes_compiled() -> None:
    """The same numbers as onnxruntime's, verified."""
    text = {"x": "image:letterbox=32,from=any"}
    compiled = tvmopt.compile(
        detector((32, 32)), preprocess=text, postprocess="boxes:head=yolov8,iou=1,most=2", threads=1,
        shape={"x": (1, "1..128", "1..128", 3)},
    )  # fmt: skip
    assert compiled.report.accuracy["verified"]
    made = staged(detector((32, 32)), text, places=True)
    with_stages_behind(made, {"": "boxes:head=yolov8,iou=1,most=2"}, {})
    box = np.float32([[[16, 20], [16, 9], [10, 90], [8, 7], [0.9, 0.8]]])
    for given in ((48, 64), (90, 33), (7, 120)):
        feeds = {"x": pictures(*given)[None], "box": box}
        np.testing.assert_allclose(compiled.model.run(feeds)["y_boxes"], run_ort(made, feeds)[0], rtol=1e-6, atol=1e-4)


def test_gpus_are_refused() -> None:
    text = "image:letterbox=33x31,from=any"
    with pytest.raises(UnsupportedOp, match="are scaled on CPUs only") as error:
        tvmopt.compile(convolution(), preprocess=text, target="nvidia-h100", verify=False)
    assert error.value.fix
