"""A device farm on loopback for tests: a real tracker and real servers, in processes of their own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil

from tests.waiting import until
from tvmopt.tuning.rpc import known_boards

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
    """It, and the processes it started: a server starts one for each client, which may end by itself meanwhile."""
    parent = psutil.Process(process.pid)
    for each in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def farm(count: int) -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    """A tracker's port and its servers, whose key is "loop": the generator of a fixture."""
    tracker = python(TRACKER)
    servers: list[subprocess.Popen[str]] = []
    try:
        assert tracker.stdout is not None
        port = int(tracker.stdout.readline())
        servers += [python(SERVER, str(port)) for _ in range(count)]
        until(lambda: known_boards("127.0.0.1", port).get("loop", 0) >= count, "the servers register")
        yield port, servers
    finally:
        for process in (tracker, *servers):
            if process.poll() is None:
                kill(process)
