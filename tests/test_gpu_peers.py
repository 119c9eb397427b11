"""`benchmarks/gpu_peers.py` without a GPU: the whole flow on a CPU, the events on a stand-in, the table's verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_engine
import gpu_peers
import numpy as np
import pytest

SCRIPT = Path(gpu_peers.__file__)


def test_the_whole_flow_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    words = ["tiny:2", "--device", "cpu", "--quick", "--models", str(tmp_path / "m"), "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    (case,) = json.loads((tmp_path / "peers.json").read_text())["cases"]
    assert [row["engine"] for row in case["rows"]] == ["tvmopt", "eager", "compile", "onnxruntime"]
    assert all(row["wall_ms"] > 0 and row["device_ms"] is None for row in case["rows"])
    assert all(row["difference"] < 1e-3 for row in case["rows"][1:])
    assert "A rehearsal on a CPU" in (tmp_path / "peers.md").read_text()


class Cudart:
    """Every event pair is 2 ms apart; `status` is what a synchronisation reports."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0

    def cudaEventElapsedTime(self, into: Any, first: Any, last: Any) -> int:
        into._obj.value = 2.0
        return 0

    def cudaDeviceSynchronize(self) -> int:
        return self.status


def test_events_and_the_clock_time_the_same_calls() -> None:
    calls: list[int] = []
    turn = gpu_engine.Clock(Cudart()).turn(lambda: calls.append(1), 0.0, 5)
    assert len(calls) == 5 and turn["device"] == pytest.approx(2e-3) and turn["wall"] > 0


def test_a_failed_kernel_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a kernel failed"):
        gpu_engine.Clock(Cudart(700)).turn(lambda: None, 0.0, 1)


def fake(name: str, seconds: float, **row: Any) -> Any:
    turns = [] if "error" in row else [{"device": seconds * k, "wall": seconds * k + 1e-5} for k in (1, 2, 3)]
    return SimpleNamespace(job={"engine": name}, row={"engine": name, "runs": name, **row}, turns=turns)


def record(engines: list[Any], outputs: dict[str, np.ndarray]) -> str:
    rows = gpu_peers.summarise(engines, outputs, 5e-2)
    case = {"case": "gemm_4096", "batch": 1, "rows": rows}
    return str(gpu_peers.table({"gpu": "G", "device": "cuda", "precision": "fp16", "cases": [case]}))


def test_ratios_and_verdicts() -> None:
    one = np.ones(3)
    engines = [fake("tvmopt", 1.0), fake("eager", 0.8), fake("compile", 0.9), fake("onnxruntime", 0, error="Boom")]
    text = record(engines, {"tvmopt": one, "eager": one, "compile": one * 2})
    assert "0.800 of cuBLAS (torch.matmul)'s speed, 0.7 asked: met" in text
    assert "Boom" in text and "differs from tvmopt's by 1.0" in text
    assert "of compile" not in text  # a wrong answer's speed is no verdict


def test_nothing_is_compared_without_tvmopt() -> None:
    text = record([fake("tvmopt", 0, error="died"), fake("eager", 0.8)], {"eager": np.ones(3)})
    assert "died" in text and "asked" not in text
