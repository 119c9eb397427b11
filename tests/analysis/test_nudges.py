"""Outputs that amplify rounding are told right by what nudged inputs do to onnxruntime's, without the oracle."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import tvmopt
from tests.debug.nets import saved
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.judge import Truth
from tvmopt.analysis.verify import Reference
from tvmopt.errors import TvmoptError

INFO = helper.make_tensor_value_info
ROWS, TERMS, COLUMNS = 31, 257, 33


@pytest.fixture
def waves(tmp_path: Path) -> tuple[ModelProto, Path]:
    """Sines of sums in the tens of thousands, whose rounding is as large as an angle of a hundredth."""
    weight = np.random.default_rng(0).standard_normal((TERMS, COLUMNS)).astype("f")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Sin", ["p"], ["y"])]
    borders = [INFO("x", 1, [ROWS, TERMS])], [INFO("y", 1, [ROWS, COLUMNS])]
    graph = helper.make_graph(nodes, "g", *borders, [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    saved(model, tmp_path / "waves.onnx")
    return model, tmp_path / "waves.onnx"


FEEDS = {"x": 1e3 * np.random.default_rng(1).standard_normal((ROWS, TERMS)).astype("f")}


def refuses(feeds: object) -> dict[str, np.ndarray]:
    raise TvmoptError("onnxruntime refuses it")


def test_onnxruntime_alone_is_enough(waves: tuple[ModelProto, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = waves
    reference = Reference(path)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    examiner = Examiner(compiled, "", model, rerun=reference.run)
    peer = reference.run(FEEDS)
    assert not all(one.ok for one in examiner._beside(compiled.run(FEEDS), peer))
    monkeypatch.setattr(examiner.judge, "truth", lambda *_: pytest.fail("the oracle was asked"))
    examined = examiner.quickly(FEEDS, peer)
    assert examined.ok and examined.reference == "onnxruntime"


@pytest.mark.parametrize("rerun", [None, refuses])
def test_without_it_the_oracle_decides(waves: tuple[ModelProto, Path], rerun: object) -> None:
    model, path = waves
    compiled = tvmopt.compile(model, verify=False, records=False).model
    examined = Examiner(compiled, "", model, rerun=rerun).quickly(FEEDS, Reference(path).run(FEEDS))
    assert examined.ok and examined.reference == "float64"


@pytest.mark.parametrize("share", [0.03, 1.0])
def test_what_is_wrong_is_none_of_it(waves: tuple[ModelProto, Path], share: float) -> None:
    """A column of weights that is off by a few per cent, or missing, moves the sines by all that they have."""
    model, path = waves
    wrong = ModelProto.FromString(model.SerializeToString())
    weight = numpy_helper.to_array(wrong.graph.initializer[0]).copy()
    weight[:, COLUMNS // 2] *= 1 - share
    wrong.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    compiled = tvmopt.compile(wrong, verify=False, records=False).model
    reference = Reference(path)
    examined = Examiner(compiled, "", model, rerun=reference.run).quickly(FEEDS, reference.run(FEEDS))
    assert not examined.ok


@pytest.fixture
def differences(tmp_path: Path) -> tuple[ModelProto, Path]:
    """Differences of sums that are nearly equal: rounding of the sums is a larger part of them, and the kernel that
    subtracts rounds nothing."""
    rng = np.random.default_rng(0)
    first = rng.random((TERMS, 64)).astype("f")
    first[:, 1::2] = first[:, ::2] + 1e-3 * rng.random((TERMS, 32)).astype("f")
    second = np.zeros((64, 32), "f")
    second[np.arange(0, 64, 2), np.arange(32)], second[np.arange(1, 64, 2), np.arange(32)] = 1024, -1024
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    weights = [numpy_helper.from_array(first, "w"), numpy_helper.from_array(second, "v")]
    graph = helper.make_graph(nodes, "g", [INFO("x", 1, [ROWS, TERMS])], [INFO("y", 1, [ROWS, 32])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    saved(model, tmp_path / "differences.onnx")
    return model, tmp_path / "differences.onnx"


@pytest.mark.parametrize("wrong", [False, True])
def test_right_kernels_need_no_runs_that_round(
    differences: tuple[ModelProto, Path], monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Outputs that differ by more than one rounding are right where every kernel is; else such runs are made."""
    model, path = differences
    feeds = {"x": np.random.default_rng(1).random((ROWS, TERMS)).astype("f")}
    other = ModelProto.FromString(model.SerializeToString())
    weight = numpy_helper.to_array(other.graph.initializer[1]).copy()
    weight[::2, 7] *= 1 + 1e-3 * wrong
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(weight, "v"))
    examiner = Examiner(tvmopt.compile(other, verify=False, records=False).model, "", model, brief=True)
    asked = []
    naturals = Truth.naturals
    monkeypatch.setattr(Truth, "naturals", lambda truth, precision: asked.append(1) or naturals(truth, precision))
    plain = examiner.judge.plainly(examiner.judge.truth(feeds), examiner.model.run(feeds))
    assert not plain.ok
    assert examiner.fully(feeds, Reference(path).run(feeds)).ok is not wrong and bool(asked) is wrong
