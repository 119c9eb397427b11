"""`benchmarks/compiling.py`: two compiles a round with one cache, kept by model."""

from __future__ import annotations

import json
from pathlib import Path

import compiling
import onnx
import pytest

from tests.runtime.small import small_model


def test_first_and_second_compiles_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TVMOPT_ARTIFACTS_MB", "100")
    model, results = tmp_path / "small.onnx", tmp_path / "results.json"
    onnx.save(small_model(), model)
    results.write_text(json.dumps({"other": 1}))
    assert (
        compiling.main([str(model), "--rounds", "1", "--beside", str(compiling.ROOT), "--results", str(results)]) == 0
    )
    kept = json.loads(results.read_text())
    assert kept["other"] == 1 and "machine" in kept
    for which in ("before", "now"):
        told = kept["small"][which]
        assert told["first"] > told["again"] > 0 and told["kernels"] > 0  # the second one is taken from the cache
        assert set(told["stages"]) >= {"importing", "optimizing", "generating code", "linking"}
        assert sum(told["stages"].values()) < told["first"]
    assert capsys.readouterr().out.count("small") == 2


def test_what_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(SystemExit, match="broken"):
        compiling.main([str(tmp_path / "broken.onnx"), "--rounds", "1"])
