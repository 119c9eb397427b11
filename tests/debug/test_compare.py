"""A planted fault is found, named and cut out: in a model, in an artifact, in a pass, in a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvmopt
from tests.cli.command import tvmopt as command
from tests.debug.nets import info, model, residual, saved, spoiled, weight
from tvmopt.analysis.observe import fitted
from tvmopt.debug.check import Numbers
from tvmopt.debug.compare import Settings, compare
from tvmopt.debug.html import html
from tvmopt.debug.records import CompareResult, Row, result_from
from tvmopt.debug.run import run
from tvmopt.debug.session import Session
from tvmopt.errors import ArtifactError, InputError
from tvmopt.importer.protos import tensor_spec
from tvmopt.targets import Machine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good.onnx, bad.onnx (one element of conv2's weight wrong), and their artifacts."""
    folder = tmp_path_factory.mktemp("compare")
    saved(residual(), folder / "good.onnx")
    saved(spoiled(residual(), "w2"), folder / "bad.onnx")
    tvmopt.compile(folder / "good.onnx", output=folder / "good.tvmopt", verify=False)
    tvmopt.refit(folder / "good.tvmopt", folder / "bad.onnx", output=folder / "bad.tvmopt", verify=False)
    return folder


@pytest.fixture(scope="module")
def two_models(folder: Path) -> CompareResult:
    return compare(folder / "good.onnx", folder / "bad.onnx", repro=folder / "models.onnx")


def nodes_of(path: str) -> list[str]:
    return [n.name for n in onnx.load(path).graph.node]


def test_a_wrong_weight_in_one_of_two_models(two_models: CompareResult) -> None:
    found = two_models
    assert not found.ok and found.rows[0].status == "wrong"
    culprit = found.traces[0].culprit
    assert culprit is not None and culprit.node == "conv2"
    assert [(c.name, c.different) for c in found.constants] == [("w2", 1)]
    assert found.blame is not None and found.blame.kind == "constant" and "conv2" in found.blame.text
    assert found.repro is not None and found.repro.confirmed
    assert nodes_of(found.repro.path) == ["conv2"]


def test_the_repro_reproduces(two_models: CompareResult) -> None:
    assert two_models.repro is not None
    words = two_models.repro.command.split()[1:]
    done = command(*words, "--no-bisect", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["rows"][0]["status"] == "wrong"


def test_a_wrong_weight_in_an_artifact(folder: Path) -> None:
    found = compare(folder / "good.onnx", folder / "bad.tvmopt", repro=folder / "artifact.onnx")
    assert not found.ok and found.blame is not None and found.blame.kind == "constant"
    assert "conv2" in found.blame.text and len(found.constants) == 1
    culprit = found.traces[0].culprit
    assert culprit is not None and "conv2" in culprit.nodes
    assert found.repro is not None and found.repro.confirmed and len(found.repro.nodes) < 5
    again = compare(found.repro.path, found.repro.other, bisect=False, inputs=dict(np.load(found.repro.inputs)))
    assert again.rows[0].status == "wrong"


def test_a_wrong_weight_that_does_no_harm_is_still_named(tmp_path: Path) -> None:
    """Behind it stands a Relu that hides it: numbers agree, bytes do not."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Add", ["m", "b"], ["a"], "add"),
        helper.make_node("Relu", ["a"], ["y"], "relu"),
    ]
    bias = onnx.numpy_helper.from_array(np.array([-1e6] + [0.5] * 15, "f4"), "b")
    good = model(nodes, [info("x", 4, 8)], [info("y", 4, 16)], [weight("w", 8, 16), bias])
    saved(good, tmp_path / "good.onnx")
    saved(spoiled(good, "w", element=0), tmp_path / "bad.onnx")
    tvmopt.compile(tmp_path / "good.onnx", output=tmp_path / "good.tvmopt", verify=False)
    tvmopt.refit(tmp_path / "good.tvmopt", tmp_path / "bad.onnx", output=tmp_path / "bad.tvmopt", verify=False)
    found = compare(tmp_path / "good.onnx", tmp_path / "bad.tvmopt", repro=tmp_path / "r.onnx")
    assert not found.ok and found.blame is not None and "matmul" in found.blame.text
    assert all(o.ok for o in found.rows[0].outputs)


def test_layers_of_the_fused_module(folder: Path) -> None:
    """Every kernel of the real, fused, NHWC module is matched with a tensor of the model."""
    found = compare(folder / "good.onnx", layers=True)
    assert found.ok and found.blame is None and found.repro is None
    (trace,) = found.traces
    assert {one.status for one in trace.layers} == {"ok"}
    assert {"r1", "r2", "a3"} <= {one.tensor for one in trace.layers}
    assert not list(Path.cwd().glob("good.repro*"))


@pytest.mark.parametrize(
    ("fault", "kind", "name"), [("pass", "pass", "tests.SpoilConstant"), ("kernel", "kernel", "conv2d")]
)
def test_a_fault_of_the_compiler(folder: Path, fault: str, kind: str, name: str) -> None:
    repro = folder / f"{fault}.onnx"
    done = subprocess.run(
        [sys.executable, "-m", "tests.debug.planted", fault, str(folder / "good.onnx"), str(repro)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = result_from(json.loads(done.stdout))
    assert found.rows[0].status == "wrong" and found.blame is not None and found.repro is not None
    assert found.blame.kind == kind and name in found.blame.text
    assert found.repro.confirmed and len(found.repro.nodes) < 5
    assert len(nodes_of(found.repro.path)) == len(found.repro.nodes)
    if fault == "pass":
        assert found.repro.nodes == ("conv2 (Conv)",)  # the weight with 6 filters
        assert found.traces[0].culprit is not None and "conv2" in found.traces[0].culprit.nodes


def test_nan_is_traced_to_the_node_that_makes_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Log", ["r"], ["l"], "log"),  # log 0 = -Inf
        helper.make_node("Mul", ["l", "r"], ["y"], "mul"),  # -Inf * 0 = NaN
    ]
    path = saved(model(nodes, [info("x", 4, 8)], [info("y", 4, 8)]), tmp_path / "nan.onnx")
    found = compare(path, layers=True, engines=["onnxruntime"], bisect=False)
    assert [(n.node, n.inf > 0) for n in found.nonfinite] == [("log", True)]


def test_engines_missing_failing_and_marked(folder: Path) -> None:
    engines = ["onnxruntime:opt_level=all", "tensorrt"]
    found = compare(folder / "good.onnx", engines=engines, layers=True)
    by_label = {row.label: row for row in found.rows}
    assert by_label["onnxruntime:opt_level=all"].status == "ok"
    assert by_label["tensorrt"].status == "missing" and "pip install" in by_label["tensorrt"].message
    assert len(found.traces) == 1 and "marked" in found.traces[0].how and found.ok
    assert found.missing == ("tensorrt",) and found.verdict == "what ran agrees; tensorrt is missing"


def test_nothing_compared_is_no_agreement(folder: Path) -> None:
    done = command("compare", folder / "good.onnx", "--engines", "tensorrt", "-q")
    assert done.returncode == 5 and "nothing was compared: tensorrt is missing" in done.stdout
    assert "agrees" not in done.stdout
    done = command("compare", folder / "good.onnx", "--engines", "tensorrt,onnxruntime", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 5 and found["ok"] and found["missing"] == ["tensorrt"]
    assert not CompareResult("m", "r", {}, ()).ok


def test_two_models_with_other_names_and_nodes(folder: Path) -> None:
    renamed = residual()
    for node in renamed.graph.node:
        node.input[:] = [f"_{i}" for i in node.input]
        node.output[:] = [f"_{o}" for o in node.output]
    for value in (*renamed.graph.input, *renamed.graph.output, *renamed.graph.initializer):
        value.name = f"_{value.name}"
    saved(renamed, folder / "renamed.onnx")
    found = compare(folder / "good.onnx", folder / "renamed.onnx")
    assert found.ok and not found.constants and not found.structure
    longer = residual()
    longer.graph.node.append(helper.make_node("Neg", ["y"], ["z"], "neg"))
    longer.graph.output[0].name = "z"
    saved(longer, folder / "longer.onnx")
    found = compare(folder / "good.onnx", folder / "longer.onnx", bisect=False)
    assert not found.ok and any("insert" in text and "neg" in text for text in found.structure)


def test_tolerances_by_output(folder: Path) -> None:
    done = command("compare", folder / "good.onnx", folder / "bad.onnx", "--rtol", "y:1e9", "--no-bisect", "-q")
    assert "relative error  tolerance" in done.stdout
    found = compare(folder / "good.onnx", folder / "bad.onnx", rtol={"y": 1e9}, bisect=False)
    assert found.rows[0].status == "ok" and found.rows[0].outputs[0].tolerance == 1e9


def test_page_and_table(two_models: CompareResult, folder: Path) -> None:
    text = html(two_models)
    assert "conv2" in text and "Cause" in text and "http" not in text.replace("http://www.w3.org", "")
    assert result_from(json.loads(json.dumps(two_models.as_dict()))) == two_models
    page = folder / "page.html"
    done = command("compare", folder / "good.onnx", folder / "good.onnx", "--html", page, "-q")
    assert done.returncode == 0 and "everything agrees" in done.stdout and page.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["none.onnx"], "no such file"),
        (["good.onnx", "none.onnx"], "no such file"),
        (["good.tvmopt"], "compared with the ONNX file"),
        (["good.onnx", "--engines", "onnxruntim"], "did you mean onnxruntime"),
        (["good.onnx", "--rtol", "y:-1"], "not a tolerance"),
        (["good.onnx", "--rtol", "y:x"], "not a tolerance"),
        (["good.onnx", "--repro", "/none/x.onnx"], "folder"),
    ],
)
def test_refusals(folder: Path, arguments: list[str], what: str) -> None:
    done = command("compare", *arguments, cwd=folder)
    assert done.returncode == 2 and what in done.stderr and "fix:" in done.stderr


def test_inputs_that_do_not_fit(folder: Path) -> None:
    with pytest.raises(InputError, match="no input 'z'"):
        compare(folder / "good.onnx", inputs={"z": np.zeros(3)})
    (name, shape), *_ = [(v.name, tensor_spec(v).shape) for v in onnx.load(folder / "good.onnx").graph.input]
    with pytest.raises(InputError, match="dtype is float64"):
        compare(folder / "good.onnx", inputs={name: np.zeros(shape)})
    with pytest.raises(InputError, match="shape is"):
        compare(folder / "good.onnx", inputs={name: np.zeros((*shape, 1), "float32")})


def test_a_damaged_artifact_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.tvmopt").write_bytes(b"PK\x03\x04" + bytes(99))
    with pytest.raises(ArtifactError, match="damaged"):
        compare(folder / "good.onnx", tmp_path / "cut.tvmopt")


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 2, 3), (2, 0, 3, 1)])
def test_layouts_are_recognised(axes: tuple[int, ...]) -> None:
    expected: Any = np.random.default_rng(0).standard_normal((1, 8, 7, 7)).astype("f4")
    found = np.ascontiguousarray(expected.transpose(axes))
    assert np.array_equal(fitted(expected, found)[0], expected)
    assert np.array_equal(fitted(expected, found.reshape(-1, 7))[0], expected)


@pytest.mark.skipif(not Machine.load("cpu").has("avx512bf16"), reason="no avx512_bf16 here")
def test_precision_is_blamed_and_the_command_repeats_it(folder: Path) -> None:
    found = compare(folder / "good.onnx", precision=["bf16"], rtol=1e-5, repro=folder / "bf16.onnx")
    assert found.blame is not None and (found.blame.kind, found.blame.name) == ("precision", "bf16")
    assert found.repro is not None and found.repro.command.endswith("--precision bf16 --rtol 1e-05")
    assert len(found.repro.nodes) == 1


def test_nan_alone_is_no_agreement(tmp_path: Path) -> None:
    """Nothing but places is compared where the reference has no number: no NumPy warning, and no "agrees"."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], "m"), helper.make_node("Softmax", ["m"], ["y"], "softmax")]
    saved(model(nodes, [info("x", 4, 8)], [info("y", 4, 16)], [weight("w", 8, 16)]), tmp_path / "m.onnx")
    np.save(tmp_path / "nan.npy", np.full((4, 8), np.nan, "float32"))
    given = (tmp_path / "m.onnx", "-i", f"x={tmp_path / 'nan.npy'}", "--html", tmp_path / "c.html")
    done = command("compare", *given)
    assert done.returncode == 0 and "agrees" not in done.stdout, done.stdout
    assert "every value of y is NaN or infinite: nothing was compared there; give inputs" in done.stdout
    assert done.stdout.splitlines()[-2].startswith("nothing was compared") and "Warning" not in done.stderr
    assert "nothing was compared" in (tmp_path / "c.html").read_text()


def test_a_tolerance_below_rounding_is_to_blame_itself(folder: Path, tmp_path: Path) -> None:
    """Nothing is searched for, and no file is written."""
    found = compare(folder / "good.onnx", rtol=1e-12, repro=tmp_path / "r.onnx")
    assert not found.ok and found.rows[0].status == "wrong"
    assert found.blame is not None and found.blame.kind == "tolerance" and "rounding" in found.blame.text
    assert found.repro is None and not (tmp_path / "r.onnx").exists()


def test_nothing_is_cut_out_where_every_kernel_is_right(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are far from the reference's, and every kernel is what it ought to be: bisection took 18 compiles or,
    where the last output was right, one for every node."""
    compared = Session.row

    def far(session: Session, *arguments: Any) -> Row:
        row = compared(session, *arguments)
        session.wrong.add(row.label)
        return replace(
            row, status="wrong", outputs=tuple(replace(o, problem="differs", excess=1e5) for o in row.outputs)
        )

    monkeypatch.setattr(Session, "row", far)
    monkeypatch.setattr(Numbers, "__call__", lambda *_: pytest.fail("a piece was compiled"))
    asked = Settings(str(folder / "good.onnx"), repro=str(tmp_path / "r.onnx"))
    found = run(Session(asked, tmp_path, lambda stage: None))
    assert found.blame is not None and found.blame.kind == "rounding" and "amplifies" in found.blame.text
    assert found.traces[0].culprit is None and found.repro is None and not (tmp_path / "r.onnx").exists()
