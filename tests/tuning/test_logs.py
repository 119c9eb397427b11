"""Logs as text: round trip, torn lines, and what a compile picks from them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tuning.records import KEY, WON, record
from tvmopt.cli.logs import app
from tvmopt.errors import InputError, TuningError
from tvmopt.report import DecisionLog
from tvmopt.scheduling.family import Space
from tvmopt.scheduling.replay import Replay
from tvmopt.targets import Machine
from tvmopt.tuning import logs
from tvmopt.tuning.logs import RecordLookup, export_logs, from_line, import_logs, read_log_file, to_line
from tvmopt.tuning.record import Candidate, Key, Verdict, fingerprint, log_name, tvm_version
from tvmopt.tuning.store import Store
from tvmopt.tuning.verify import verify_store

MACHINE = Machine("m", "llvm", "znver5", cores=2, vector_bits=256, features=("avx2",))
HERE = Key("00ff", fingerprint(MACHINE), tvm_version(), "gemm", 1)
FAMILY: Any = SimpleNamespace(NAME="gemm", VERSION=1, knobs=lambda shape, machine: Space({"mr": (14, 8, 6)}))


@pytest.fixture
def workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """`func` is its own hash."""
    monkeypatch.setattr(logs, "key_of", lambda func, family, machine: replace(HERE, workload=func))


def test_a_line_is_a_record() -> None:
    made = replace(record(verdict=WON), date="2026-01-01T00:00:00Z", host="cpu", note="n")
    assert from_line(to_line(made), made.key.target) == made
    traced = replace(record(), candidate=Candidate(trace="[[],[]]"), status="crash")
    assert from_line(to_line(traced), traced.key.target) == traced


def test_export_is_sorted_and_import_brings_it_back(tmp_path: Path) -> None:
    other = replace(KEY, target="llvm znver5 4c avx2")
    with Store(tmp_path / "a.db") as store:
        store.merge([record(m, key, verdict=WON) for m in (4, 6) for key in (KEY, other)])
        store.merge([record(8)])
        written = export_logs(store, tmp_path / "out")
        whole = export_logs(store, tmp_path / "all", everything=True)
    assert sorted(written.values()) == [1, 1] and sorted(whole.values()) == [2, 3]
    assert {p.name for p in written} == {log_name(KEY.target), log_name(other.target)}
    lines = (tmp_path / "all" / log_name(KEY.target)).read_text().splitlines()
    with Store(tmp_path / "b.db") as store:
        assert import_logs(store, list(whole)) == 5
        assert import_logs(store, list(whole)) == 0
        again = export_logs(store, tmp_path / "again", everything=True)
    assert (tmp_path / "again" / log_name(KEY.target)).read_text().splitlines() == lines
    assert len(again) == 2


def test_a_torn_line_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logs.write_log(path, KEY.target, [record(4), record(6)])
    path.write_text(path.read_text()[:-40])
    log = read_log_file(path)
    assert len(log.records) == 1 and "line 3" in str(log.problems[0])
    with Store(tmp_path / "s.db") as store:
        with pytest.raises(TuningError, match="line 3"):
            import_logs(store, [path])
        assert len(store.records()) == 1


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"format": "tvmopt-tuning-log", "version": 99, "target": "t"}', "\x00"):
        path = tmp_path / "log.jsonl"
        path.write_text(text)
        with pytest.raises(TuningError, match="not a tuning log"):
            read_log_file(path)


@pytest.mark.usefixtures("workload")
def test_lookup_finds_this_targets_winner_in_the_store(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.merge([record(8, HERE, verdict=WON), record(6, HERE), record(6, replace(HERE, workload="01"), WON)])
    lookup = RecordLookup.default(MACHINE, tmp_path / "s.db", ship=False)
    assert lookup("00ff", FAMILY, None) == {"mr": 8}
    assert lookup("01", FAMILY, None) == {"mr": 6}
    assert lookup("02", FAMILY, None) is None
    assert [r.candidate.knobs["mr"] for r, _ in lookup.used] == [8, 6]
    other = RecordLookup.default(MACHINE.with_cores(4), tmp_path / "s.db", ship=False)
    assert other("00ff", FAMILY, None) is None


@pytest.mark.usefixtures("workload")
def test_lookup_refuses_knobs_that_left_the_space_and_returns_traces() -> None:
    lookup = RecordLookup(MACHINE)
    traced = replace(record(key=replace(HERE, workload="01"), verdict=WON), candidate=Candidate(trace="[[],[]]"))
    lookup.take([record(5, HERE, verdict=WON), traced], "test")
    assert lookup("00ff", FAMILY, None) is None
    found = lookup("01", FAMILY, None)
    assert isinstance(found, Replay) and found.trace == "[[],[]]"


@pytest.mark.usefixtures("workload")
def test_an_artifacts_lines_give_the_same_records() -> None:
    lookup = RecordLookup(MACHINE)
    lookup.take([record(8, HERE, verdict=WON)], "store")
    lookup("00ff", FAMILY, None)
    again = RecordLookup.of_lines(MACHINE, lookup.used_lines())
    assert again("00ff", FAMILY, None) == {"mr": 8}
    assert again.used_lines() == lookup.used_lines()


def test_a_broken_store_does_not_stop_a_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own, that is; one that was asked for does."""
    (tmp_path / "s.db").write_bytes(b"garbage" * 1000)
    monkeypatch.setenv("TVMOPT_STORE", str(tmp_path / "s.db"))
    lookup = RecordLookup.default(MACHINE)
    assert lookup.warnings and "not used" in lookup.warnings[0]
    for name in ("s.db", "missing.db"):
        with pytest.raises(TuningError):
            RecordLookup.default(MACHINE, tmp_path / name)


def test_commands(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    with Store(store) as opened:
        opened.merge([record(8, verdict=WON), record(6)])

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--store", str(store)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "2 measured, 2 ok" in run("list") and "mr=8" in run("list") and "mr=6" not in run("list")
    assert "mr=6" in run("show", "00")
    assert len(json.loads(run("list", "--all", "--json"))) == 2
    assert "1 records" in run("export", str(tmp_path / "out"))
    assert "0 new" in run("import", str(tmp_path / "out" / log_name(KEY.target)))
    with Store(tmp_path / "t.db") as other:
        other.add(record(10))
    assert "1 new" in run("merge", str(tmp_path / "t.db"))
    assert "2 records removed" in run("prune")
    with pytest.raises(TuningError, match="no record"):
        run("show", "zz")
    with Store(store) as opened:
        opened.remove(keep=[])
    assert "no records in" in run("list")
    with Store(store) as opened:
        opened.add(record(6))
    for words in (["list"], ["export", str(tmp_path / "none")]):
        assert "no winners" in run(*words)
    assert "no winners" in run("verify")
    with pytest.raises(InputError, match="cannot make the folder"):
        run("export", str(store))


def test_verdict_of_a_record_is_needed_to_win() -> None:
    assert not record(verdict=Verdict(0.5, 0.4, 1.1, 0.3, 5, False)).won


def line(**fields: object) -> str:
    """A line of a log with other fields."""
    return json.dumps(json.loads(to_line(record(4, verdict=WON))) | fields)


DAMAGED = {
    "knobs is a list": line(knobs=[1]),
    "knobs is null": line(knobs=None),
    "knobs is infinite": line(knobs={"mr": float("inf")}),
    "a version that SQLite does not hold": line(family_version=10**30),
    "half of a character": line(note="\ud800"),
    "deep nesting": "[" * 100000,
    "ratio is text": line(verdict=WON.__dict__ | {"ratio": "0.5"}),
    "ratio is null": line(verdict=WON.__dict__ | {"ratio": None}),
    "a verdict without a ratio": line(verdict={"won": True}),
    "no time": line(samples=[0.0]),
    "status is a list": line(status=["ok"]),
    "no object": "1",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_costs_that_line_only(text: str, tmp_path: Path) -> None:
    """Import takes the others, and what it took can be exported."""
    path = tmp_path / "log.jsonl"
    logs.write_log(path, KEY.target, [record(6, verdict=WON)])
    header, good = path.read_text().splitlines()
    path.write_text("\n".join([header, text, good]))
    with Store(tmp_path / "s.db") as store:
        with pytest.raises(TuningError, match="line 2"):
            import_logs(store, [path])
        assert [r.candidate.knobs for r in store.records()] == [{"mr": 6}]
        assert list(export_logs(store, tmp_path / "out").values()) == [1]


@pytest.mark.parametrize(
    "fields", [{"version": float("inf")}, {"version": None}, {"target": ""}, {"target": "../a b c"}]
)
def test_a_damaged_header_is_no_log(fields: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"format": logs.MAGIC, "version": 1, "target": KEY.target} | fields) + "\n" + line())
    with pytest.raises(TuningError, match="not a tuning log"):
        read_log_file(path)


ROWS = [
    *(("knobs", value) for value in ("[1,2]", "null", "{", "[" * 100000)),
    *(("verdict", json.dumps(WON.__dict__ | {"ratio": ratio})) for ratio in ("0.5", None)),
    ("samples", "[0]"),
    ("status", "fine"),
]


@pytest.mark.parametrize(("column", "value"), ROWS)
def test_a_damaged_row_costs_that_row_only(
    column: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compile and the commands go on without it and name it; a tuner measures its point again."""
    path, first = tmp_path / "s.db", record(8, HERE, verdict=WON)
    with Store(path) as store:
        store.merge([first, record(6, replace(HERE, workload="01"), WON)])
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE record SET {column}=? WHERE id=1", (value,))
        db.commit()
    monkeypatch.setenv("TVMOPT_STORE", str(path))
    named = f"{path}, row 1: "
    (warning,) = RecordLookup.default(MACHINE).tell(DecisionLog())
    assert named in warning
    done = CliRunner().invoke(app, ["list"], catch_exceptions=False)
    assert done.exit_code == 0 and "mr=6" in done.output and named in done.output
    assert named in verify_store(path, MACHINE)[-1].note
    with Store(path) as store:
        assert [r.candidate.knobs["mr"] for r in store.records()] == [6]
        assert store.claim(HERE, [first.candidate], 0.0) == [first.candidate]
        assert store.add(first) and len(store.records()) == 2 and len(store.warnings) == 1
