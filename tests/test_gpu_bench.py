"""`scripts/gpu-bench` without a GPU: it says what is missing and what it would run, and runs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tvmopt.runtime.library import cuda_available

SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_bench.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_dry_run_names_every_step() -> None:
    done = run("--dry-run", "resnet50")
    assert done.returncode == 0, done.stderr
    for words in ("numbers:", "racecheck", "memcheck", "--target cuda --precision fp16", "bench",
                  "torch with CUDA", "gemm_4096 resnet50:1 resnet50:32", "resnet50_b32.onnx"):  # fmt: skip
        assert words in done.stdout


@pytest.mark.skipif(cuda_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails() -> None:
    done = run("--only", "numbers")
    assert done.returncode == 3
    assert "a GPU and its driver   missing: run on a machine with an NVIDIA GPU" in done.stdout
    assert "cannot run: a GPU and its driver" in done.stdout


def test_unknown_step() -> None:
    done = run("--only", "race")
    assert done.returncode == 2 and "there are numbers, races, peers, bench" in done.stderr
