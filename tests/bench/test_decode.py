"""Decoders side by side: two cases a model, scores compared first, the floor from memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import tvmopt
from tests.decoders.small import POSITIONS, small_decoder
from tests.quantization.models import write
from tvmopt import api
from tvmopt.bench import report
from tvmopt.bench.decode import bench_decoders
from tvmopt.bench.measure import Plan
from tvmopt.bench.records import BenchResult
from tvmopt.bench.run import Settings
from tvmopt.errors import InputError

FAST = Plan(rounds=2, launches=1, turn=0.01, calls=2, pause=0.001, warmup=0.02, patience=1)
ASKED = Settings(engines=("tvmopt", "onnxruntime", "onnxruntime-genai"), floor=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its artifact."""
    folder = tmp_path_factory.mktemp("decode")
    model = small_decoder("plain")
    onnx.save(model, folder / "m.onnx")
    api.compile(model, output=folder / "m.tvmopt", verify=False)
    return folder / "m.onnx", folder / "m.tvmopt"


@pytest.fixture(scope="module")
def result(files: tuple[Path, Path]) -> BenchResult:
    return bench_decoders([files[1]], ASKED, prompt_tokens=7, new_tokens=5, plan=FAST, source=files[0])


def test_prompt_and_step_are_cases_with_tokens_a_second(result: BenchResult) -> None:
    prefill, step = result.cases
    assert [(case.phase, case.batch) for case in result.cases] == [("prefill", 7), ("step", 1)]
    for case in (prefill, step):
        ours, theirs, genai = case.engines
        assert [row.status for row in (ours, theirs)] == ["ok", "ok"]
        assert ours.facts["tokens"] == theirs.facts["tokens"] == "6 of 6 as onnxruntime's"
        assert (
            genai.status in ("missing", "failed") and "genai" in genai.message
        )  # no configuration lies beside the file
        header, rows = report.table(case)
        rate = float(rows[0][header.index("tokens/s")])
        assert rate == pytest.approx(case.batch / ours.latency.median_ms * 1e3, rel=0.01, abs=0.1)
    assert report.heading(prefill).startswith("m.tvmopt, prefill of 7 tokens")
    assert 5 < prefill.flops / step.flops < 9
    json.dumps(result.as_dict(), allow_nan=False)


def test_a_table_that_is_looked_up_in_is_not_read_whole(result: BenchResult, files: tuple[Path, Path]) -> None:
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(files[0]).graph.initializer}
    tables = weights["embedding"].nbytes + weights["places"].nbytes
    floats = sum(a.nbytes for a in weights.values() if a.dtype == np.float32) - tables
    step = result.cases[1]
    caches = 2 * 2 * 7 * 16 * 4 * 2  # in and out
    assert floats < step.floor_bytes < floats + 2 * caches + tables / 4


def test_wrong_scores_have_no_times(files: tuple[Path, Path], tmp_path: Path) -> None:
    onnx.save(small_decoder("plain", seed=1), tmp_path / "other.onnx")
    two = replace(ASKED, engines=("tvmopt", "onnxruntime"))
    case = bench_decoders(
        [files[1]], two, prompt_tokens=3, new_tokens=2, plan=FAST, source=tmp_path / "other.onnx"
    ).cases[0]
    assert [(row.status, row.latency is None) for row in case.engines] == [("wrong", True), ("ok", False)]
    assert case.engines[0].facts["tokens"] != "3 of 3 as onnxruntime's"


def test_what_cannot_be_timed_is_refused_before(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"more than the model takes, {POSITIONS}"):
        bench_decoders([files[0]], ASKED, prompt_tokens=POSITIONS, new_tokens=1)
    with pytest.raises(InputError, match="no decoder"):
        bench_decoders([write(tmp_path)[0]], ASKED)
    with pytest.raises(InputError, match="no engine for decoders 'openvino'"):
        bench_decoders([files[0]], replace(ASKED, engines=("tvmopt", "openvino")))
    with pytest.raises(InputError, match="without batch"):
        bench_decoders([files[0]], replace(ASKED, batches=(2,)))
    with pytest.raises(InputError, match="0 tokens"):
        bench_decoders([files[0]], ASKED, new_tokens=0)


def test_the_command_prints_both_cases(files: tuple[Path, Path]) -> None:
    words = ["bench", str(files[1]), "--decode", "--prompt-tokens", "3", "--new-tokens", "2", "--model", str(files[0])]
    quick = ["--rounds", "2", "--launches", "1", "--duration", "0.02", "--iterations", "2", "--warmup", "0.01"]
    done = tvmopt(*words, *quick, "--patience", "1", "--threads", "1", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [case["phase"] for case in data["cases"]] == ["prefill", "step"]
    assert (data["settings"]["prompt_tokens"], data["settings"]["new_tokens"]) == (3, 2)
    assert "GB/s, read from memory meanwhile" in data["cases"][1]["floor_words"]
