"""The store keeps every finished measurement, never another target's, and two writers agree."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuning.records import KEY, WON, record
from tvmopt.errors import TuningError
from tvmopt.tuning.record import Candidate
from tvmopt.tuning.store import CLAIM_SECONDS, Store


def test_a_record_comes_back_whole(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert store.add(record(verdict=WON))
    with Store(tmp_path / "s.db") as store:
        (found,) = store.records()
    assert replace(found, date="") == record(verdict=WON)
    assert found.seconds == 1.5e-3


def test_one_point_has_one_measurement(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert store.add(record())
        assert not store.add(record(samples=(9.0,)))
        assert [r.samples for r in store.records()] == [record().samples]


@pytest.mark.parametrize(
    "other",
    [
        {"target": "llvm znver5 4c avx2"},
        {"workload": "00fe"},
        {"tvm": "0.28"},
        {"family": "conv2d"},
        {"version": 2},
    ],
)
def test_best_is_of_exactly_this_key(tmp_path: Path, other: dict[str, object]) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add(record(verdict=WON))
        assert store.best(KEY) is not None
        assert store.best(replace(KEY, **other)) is None


def test_only_a_won_final_makes_a_best(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add(record(4))
        store.add(record(6, verdict=replace(WON, ratio=0.5, won=False)))
        store.add(record(8, verdict=WON))
        store.add(record(10, verdict=replace(WON, ratio=0.1), status="wrong"))
        best = store.best(KEY)
    assert best is not None and best.candidate.knobs == {"mr": 8}


def test_sessions_count_trials_and_time(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        assert store.begin("run", "model", "t") == (0, 0.0)
        store.add(record(4), "run", 2.0)
        store.add(record(4), "run", 1.0)  # known already: time passed, no trial
        assert store.begin("run", "model", "t") == (1, 3.0)


def test_claims_exclude_and_end_with_their_owner(tmp_path: Path) -> None:
    points = [Candidate({"mr": m}) for m in (1, 2, 3)]
    with Store(tmp_path / "s.db") as one, Store(tmp_path / "s.db") as two:
        two.owner = "1:1:" + one.owner.split(":")[2]  # a process that is not there any more
        assert two.claim(KEY, points[:2], 0.0) == points[:2]
        assert one.claim(KEY, points, 0.0) == points
        two.owner = one.owner + "-other"
        assert two.claim(KEY, points, 1.0) == []  # alive, and in time
        one.add(record(1))
        assert two.claim(KEY, points, CLAIM_SECONDS + 1.0) == points[1:]  # measured points are never claimed


def test_merge_takes_verdicts(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        store.add(record(4))
        assert store.merge([record(4, verdict=WON), record(6), record(6)]) == 2
        best = store.best(KEY)
    assert best is not None and best.candidate.knobs == {"mr": 4}


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(TuningError, match="cannot open"):
        Store(path)
    with pytest.raises(TuningError, match="no tuning store"):
        Store(tmp_path / "absent.db", must_exist=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_store_is_named(seed: int, tmp_path: Path) -> None:
    """SQLite's errors quote the damage, which is no UTF-8; what a row holds is no JSON and no archive any more."""
    path = tmp_path / "s.db"
    with Store(path) as store:
        store.begin("run", "model", "t", '{"a": 1}')
        store.put_workload(KEY.workload, "module" * 99)
        for point in range(40):
            store.add(record(point, verdict=WON), "run", 1.0)
    content, draw = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(200 if seed < 10 else 3000):
        content[draw.randrange(100, len(content))] ^= 255
    path.write_bytes(content)

    def use(store: Store) -> None:
        store.records(), store.sessions(), store.facts("run"), store.used("run"), list(store.workloads())
        store.claim(KEY, [record(1).candidate], 0.0)
        store.add(record(1000), "run", 1.0)

    with suppress(TuningError), Store(path) as store:
        use(store)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(TuningError, match="format is 99"):
        Store(tmp_path / "s.db")


def _write(path: str, first: int) -> None:
    with Store(path) as store:
        for mr in range(first, first + 100):
            store.add(record(mr))


def test_two_writers_on_one_new_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path / "s.db"), first)) for first in (0, 50)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with Store(tmp_path / "s.db") as store:
        assert sorted(r.candidate.knobs["mr"] for r in store.records()) == list(range(150))


def test_a_killed_writer_loses_nothing_it_finished(tmp_path: Path) -> None:
    code = """
import sys
from tests.tuning.records import record
from tvmopt.tuning.store import Store
with Store(sys.argv[1]) as store:
    for mr in range(100000):
        store.add(record(mr))
        print(mr, flush=True)
"""
    done = -1
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "s.db")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=os.getcwd(),
        )
        assert child.stdout is not None
        for line in child.stdout:
            done = max(done, int(line))
            if int(line) % 50 == 49 and int(line) >= done:
                child.send_signal(signal.SIGKILL)
                break
        child.wait()
        child.stdout.close()
        with Store(tmp_path / "s.db") as store:
            assert {r.candidate.knobs["mr"] for r in store.records()} >= set(range(done + 1))
            store.add(record(-1 - done))  # a dead writer's lock does not stand: SQLite would refuse
