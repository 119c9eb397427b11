"""How much memory is free: what the system has, and what control groups of version 1 and 2 leave."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tvmopt.targets.memory import free_memory

STAT = "anon 5000\ninactive_file 300\nactive_file 200\nfile 900\n"
OLDER = "cache 1\ninactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n"


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    free = type("Memory", (), {"available": 10_000})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    own = tmp_path / "own"
    own.write_text("4:memory:/docker/x\n0::/docker/x\n")
    return tmp_path / "fs", own


def test_without_groups_it_is_the_system(place: tuple[Path, Path]) -> None:
    assert free_memory(*place) == 10_000


@pytest.mark.parametrize(("limit", "left"), [("max", 10_000), ("6000", 2_500), ("1000", 0), ("1000000", 10_000)])
def test_a_group_of_version_2_counts_its_files_as_free(place: tuple[Path, Path], limit: str, left: int) -> None:
    group(place[0] / "docker" / "x", max=limit, current="4000", stat=STAT)
    assert free_memory(*place) == left


def test_the_narrowest_group_above_counts(place: tuple[Path, Path]) -> None:
    group(place[0] / "docker" / "x", max="max", current="4000", stat=STAT)
    group(place[0] / "docker", max="5000", current="4000", stat=STAT)
    assert free_memory(*place) == 1_500


def test_a_group_of_version_1(place: tuple[Path, Path]) -> None:
    group(place[0] / "memory", limit_in_bytes="6000", usage_in_bytes="4000", stat=OLDER)
    assert free_memory(*place) == 2_500
    group(place[0] / "memory", limit_in_bytes=str((1 << 63) - 4096))
    assert free_memory(*place) == 10_000
