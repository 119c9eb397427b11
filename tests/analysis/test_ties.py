"""Index outputs: a tie within the tolerance passes, another element does not; other integers by how many flip."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvmopt
from tvmopt.analysis.comparator import OutputComparison
from tvmopt.analysis.ties import Choice, choices, settle
from tvmopt.analysis.verify import verify
from tvmopt.errors import AccuracyError
from tvmopt.targets import Machine

TERMS, CLASSES = 64, 40
INT64, FLOAT = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
WRONG = OutputComparison("i", "differs")


def classifier(path: Path, nodes: list[onnx.NodeProto], weights: np.ndarray, shape: list[int], kind=INT64):
    """x @ w, then `nodes` from "scores" to "i"."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"]), *nodes],
        "classifier",
        [helper.make_tensor_value_info("x", FLOAT, [33, TERMS])],
        [helper.make_tensor_value_info("i", kind, shape)],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.array([33]), "shape"),
            numpy_helper.from_array(np.array([3]), "k"),
            numpy_helper.from_array(np.float32(0.05), "threshold"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return onnx.load(path)


def tied(rng: np.random.Generator) -> np.ndarray:
    """Weights whose columns come in pairs that are nearly alike: in bf16 either may win."""
    half = rng.standard_normal((TERMS, CLASSES // 2))
    return np.concatenate([half, half + 1e-3 * rng.standard_normal(half.shape)], 1).astype("float32")


ARGMAX = [helper.make_node("ArgMax", ["scores"], ["a"], axis=1), helper.make_node("Reshape", ["a", "shape"], ["i"])]
TOPK = [helper.make_node("TopK", ["scores", "k"], ["v", "i"])]
HARDMAX = [helper.make_node("Hardmax", ["scores"], ["i"])]
ABOVE = [helper.make_node("Greater", ["scores", "threshold"], ["i"])]


def test_what_is_an_index_output(tmp_path):
    w = np.zeros((TERMS, CLASSES), "float32")
    assert choices(classifier(tmp_path / "a.onnx", ARGMAX, w, [33])) == {"i": Choice("scores", 1)}
    assert choices(classifier(tmp_path / "t.onnx", TOPK, w, [33, 3])) == {"i": Choice("scores", -1)}
    one_hot = classifier(tmp_path / "h.onnx", HARDMAX, w, [33, CLASSES], FLOAT)
    assert choices(one_hot) == {"i": Choice("scores", -1, marked=True)}
    one_hot.opset_import[0].version = 12  # there it is over all axes from one on
    assert not choices(one_hot)
    values = [helper.make_node("TopK", ["scores", "k"], ["i", "n"])]
    assert not choices(classifier(tmp_path / "v.onnx", values, w, [33, 3], FLOAT))
    assert not choices(classifier(tmp_path / "g.onnx", ABOVE, w, [33, CLASSES], onnx.TensorProto.BOOL))
    label = [*ARGMAX[:1], helper.make_node("Mul", ["a", "k"], ["i"])]
    assert not choices(classifier(tmp_path / "l.onnx", label, w, [33, 1]))


def test_settle():
    scores = np.array([[1.0, 0.99, 0.5], [0.2, -1.0, 0.3]], "float32")
    right, tie, other = np.array([0, 2]), np.array([1, 2]), np.array([2, 2])
    choice = Choice("s", 1)
    assert settle(WRONG, choice, right, tie, scores, 0.005 + 1e-6).ok
    assert not settle(WRONG, choice, right, tie, scores, 0.005 - 1e-6).ok
    found = settle(WRONG, choice, right, other, scores, 0.1)
    assert found.problem and found.worst == (0, 0) and found.found == 0.5 and found.needed == pytest.approx(0.5)
    assert settle(WRONG, choice, right[:, None], tie[:, None], scores, 0.01).ok  # keepdims
    assert settle(WRONG, Choice("s", 0), np.array([0, 0, 0]), np.array([1, 0, 0]), scores, 0.4).ok


@pytest.mark.parametrize(
    ("found", "fine"),
    [([1, 7, 6], True), ([2, 7, 6], True), ([0, 7, 6], False), ([3, 7, 6], False), ([1, 4, 6], False)],
)
def test_settle_the_places_of_a_pool(found, fine):
    """Of two nearly equal numbers of one window either may be the largest: not a lower one, or one of elsewhere."""
    pool = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2])
    graph = helper.make_graph([pool], "g", [], [helper.make_tensor_value_info("i", INT64, [1, 2, 3])])
    choice = choices(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))["i"]
    assert choice == Choice("x", window=(1,))
    scores = np.array([[[1.0, 2.0, 2.0, 2.0, 5.0], [2.0, 5.0, 5.0, 8.0, 7.0]]], "float32")
    settled = settle(WRONG, choice, np.array([1, 7, 6]), np.array(found), scores, 0.01)
    assert settled.ok is fine


def test_settle_the_ones_of_a_hardmax():
    scores = np.array([[1.0, 0.99, 0.5], [0.2, -1.0, 0.3]], "float32")
    right, tie, other = (np.eye(3, dtype="float32")[i] for i in ([0, 2], [1, 2], [2, 2]))
    choice = Choice("s", -1, marked=True)
    assert settle(WRONG, choice, right, tie, scores, 0.005 + 1e-6).ok
    assert not settle(WRONG, choice, right, tie, scores, 0.005 - 1e-6).ok
    assert not settle(WRONG, choice, right, other, scores, 0.1).ok
    for broken in (np.ones_like(right), np.zeros_like(right), 2 * right, right[:1]):
        assert settle(WRONG, choice, right, broken, scores, 1.0) is WRONG


@pytest.mark.parametrize(
    "found",
    [np.array([[0, 3]]), np.array([[0, -1]]), np.array([[0, 0]]), np.array([[0, 1, 2]]), np.array([["a", "b"]])],
)
def test_what_is_no_choice_stays_wrong(found):
    """Out of range, the same element twice, another shape."""
    scores = np.zeros((1, 3), "float32")
    assert settle(WRONG, Choice("s", -1), np.array([[0, 1]]), found, scores, 1.0) is WRONG
    assert settle(WRONG, Choice("s", -1), np.array([[0, 1]]), np.array([[1, 0]]), None, 1.0) is WRONG


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_scores_that_are_no_numbers_tie_with_nothing(value):
    scores = np.array([[value, 1.0, 2.0]], "float32")
    assert not settle(WRONG, Choice("s", 1), np.array([2]), np.array([0]), scores, 1.0).ok
    assert settle(WRONG, Choice("s", 1), np.array([2]), np.array([1]), scores, 0.25).ok


@pytest.mark.skipif(not Machine.load("cpu").has("avx512bf16"), reason="no avx512_bf16 here")
@pytest.mark.parametrize(
    ("nodes", "shape", "kind"),
    [(ARGMAX, [33], INT64), (TOPK, [33, 3], INT64), (HARDMAX, [33, CLASSES], FLOAT)],
    ids=["ArgMax", "TopK", "Hardmax"],
)
def test_near_ties_compile_in_bf16_and_wrong_weights_do_not(tmp_path, nodes, shape, kind):
    rng = np.random.default_rng(0)
    weights = tied(rng)
    classifier(tmp_path / "m.onnx", nodes, weights, shape, kind)
    compiled = tvmopt.compile(tmp_path / "m.onnx", precision="bf16")  # verified
    assert 0 < compiled.report.accuracy["outputs"]["i"] < 0.1  # of the scores: some choices do differ
    classifier(tmp_path / "other.onnx", nodes, weights[::-1].copy(), shape, kind)
    with pytest.raises(AccuracyError):
        verify(compiled.artifact, tmp_path / "other.onnx")
