"""README and docs: their commands parse, their Python runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import onnx
import pytest
import typer

import tvmopt
from tests.decoders.small import small_decoder
from tests.decoders.translator import encoder_model, merged_model
from tests.runtime.small import small_model
from tvmopt.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_parse(page: Path) -> None:
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "tvmopt":
            assert words[1] in COMMANDS, line
            command = typer.main.get_command(import_module(f"tvmopt.cli.{words[1]}").app)
            command.make_context(words[1], words[2:])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(small_model(), "model.onnx")
    for page in PAGES:
        codes = blocks(page, "python")
        if codes:
            model = small_decoder() if page.stem == "generate-text" else small_model()
            tvmopt.compile(model, output="model.tvmopt", verify=False)
        if page.stem == "generate-text":
            tvmopt.compile(encoder_model(), output="encoder_model.tvmopt", verify=False)
            tvmopt.compile(merged_model(layers=1), output="decoder_model_merged.tvmopt", verify=False)
        for code in codes:
            short = code.replace("trials=500", "trials=20")  # all 500 take minutes
            short = short.replace("max_length=1024", "max_length=48").replace("max_new_tokens=100", "max_new_tokens=9")
            short = short.replace("max_length=128", "max_length=48").replace("(1, 80, 3000)", "(1, 9, 32)")
            short = short.replace("[50258, 50259, 50359, 50363]", "[1, 15]").replace("[50257]", "[0]")
            exec(compile(short, str(page), "exec"), {})
    assert os.path.exists("model.tvmopt")


def test_the_table_of_results_is_the_measured_one() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/readme_table.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "| resnet50 |" in (ROOT / "README.md").read_text()
