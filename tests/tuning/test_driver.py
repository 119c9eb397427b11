"""`tvmopt tune` from end to end, with real kernels: what it finds is used by `compile`, a killed one goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tvmopt
from tests.cli.command import tvmopt as tvmopt_command
from tests.waiting import until
from tvmopt.analysis.samples import sample_inputs
from tvmopt.cli.tune import app
from tvmopt.errors import InputError, TuningError
from tvmopt.targets import Machine
from tvmopt.tuning import driver, logs
from tvmopt.tuning.driver import choose, imported_module, parse_duration, refuse_foreign, tasks_of, tune
from tvmopt.tuning.record import Candidate, Key, Record, Verdict, fingerprint, log_name
from tvmopt.tuning.store import Store

HOST = Machine.load("cpu").with_cores(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two matrix products, the second wider, and a softmax."""
    rng = np.random.default_rng(0)
    weights = {"a": (96, 96), "b": (96, 320)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("MatMul", ["r", "b"], ["s"], name="second"),
            helper.make_node("Softmax", ["s"], ["y"], name="soft"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [33, 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [33, 320])],
        [numpy_helper.from_array(rng.standard_normal(s, dtype=np.float32) / 10, n) for n, s in weights.items()],
    )
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def command(model: Path, store: Path, *words: str) -> list[str]:
    code = "import sys; from tvmopt.cli import main; sys.exit(main())"
    return [sys.executable, "-c", code, "tune", str(model), "--store", str(store), "--threads", "1", *words]


def test_tasks_have_the_names_of_the_onnx_nodes(model: Path) -> None:
    result = CliRunner().invoke(app, [str(model), "--list-tasks", "--threads", "1", "--json"])
    assert result.exit_code == 0, result.output
    tasks = json.loads(result.stdout)
    nodes = {name for task in tasks for site in task["nodes"] for name in site}
    assert nodes >= {"first", "relu", "second", "soft"}
    assert [t["family"] for t in tasks].count("gemm") == 2


def test_a_kernel_of_64_bit_integers_is_a_task_like_others(tmp_path: Path) -> None:
    """Token numbers below zero count from the end: a `Where` over int64, which TVM will not narrow to 32 bits."""
    table = numpy_helper.from_array(np.ones((9, 33), np.float32), "t")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "ids"], ["y"], name="embed")],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 33])],
        [table],
    )
    path = tmp_path / "ids.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert "embed" in str([t.nodes for t in tasks_of(imported_module(path, {}), HOST)])


def test_weights_and_outputs_of_a_task(model: Path) -> None:
    tasks = tasks_of(imported_module(model, {}), HOST)
    gemms = [t for t in tasks if t.key.family == "gemm"]
    assert all(t.kernel.constants == (1,) and t.kernel.outputs == 1 for t in gemms)
    assert choose(tasks, "second") == [t for t in tasks if "second" in str(t.nodes)]
    with pytest.raises(InputError, match="no kernel is called"):
        choose(tasks, "nowhere")


def test_tune_kill_resume_and_compile(model: Path, tmp_path: Path) -> None:
    store, draw = tmp_path / "s.db", random.Random(1)
    seen = 0
    for _ in range(2):
        child = subprocess.Popen(command(model, store, "--trials", "400"), stderr=subprocess.DEVNULL)
        until(lambda before=seen: len(_records(store)) > before, "the tuner measures something")
        time.sleep(draw.random())
        child.send_signal(signal.SIGKILL)
        child.wait()
        found = _records(store)
        assert len(found) > seen, "the resumed tuner measured nothing"
        seen = len(found)
    until(lambda: not _workers(os.getpid()), "workers end with their tuner")
    done = subprocess.run(
        command(model, store, "--trials", str(seen + 6), "--no-generic", "--json"),
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["trials"] == seen + 6 and result["resumed"] == seen
    assert "of the analytic time" in done.stderr or "trials" in done.stderr
    assert len(_records(store)) == seen + 6
    assert all(r.status in ("ok", "failed") for r in _records(store))
    compiled = tvmopt.compile(model, threads=1, store=store)
    assert compiled.report.accuracy["verified"]


def _records(store: Path) -> list[Record]:
    if not store.exists():
        return []
    with Store(store) as opened:
        return opened.records()


def _workers(parent: int) -> list[int]:
    """Worker processes whose tuner was a child of ours and is gone: the kernel must have killed them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text()
            ppid = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if "tvmopt.tuning.worker" in words and ppid == 1:
            found.append(int(path.name))
    return found


def test_shipped_records_are_used_and_told(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task, *_) = (t for t in tasks_of(imported_module(model, {}), HOST) if "second" in str(t.nodes))
    knobs = {**task.space.analytic, "unroll_k": 4}
    won = Verdict(0.9, 0.88, 0.92, 1e-6, 40, True)
    mine = Record(task.key, Candidate(knobs), "ok", (1e-5,), verdict=won, shape=task.shape, date="2026-01-01T00:00:00Z")
    key = task.key
    elsewhere = Key(key.workload, key.target + " more", key.tvm, key.family, key.version)
    others = Record(elsewhere, Candidate(knobs), "ok", (1e-5,), verdict=won)
    for record in (mine, others):
        logs.write_log(tmp_path / log_name(record.key.target), record.key.target, [record])
    monkeypatch.setattr(logs.resources, "files", lambda _: tmp_path)
    monkeypatch.setenv("TVMOPT_STORE", str(tmp_path / "absent.db"))
    compiled = tvmopt.compile(model, threads=1)
    tuned = [k for k in compiled.report.kernels if k.source == "tuned"]
    assert [k.knobs for k in tuned] == [knobs]
    (decision,) = (d for d in compiled.report.decisions if d.stage == "tvmopt.TuningRecords")
    assert "shipped" in decision.reason and "0.900" in decision.reason
    assert len(compiled.manifest.records) == 1
    assert not [k for k in tvmopt.compile(model, threads=1, records=False).report.kernels if k.source == "tuned"]
    (tmp_path / log_name(fingerprint(HOST))).unlink()
    refit = tvmopt.refit(compiled.artifact, model)
    assert refit.manifest.structure == compiled.manifest.structure, "refit schedules by the artifact's records"
    assert not [k for k in tvmopt.compile(model, threads=1).report.kernels if k.source == "tuned"]


def test_durations() -> None:
    assert [parse_duration(t) for t in ("90m", "1h30m", "45", 2.5, "1d")] == [5400, 5400, 45, 2.5, 86400]
    for text in ("soon", "5 weeks", "", "-3m", "nan", "1e99h", "²m", "9" * 400):
        with pytest.raises(InputError, match="not a duration"):
            parse_duration(text)


def test_another_machine_is_refused_without_boards() -> None:
    wider = Machine.load("x86-64-v3")
    with pytest.raises(TuningError, match=r"lacks avx10"):
        refuse_foreign(replace(wider, features=(*wider.features, "avx10")))
    with pytest.raises(TuningError, match="lacks sm_90"):
        refuse_foreign(Machine.load("nvidia-h100"))


@pytest.mark.parametrize("words", [("--budget", "0"), ("--budget", "0s"), ("--trials", "0")])
def test_a_budget_of_nothing_is_refused(model: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    """It was taken for none, which is much."""
    done = tvmopt_command("tune", model, "--store", tmp_path / "s.db", *words)
    assert done.returncode == 2 and words[0] in done.stderr, done.stderr
    with pytest.raises(InputError, match="nothing would be measured"):
        tune(model, **{words[0].strip("-"): int(words[1][0])}, store=tmp_path / "s.db")


@pytest.fixture(scope="module")
def open_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with open rows."""
    proto = onnx.load(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    path = tmp_path_factory.mktemp("open") / "open.onnx"
    onnx.save(proto, path)
    return path


def test_onnxruntime_is_timed_at_the_sizes_that_are_tuned(
    open_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever name they are given, and open ones as they are named; a note says how such kernels are used."""
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        driver, "sample_inputs", lambda infos: seen.extend(i.shape for i in infos) or sample_inputs(infos)
    )
    options: dict[str, Any] = {"trials": 1, "generic": False, "compare": False, "threads": 1, "only": "second"}
    by_input = tune(open_model, shape={"x": (40, 96)}, store=tmp_path / "a.db", **options)
    by_size = tune(open_model, shape={"rows": (48,)}, store=tmp_path / "b.db", **options)
    left_open = tune(open_model, store=tmp_path / "c.db", **options)
    assert seen[:2] == [(40, 96), (48, 96)]
    assert by_input.onnxruntime > 0 and by_size.onnxruntime > 0
    assert not by_input.warnings and not by_size.warnings
    told = f"compile the model with --shape x:{'x'.join(map(str, seen[2]))}"
    assert any("kernels of open sizes are not tuned" in w and told in w for w in left_open.warnings)
