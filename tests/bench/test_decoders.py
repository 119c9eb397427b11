"""The script that compares decoders: its oracle, and its table."""

from __future__ import annotations

from pathlib import Path

import decoders
import onnx
import pytest

from tests.decoders.small import DEPTH, greedy, small_decoder


@pytest.mark.parametrize("style", ["grouped", "plain", "standard"])
def test_the_oracle_goes_on_as_onnxruntime_does(style: str, tmp_path: Path) -> None:
    model = small_decoder(style)
    onnx.save(model, tmp_path / "m.onnx")
    oracle = decoders.Oracle(tmp_path / "m.onnx", tmp_path, DEPTH)
    tokens, scores = oracle.greedy([1, 5, 9], 12)
    assert oracle.greedy([1, 5, 9], 12)[0] == tokens == scores.argmax(1).tolist() == greedy(model, [1, 5, 9], 12)


def test_a_table_has_a_row_for_a_decoder_and_a_column_for_an_exporter() -> None:
    lines = [
        {
            "decoder": "Llama",
            "exporter": "genai-int4",
            "departures": 3,
            "rounded": 9,
            "different tokens": 90,
            "together": "yes",
        },
        {
            "decoder": "Llama",
            "exporter": "torch",
            "departures": 0,
            "rounded": 0,
            "different tokens": 90,
            "together": "yes",
        },
        {
            "decoder": "Gemma2",
            "exporter": "torch",
            "departures": 0,
            "rounded": 0,
            "different tokens": 1,
            "together": "no",
        },
        {"decoder": "Gemma2", "exporter": "genai-int4", "verdict": "refused", "message": "caches of two lengths"},
    ]
    assert decoders.table(lines).splitlines() == [
        "| decoder | torch | genai-int4 | together |",
        "|---|---|---|---|",
        "| Llama | 128 of 128 | 125 of 128, rounded | yes |",
        "| Gemma2 | 128 of 128 (few tokens) | refused | no |",
    ]
