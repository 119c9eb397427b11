"""Systems that are not Linux: refused on the way in, by name, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import tvmopt as command
from tvmopt import doctor
from tvmopt.errors import MissingDependency, TargetError
from tvmopt.runtime import cores, library
from tvmopt.targets import Machine, systems

SYSTEMS = {"darwin": "macOS", "win32": "Windows", "freebsd14": "freebsd14"}


def elsewhere(system: str, code: str) -> subprocess.CompletedProcess[str]:
    """A child that believes to run on another system."""
    code = f"import sys; sys.platform = {system!r}\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("words", [["compile", "model.onnx"], ["run", "x.tvmopt"], ["serve", "--help"], ["nothing"]])
def test_the_command_is_refused(system: str, words: list[str]) -> None:
    code = f"sys.argv[1:] = {words}\nfrom tvmopt.__main__ import main\nsys.exit(main())"
    done = elsewhere(system, code)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith(f"MissingDependency: tvmopt runs on Linux, and this is {SYSTEMS[system]}: ")
    assert "futexes" in done.stderr and "WSL 2" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_import_works_and_its_words_are_refused(system: str) -> None:
    code = """
import tvmopt
from tvmopt.errors import MissingDependency
refused = 0
for name in tvmopt.__all__[2:]:
    try:
        getattr(tvmopt, name)
    except MissingDependency as error:
        refused += "runs on Linux" in error.what
print(tvmopt.__version__, refused == len(tvmopt.__all__) - 3)
"""
    assert elsewhere(system, code).stdout.split() == [__import__("tvmopt").__version__, "True"]


def test_the_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What imports a module of ours by its own path, as the drop-in session, comes to it at the latest."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MissingDependency, match="this is macOS"):
        library.ffi.__wrapped__()


@pytest.mark.parametrize("system", SYSTEMS)
def test_doctor_says_so_first(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems.sys, "platform", system)
    first, *others = doctor.examine()
    assert (first.name, first.state, first.found) == ("system", "broken", SYSTEMS[system])
    assert "runs on Linux" in first.fix and {check.name for check in others} >= {"Python", "apache-tvm"}


def test_doctor_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = command("doctor").stdout
    assert "system" in told and "Linux" in told
    monkeypatch.setattr(cores, "nodes", lambda: {0: {0, 1}, 1: {2, 3}})
    (nodes,) = doctor._nodes()
    assert nodes.found == "node0: 0-1; node1: 2-3" and "--cores node0" in nodes.fix


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("apple-m1-macos", "macOS"), ("arm64-apple-darwin23", "macOS"), ("apple-m1@ios", "macOS"), ("macos", "macOS"),
        ("x86-64-v3-windows", "Windows"), ("x86_64-pc-win32", "Windows"), ("WIN64", "Windows"),
        ("aarch64-linux-android34", "Android"), ("wasm32", "WebAssembly"),
    ],
)  # fmt: skip
def test_targets_of_other_systems(name: str, system: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=f"is for {system}, and compiled files are ELF libraries for Linux") as caught:
        Machine.load(name)
    assert "apple-m1 is Linux" in str(caught.value)
    file = tmp_path / "mine.toml"
    file.write_text(f'kind = "llvm"\nmcpu = "apple-m1"\narch = "aarch64"\n[tvm]\nmtriple = "{name}"\n')
    with pytest.raises(TargetError, match=f"is for {system}"):
        Machine.load(str(file))


def test_a_command_with_such_a_target(tmp_path: Path) -> None:
    done = command("compile", tmp_path / "model.onnx", "--target", "apple-m1-macos")
    assert done.returncode == 2 and "Mach-O" in done.stderr and "did you mean" not in done.stderr


@pytest.mark.parametrize("name", ["apple-m1", "cortex-a76", "x86-64-v3", "cpu", "sm_90"])
def test_others_are_taken(name: str) -> None:
    assert Machine.load(name)


@pytest.mark.parametrize("name", ["windsor", "darwinia", "macosx86x", "studios"])
def test_words_that_only_contain_one(name: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        Machine.load(name)
