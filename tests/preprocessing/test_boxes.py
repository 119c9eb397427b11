"""Stages behind a detector: the boxes that no better one overlaps, in a fixed number of places."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import run_ort
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.errors import InputError
from tvmopt.preprocessing.asked import named, stages_behind
from tvmopt.preprocessing.behind import with_stages_behind
from tvmopt.preprocessing.boxes import Boxes, parse

Array = np.ndarray[Any, Any]
Shapes = dict[str, list[Any]]


def detector(shapes: Shapes, opset: int = 17, elem: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A model that gives what it is given."""
    nodes = [helper.make_node("Identity", [f"{name}_in"], [name], name=name) for name in shapes]
    inputs, outputs = (
        [helper.make_tensor_value_info(name + end, elem, shape) for name, shape in shapes.items()]
        for end in ("_in", "")
    )
    made = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)]
    )
    made.ir_version = 8
    return made


def picture(seed: int, count: int, classes: int, pictures: int = 2) -> tuple[Array, Array]:
    """Boxes (x, y, x, y) that overlap in heaps, and scores [n, N, classes], some of them equal."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 20, (pictures, count, 2))
    boxes = np.concatenate([low, low + rng.uniform(0, 12, low.shape)], 2).astype(np.float32)
    boxes[:, ::7, 2] = boxes[:, ::7, 0]  # without area
    return boxes, rng.uniform(0, 1, (pictures, count, classes)).astype(np.float32).round(2)


def wanted(boxes: Array, scores: Array, asked: Boxes) -> dict[str, Array]:
    """By onnxruntime's NonMaxSuppression a picture at a time, and NumPy for the rest."""
    pictures, count, classes = scores.shape
    kinds = np.broadcast_to(np.arange(classes), scores.shape)
    if asked.agnostic:
        kinds, scores = scores.argmax(2)[..., None], scores.max(2, keepdims=True)
    elif not asked.multi:
        scores = np.where(scores.argmax(2)[..., None] == np.arange(classes), scores, -np.inf)
    node = helper.make_node("NonMaxSuppression", ["b", "s", "most", "iou", "score"], ["y"])
    value = helper.make_tensor_value_info
    inputs = [
        value("b", 1, None),
        value("s", 1, None),
        value("most", 7, [1]),
        value("iou", 1, [1]),
        value("score", 1, [1]),
    ]
    model = helper.make_model(helper.make_graph([node], "g", inputs, [value("y", 7, None)]), ir_version=8,
        opset_imports=[helper.make_opsetid("", 11)])  # fmt: skip
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = {
        "boxes": np.zeros((pictures, asked.most, 4), np.float32),
        "scores": np.zeros((pictures, asked.most), np.float32),
        "classes": np.full((pictures, asked.most), -1), "count": np.zeros(pictures, np.int64),
    }  # fmt: skip
    for p in range(pictures):
        limits = {"most": np.array([count]), "iou": np.float32([asked.iou]), "score": np.float32([asked.score])}
        kept = session.run(None, {"b": boxes[p : p + 1], "s": scores[p : p + 1].transpose(0, 2, 1).copy(), **limits})[0]
        order = np.lexsort((kept[:, 1], kept[:, 2], -scores[p, kept[:, 2], kept[:, 1]]))[: asked.most]
        rows, columns = kept[order, 2], kept[order, 1]
        found["count"][p] = len(order)
        found["boxes"][p, : len(order)] = boxes[p, rows]
        found["scores"][p, : len(order)] = scores[p, rows, columns]
        found["classes"][p, : len(order)] = kinds[p, rows, columns]
    return found


def given(head: str, boxes: Array, scores: Array) -> dict[str, Array]:
    """What a model of that head gives for boxes and scores."""
    if head == "pair":
        return {"boxes": boxes, "scores": scores}
    centred = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], 2)
    if head == "yolov8":
        return {"y": np.concatenate([centred, scores], 2).transpose(0, 2, 1).copy()}
    return {"y": np.concatenate([centred, np.full_like(scores[..., :1], 0.5), scores * 2], 2)}


def check(found: dict[str, Array], expected: dict[str, Array]) -> None:
    for what, array in expected.items():
        one = next(a for name, a in found.items() if name.endswith(what))
        np.testing.assert_allclose(one, array, rtol=1e-6, atol=1e-5, err_msg=what)


WAYS = ["", ",agnostic", ",multi-label"]


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", ["yolov8", "yolov5", "pair"])
def test_as_non_max_suppression(head: str, way: str, opset: int) -> None:
    text = f"boxes:head={head},score=0.3,iou=0.4,most=25{way}"
    boxes, scores = picture(opset, 33, 3)
    feeds = given(head, boxes, scores)
    made = detector({name: ["n", *array.shape[1:]] for name, array in feeds.items()}, opset)
    with_stages_behind(made, {"": text}, {})
    onnx.checker.check_model(made, full_check=True)
    if head != "pair":  # of halves of sums and differences, which are not those numbers again
        y = feeds["y"] if head == "yolov5" else feeds["y"].transpose(0, 2, 1)
        half = y[..., 2:4] * np.float32(0.5)
        boxes = np.concatenate([y[..., :2] - half, y[..., :2] + half], 2)
    expected = wanted(boxes, scores, parse(text))
    assert expected["count"].min() > 0
    inputs = {f"{name}_in": array for name, array in feeds.items()}
    check(dict(zip([o.name for o in made.graph.output], run_ort(made, inputs), strict=True)), expected)
    check(Oracle(made).run(inputs), expected)


@pytest.mark.parametrize(
    ("count", "classes", "most", "way"),
    [
        (1, 1, 1, ""),
        (7, 2, 9, ",agnostic"),
        (16, 80, 300, ",multi-label"),
        (33, 3, 8, ""),
        (257, 5, 31, ",multi-label"),
    ],
)
def test_compiled(count: int, classes: int, most: int, way: str) -> None:
    """Verified; any number of pictures; with edge values; and the names of classes."""
    text = f"boxes:head=pair,score=0.3,iou=0.4,most={most}{way}"
    made = detector({"boxes": ["n", count, 4], "scores": ["n", count, classes]})
    compiled = tvmopt.compile(made, postprocess=text, threads=1)
    assert compiled.report.accuracy["verified"]
    assert [o.name for o in compiled.model.outputs] == [f"boxes_{n}" for n in ("boxes", "scores", "classes", "count")]
    for pictures in (1, 3):
        boxes, scores = picture(count + pictures, count, classes, pictures)
        check(compiled.model.run({"boxes_in": boxes, "scores_in": scores}), wanted(boxes, scores, parse(text)))
    for value in (0.0, np.inf, -np.inf, np.nan, 3e38):
        boxes, scores = picture(9, count, classes)
        scores[0, 0], scores[1] = value, value
        check(compiled.model.run({"boxes_in": boxes, "scores_in": scores}), wanted(boxes, scores, parse(text)))


def test_names_of_classes_are_kept(tmp_path: Any) -> None:
    (tmp_path / "l.txt").write_text("none\ncat\ndog")
    made = detector({"boxes": [1, 9, 4], "scores": [1, 9, 3]})
    asked: Any = {"head": "pair", "labels": str(tmp_path / "l.txt"), "iou": 0.5}
    compiled = tvmopt.compile(made, postprocess=asked, threads=1, verify=False)
    assert compiled.model.labels == {"boxes_classes": ("none", "cat", "dog")}
    assert tvmopt.refit(compiled.artifact, made).model.labels == compiled.model.labels


@pytest.mark.parametrize("end", ["first", "last"])
def test_background_and_softmax(end: str) -> None:
    boxes, logits = picture(3, 16, 4)
    logits *= 8
    made = detector({"logits": [2, 4, 16], "boxes": [2, 16, 1, 4]})
    with_stages_behind(made, {"": f"boxes:head=pair,box=yxyx,softmax,background={end},score=0.4,most=16"}, {})
    feeds = {"logits_in": logits.transpose(0, 2, 1).copy(), "boxes_in": boxes[:, :, None][..., [1, 0, 3, 2]]}
    e = np.exp(logits - logits.max(2, keepdims=True))
    scores = (e / e.sum(2, keepdims=True))[..., 1:] if end == "first" else (e / e.sum(2, keepdims=True))[..., :-1]
    expected = wanted(boxes, scores, parse("boxes:head=pair,score=0.4,most=16"))
    expected["classes"] += (expected["classes"] >= 0) * (end == "first")
    check(dict(zip([o.name for o in made.graph.output], run_ort(made, feeds), strict=True)), expected)


def test_halves_and_what_is_read_elsewhere() -> None:
    made = detector({"y": [1, 9, 40], "more": [2]}, elem=TensorProto.FLOAT16)
    with_stages_behind(made, {"y": "boxes:head=yolov8,most=3"}, {})
    assert [o.name for o in made.graph.output] == ["y_boxes", "y_scores", "y_classes", "y_count", "more"]
    onnx.checker.check_model(made, full_check=True)


def test_as_torchvision() -> None:
    """Of boxes of any class: torchvision's own kernel keeps the same."""
    vision = pytest.importorskip("torchvision.ops", reason="torchvision is not installed")
    import torch

    boxes, scores = picture(5, 200, 1, 1)
    scores[0, :, 0] = np.random.default_rng(1).permutation(200) / 200  # equal ones come in any order there
    made = detector({"boxes": [1, 200, 4], "scores": [1, 200, 1]})
    compiled = tvmopt.compile(made, postprocess="boxes:head=pair,score=0,most=200", threads=1, verify=False)
    kept = vision.nms(torch.from_numpy(boxes[0]), torch.from_numpy(scores[0, :, 0]), 0.45).numpy()
    found = compiled.model.run({"boxes_in": boxes, "scores_in": scores})
    kept = kept[scores[0, kept, 0] > 0]
    np.testing.assert_array_equal(np.sort(found["boxes_scores"][0, : len(kept)]), np.sort(scores[0, kept, 0]))
    assert found["boxes_count"] == len(kept)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("boxes:", "how the model gives its boxes is not said"),
        ("boxes:head=yolov9", "says nothing about head"),
        ("boxes:hed=yolov8", "did you mean head?"),
        ("boxes:head=yolov8,iou=1.5", "0 to 1"),
        ("boxes:head=yolov8,score=nan", "says nothing about score"),
        ("boxes:head=yolov8,most=0", "says nothing about most"),
        ("boxes:head=yolov8,agnostic=1", "says nothing about agnostic"),
        ("boxes:head=yolov8,iou=0.5,iou=0.6", "given twice"),
        ("boxes:head=yolov8,softmax", "softmax is of head=pair"),
        ("boxes:head=yolov8,agnostic,multi-label", "one of the two"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert told in str(error.value) and error.value.where and error.value.fix


@pytest.mark.parametrize(
    ("shapes", "text", "told"),
    [
        ({"y": [1, 4, 99]}, "boxes:head=yolov8", "4 and one a class"),
        ({"y": [1, 84]}, "boxes:head=yolov8", "three dimensions"),
        ({"y": [1, 84, 99]}, "boxes:head=pair", "which output has the scores"),
        ({"y": [1, 9, 4], "z": [1, 8, 3]}, "boxes:head=pair", "no scores of 9 boxes"),
        ({"y": [1, 9, 5], "z": [1, 9, 3]}, "y=boxes:head=pair", "no boxes of four numbers"),
        ({"y": [1, 9, 4], "z": [1, 9, 3], "w": [1, 9, 2]}, "boxes:head=pair", "scores=NAME"),
    ],
)
def test_what_does_not_fit_is_told(shapes: Shapes, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        with_stages_behind(detector(shapes), named([text], "--postprocess", ("scores:", "boxes:")), {})
    assert error.value.where and error.value.fix


def test_old_models_and_wrong_numbers_of_names() -> None:
    with pytest.raises(InputError, match="opset 10"):
        with_stages_behind(detector({"y": [1, 84, 99]}, 10), {"": "boxes:head=yolov8"}, {})
    with pytest.raises(InputError, match="2 names, and 'y' has 80 classes"):
        with_stages_behind(detector({"y": [1, 84, 99]}), {"": "boxes:head=yolov8"}, {"": ("a", "b")})


def test_gpus_are_refused_and_c_archives_select(tmp_path: Any) -> None:
    made = detector({"boxes": [1, 9, 4], "scores": [1, 9, 3]})
    with pytest.raises(InputError, match="on CPUs only"):
        tvmopt.compile(made, postprocess="boxes:head=pair", target="nvidia-h100")
    done = tvmopt.compile(
        made, postprocess="boxes:head=pair,most=4", threads=1, emit="c-archive", output=tmp_path / "c"
    )
    assert done.report.accuracy["verified"]


def test_words() -> None:
    text = "boxes:head=yolov8,score=0.5,iou=0.45,most=300,agnostic"
    assert stages_behind("boxes:head=yolov8,agnostic,score=0.5") == ({"": text}, {})
    assert stages_behind({"y": {"head": "yolov8", "agnostic": True, "score": 0.5}}) == ({"y": text}, {})
    assert parse(text).text == text
    assert stages_behind("boxes:head=pair,score=0,iou=0")[0][""] == "boxes:head=pair,score=0.0,iou=0.0,most=300"
