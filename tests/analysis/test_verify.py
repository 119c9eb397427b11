"""Verification that begins while the model is compiled finds what one finds that begins after it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import helper

import tvmopt
from tests.runtime.small import small_model
from tvmopt.analysis.comparator import compare
from tvmopt.analysis.trials import OPEN, Checked, nodes_in_loops, seconds_of, sizes_to_try
from tvmopt.analysis.verify import Verification, verify
from tvmopt.compiler import accuracy
from tvmopt.compiler.accuracy import begin
from tvmopt.compiler.driver import compile_model
from tvmopt.compiler.request import Request
from tvmopt.errors import AccuracyError, InputError, UnsupportedOp
from tvmopt.importer import Imported
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.targets import Machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "small.onnx"
    onnx.save(small_model(), str(path))
    return path


@pytest.fixture(scope="module")
def open_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto = small_model()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    path = tmp_path_factory.mktemp("verify") / "open.onnx"
    onnx.save(proto, str(path))
    return path


@pytest.fixture(scope="module")
def compiled(model: Path) -> Artifact:
    return tvmopt.compile(model, verify=False).artifact


def test_the_verdict_is_the_same_whenever_it_begins(model: Path, compiled: Artifact) -> None:
    late = verify(compiled, model)
    with Verification(model) as started:
        started.begin(compiled.manifest.inputs, {}, "fp32")
        early = started.verdict(compiled)
    assert early == late
    assert early.ok and [t.seed for t in early.trials] == [0, 1, 2, 3, 4, 5, 6]
    assert [t.reference for t in early.trials[:1]] == ["float64"] and early.trials[0].compared > 0


def no_numbers(path: Path, partly: bool = False) -> Path:
    """A model with Log of a negative number as its output, and a second output of numbers if `partly`."""
    x, y, z = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 9]) for n in "xyz")
    low = helper.make_tensor("low", onnx.TensorProto.FLOAT, [], [-1.0])
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["z"]), helper.make_node("Mul", ["z", "low"], ["n"]),
        helper.make_node("Sub", ["n", "z"], ["m"]), helper.make_node("Sub", ["m", "one"], ["l"]),
        helper.make_node("Log", ["l"], ["y"]),
    ]  # fmt: skip
    one = helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "g", [x], [y, z] if partly else [y], [low, one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_outputs_without_a_number_are_not_verified(tmp_path: Path) -> None:
    """That NaN agrees with NaN says nothing; one output of several is named."""
    every = tvmopt.compile(no_numbers(tmp_path / "all.onnx")).report
    assert not every.accuracy["verified"] and "every value of every output was NaN" in every.accuracy["reason"]
    assert any("tvmopt compare MODEL.onnx FILE.tvmopt -i NAME=FILE.npy" in w for w in every.warnings)
    some = tvmopt.compile(no_numbers(tmp_path / "some.onnx", partly=True)).report
    assert some.accuracy["verified"] and some.accuracy["numberless"] == ["y"]
    assert sum("NaN or infinite of y, which is not verified" in w for w in some.warnings) == 1


def test_outputs_with_some_numbers_are_verified(model: Path, compiled: Artifact) -> None:
    accuracy = verify(compiled, model).as_accuracy()
    assert accuracy["verified"] and "numberless" not in accuracy
    half = np.array([np.nan, 1.0], np.float32)
    assert not compare({"y": half}, {"y": half}).numberless
    assert compare({"y": half[:1]}, {"y": half[:1]}).numberless == ("y",)


def test_a_lack_of_memory_is_told_before_the_system_ends_a_process(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = onnx.load(model)
    weights = sum(4 * math.prod(t.dims) for t in small.graph.initializer)
    assert weights < accuracy.memory_needed(small) < 20 * weights
    monkeypatch.setattr(accuracy, "free_memory", lambda: weights)
    with pytest.raises(InputError, match=r"takes about .* of memory more, and .* are free"):
        tvmopt.compile(model)  # the model itself is wanted, so that this process compiles
    assert tvmopt.compile(model, verify=False).artifact.weights


def test_the_references_run_before_there_is_an_artifact(model: Path, compiled: Artifact) -> None:
    with Verification(model) as started:
        started.begin(compiled.manifest.inputs, {}, "fp32")
        heard = [json.loads(started._child._pipe.readline()) for _ in range(2)]  # waits until it says so
        assert heard == [{"ready": True}, {"progress": "running the reference"}]
        stages: list[str] = []
        assert started.verdict(compiled, stages.append).ok
    assert "running the reference" not in stages and stages[0] == "running the compiled model"


def test_onnxruntime_runs_before_the_model_is_imported(model: Path, open_model: Path, compiled: Artifact) -> None:
    """Where the file, or the shapes that were asked for, tell that all inputs are floats of known sizes."""
    for path, shapes in ((model, {}), (open_model, {"x": list(compiled.manifest.inputs[0].shape)})):
        with Verification(path, shapes=shapes) as started:
            heard = [json.loads(started._child._pipe.readline()) for _ in range(2)]  # nothing was told yet
            assert heard == [{"ready": True}, {"progress": "running the reference"}]
            started.begin(compiled.manifest.inputs, {}, "fp32")
            stages: list[str] = []
            assert started.verdict(compiled, stages.append) == verify(compiled, path)
        assert "running the reference" not in stages


def test_references_of_open_sizes_run_at_the_named_ones_meanwhile(open_model: Path, tmp_path: Path) -> None:
    request = Request(str(open_model), Machine.load("cpu"))
    with Verification(open_model) as started:
        heard = list[dict[str, Any]]()

        def told(imported: Imported) -> None:
            begin(started, imported, request)
            heard.extend(json.loads(started._child._pipe.readline()) for _ in range(2))

        compiled, _ = compile_model(request, None, told)
        assert heard == [{"ready": True}, {"progress": "running the reference"}]
        early = started.verdict(compiled)
    assert early == verify(compiled, open_model)
    assert len({tuple(t.sizes.items()) for t in early.trials}) > 1


def test_it_waits_where_the_file_does_not_tell_the_inputs(open_model: Path, tmp_path: Path) -> None:
    whole = onnx.load(open_model)
    whole.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    numbers = onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [2])
    whole.graph.input.append(numbers)
    whole.graph.node.append(onnx.helper.make_node("Identity", ["i"], ["j"]))
    whole.graph.output.append(onnx.helper.make_tensor_value_info("j", onnx.TensorProto.INT64, [2]))
    onnx.save(whole, tmp_path / "whole.onnx")
    for path in (open_model, tmp_path / "whole.onnx"):
        checked = Checked(str(path), lambda stage: None)
        checked.foresee({})
        assert checked.guess is None
    assert tvmopt.compile(tmp_path / "whole.onnx", cache=False).report.accuracy["verified"]


def test_a_wrong_guess_is_made_anew(open_model: Path) -> None:
    compiled = tvmopt.compile(open_model, shape={"x": (2, 3, 9, 9)}, verify=False).artifact
    with Verification(open_model, shapes={"x": [4, 3, 9, 9]}) as started:
        started.begin(compiled.manifest.inputs, {}, "fp32")
        assert started.verdict(compiled) == verify(compiled, open_model)


def test_what_is_wrong_with_the_first_inputs_is_told(model: Path, compiled: Artifact) -> None:
    """Though others are examined at the same time, and are wrong, too."""
    weights = [(w.info, a * 1.01) for w, a in zip(compiled.manifest.weights, compiled.weights, strict=True)]
    wrong = Artifact.build(compiled.manifest, compiled.library, weights)
    with pytest.raises(AccuracyError, match=r"differ from .* with seed 0"):
        verify(wrong, model)


def test_inputs_that_are_not_the_artifacts_are_made_anew(open_model: Path) -> None:
    compiled = tvmopt.compile(open_model, shape={"x": (2, 3, 9, 9)}, verify=False).artifact
    (x,) = compiled.manifest.inputs
    stages: list[str] = []
    with Verification(open_model) as started:
        started.begin([TensorInfo(x.name, (3, 3, 9, 9), x.dtype)], {}, "fp32")
        early = started.verdict(compiled, stages.append)
    assert stages.count("running the reference") == 2
    assert early == verify(compiled, open_model)


def test_a_wrong_artifact_is_refused(model: Path, compiled: Artifact) -> None:
    weights = [(w.info, a * 1.01) for w, a in zip(compiled.manifest.weights, compiled.weights, strict=True)]
    wrong = Artifact.build(compiled.manifest, compiled.library, weights)
    with Verification(model) as started:
        started.begin(compiled.manifest.inputs, {}, "fp32")
        with pytest.raises(AccuracyError, match=r"a tolerance of .* would pass"):
            started.verdict(wrong)


def test_it_begins_between_import_and_optimization(model: Path) -> None:
    events: list[str] = []

    def told(imported: Imported) -> None:
        events.append(",".join(t.name for t in imported.inputs))

    compile_model(Request(str(model), Machine.load("cpu")), events.append, told)
    assert events[:3] == ["importing", "x", "optimizing"]


def test_open_sizes_wait_for_the_artifact(open_model: Path) -> None:
    made = tvmopt.compile(open_model, shape={"x": ("1..3@2", 3, 9, 9)})
    assert made.report.accuracy["verified"] and {"n": 2} in made.report.accuracy["sizes"]


def test_a_compile_that_fails_leaves_no_child(tmp_path: Path) -> None:
    proto = small_model()
    proto.graph.node[1].op_type = "NoSuchOperator"
    path = tmp_path / "bad.onnx"
    onnx.save(proto, str(path))
    with pytest.raises(UnsupportedOp):
        tvmopt.compile(path)
    left = [c for c in psutil.Process().children(recursive=True) if "tvmopt.children" in " ".join(c.cmdline())]
    assert left == []


def test_references_of_a_large_model_wait(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """They would need their memory while the compiler needs its own."""
    begun: list[object] = []
    request = Request(str(model), Machine.load("cpu"))

    class Started:
        def begin(self, *arguments: object) -> None:
            begun.append(arguments)

    def told(imported: Imported) -> None:
        begin(Started(), imported, request)  # type: ignore[arg-type]
        monkeypatch.setattr("tvmopt.compiler.accuracy.AT_ONCE", 100)
        begin(Started(), imported, request)  # type: ignore[arg-type]

    compile_model(request, None, told)
    assert len(begun) == 1


def test_each_open_size_is_verified_at_two_sizes(open_model: Path) -> None:
    """However long a run takes: with one picture alone a kernel that mixes up several would have passed. Where a run
    takes no time, the largest sizes are among them."""
    manifest = tvmopt.compile(str(open_model), verify=False).artifact.manifest
    (known,) = manifest.symbols.values()
    for seconds, largest in ((lambda sizes: 2.0 * sizes["n"] * OPEN, 2), (lambda sizes: 0.0, known.max)):
        tried = [sizes["n"] for sizes in sizes_to_try(manifest, seconds)]
        assert tried[0] == known.opt == known.min == 1
        assert len(set(tried)) > 1 and max(tried) == largest


def test_seconds_of_what_references_do_slowly() -> None:
    """A transform counts as the products that define it, a recurrent layer by its steps: both took longer than their
    FLOPs tell, so that open models were verified for minutes at sizes too large."""
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info

    def of(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], result: tuple[int, ...], *weights: Any) -> float:
        inputs = [value(name, 1, shape) for name, shape in shapes.items()]
        graph = onnx.helper.make_graph([node], "g", inputs, [value(node.output[0], 1, result)], [*weights])
        return seconds_of(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))

    step = onnx.numpy_helper.from_array(np.int64(160), "step")
    window = onnx.numpy_helper.from_array(np.ones(400, np.float32), "window")
    stft = make("STFT", ["x", "step", "window"], ["y"])
    frames = 1 + (48_000 - 400) // 160
    spectra = of(stft, {"x": (4, 48_000, 1)}, (4, frames, 201, 2), step, window)
    assert spectra > 0.05 > 3 * of(make("Relu", ["x"], ["y"]), {"x": (4, 48_000, 1)}, (4, 48_000, 1))
    lstm = make("LSTM", ["x", "w", "r"], ["y"], hidden_size=8)
    shapes = {"x": (1000, 1, 8), "w": (1, 32, 8), "r": (1, 32, 8)}
    assert of(lstm, shapes, (1000, 1, 1, 8)) > 0.5


def test_what_is_compared_counts() -> None:
    """A resize of an open picture was verified at 4096 x 4096 numbers made 6144 x 6144, which took minutes: the run is
    short, but each of the results is read some thirty times."""
    value, sides = onnx.helper.make_tensor_value_info, onnx.numpy_helper.from_array(np.array([1, 3, 6144, 6144]), "s")
    for kept, more in (("y", True), ("z", False)):
        nodes = [onnx.helper.make_node("Expand", ["x", "s"], ["y"]), onnx.helper.make_node("Neg", ["x"], ["z"])]
        shapes = {"y": (1, 3, 6144, 6144), "z": (1, 3, 1, 1)}
        borders = [value("x", 1, (1, 3, 1, 1))], [value(kept, 1, shapes[kept])]
        graph = onnx.helper.make_graph(nodes, "g", *borders, [sides])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
        assert (seconds_of(model) > 10 * OPEN) is more


def test_nodes_of_bodies_count_as_often_as_their_loops_run() -> None:
    """A trip costs float64 its nodes, however few numbers they have: 4,096 steps of a decoder took minutes."""
    make, boolean = onnx.helper.make_node, onnx.TensorProto.BOOL
    formal = [onnx.helper.make_tensor_value_info("i", 7, ()), onnx.helper.make_tensor_value_info("go", boolean, ())]

    def loop(trips: str, nodes: list[onnx.NodeProto]) -> onnx.NodeProto:
        body = onnx.helper.make_graph([*nodes, make("Identity", ["go"], ["on"])], "body", formal, [])
        body.output.append(onnx.helper.make_tensor_value_info("on", boolean, ()))
        return make("Loop", [trips, ""], [], body=body)

    known = {"ten": onnx.numpy_helper.from_array(np.array([10])), "four": onnx.numpy_helper.from_array(np.array(4))}
    inner = loop("four", [make("Neg", ["x"], ["y"])])
    assert (
        nodes_in_loops([make("Neg", ["x"], ["y"]), loop("ten", [inner]), loop("unknown", [])], known)
        == 10 * (2 + 8) + 1
    )
