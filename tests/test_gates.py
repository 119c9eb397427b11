"""The gates of scripts/check, the hooks of pre-commit and what CI runs are the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def gates() -> list[str]:
    return re.findall(r"^    (\w+)\) ", (ROOT / "scripts/check").read_text(), re.MULTILINE)


def test_every_gate_is_run_and_is_a_hook() -> None:
    assert gates() == ["lint", "format", "types", "doctests", "docs"]
    assert re.findall(r"^\[ .* set -- (.*)$", (ROOT / "scripts/check").read_text(), re.MULTILINE) == [" ".join(gates())]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"entry: scripts/check (\w+)", hooks) == gates()


def test_ci_runs_the_gates_and_then_the_tests() -> None:
    """pytest comes last: its last line says how many tests passed."""
    steps = (ROOT / ".ci/run").read_text()
    assert steps.index("scripts/check") < steps.index("exec scripts/test -q")
    for script in (".ci/run", "scripts/check", "scripts/test"):
        assert (ROOT / script).stat().st_mode & 0o100, f"{script} is executable"
