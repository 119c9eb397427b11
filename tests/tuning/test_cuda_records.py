"""Records of a GPU: tuned on a board, used by `compile --target cuda`, ignored with a note where they do not fit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tvmopt
from tests.cuda import needs_toolkit
from tests.tuning import farm
from tvmopt import pipeline
from tvmopt.cli.tune import app
from tvmopt.errors import TuningError
from tvmopt.runtime.library import cuda_available
from tvmopt.scheduling.family import Space
from tvmopt.targets import Machine
from tvmopt.tuning.driver import imported_module, tasks_of
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.logs import RecordLookup
from tvmopt.tuning.record import Candidate, Record, Verdict
from tvmopt.tuning.rpc import RpcRunner
from tvmopt.tuning.search import Budget, Tuner
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import Task

H100 = Machine.load("cuda")
WON = Verdict(0.8, 0.78, 0.82, 1e-6, 40, True)
WIDTHS = (72, 264, 136, 96, 40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four products of 33 rows, each of its own shape, with a ReLU behind each."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i, (k, n) in enumerate(pairwise(WIDTHS)):
        weights.append(numpy_helper.from_array(rng.standard_normal((k, n), dtype=np.float32) / k**0.5, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"h{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Relu", [f"h{i}"], [f"x{i + 1}"], name=f"relu{i}"))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [33, WIDTHS[0]])],
        [helper.make_tensor_value_info("x4", TensorProto.FLOAT, [33, WIDTHS[4]])], weights,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def tasks(model: Path) -> list[Task]:
    """The four products in fp16, in the model's order."""
    found = [t for t in tasks_of(imported_module(model, {}), H100, "fp16") if t.key.family == "gemm"]
    return sorted(found, key=lambda t: t.nodes)


def other(task: Task) -> dict[str, int]:
    """A small tile that is not the analytic one."""
    small = {"bm": 64, "bn": 32, "bk": 64, "stages": 3}
    return small if small != task.space.analytic else {**small, "stages": 2}


def store_of(path: Path, *records: Record) -> Path:
    with Store(path) as store:
        store.merge(records)
    return path


def won(task: Task, knobs: dict[str, int], **key: object) -> Record:
    return Record(replace(task.key, **key), Candidate(knobs), "ok", (1e-5,), verdict=WON, shape=task.shape, host="H100")


def test_tasks_and_the_refusal_through_the_command(model: Path) -> None:
    words = [str(model), "--target", "cuda", "--precision", "fp16"]
    listed = CliRunner().invoke(app, [*words, "--list-tasks", "--json"], catch_exceptions=False)
    rows = [row for row in json.loads(listed.stdout) if row["family"] == "gemm"]
    assert len(rows) == 4 and all("dtype=float16" in row["shape"] and row["points"] > 50 for row in rows)
    if not cuda_available():
        with pytest.raises(TuningError, match=r"lacks sm_90 \(it has no GPU(.|\n)*--rpc-tracker(.|\n)*--list-tasks"):
            CliRunner().invoke(app, words, catch_exceptions=False)


@needs_toolkit
def test_compile_uses_the_records_that_fit_and_names_the_others(model: Path, tasks: list[Task], tmp_path: Path) -> None:
    assert len(tasks) == 4
    good = other(tasks[0])
    store = store_of(
        tmp_path / "s.db",
        won(tasks[0], good),
        won(tasks[1], {**other(tasks[1]), "bm": 48}),
        won(tasks[2], other(tasks[2]), version=tasks[2].key.version + 1),
        won(tasks[3], {"bm": 256, "bn": 256, "bk": 32, "stages": 2}),
    )
    compiled = tvmopt.compile(model, target="cuda", precision="fp16", store=store, verify=False)
    kernels = [k for k in compiled.report.kernels if k.family == "gemm"]
    assert [(k.source, k.knobs) for k in kernels] == [
        ("tuned", good), *[("analytic", t.space.analytic) for t in tasks[1:]]
    ]  # fmt: skip
    told = [d for d in compiled.report.decisions if d.stage == "tvmopt.TuningRecords"]
    assert [d.node for d in told if d.verdict == "applied"] == [f"gemm {tasks[0].shape}"]
    reasons = " | ".join(d.reason for d in told if d.verdict == "declined")
    assert all(word in reasons for word in ("not in the family's space", "made for version", "spills"))
    (note,) = (w for w in compiled.report.warnings if "tuning records ignored" in w)
    assert "1: its knobs are not in the family's space" in note
    assert len(compiled.manifest.records) == 1 and "H100" in str(told)
    launch = kernels[0].launches[0]
    assert launch["shared"] >= 3 * (64 + 32) * 64 * 2 or good["stages"] == 2, "the machine code is of the record"


def test_a_recorded_point_computes_the_same_numbers(model: Path, tasks: list[Task], tmp_path: Path) -> None:
    """In the emulator of the generated CUDA: two products by records, two by arithmetic."""
    import tvm
    from tvm import relax

    from tests.cuda.emulator import MODES, emulated

    store = store_of(tmp_path / "s.db", *(won(t, other(t)) for t in tasks[:2]))
    lookup = RecordLookup.default(H100, store)
    lowered = pipeline.lower(imported_module(model, {}), H100, lookup=lookup, precision="fp16")
    assert [k.knobs for k in lowered.kernels if k.source == "tuned"] == [other(t) for t in tasks[:2]]
    with emulated() as emulation:
        executable = pipeline.build(lowered, H100, cuda_graph=False)
    x = np.random.default_rng(1).standard_normal((33, WIDTHS[0]), dtype=np.float32)
    (expected,) = onnxruntime.InferenceSession(model).run(None, {"x0": x})
    for mode in MODES:
        emulation.mode = mode
        actual = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
        actual = actual[0] if isinstance(actual, tvm.ir.Array | list | tuple) else actual
        assert np.abs(actual.numpy() - expected).max() < 0.01 * np.abs(expected).max()


@pytest.fixture
def board() -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    yield from farm.farm(1)


@needs_toolkit
def test_tuning_on_a_board(
    board: tuple[int, list[subprocess.Popen[str]]], model: Path, tasks: list[Task], tmp_path: Path
) -> None:
    """A real tracker and server; a stand-in for the GPU behind them (planted_gpu.py)."""
    first = {"bm": 64, "bn": 256, "bk": 32, "stages": 3}
    space = Space({"bm": (64, 256), "bn": (256,), "bk": (32,), "stages": (3, 2)})
    task = replace(tasks[0], space=space, kernel=replace(tasks[0].kernel, analytic=first))
    runner = RpcRunner(
        H100, 1, Effort(seconds=0.02, rounds=20), preload="tests.tuning.planted_gpu",
        rpc=("127.0.0.1", board[0], "loop"), run_timeout=30.0,
    )  # fmt: skip
    try:
        with Store(tmp_path / "s.db") as store:
            Tuner([task], runner, store, Budget(4)).run()
            records = {(r.candidate.knobs["bm"], r.candidate.knobs["stages"]): r for r in store.records()}
    finally:
        runner.close()
    assert {point: r.status for point, r in records.items()} == {
        (64, 3): "ok", (64, 2): "ok", (256, 3): "failed", (256, 2): "failed"
    }  # fmt: skip
    assert "spills" in records[256, 2].note and not records[256, 2].samples
    assert records[64, 2].won and records[64, 2].host == "a GPU on paper"
    assert records[64, 2].key == tasks[0].key and records[64, 2].key.target.startswith("cuda sm_90")
    lookup = RecordLookup.default(H100, tmp_path / "s.db")
    lowered = pipeline.lower(imported_module(model, {}), H100, lookup=lookup, precision="fp16")
    assert [k.knobs for k in lowered.kernels if k.source == "tuned"] == [{**first, "stages": 2}]
