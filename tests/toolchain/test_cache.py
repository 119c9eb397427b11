"""The files that are kept: whole or not there, the oldest go first, any number of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tvmopt.cli.cache import app
from tvmopt.errors import InputError
from tvmopt.toolchain.cache import Cache


def key(number: int) -> str:
    return f"{number:064x}"[::-1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("TVMOPT_CACHE_MB", "1")
    return Cache.default()


@pytest.mark.parametrize("content", [b"", b"\0", bytes(range(256)) * 40])
def test_what_was_kept_comes_back(cache: Cache, content: bytes) -> None:
    assert cache.get(key(1)) is None
    cache.put(key(1), content)
    assert cache.get(key(1)) == content and cache.get(key(2)) is None


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "longer"])
def test_a_damaged_file_is_nothing(cache: Cache, damage: str) -> None:
    cache.put(key(1), b"x" * 100)
    (file,) = (path for path in cache.folder.rglob("*") if path.is_file())
    data = file.read_bytes()
    flipped = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    file.write_bytes({"cut": data[:-1], "empty": b"", "flipped": flipped, "longer": data + b"x"}[damage])
    assert cache.get(key(1)) is None and not file.exists()
    cache.put(key(1), b"x" * 100)
    assert cache.get(key(1)) == b"x" * 100


def test_the_oldest_go_first(cache: Cache) -> None:
    for number in range(8):
        cache.put(key(number), bytes(200_000))
        path = cache.folder / key(number)[:2] / key(number)
        os.utime(path, (1000 + number, 1000 + number))
    assert cache.get(key(0)) is not None  # used now: it is the newest
    removed = cache.prune()
    kept = {entry.key for entry in cache.entries()}
    assert kept == {key(0), key(7), key(6), key(5), key(4)}  # 5 * 200 KB fit into 1 MB
    assert {entry.key for entry in removed} == {key(1), key(2), key(3)}
    assert cache.prune() == []
    assert len(cache.prune(0)) == 5 and cache.entries() == []


def test_tidying_looks_once_a_minute(cache: Cache) -> None:
    for number in range(8):
        cache.put(key(number), bytes(200_000))
    cache.tidy()
    assert len(cache.entries()) == 5
    cache.put(key(9), bytes(200_000))
    cache.tidy()
    assert len(cache.entries()) == 6
    os.utime(cache.folder / ".pruned", (0, 0))
    cache.tidy()
    assert len(cache.entries()) == 5


def test_what_cannot_be_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "file" / "folder"))
    cache = Cache.default()
    cache.put(key(1), b"x")
    assert cache.get(key(1)) is None and cache.entries() == [] and cache.prune() == []


def test_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TVMOPT_CACHE", "off"), ("TVMOPT_CACHE_MB", "0")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert Cache.default().folder is None
    monkeypatch.setenv("TVMOPT_CACHE_MB", "many")
    with pytest.raises(InputError, match="TVMOPT_CACHE_MB is 'many'"):
        Cache.default()


def test_many_processes(cache: Cache) -> None:
    """Each writes and reads the same keys while others prune: a read finds all of a file, or nothing."""
    code = """
import sys
from tvmopt.toolchain.cache import Cache
cache, found = Cache.default(), 0
for turn in range(60):
    for number in range(6):
        key, content = f"{number:064x}"[::-1], bytes([number]) * 150_000
        kept = cache.get(key)
        assert kept in (None, content), number
        found += kept is not None
        if kept is None:
            cache.put(key, content)
    cache.prune(600_000)
print(found)
"""
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    told = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert all(int(found) > 0 for found in told)
    assert not [path for path in cache.folder.rglob(".*") if path.is_file()]


def test_the_command(cache: Cache) -> None:
    for number in range(4):
        cache.put(key(number), bytes(300_000))
    listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert (listed["files"], listed["limit"], listed["folder"]) == (4, 1 << 20, str(cache.folder))
    assert listed["bytes"] == sum(entry["size"] for entry in listed["entries"]) > 4 * 300_000
    text = CliRunner().invoke(app, ["list", "--top", "2"]).stdout
    assert "4 files" in text and len(text.splitlines()) == 4
    assert json.loads(CliRunner().invoke(app, ["prune", "--json"]).stdout)["removed"] == 1
    assert "removed 3 files" in CliRunner().invoke(app, ["clear"]).stdout
    assert cache.entries() == []
