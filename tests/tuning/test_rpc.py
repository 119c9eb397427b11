"""A device farm on loopback: a real tracker, two servers, one of them killed in the middle."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuning.farm import farm as farm_of
from tests.tuning.farm import kill
from tvmopt.errors import InputError, TuningError
from tvmopt.targets import Machine
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.record import Candidate, Record
from tvmopt.tuning.rpc import RpcRunner
from tvmopt.tuning.search import Budget, State, Tuner
from tvmopt.tuning.store import Store

MACHINE = Machine.load("cpu").with_cores(1)


@pytest.fixture(scope="module")
def farm() -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    """A tracker's port and two servers."""
    yield from farm_of(2)


class Killer:
    """Kills a server when the third measurement arrives."""

    def __init__(self, victim: subprocess.Popen[str]) -> None:
        self.victim, self.count = victim, 0

    def started(self, tuner: Tuner) -> None: ...
    def judged(self, *args: object) -> None: ...
    def finished(self, tuner: Tuner) -> None: ...

    def measured(self, tuner: Tuner, state: State, record: Record) -> None:
        self.count += 1
        if self.count == 3:
            kill(self.victim)


def test_a_killed_board_costs_no_measurement(farm: tuple[int, list[subprocess.Popen[str]]], tmp_path: Path) -> None:
    from tests.tuning import planted

    port, servers = farm
    runner = RpcRunner.connect(MACHINE, f"127.0.0.1:{port}", "loop")
    assert runner.workers == 2
    runner.close()
    runner = RpcRunner(
        MACHINE, 2, Effort(seconds=0.02, rounds=10, flush="no"), preload="tests.tuning.planted_remote",
        rpc=("127.0.0.1", port, "loop"),
        run_timeout=10.0,
    )  # fmt: skip
    task = planted.task(MACHINE)
    try:
        with Store(tmp_path / "s.db") as store:
            tuner = Tuner([task], runner, store, Budget(8), batch=4, observer=Killer(servers[0]))
            tuner.run()
            records = {r.candidate.id: r for r in store.records()}
    finally:
        runner.close()
    assert len(records) == 8
    assert records[Candidate({"mode": 0}).id].samples
    for record in records.values():
        bad = (planted.MODES["wrong"], planted.MODES["nan"])
        expected = "wrong" if record.candidate.knobs["mode"] in bad else "ok"
        assert record.status == expected, (str(record.candidate), record.status, record.note)


def test_what_is_asked_of_a_tracker_that_is_not_there() -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        RpcRunner.connect(MACHINE, "nowhere", "k")
    with pytest.raises(TuningError, match="no RPC tracker answers"):
        RpcRunner.connect(MACHINE, "127.0.0.1:9", "k")


def test_an_unknown_key_lists_the_known_ones(farm: tuple[int, list[subprocess.Popen[str]]]) -> None:
    with pytest.raises(TuningError, match="no board 'other'") as caught:
        RpcRunner.connect(MACHINE, f"127.0.0.1:{farm[0]}", "other")
    assert "loop" in str(caught.value)
