"""Stages behind a model: probabilities, the largest scores, their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import run_ort
from tvmopt.errors import InputError
from tvmopt.preprocessing.asked import stages_behind
from tvmopt.preprocessing.behind import with_stages_behind
from tvmopt.preprocessing.scores import Scores, names_in, parse

NAMES = [f"class {i}" for i in range(10)]


def model(opset: int = 17, classes: int | str = 10, more: bool = False) -> onnx.ModelProto:
    """Scores that something else reads, too."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"], name="square")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", classes])]
    if more:
        nodes.append(helper.make_node("Neg", ["y"], ["z"], name="neg"))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", classes]))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", classes])
    graph = helper.make_graph(nodes, "g", [value], outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


X = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
@pytest.mark.parametrize("text", ["scores:softmax", "scores:top-k=3", "scores:top-k=10,softmax"])
def test_as_numpy(opset: int, text: str) -> None:
    made = model(opset, more=True)
    with_stages_behind(made, {"y": text}, {})
    onnx.checker.check_model(made, full_check=True)
    found = dict(zip([o.name for o in made.graph.output], run_ort(made, {"x": X}), strict=True))
    wanted = softmax(X * X) if "softmax" in text else X * X
    stage = parse(text)
    if stage.top_k:
        order = np.argsort(-wanted, -1)[:, : stage.top_k]
        np.testing.assert_array_equal(found["y_classes"], order)
        assert list(found) == ["y", "y_classes", "z"]
        wanted = np.take_along_axis(wanted, order, -1)
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-5)
    np.testing.assert_array_equal(found["z"], -X * X)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [([1, 9], 1), ([9], 0), (["n", 9, 1, 1], 1), ([1, 4, 9], 2), (["n", "c"], 1), ([1, 9, "h", 1], 2), ([1, 1], 1)],
)
def test_the_axis_of_the_classes(shape: Any, axis: int) -> None:
    """As wide as the global pooling of SqueezeNet leaves it, too."""
    made = model()
    for value in (made.graph.input[0], made.graph.output[0]):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
    with_stages_behind(made, {"": "scores:softmax,top-k=1"}, {})
    assert [helper.get_node_attr_value(n, "axis") for n in made.graph.node[1:]] == [axis, axis]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("top-k=5", "no postprocessing 'top-k=5'"),
        ("scores:topk=5", "did you mean top-k?"),
        ("scores:top-k=0", "'top-k=0' says nothing"),
        ("scores:top-k", "says nothing"),
        ("scores:softmax=1", "says nothing"),
        ("scores:top-k=5,top-k=6", "given twice"),
        ("scores:softmax,labels=a.txt", "there is no top-k"),
        ("scores:", "nothing is asked for"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert told in str(error.value) and error.value.where and error.value.fix


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"": "scores:top-k=5"}, "several outputs"),
        ({"w": "scores:top-k=5"}, "no output 'w'"),
        ({"y": "scores:top-k=11"}, "has 10 classes"),
    ],
)
def test_what_does_not_fit_is_told(asked: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        with_stages_behind(model(more=True), asked, {})
    assert error.value.where and error.value.fix


def test_names_of_another_number_are_refused() -> None:
    with pytest.raises(InputError, match="9 names, and 'y' has 10 classes"):
        with_stages_behind(model(), {"": "scores:top-k=2"}, {"": NAMES[:9]})
    assert with_stages_behind(model(), {"": "scores:top-k=2"}, {"": NAMES}) == {"y_classes": tuple(NAMES)}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.txt", "\n".join(NAMES)),
        ("l.txt", "\ufeff" + "\r\n".join(NAMES) + "\r\n"),
        ("l.json", json.dumps(NAMES)),
        ("config.json", json.dumps({"id2label": {str(i): name for i, name in enumerate(NAMES)}})),
    ],
)
def test_files_of_names(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert names_in(str(tmp_path / name)) == tuple(NAMES)
    texts, labels = stages_behind(f"scores:top-k=2,labels={tmp_path / name}")
    assert texts == {"": "scores:top-k=2"} and labels == {"": tuple(NAMES)}


@pytest.mark.parametrize(
    ("name", "content"),
    [("l.txt", b""), ("l.txt", b"\xff\xfe"), ("l.json", b"{}"), ("l.json", b'["a", 1]'), ("l.json", b'{"1": "a"}')],
)
def test_files_that_hold_none(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="labels cannot be read"):
        names_in(str(tmp_path / name))


@pytest.mark.parametrize("between", [False, True])
def test_a_softmax_of_a_softmax_is_noted(between: bool) -> None:
    made = model(classes=10)
    made.graph.node[0].output[0] = "squares"
    made.graph.node.append(helper.make_node("Softmax", ["squares"], ["p" if between else "y"], name="first"))
    if between:
        made.graph.node.append(helper.make_node("Flatten", ["p"], ["y"], name="flat"))
    told = [
        [w for w in tvmopt.compile(given, postprocess=text, threads=1, verify=False).report.warnings if "second" in w]
        for given, text in ((made, "scores:softmax,top-k=2"), (made, "scores:top-k=2"), (model(), "scores:softmax"))
    ]
    assert [len(one) for one in told] == [1, 0, 0] and told[0][0].startswith("the output 'y' comes from a Softmax")


def test_compiled(tmp_path: Path) -> None:
    """Verified; the names are in the file, and `refit` keeps them."""
    (tmp_path / "l.txt").write_text("\n".join(NAMES))
    asked: Any = {"softmax": True, "top-k": 4, "labels": str(tmp_path / "l.txt")}
    compiled = tvmopt.compile(model(), postprocess=asked, threads=1)
    assert compiled.report.accuracy["verified"]
    (tmp_path / "l.txt").unlink()
    scores, classes = compiled(X)
    wanted = softmax(X * X)
    np.testing.assert_array_equal(classes, np.argsort(-wanted, -1)[:, :4])
    np.testing.assert_allclose(scores, -np.sort(-wanted, -1)[:, :4], rtol=1e-5)
    assert compiled.model.labels == {"y_classes": tuple(NAMES)}
    assert str(tmp_path) not in compiled.manifest.to_json().decode()
    fitted = tvmopt.refit(compiled.artifact, model())
    assert fitted.model.labels == compiled.model.labels
    np.testing.assert_array_equal(fitted(X)[1], classes)


def test_mappings() -> None:
    assert parse("scores:softmax,top-k=5,labels=f") == Scores(True, 5, "f")
    assert stages_behind({"softmax": False, "top-k": 5}) == ({"": "scores:top-k=5"}, {})
    with pytest.raises(InputError, match="a stage is a int"):
        stages_behind(3)  # type: ignore[arg-type]
