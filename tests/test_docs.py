"""The documentation's site: it builds without a warning, a broken link is one, what pages promise exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvmopt
from tests.runtime.small import small_model

ROOT = Path(__file__).parent.parent
pytest.importorskip("sphinx", reason="the extra `docs`")


def build(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(source),
        str(output),
    ]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", output)
    assert done.returncode == 0, done.stderr
    return output


def test_every_page_is_built_and_filled(site: Path) -> None:
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "_ext" not in p.parts]
    for page in pages:
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), page
    text = (site / "reference/cli.html").read_text()
    assert 'id="tvmopt-compile"' in text and "--strip-weights" in text and "generated:" not in text
    for page in ("limits", "reference/cli", "reference/passes", "reference/families", "reference/targets"):
        assert "_`scripts/docs` puts" in (ROOT / f"docs/{page}.md").read_text()  # where nothing is built
        assert "scripts/docs" not in (site / f"{page}.html").read_text()
    assert "FuseAttention" in (site / "reference/passes.html").read_text()
    assert "register tile" not in (site / "limits.html").read_text()
    assert "TVM has no strings" in (site / "limits.html").read_text()


def test_opens_from_the_disk(site: Path) -> None:
    """No page loads a script, style or image from the network."""
    for page in site.rglob("*.html"):
        for address in re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()):
            raise AssertionError(f"{page.name} loads {address}")


@pytest.mark.parametrize("link", ["[gone](nowhere.md)", "[gone](limits.md#no-such-heading)"], ids=["page", "anchor"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    for name in ("conf.py", "limits.md"):
        shutil.copy(ROOT / "docs" / name, source)
    shutil.copytree(ROOT / "docs/_ext", source / "_ext")
    for name in ("frontend", "notebooks", "schedules", "targets", "tests"):  # what the reference is made from
        (tmp_path / name).symlink_to(ROOT / name)
    (source / "limits.md").write_text("# Limits\n")
    (source / "index.md").write_text(f"# Index\n\n{link}\n\n```{{toctree}}\nlimits\nnotebooks/index\n```\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere" in done.stderr or "no-such-heading" in done.stderr


def test_pages_named_in_messages_exist() -> None:
    named = set()
    for folder in ("frontend", "schedules", "targets"):
        for file in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r"docs/[\w./-]+\.md", file.read_text()))
    missing = {n for n in named if not (ROOT / n).exists()} - {"docs/docs/technical/float8.md"}
    assert named and not missing


def commands(page: str, language: str = "sh") -> str:
    return "".join(re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL))


def test_cpp_program_builds_and_gives_python_s_answer(tmp_path: Path) -> None:
    """The commands of how-to/deploy-cpp.md, and its program."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    onnx.save(small_model(), tmp_path / "model.onnx")
    compiled = tvmopt.compile(tmp_path / "model.onnx", output=tmp_path / "model.tvmopt", verify=False)
    shutil.copy(ROOT / "docs/how-to/cpp/run_model.cpp", tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9), dtype=np.float32)
    lines = commands("how-to/deploy-cpp.md").replace("\\\n", " ").splitlines()
    steps = [line for line in lines if not line.startswith(("tvmopt compile", "python -c", "./run_model"))]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(steps)
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, env=os.environ | {"PATH": path})
    assert sorted(zipfile.ZipFile(tmp_path / "model.tvmopt").namelist()) == sorted(
        p.name for p in (tmp_path / "model").iterdir()
    )
    x.tofile(tmp_path / "input.bin")
    done = subprocess.run(["./run_model", "model", "input.bin"], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    got = np.frombuffer(done.stdout, np.float32).reshape(1, 10)
    np.testing.assert_array_equal(got, compiled.model(x))
    short = subprocess.run(["./run_model", "model", "run_model.cpp", "x"], cwd=tmp_path, capture_output=True)
    assert short.returncode == 0  # a longer file is read as far as needed
    beyond = subprocess.run(["./run_model", "model", "seq=3"], cwd=tmp_path, capture_output=True, text=True)
    assert "the model has no open size seq" in beyond.stderr
    missing = subprocess.run(["./run_model", "model"], cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 1 and "a file for each input" in missing.stderr


def test_the_commands_of_c_archives(tmp_path: Path) -> None:
    """how-to/c-archive.md: its first commands, and its lines of C beside the example."""
    onnx.save(small_model(), tmp_path / "model.onnx")
    lines = commands("how-to/c-archive.md").splitlines()[:5]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(lines)
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, env=os.environ | {"PATH": path})
    got = np.fromfile(tmp_path / "detector/outputs.bin", np.float32)
    zeros = np.zeros((1, 3, 9, 9), np.float32)
    np.testing.assert_array_equal(got, tvmopt.compile(tmp_path / "model.onnx").model(zeros).ravel())
    before, _, after = commands("how-to/c-archive.md", "c").partition("detector_inputs inputs")
    program = f"#include <stdio.h>\n{before}int main(void) {{\ndetector_inputs inputs{after}return code;\n}}\n"
    (tmp_path / "detector/mine.c").write_text(program)
    words = ["cc", "-Wall", "-Werror", "mine.c", "libdetector.a", "-lm", "-pthread", "-o", "mine"]
    subprocess.run(words, cwd=tmp_path / "detector", check=True)
    assert subprocess.run(["./mine"], cwd=tmp_path / "detector", check=False).returncode == 0
