"""Measuring candidates: warm isolated workers, a bounded wait for each answer - the tuner's side of `worker.py`.

Builds run in all workers at once; measurements one at a time, alone on the machine as far as the tuner is concerned. A
worker that dies or hangs while it works on a candidate is replaced, and the candidate recorded as what killed it.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from tvmopt.errors import TuningError
from tvmopt.targets import Machine
from tvmopt.targets.detect import usable_cores
from tvmopt.tuning.effort import Effort, Kernel
from tvmopt.tuning.record import Candidate, Status
from tvmopt.tuning.worker import HELLO, receive, send

if TYPE_CHECKING:
    from tvmopt.tuning.tasks import Task


@dataclass(frozen=True)
class Measurement:
    """What came of one candidate; `cost`: seconds it took, build included."""

    candidate: Candidate
    status: Status
    samples: tuple[float, ...] = ()
    digest: str = ""
    note: str = ""
    cost: float = 0.0
    baseline: float = 0.0


class Runner(Protocol):
    """Whatever measures: workers here, boards behind a tracker, or a test's arithmetic."""

    def prepare(self, task: Task) -> None:
        """Make the reference output; called once before a task's first measurement.

        Raises:
            TuningError: the unscheduled kernel cannot be built or run.
        """

    def measure(self, task: Task, candidates: Sequence[Candidate], best: float) -> Iterator[Measurement]:
        """Each candidate's measurement as soon as it is finished. `best`: the best score so far, 1 at first."""

    def compare(self, task: Task, first: Candidate, second: Candidate) -> list[tuple[float, float]] | None:
        """Both in turn, many times, after both outputs were compared again; None if either cannot run.

        Only undisturbed pairs: few or none on a busy machine.
        """

    def close(self) -> None:
        """Stop everything."""


class WorkerDied(Exception):
    """The worker ended while it worked."""


class WorkerHung(Exception):
    """The worker did not answer in time; it was killed."""


class Worker:
    """One worker process, from the tuner's side."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid, self._sock = pid, sock
        self._process: psutil.Process | None = None
        with suppress(psutil.NoSuchProcess):  # knows its start: no later process of the same number is killed
            self._process = psutil.Process(pid)

    def call(self, verb: str, *arguments: Any, timeout: float) -> tuple[str, Any]:
        """Ask and wait: ("ok", result) or ("failed", message).

        Raises:
            WorkerDied, WorkerHung: and the worker is gone.
        """
        try:
            send(self._sock, (verb, arguments))
            ready, _, _ = select.select([self._sock], [], [], timeout)
            if not ready:
                self.kill()
                raise WorkerHung
            answer: tuple[str, Any] = receive(self._sock)
            return answer
        except (OSError, EOFError) as error:
            self.kill()
            raise WorkerDied from error

    def runs(self) -> bool:
        """False once it has ended, reaped or not."""
        try:
            return self._process is not None and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> None:
        """End it and wait for its end, while the fork server is there to reap it: not every container's init does."""
        self._sock.close()
        if self._process is not None:
            with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                self._process.kill()
                self._process.wait(1.0)


class ForkServer:
    """The warm process that workers are forked from."""

    def __init__(self, threads: int, preload: str = "", variables: Mapping[str, str] | None = None) -> None:
        self._threads, self._preload, self._variables = threads, preload, variables or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._forked: list[Worker] = []

    def start(self) -> None:
        """Start importing; does not wait."""
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            **self._variables,
            "TVM_NUM_THREADS": str(self._threads),
            "OPENBLAS_NUM_THREADS": "1",  # a forked child must not inherit a pool
            "PYTHONUNBUFFERED": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvmopt.tuning.worker", str(theirs.fileno()), self._preload],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tuner, which ends its measurements itself
        )
        theirs.close()
        self._sock, self._warm = ours, False

    def fork(self) -> Worker:
        """A new worker.

        Raises:
            TuningError: the fork server does not come up.
        """
        for _ in range(2):
            if self._sock is None:
                self.start()
            assert self._sock is not None
            try:
                if not self._warm and self._sock.recv(1) != HELLO:
                    raise OSError("no greeting")
                self._warm = True
                ours, theirs = socket.socketpair()
                socket.send_fds(self._sock, [b"F"], [theirs.fileno()])
                theirs.close()
                (pid,) = struct.unpack("<i", self._sock.recv(4))
                self._forked = [worker for worker in self._forked if worker.runs()] + [Worker(pid, ours)]
                return self._forked[-1]
            except (OSError, struct.error):
                self.close()
        raise TuningError("the measuring processes do not start", fix="`tvmopt doctor` checks the installation")

    def close(self) -> None:
        """End the workers, then the process they were forked from."""
        while self._forked:
            self._forked.pop().kill()
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@dataclass
class LocalRunner:
    """Measures on this machine.

    Args:
        machine: compiled for; its cores are the threads of a kernel.
        workers: processes that build at once; default: the machine's cores, at most 8.
        effort: of one measurement (see `kernel.Effort`).
        build_timeout, run_timeout: seconds; a candidate that takes longer is recorded as a timeout.
        preload: a module that workers import before they start.
        host: what measures, known once a task was prepared.
    """

    machine: Machine
    workers: int = 0
    effort: Effort = field(default_factory=Effort)
    build_timeout: float = 60.0
    run_timeout: float = 30.0
    preload: str = ""
    host: str = field(default="", init=False)
    _folder: Path = field(init=False)
    _fork_server: ForkServer = field(init=False)
    _team: list[Worker | None] = field(init=False)

    def __post_init__(self) -> None:
        cores, variables = self.machine.cores, dict[str, str]()
        if self.machine.kind == "cuda":  # its cores are not this machine's
            from tvmopt.toolchain.cuda import environment, find_toolkit

            cores, variables = usable_cores(), environment(find_toolkit())
        self.workers = self.workers or min(8, cores)
        self._folder = Path(tempfile.mkdtemp(prefix="tvmopt-tune-"))
        variables["TMPDIR"] = str(self._folder)  # workers that are killed clear up nothing
        self._fork_server = ForkServer(cores, self.preload, variables)
        self._fork_server.start()
        self._team = [None] * self.workers
        self._threads = ThreadPoolExecutor(self.workers)

    def close(self) -> None:
        self._fork_server.close()
        self._threads.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fork(self) -> Worker:
        """A further worker, for whoever needs an isolated warm process."""
        return self._fork_server.fork()

    # -- the Runner protocol -----------------------------------------------------------------------

    def prepare(self, task: Task) -> None:
        if (self._kernel_folder(task) / "digest").exists():
            return
        try:
            state, answer = self._call(0, task, "reference", timeout=10 * self.run_timeout)
        except (WorkerDied, WorkerHung) as error:
            state, answer = "failed", type(error).__name__
        if state != "ok":
            raise TuningError(f"the unscheduled kernel cannot be run: {answer}", where=task.name)
        if not self.host:
            self.host = self._host(task)

    def _host(self, task: Task) -> str:
        """What measures: this machine's processor, or what a worker says of its GPU or board."""
        with suppress(WorkerDied, WorkerHung):
            state, answer = self._call(0, task, "host", timeout=self.run_timeout)
            return str(answer) if state == "ok" else ""
        return ""

    def measure(self, task: Task, candidates: Sequence[Candidate], best: float) -> Iterator[Measurement]:
        effort = self._effort(best)
        for first in range(0, len(candidates), self.workers):
            group = list(candidates[first : first + self.workers])
            for slot, worker in enumerate(self._team[: len(group)]):  # forked here, not in the threads
                self._team[slot] = worker or self._fork_server.fork()
            outcomes = list(self._threads.map(lambda a: self._build(task, *a), enumerate(group)))
            for slot, outcome in enumerate(outcomes):
                yield outcome if outcome.status != "ok" else self._measure(task, slot, outcome, effort)

    def compare(self, task: Task, first: Candidate, second: Candidate) -> list[tuple[float, float]] | None:
        try:
            for candidate in (first, second):
                if self._call(0, task, "build", candidate, timeout=self.build_timeout)[0] != "ok":
                    return None
                state, answer = self._call(0, task, "check", candidate.id, timeout=self.run_timeout)
                if state != "ok" or not answer[0]:
                    return None
            arguments = (first.id, second.id, self.effort.rounds, self.effort.flush)
            state, answer = self._call(0, task, "compare", *arguments, timeout=4 * self.run_timeout)
            return answer if state == "ok" else None
        except (WorkerDied, WorkerHung):
            return None

    # -- one candidate -----------------------------------------------------------------------------

    def _build(self, task: Task, slot: int, candidate: Candidate) -> Measurement:
        start = time.perf_counter()
        status: Status = "ok"
        try:
            state, note = self._call(slot, task, "build", candidate, timeout=self.build_timeout)
            status = "ok" if state == "ok" else "failed"
        except WorkerHung:
            status, note = "timeout", f"building took over {self.build_timeout:.0f} s"
        except WorkerDied:
            status, note = "crash", "the compiler crashed"
        return Measurement(candidate, status, note=note or "", cost=time.perf_counter() - start)

    def _measure(self, task: Task, slot: int, built: Measurement, effort: Effort) -> Measurement:
        start = time.perf_counter()
        status: Status = "failed"
        digest, note, samples, baseline = "", "", list[float](), 0.0
        try:
            state, answer = self._call(slot, task, "measure", built.candidate.id, effort, timeout=self.run_timeout)
            if state == "ok":
                right, digest, note, samples, baseline = answer
                status = "ok" if right else "wrong"
            else:
                note = answer
        except WorkerHung:
            status, note = "timeout", f"running took over {self.run_timeout:.0f} s"
        except WorkerDied:
            status, note = "crash", "the kernel crashed"
        cost = built.cost + time.perf_counter() - start
        return Measurement(built.candidate, status, tuple(samples), digest, note, cost, baseline)

    def _call(self, slot: int, task: Task, verb: str, *arguments: Any, timeout: float) -> tuple[str, Any]:
        """One request about a task to the worker of a slot, which is forked and told of the task if need be."""
        worker = self._team[slot]
        if worker is None:
            worker = self._team[slot] = self._fork_server.fork()
        try:
            state, answer = worker.call("open", self._kernel(task), timeout=self.build_timeout)
            return (
                (state, answer) if state != "ok" else worker.call(verb, task.key.workload, *arguments, timeout=timeout)
            )
        except (WorkerDied, WorkerHung):
            self._team[slot] = None
            raise

    def _kernel_folder(self, task: Task) -> Path:
        return self._folder / task.key.workload

    def _kernel(self, task: Task) -> Kernel:
        return replace(task.kernel, folder=str(self._kernel_folder(task)))

    def _effort(self, best: float) -> Effort:
        return replace(self.effort, give_up=1.3 * best) if 0 < best < float("inf") else self.effort
