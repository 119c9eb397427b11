"""A device farm on loopback: a real tracker, two servers, one of them killed in the middle."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tvmopt.targets import Machine

from tvmopt.errors import InputError, TuningError
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.record import Candidate, Record
from tvmopt.tuning.rpc import RpcRunner, known_boards
from tvmopt.tuning.search import Budget, State, Tuner
from tvmopt.tuning.store import Store

MACHINE = Machine.load("cpu").with_cores(1)
TRACKER = """
import sys, time
from tvm.rpc.tracker import Tracker
tracker = Tracker(host="127.0.0.1", port=19190, port_end=19990, silent=True)
print(tracker.port, flush=True)
time.sleep(600)
"""
SERVER = """
import sys, time
from tvm.rpc.server import Server
server = Server(host="127.0.0.1", port=20190, port_end=20990, is_proxy=False, silent=True,
                tracker_addr=("127.0.0.1", int(sys.argv[1])), key="loop")
time.sleep(600)
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,        start_new_session=True,
    )  # fmt: skip


def kill(process: subprocess.Popen[str]) -> None:
    """It, and the processes it started."""
    for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        child.kill()
    process.wait()


@pytest.fixture(scope="module")
def farm() -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    """A tracker's port and two servers."""
    tracker = python(TRACKER)
    assert tracker.stdout is not None
    port = int(tracker.stdout.readline())
    servers = [python(SERVER, str(port)) for _ in range(2)]
    deadline = time.monotonic() + 60
    while known_boards("127.0.0.1", port).get("loop", 0) < 2:
        assert time.monotonic() < deadline, "the servers did not register"
        time.sleep(0.2)
    yield port, servers
    for process in (tracker, *servers):
        if process.poll() is None:
            kill(process)


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


def test_a_killed_board_costs_no_measurement(
    farm: tuple[int, list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
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
