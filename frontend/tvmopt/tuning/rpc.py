"""Measuring on boards and GPU hosts behind TVM's RPC tracker: builds here, runs there, on all boards at once.

python -m tvm.exec.rpc_tracker --port 9190                          # one, anywhere
python -m tvm.exec.rpc_server --tracker HOST:9190 --key rpi5        # on each board
tvmopt tune MODEL --target rpi5.toml --rpc-tracker HOST:9190 --rpc-key rpi5
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.errors import InputError, TuningError
from tvmopt.targets import Machine
from tvmopt.texts import whole_number
from tvmopt.tuning.effort import Kernel
from tvmopt.tuning.measure import LocalRunner, Measurement, WorkerDied, WorkerHung
from tvmopt.tuning.record import Candidate

if TYPE_CHECKING:
    from tvmopt.tuning.tasks import Task

TRIES = 3
"""Boards on which a candidate may be lost before it is believed to be its own fault."""


@dataclass
class RpcRunner(LocalRunner):
    """A `Runner` on the boards of a tracker.

    Args:
        rpc: host and port of the tracker, key of the boards.
    """

    rpc: tuple[str, int, str] = ("", 0, "")

    @classmethod
    def connect(cls, target: str | Path | Machine, tracker: str, key: str, threads: int | None = None) -> RpcRunner:
        """A runner with a worker for each board.

        Raises:
            InputError: the tracker's address is not HOST:PORT.
            TuningError: no tracker there, or it knows no board of this key (those it knows are listed).
        """
        machine = Machine.load(target).with_threads(threads)
        host, colon, port = tracker.rpartition(":")
        if not colon or not whole_number(port):
            raise InputError(f"{tracker!r} is not HOST:PORT", where="--rpc-tracker", fix="--rpc-tracker HOST:9190")
        boards = known_boards(host, int(port))
        if not boards.get(key):
            raise TuningError(
                f"the tracker has no board {key!r}",
                where=tracker,
                fix=f"its boards: {', '.join(sorted(boards)) or 'none'}; start one: "
                f"python -m tvm.exec.rpc_server --tracker {tracker} --key {key or 'KEY'}",
            )
        return cls(machine, workers=boards[key], rpc=(host, int(port), key))

    def measure(self, task: Task, candidates: Sequence[Candidate], best: float) -> Iterator[Measurement]:
        """On all boards at once."""
        effort = self._effort(best)
        for first in range(0, len(candidates), self.workers):
            group = list(candidates[first : first + self.workers])
            for slot in range(len(group)):
                self._team[slot] = self._team[slot] or self._fork_server.fork()
            jobs = [self._threads.submit(self._both, task, slot, c, effort) for slot, c in enumerate(group)]
            for job in as_completed(jobs):
                yield job.result()

    def _both(self, task: Task, slot: int, candidate: Candidate, effort: Any) -> Measurement:
        built = self._build(task, slot, candidate)
        return built if built.status != "ok" else self._measure(task, slot, built, effort)

    def _call(self, slot: int, task: Task, verb: str, *arguments: Any, timeout: float) -> tuple[str, Any]:
        """As the base's; when a board is lost, or silent, the request is repeated on another."""
        for attempt in range(TRIES):
            try:
                if attempt and verb == "measure":  # a new worker, or one that forgot what it had measured
                    super()._call(slot, task, "build", self._last[slot], timeout=self.build_timeout)
                state, answer = super()._call(slot, task, verb, *arguments, timeout=timeout)
                if state != "lost":
                    return state, answer
            except (WorkerDied, WorkerHung):
                if attempt + 1 == TRIES or verb == "build":
                    raise
        raise WorkerDied

    def _build(self, task: Task, slot: int, candidate: Candidate) -> Measurement:
        self._last[slot] = candidate
        return super()._build(task, slot, candidate)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last: dict[int, Candidate] = {}

    def _kernel(self, task: Task) -> Kernel:
        return replace(super()._kernel(task), rpc=self.rpc)


def known_boards(host: str, port: int) -> dict[str, int]:
    """Key -> boards, free or busy, of a tracker.

    Raises:
        TuningError: there is none.
    """
    from tvm import rpc

    try:
        socket.create_connection((host, port), timeout=5).close()  # TVM tries for a minute
        summary = rpc.connect_tracker(host, port).summary()
    except Exception as error:  # TVM raises RuntimeError, OSError, and its own
        fix = "python -m tvm.exec.rpc_tracker --port " + str(port)
        raise TuningError("no RPC tracker answers", where=f"{host}:{port}", fix=fix) from error
    boards: dict[str, int] = {}
    for server in summary["server_info"]:
        key = str(server["key"]).removeprefix("server:")
        boards[key] = boards.get(key, 0) + 1
    return boards
