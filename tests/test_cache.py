"""Files that many processes share: made once, whole or not at all, pruned by age."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tvmopt.cache import FOLDER, LIMIT, Cache
from tvmopt.errors import InputError


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "kind", ".bin", 100)


def written(size: int) -> object:
    return lambda path: path.write_bytes(b"x" * size)


def test_an_entry_is_made_once(cache: Cache) -> None:
    assert cache.find("a") is None and cache.entries() == []
    path = cache.make("a", written(10))
    assert path.read_bytes() == b"x" * 10
    assert cache.make("a", lambda path: pytest.fail("made twice")) == path == cache.find("a")
    assert [(e.key, e.bytes) for e in cache.entries()] == [("a", 10)]


def test_nothing_is_left_of_what_fails(cache: Cache) -> None:
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError

    with pytest.raises(ValueError):
        cache.make("a", fails)
    assert cache.find("a") is None and list(cache.folder.iterdir()) == []


def test_what_was_used_longest_ago_goes_first(cache: Cache) -> None:
    for number, key in enumerate("abc"):
        os.utime(cache.make(key, written(30)), (number, number))
    cache.find("a")  # used now
    assert cache.make("d", written(30)).is_file()
    assert {e.key for e in cache.entries()} == {"a", "c", "d"}
    assert [e.key for e in cache.prune(0)][-1] == "c" and cache.entries() == []


def test_an_entry_larger_than_the_cache_is_kept_until_the_next(cache: Cache) -> None:
    assert cache.make("large", written(1000)).is_file()
    cache.make("small", written(10))
    assert [e.key for e in cache.entries()] == ["small"]


def test_processes_make_an_entry_once(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tvmopt.cache import Cache
def write(path):
    with open({str(tmp_path / "log")!r}, "a") as file: file.write("made\\n")
    path.write_bytes(b"x")
Cache(Path({str(tmp_path / "kind")!r}), ".bin", 100).make("a", write)
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert (tmp_path / "log").read_text() == "made\n"


def test_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(LIMIT, "3")
    assert Cache.models() == Cache(tmp_path / "models", ".tvmopt", 3 << 20)
    monkeypatch.setenv(FOLDER, "off")
    assert Cache.models().folder.parent == Path(tempfile.gettempdir())
    monkeypatch.setenv(LIMIT, "much")
    with pytest.raises(InputError, match="not a number of megabytes"):
        Cache.models()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        Cache(tmp_path / "file" / "kind", ".bin", 100).make("a", written(1))
