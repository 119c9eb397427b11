"""200 damaged models: each is refused by an error of ours, or compiles. None crashes or hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
"""No mutated model may take longer; they take milliseconds."""


def verdicts(first: int, last: int) -> dict[int, str]:
    """The verdict of each seed, from as few child processes as survive."""
    found: dict[int, str] = {}
    while first < last:
        command = [sys.executable, "-m", "tests.importer.mutation_child", str(first), str(last), "compile"]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        current, started = first, time.monotonic()
        assert child.stdout
        for line in child.stdout:
            word, seed, rest = line.rstrip("\n").split(" ", 2)
            current = int(seed)
            if word == "start":
                started = time.monotonic()
                what = rest
            else:
                found[current] = f"{what}: {rest}"
                if time.monotonic() - started > SECONDS:
                    found[current] = f"{what}: hang"
        code = child.wait()
        if code:
            found[current] = f"crash, exit code {code}"
            first = current + 1
        else:
            break
    return found


def test_mutations():
    found = verdicts(0, 200)
    assert sorted(found) == list(range(200))
    bad = {seed: text for seed, text in found.items() if not (": imported" in text or ": refused: " in text)}
    assert not bad, "\n".join(f"seed {seed}: {text}" for seed, text in bad.items())


def test_some_mutations_are_harmless():
    """The mutations must not be so brutal that only the first check is tested."""
    from tests.importer.mutation_child import convolutional, elderly, shapely
    from tvmopt.importer import import_model

    for make in (convolutional, elderly, shapely):
        assert import_model(make()).outputs
