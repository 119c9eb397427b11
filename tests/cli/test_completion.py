"""Shells complete commands and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def completed(line: str, shell: str = "bash") -> str:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_TYPER_COMPLETE_ARGS": line}
    env = {**os.environ, **words, "_TVMOPT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = "import sys; sys.argv[0] = 'tvmopt'; from tvmopt.cli import main; sys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tvmopt co", ["compile", "compare"]),
        ("tvmopt compile --prec", ["--precision"]),
        ("tvmopt tune --list", ["--list-tasks"]),
        ("tvmopt logs sh", ["show"]),
    ],
)
def test_bash(line: str, expected: list[str]) -> None:
    assert completed(line).split() == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str) -> None:
    assert "--precision" in completed("tvmopt compile --prec", shell)


def test_the_script_for_a_shell() -> None:
    code = "from tvmopt.cli import main; main([])"
    env = {**os.environ, "_TVMOPT_COMPLETE": "source_bash"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "complete -o default -F _tvmopt_completion tvmopt" in done.stdout
