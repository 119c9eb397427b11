"""The mask under which engines are compared as on a machine of x86-64-v3."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import avx2
import pytest

from tvmopt.errors import MissingDependency
from tvmopt.targets import cpuid

ASKED = "from tvmopt.targets import cpuid; print(' '.join(sorted(cpuid.absent())))"
CRASH = "import ctypes; ctypes.string_at(8)"
LATER = f"import faulthandler, sys; faulthandler.enable(sys.stderr); {ASKED}; {CRASH}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return avx2.mask(tmp_path_factory.mktemp("mask"))
    except (MissingDependency, subprocess.CalledProcessError) as error:
        pytest.skip(f"{error}")


def child(code: str, library: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | avx2.environment(library)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=100
    )


def test_what_is_later_than_avx2_is_hidden(library: Path) -> None:
    """From a process and from those that it starts; nothing else is."""
    here = cpuid.absent()
    for code in (ASKED, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASKED!r}])"):
        hidden = set(child(code, library).stdout.split()) - here
        kept = {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}
        assert hidden == set(cpuid.BITS) - here - kept - {"sse4a"}


def test_another_fault_still_ends_the_process(library: Path) -> None:
    assert child(CRASH, library).returncode == -11


def test_who_handles_faults_later_gets_the_others(library: Path) -> None:
    """Python's fault handler, as TVM's: it does not see CPUID's, and tells of a crash."""
    done = child(LATER, library)
    assert "avx512f" in done.stdout.split() and "amx-tile" in done.stdout.split()
    assert done.returncode == -11 and "Segmentation fault" in done.stderr


def test_a_mask_that_hides_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing;\n")
    monkeypatch.setattr(avx2, "MASK", empty)
    monkeypatch.setattr(avx2, "HIDDEN", "print('AVX-512')")
    with pytest.raises(MissingDependency, match="cannot pass for"):
        avx2.mask(tmp_path)
    assert avx2.main(["--table", "--results", str(tmp_path / "results")]) == 5
    assert not (tmp_path / "results").exists()
