"""Decoders side by side: two cases a model, scores compared first, the floor from memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.command import tvmopt
from tests.decoders.small import HIDDEN, POSITIONS, VOCABULARY, merged_decoder, small_decoder
from tests.quantization.models import write
from tvmopt import api
from tvmopt.analysis.peaks import Peaks
from tvmopt.bench import report
from tvmopt.bench.decode import _subject, _unrounded, bench_decoders
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


def test_several_texts_are_a_case_of_their_own(files: tuple[Path, Path]) -> None:
    """Their scores are right while the others step, too; engines without it say so."""
    asked = replace(ASKED, engines=("tvmopt", "onnxruntime", "onnxruntime-genai"))
    done = bench_decoders([files[1]], asked, prompt_tokens=7, new_tokens=5, sequences=3, plan=FAST, source=files[0])
    case = done.cases[2]
    assert (case.phase, case.batch, report.heading(case).split(", ")[1]) == ("together", 3, "a step of 3 texts")
    ours, theirs, genai = case.engines
    assert [row.status for row in (ours, theirs)] == ["ok", "ok"]
    assert ours.facts["tokens"] == "6 of 6 as onnxruntime's" and genai.status != "ok"
    header, rows = report.table(case)
    assert float(rows[0][header.index("tokens/s")]) == pytest.approx(3e3 / ours.latency.median_ms, rel=0.01, abs=0.1)


def test_the_floor_of_a_prompt_has_the_head_once(files: tuple[Path, Path], tmp_path: Path) -> None:
    decoder = _subject(files[0], None, 7, 5, ASKED, tmp_path)
    subject = replace(decoder.subject, phase="prefill", cost=decoder.costs["prefill"])
    assert subject.head == "logits"
    peaks = Peaks("a machine", 1, {"fp32": 1.0, "int8": 1.0}, {"dram": 1e30}, 1, 1, "measured")
    found, by, _ = subject.floor(peaks, "fp32")
    assert by == "compute" and found == subject.cost.flops - 6 * 2 * HIDDEN * VOCABULARY


def test_a_file_with_both_forms_of_a_decoder(tmp_path: Path) -> None:
    """As optimum wrote GPT-2, `use_cache_branch` deciding: all engines get its steps, the artifact is of the whole."""
    onnx.save(merged_decoder(), tmp_path / "m.onnx")
    api.compile(tmp_path / "m.onnx", output=tmp_path / "m.tvmopt", verify=False)
    two = replace(ASKED, engines=("tvmopt", "onnxruntime"))
    for model in ("m.onnx", "m.tvmopt"):
        source = tmp_path / "m.onnx" if model == "m.tvmopt" else None
        done = bench_decoders([tmp_path / model], two, prompt_tokens=7, new_tokens=5, plan=FAST, source=source)
        for case in done.cases:
            assert case.model == model and [row.status for row in case.engines] == ["ok", "ok"]
            assert case.engines[0].facts["tokens"] == "6 of 6 as onnxruntime's"


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


@pytest.mark.parametrize("level", [0, 4])
def test_products_that_may_be_rounded_have_the_floor_of_bytes(tmp_path: Path, level: int) -> None:
    """The scores of a decoder by a product of 4 bits: its operations are over the peak of bytes, all others are not."""
    model = small_decoder("plain")
    scores = model.graph.node[-1]
    codes = np.zeros((VOCABULARY, HIDDEN // 16, 8), np.uint8)
    weights = {"codes": codes, "scales": np.ones(codes.shape[:2], np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    fields = {"K": HIDDEN, "N": VOCABULARY, "bits": 4, "block_size": 16, "accuracy_level": level}
    product = helper.make_node("MatMulNBits", [scores.input[0], *weights], ["logits"], domain="com.microsoft", **fields)
    scores.CopyFrom(product)
    if not any(o.domain == "com.microsoft" for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "m.onnx")
    subject = _subject(tmp_path / "m.onnx", None, 5, 1, ASKED, tmp_path).subject
    peaks = Peaks("a machine", 1, {"fp32": 100.0, "int8": 400.0}, {"dram": 1e30}, 1, 1, "measured")
    floor, by, words = subject.floor(peaks, "fp32")
    of_bytes = 2 * HIDDEN * VOCABULARY if level == 4 else 0
    others = subject.cost.flops - of_bytes
    assert others > 0 and floor == pytest.approx(others / 100 + of_bytes / 400)
    assert by == "compute" and ("products of bytes" in words) == (level == 4)


def test_the_reference_of_products_that_may_be_rounded_is_exact(tmp_path: Path) -> None:
    """The copy has its data beside it, and another level; the file itself stays as it is."""
    rng = np.random.default_rng(0)
    codes = numpy_helper.from_array(rng.integers(0, 256, (16, 2, 16), np.uint8), "codes")
    scales = numpy_helper.from_array(rng.random((16, 2), np.float32), "scales")
    value, fields = helper.make_tensor_value_info, {"K": 64, "N": 16, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", **fields)
    ends = [value("x", TensorProto.FLOAT, [1, 64])], [value("y", TensorProto.FLOAT, [1, 16])]
    graph = helper.make_graph([node], "product", *ends, [codes, scales])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    file, folder = tmp_path / "m.onnx", tmp_path / "other"
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, file, save_as_external_data=True, location="m.data", size_threshold=0)
    before = file.read_bytes()
    copy = onnx.load(_unrounded(file, folder))
    levels = [a.i for a in copy.graph.node[0].attribute if a.name == "accuracy_level"]
    assert levels == [0] and file.read_bytes() == before
    arrays = [numpy_helper.to_array(t) for t in copy.graph.initializer]
    assert all(np.array_equal(a, numpy_helper.to_array(t)) for a, t in zip(arrays, (codes, scales), strict=True))
