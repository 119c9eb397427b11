"""Tuning on a Ray cluster: a machine that is killed, one of another kind, and what is asked for wrongly."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.alone import alone
from tests.tuning import planted
from tvmopt.errors import InputError, MissingDependency
from tvmopt.tuning.ray import Facts, RayRunner


def test_machines_are_compared_by_what_records_depend_on() -> None:
    one = Facts("Zen", "llvm znver5 2c avx2", "0.27", "1.0")
    assert one.differences(Facts("Zen", "llvm znver5 2c avx2", "0.27", "1.0")) == ""
    assert one.differences(Facts("Zen", "llvm znver5 4c avx2", "0.27", "1.1")) == (
        "target 'llvm znver5 2c avx2', not 'llvm znver5 4c avx2', tvmopt '1.0', not '1.1'"
    )


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmopt.tuning.ray.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"tvmopt\[ray\]"):
        RayRunner.connect("cpu", "auto")


def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmopt.tuning.ray.find_spec", lambda name: name)
    with pytest.raises(InputError, match="on processors only"):
        RayRunner.connect("nvidia-h100", "auto")


def test_one_of_tracker_and_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    from tvmopt.cli import main

    assert main(["tune", "m.onnx", "--ray", "auto", "--rpc-tracker", "h:1"]) == 2
    assert "do not measure together" in capsys.readouterr().err


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `ray_child` tells of each part."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'tvmopt[ray]'")
    folder = tmp_path_factory.mktemp("ray")
    value = helper.make_tensor_value_info
    weights = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x", TensorProto.FLOAT, [48, 96])],
        [value("y", TensorProto.FLOAT, [48, 64])], [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "model.onnx")
    with alone(sys.executable, str(Path(__file__).with_name("ray_child.py")), str(folder)) as child:
        out, errors = child.communicate(timeout=900)
    parts = [json.loads(line) for line in out.splitlines() if line.startswith('{"part"')]
    assert child.returncode == 0, errors[-3000:]
    return {part["part"]: part for part in parts}


def test_a_killed_machine_loses_no_trial(told: dict[str, Any]) -> None:
    found, modes = told["killed"], planted.MODES
    assert len(found["machines"]) == 2 and len(found["left"]) == 1
    assert any("is gone" in line for line in found["said"])
    expected = {
        "right": "ok", "wrong": "wrong", "refuses": "failed", "dies building": "crash", "hangs building": "timeout",
        "dies running": "crash", "hangs running": "timeout", "slow": "ok", "nan": "wrong",
    }  # fmt: skip
    assert found["records"] == {str(modes[name]): status for name, status in expected.items()}
    assert found["host"]


def test_a_machine_of_another_kind_is_refused_by_name(told: dict[str, Any]) -> None:
    found = told["joined"]
    ((name, why),) = found["refused"].items()
    assert name not in found["machines"] and "2c" in why and "1c" in why
    assert "are not equal" in found["error"] and name in found["error"]


def test_a_model_is_tuned_by_the_command_line(told: dict[str, Any]) -> None:
    found = told["tuned"]
    assert (found["code"], found["trials"]) == (0, 6) and found["records"] >= 6
