"""The files that are kept: whole or not there, the oldest go first, any number of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tvmopt.cache import Kernels, Models
from tvmopt.cli.cache import app
from tvmopt.errors import InputError


def key(number: int) -> str:
    return f"{number:064x}"[::-1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("TVMOPT_CACHE_MB", "1")
    return Kernels.default()


@pytest.mark.parametrize("content", [b"", b"\0", bytes(range(256)) * 40])
def test_what_was_kept_comes_back(cache: Kernels, content: bytes) -> None:
    assert cache.get(key(1)) is None
    cache.put(key(1), content)
    assert cache.get(key(1)) == content and cache.get(key(2)) is None


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "longer"])
def test_a_damaged_file_is_nothing(cache: Kernels, damage: str) -> None:
    cache.put(key(1), b"x" * 100)
    (file,) = (path for path in cache.folder.rglob("*") if path.is_file())
    data = file.read_bytes()
    flipped = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    file.write_bytes({"cut": data[:-1], "empty": b"", "flipped": flipped, "longer": data + b"x"}[damage])
    assert cache.get(key(1)) is None and not file.exists()
    cache.put(key(1), b"x" * 100)
    assert cache.get(key(1)) == b"x" * 100


def test_the_oldest_go_first(cache: Kernels) -> None:
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


def test_tidying_looks_once_a_minute(cache: Kernels) -> None:
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
    cache = Kernels.default()
    cache.put(key(1), b"x")
    assert cache.get(key(1)) is None and cache.entries() == [] and cache.prune() == []


def test_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TVMOPT_CACHE", "off"), ("TVMOPT_CACHE_MB", "0")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert Kernels.default().folder is None
    monkeypatch.setenv("TVMOPT_CACHE_MB", "many")
    with pytest.raises(InputError, match="TVMOPT_CACHE_MB is 'many'"):
        Kernels.default()


def test_many_processes(cache: Kernels) -> None:
    """Each writes and reads the same keys while others prune: a read finds all of a file, or nothing."""
    code = """
import sys
import tempfile
from tvmopt.cache import Kernels, Models
cache, found = Kernels.default(), 0
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


def test_the_command(cache: Kernels) -> None:
    for number in range(4):
        cache.put(key(number), bytes(300_000))
    Models.default().make("m" * 64, lambda path: path.write_bytes(b"x"))
    both = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    listed = both["kernels"]
    assert both["models"]["files"] == 1
    assert (listed["files"], listed["limit"], listed["folder"]) == (4, 1 << 20, str(cache.folder))
    assert listed["bytes"] == sum(entry["size"] for entry in listed["entries"]) > 4 * 300_000
    text = CliRunner().invoke(app, ["list", "--top", "2"]).stdout
    assert "4 files" in text and "1 files" in text and len(text.splitlines()) == 7
    assert json.loads(CliRunner().invoke(app, ["prune", "--json"]).stdout)["removed"] == 1
    assert "removed 4 files" in CliRunner().invoke(app, ["clear"]).stdout
    assert cache.entries() == []


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path / "kind", 100)


def written(size: int) -> object:
    return lambda path: path.write_bytes(b"x" * size)


def test_an_entry_is_made_once(models: Models) -> None:
    assert models.find("aa") is None and models.entries() == []
    path = models.make("aa", written(10))
    assert path.read_bytes() == b"x" * 10
    assert models.make("aa", lambda path: pytest.fail("made twice")) == path == models.find("aa")
    assert [(e.key, e.size) for e in models.entries()] == [("aa", 10)]


def test_notes_last_until_the_cache_is_cleared(models: Models) -> None:
    assert models.noted("ab") is None
    for what in ({"x": [1, 3]}, {"x": [2, 3]}):
        models.note("ab", what)
        assert models.noted("ab") == what
    models.path("ab").with_suffix(".json").write_text('{"x": [')
    assert models.noted("ab") is None, "a damaged note is none"
    models.note("ab", {})
    models.refuse("ac")
    models.prune()
    assert models.noted("ab") == {} and models.is_refused("ac")
    models.prune(0)
    assert models.noted("ab") is None and not models.is_refused("ac")


def test_nothing_is_left_of_what_fails(models: Models) -> None:
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError

    with pytest.raises(ValueError):
        models.make("aa", fails)
    assert models.find("aa") is None and [p for p in models.folder.rglob("*") if p.is_file()] == []


def test_what_was_used_longest_ago_goes_first(models: Models) -> None:
    for number, key in enumerate(("aa", "bb", "cc")):
        os.utime(models.make(key, written(30)), (number, number))
    models.find("aa")  # used now
    assert models.make("dd", written(30)).is_file()
    assert {e.key for e in models.entries()} == {"aa", "cc", "dd"}
    assert [e.key for e in models.prune(0)][-1] == "cc" and models.entries() == []


def test_an_entry_larger_than_the_cache_is_kept_until_the_next(models: Models) -> None:
    assert models.make("large", written(1000)).is_file()
    models.make("small", written(10))
    assert [e.key for e in models.entries()] == ["small"]


def test_processes_make_an_entry_once(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tvmopt.cache import Models
def write(path):
    with open({str(tmp_path / "log")!r}, "a") as file: file.write("made\\n")
    path.write_bytes(b"x")
Models(Path({str(tmp_path / "kind")!r}), 100).make("aa", write)
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert (tmp_path / "log").read_text() == "made\n"


def test_models_that_are_not_kept_last_as_long_as_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMOPT_CACHE", "off")
    path = Models.default().make("b" * 64, written(1))
    assert path == Models.default().find("b" * 64) and path.is_relative_to(tempfile.gettempdir())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        Models(tmp_path / "file" / "kind", 100).make("aa", written(1))
