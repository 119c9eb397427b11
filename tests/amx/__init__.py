"""AMX kernels where there is no AMX: the machine code runs here, its tile instructions in `emulator.c`.

    outcomes = run([{"kind": "gemm", "m": 17, "k": 70, "n": 33}, ...])       # in a child process

A kernel that misuses a tile ends the child; :func:`run` then raises with what the emulator wrote. On a machine with
AMX the child runs the same code on the real instructions, without the emulator.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tvmopt.runtime.tiles import request
from tvmopt.targets import Machine

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
KINDS = ("ldtilecfg", "sttilecfg", "tileloadd", "tilestored", "tilezero", "tilerelease", "tdpbf16ps", "tdpbusd")
TARGET = "sapphirerapids"
_HIDDEN = ("avx512fp16", "avx512bf16")
"""What hypervisors hide, and emulated code can do without."""


class Misuse(AssertionError):
    """A tile instruction that a processor would refuse, or a child that died."""


@cache
def real() -> bool:
    """Whether this machine has AMX and gives it to us."""
    return Machine.load("cpu").has("amx-bf16") and not request()


@cache
def machine() -> Machine:
    """Sapphire Rapids; where its code is emulated, without the extensions that this processor lacks: of avx512_fp16
    LLVM uses a move (`vmovw`), and avx512_bf16 rounds to bfloat16."""
    found = Machine.load(TARGET)
    if real():
        return found
    host = Machine.load("cpu").features
    hidden = [f for f in _HIDDEN if f not in host]
    features = tuple(f for f in found.features if f not in hidden)
    return replace(found, features=features, tvm={"mattr": [f"-{f}" for f in hidden]})


@cache
def unavailable() -> str:
    """Why Sapphire Rapids' code cannot run here, or an empty string."""
    if real():
        return ""
    host = set(Machine.load("cpu").features)
    missing = [f for f in machine().features if not f.startswith("amx-") and f not in host]
    if missing:
        return f"no {', '.join(missing)} here"
    return "" if shutil.which("gcc") else "no gcc"


@cache
def emulator() -> Path:
    """The emulator, compiled once a process."""
    path = Path(tempfile.mkdtemp(prefix="tvmopt-amx-")) / "emulator.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-mavx512f", "-mfma", str(HERE / "emulator.c"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def run(cases: list[dict[str, Any]], timeout: float = 1500) -> list[dict[str, Any]]:
    """Each case in `tests/amx/child.py`; what it found, in order.

    Raises:
        Misuse: the child ended early.
    """
    command = [sys.executable, "-m", "tests.amx.child", "" if real() else str(emulator())]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, cwd=ROOT, timeout=timeout, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    if done.returncode or len(lines) != len(cases):
        where = f"case {cases[len(lines)]}" if len(lines) < len(cases) else "at the end"
        raise Misuse(f"exit code {done.returncode}, {where}: {done.stderr[-2000:]}")
    return lines
