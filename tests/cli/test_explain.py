"""`tvmopt explain` at 80 columns, of one node, of one kernel; nodes by the names that the file has."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import tvmopt
from tests.cli.test_commands import tvmopt as command
from tvmopt.cli import common, rendering
from tvmopt.report import Decision, Flow, Kernel, OnnxNode, Report


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolution, BatchNorm and ReLU, a weight that is computed, and a reshape, with names as exporters write them."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "s": (8,), "b": (8,), "m": (8,), "v": (8,), "half": (8, 10)}
    weights = [numpy_helper.from_array(np.abs(rng.standard_normal(d)).astype("float32"), n) for n, d in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="/stem/conv/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="/stem/bn/BatchNormalization"),
        helper.make_node("Relu", ["n"], ["r"], name="/stem/act/Relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="/pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="/flat/Flatten"),
        helper.make_node("Add", ["half", "half"], ["whole"], name="/head/Add"),
        helper.make_node("MatMul", ["f", "whole"], ["y"], name="/head/MatMul"),
    ]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path = tmp_path_factory.mktemp("explain") / "net.tvmopt"
    tvmopt.compile(model, output=path, threads=1)
    return path


@pytest.mark.parametrize("node", ["/stem/conv/Conv", "/stem/bn/BatchNormalization", "/stem/act/Relu", "stem"])
def test_each_node_of_a_fused_kernel_leads_to_it(artifact: Path, node: str) -> None:
    report = tvmopt.explain(artifact, node)
    assert [k for k in report.kernels if "conv2d" in k.name]
    assert [d for d in report.decisions if d.stage == "tvmopt.FoldBatchNorm"]
    told = command("explain", artifact, "--node", node)
    assert told.returncode == 0
    assert "/stem/conv/Conv, /stem/bn/BatchNormalization, /stem/act/Relu" in told.stdout


def test_a_node_without_a_kernel(artifact: Path) -> None:
    told = command("explain", artifact, "--node", "/head/Add").stdout
    assert "/head/Add has no kernel: it was computed at compile time" in told
    told = command("explain", artifact, "--node", "/flat/Flatten").stdout
    assert "/flat/Flatten has no kernel: it costs nothing" in told


def test_an_unknown_node_or_kernel(artifact: Path) -> None:
    for words, near in (
        (("--node", "/stem/conv/Conf"), "/stem/conv/Conv"),
        (("--kernel", "fused_conv2_add"), "conv2d"),
    ):
        done = command("explain", artifact, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "did you mean" in done.stderr and near in done.stderr, done.stderr


def test_one_kernel(artifact: Path) -> None:
    name = next(k.name for k in tvmopt.explain(artifact).kernels if "conv2d" in k.name)
    told = command("explain", artifact, "--kernel", name).stdout
    assert "knobs: " in told and "nodes: /stem/conv/Conv" in told and "FoldBatchNorm" in told
    assert [k.name for k in tvmopt.explain(artifact, kernel=name).kernels] == [name]


def test_how_many_threads_can_share_a_kernel(tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(np.ones((768, 768), np.float32), "w")]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 768])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 768])], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tasks = {}
    for threads in (1, 2, 64):
        made = tvmopt.compile(
            model, target="x86-64-v3", shape={"x": (128, 768)}, threads=threads, verify=False, records=False
        )
        (found,) = (k for k in made.report.kernels if k.family == "gemm")
        tasks[threads] = found.tasks
    assert tasks[2] >= 2 and tasks[64] >= max(48, tasks[2]), tasks
    fixed = tmp_path / "fixed.tvmopt"
    tvmopt.compile(
        model, target="x86-64-v3", shape={"x": (128, 768)}, threads=2, verify=False, records=False, output=fixed
    )
    told = command("explain", fixed, "--kernel", found.name).stdout
    assert f"{tasks[2]} tasks, which threads share" in told


def test_profiles_and_pages_have_the_names(artifact: Path) -> None:
    flow = tvmopt.explain(artifact).flow
    assert flow.nodes["/stem/conv/Conv"].op_type == "Conv" and "/head/Add" in flow.folded
    assert ("/stem/conv/Conv", "/stem/bn/BatchNormalization", "/stem/act/Relu") in [s.nodes for s in flow.steps]


def large(kernels: int) -> Report:
    """A report as of a large export: long names, many calls and nodes, many reasons."""
    path = "/stages/stages.{}/blocks/blocks.{}/context_module/main/conv/Conv"
    sites = [tuple(path.format(i, j) + f"_{n}" for n in range(5)) for i in range(kernels) for j in range(3)]
    made = tuple(
        Kernel(f"fused_conv1x1{i}_add{i}_hardswish_multiply_add_transpose", "elementwise", "analytic",
               {f"knob{n}": 16 for n in range(9)}, 3, tuple(sites[3 * i : 3 * i + 3]), 1e6 * i, 1e4)
        for i in range(kernels)
    )  # fmt: skip
    reasons = [f"{n}: the producer's result has other users, and the shape is not static ({n})" for n in range(60)]
    decisions = tuple(
        Decision(f"tvmopt.Pass{i % 40}", verdict, sites[i][0], reason)
        for verdict in ("applied", "declined") for i, reason in enumerate(reasons)
    )  # fmt: skip
    nodes = {n: OnnxNode(n, "Conv", flops=1.0) for site in sites for n in site}
    return Report("efficientvit_b1.onnx", "znver5", "fp32", made, decisions, {}, 1e9, 9_000_000, 0, 1_000_000,
                  flow=Flow(nodes=nodes))  # fmt: skip


def test_a_large_model_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, highlight=False, soft_wrap=True, color_system=None)
    for module in (common, rendering):
        monkeypatch.setattr(module, "out", console)
    report = large(150)
    rendering.coverage(report)
    rendering.kernels(report, 20)
    for verdict in ("applied", "declined"):
        rendering.decisions(report, verdict, 20)
    lines = screen.getvalue().splitlines()
    assert len(lines) <= 120
    assert max(len(line.rstrip()) for line in lines[1:]) <= 80, max(lines[1:], key=len)
    assert any("Conv_0 +14" in line for line in lines)  # what tells nodes apart, and how many there are


def test_lines_in_a_pipe_hold_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    rendering.kernels(large(150))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 151 and max(map(len, lines)) <= 170


def test_the_list_of_tasks(artifact: Path, tmp_path: Path) -> None:
    from tests.runtime.small import small_model

    onnx.save(small_model(), str(tmp_path / "small.onnx"))
    done = command("tune", tmp_path / "small.onnx", "--list-tasks", "--threads", "1", "--json")
    task = next(t for t in json.loads(done.stdout) if "conv" in t["kernel"])
    assert task["nodes"] == [["conv", "relu"]] and task["calls"] == 1
    assert isinstance(task["floor_s"], float) and isinstance(task["share"], float) and task["share"] <= 1


def test_a_verbose_compile(tmp_path: Path) -> None:
    from tests.runtime.small import small_model

    onnx.save(small_model(), str(tmp_path / "small.onnx"))
    words = ("compile", tmp_path / "small.onnx", "-o", tmp_path / "a.tvmopt", "--no-verify", "--threads", "1")
    short, long = (command(*words, *more).stdout for more in ((), ("--verbose",)))
    assert "fused_conv2d_add_relu" not in short and "linking" not in short
    assert "fused_conv2d_add_relu" in long and "linking" in long and "ConvertLayout" in long


def test_what_lies_between_the_kernels_of_a_quantised_model(tmp_path: Path, artifact: Path) -> None:
    """Bytes alone, where all products are of bytes; the steps to floats that are left; of a float model nothing."""
    from tests.test_int8_models import Net, residual

    onnx.save(residual(Net("uint8", True)), tmp_path / "net.onnx")
    told = command("explain", tmp_path / "net.onnx", "--int8", "all").stdout
    assert re.search(r"between kernels: [\d.]+ k?B uint8\n", told)
    assert re.search(r"ListQuantization +2: floats become bytes behind the model's input", told)
    assert "between kernels" not in command("explain", artifact).stdout
