"""A detector's rows are compared with the rows that they are, in whichever order near ties leave them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, value
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.ranked import Ranked, pairs, ranked

BOXES = 40
node = helper.make_node


def detector() -> onnx.ModelProto:
    """The ten largest scores of products, their boxes and labels."""
    nodes = [
        node("Mul", ["x", "third"], ["raw"]),
        node("Sigmoid", ["raw"], ["every"]),
        node("TopK", ["every", "ten"], ["scores", "places"]),
        node("Gather", ["boxes", "places"], ["chosen"]),
        node("Gather", ["names", "places"], ["labels"]),
        node("Mul", ["chosen", "third"], ["box"]),
    ]
    given = [value("x", (BOXES,)), value("boxes", (BOXES, 4)), value("names", (BOXES,), TensorProto.INT64)]
    results = [value("box", (10, 4)), value("labels", (10,), TensorProto.INT64), value("scores", (10,))]
    return model(nodes, given, results, {"third": np.float32(1 / 3), "ten": np.array([10], np.int64)})


def feeds() -> dict[str, np.ndarray]:
    """Scores of which the fourth and fifth are, and the tenth and eleventh, a few millionths of a millionth apart."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-2, 2, BOXES))[::-1].astype("f")
    x[4], x[10] = np.nextafter(x[3], -9, dtype="f"), np.nextafter(x[9], -9, dtype="f")
    return {
        "x": x,
        "boxes": rng.uniform(0, 300, (BOXES, 4)).astype("f"),
        "names": rng.integers(0, 9, BOXES) + 10 * np.arange(BOXES),
    }


def outputs(places: list[int], **changed: np.ndarray) -> dict[str, np.ndarray]:
    given = feeds()
    scores = 1 / (1 + np.exp(-given["x"].astype(np.float64) / 3))
    boxes = given["boxes"][places] * np.float32(1 / 3)
    return {"box": boxes, "labels": given["names"][places], "scores": scores[places].astype("f"), **changed}


def verdict(found: dict[str, np.ndarray], peer: dict[str, np.ndarray] | None = None) -> bool:
    return Judge(detector()).judged(feeds(), found, peer).ok


def test_the_order_of_near_ties_is_free():
    assert verdict(outputs(list(range(10))))
    assert verdict(outputs([0, 1, 2, 4, 3, 5, 6, 7, 8, 9]))


def test_another_order_is_wrong():
    assert not verdict(outputs([0, 2, 1, 3, 4, 5, 6, 7, 8, 9]))


def test_a_row_that_another_run_chooses_too_is_right():
    last = outputs([0, 1, 2, 3, 4, 5, 6, 7, 8, 10])
    assert verdict(last, last)


def test_a_row_that_no_run_chooses_is_wrong():
    assert not verdict(outputs([0, 1, 2, 3, 4, 5, 6, 7, 8, 11]), outputs([0, 1, 2, 4, 3, 5, 6, 7, 8, 9]))


@pytest.mark.parametrize("swapped", [False, True])
def test_errors_show_among_rows_in_another_order(swapped: bool):
    places = [0, 1, 2, 4, 3, 5, 6, 7, 8, 9] if swapped else list(range(10))
    right = outputs(places)
    assert verdict(right)
    assert not verdict({**right, "box": right["box"] * np.float32(1.003)})
    labels = right["labels"].copy()
    labels[6] += 1
    assert not verdict({**right, "labels": labels})
    assert not verdict({**right, "scores": right["scores"] * np.float32(1.001)})


def test_rows_in_the_order_of_onnxruntimes():
    group = ranked(detector(), ["box", "labels", "scores"])
    assert group == [Ranked(("box", "labels", "scores"))]
    ours, theirs = outputs([0, 1, 2, 4, 3, 5, 6, 7, 8, 9]), outputs(list(range(10)))
    moved = group[0].reordered(ours, theirs)
    assert all(np.array_equal(moved[n], ours[n]) for n in ("box", "labels", "scores"))
    assert not group[0].reordered(outputs([*range(9), 20]), theirs)


def test_a_batch_of_one_and_no_rows():
    group = Ranked(("box", "score"))
    exact = {"box": np.ones((1, 3, 4)), "score": np.array([[3.0, 2.0, 1.0]])}
    assert len(group.reordered(exact, exact)) == 2
    nothing = {"box": np.zeros((0, 4)), "score": np.zeros(0)}
    assert group.reordered(nothing, nothing)["box"].shape == (0, 4)
    assert pairs([np.zeros((0, 4))], [np.zeros((2, 4))]).tolist() == [-1, -1]


def test_outputs_that_no_score_orders_have_no_rows():
    group = Ranked(("logits",))
    exact = {"logits": np.array([[1.0, 2.0], [3.0, 4.0]])}
    assert not group.judged(exact, {"logits": exact["logits"][::-1]}, [], None, lambda *_: pytest.fail("not asked"))


def test_a_sorted_tensor_is_no_detector() -> None:
    """40,000 elements: each with each would be 13 GB, and took the verification of a TopK minutes."""
    falling = np.sort(np.random.default_rng(0).standard_normal(40_000).astype("f"))[::-1]
    outputs = {"values": falling, "places": np.arange(40_000)}
    group = Ranked(("values", "places"))
    assert group.reordered(outputs, outputs) == {}
    assert group.judged(outputs, outputs, [outputs], outputs, lambda *_: pytest.fail("judged")) == {}
