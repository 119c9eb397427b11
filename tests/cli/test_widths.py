"""Results at 80 columns on a terminal."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from tvmopt.bench import report
from tvmopt.cli import common
from tvmopt.cli import profile as profiles


def test_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, highlight=False, soft_wrap=True, color_system=None)
    monkeypatch.setattr(common, "out", console)
    nodes = tuple(f"/stages/stages.3/blocks/blocks.7/main/inverted_conv/conv/Conv_{i}" for i in range(5))
    position = SimpleNamespace(roof_share=0.53, bound="memory")
    kernel = SimpleNamespace(
        name="fused_conv1x1117_add106_hardswish_multiply", nodes=nodes, family="elementwise", calls=12,
        seconds=0.0123456, share=0.123, gflops=123.4, position=position,
    )  # fmt: skip
    flops = {n: SimpleNamespace(flops=float(i)) for i, n in enumerate(nodes)}
    common.table(profiles.HEADER, [profiles._row(kernel, flops)] * 3, left=3)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in screen.getvalue().splitlines()]
    assert len(lines) == 4 and max(map(len, lines)) <= 80
    assert "x12" in lines[1] and "_4 +4" in lines[1] and "12345.6" in lines[1]


def test_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("onnxruntime", "12.345", "12.1", "12.9", "13.9", "81.0", "45%", "123", "1e-06", "0.83 [0.81, 0.85]",
           "no difference measured")  # fmt: skip
    monkeypatch.setattr(report, "table", lambda case, percentiles: (report.HEADER, [row]))
    wide, narrow = report.text(None), report.text(None, (), 80)  # type: ignore[arg-type]
    assert len(wide[1]) > 80 >= max(map(len, narrow)) and "no difference measured" in narrow[1]
