"""The bench's side of an engine's process: start it, ask it, notice when it dies."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from tvmopt import errors
from tvmopt.analysis.contention import Usage
from tvmopt.bench.records import Job, Turn
from tvmopt.errors import TvmoptError

QUIET = 0.02  # processors: an engine that uses less has settled


class EngineError(TvmoptError):
    """An engine failed or died; `kind` is its own error's class."""

    exit_code = 4

    def __init__(self, what: str, *, where: str = "", fix: str = "", kind: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.kind = kind


class Engine:
    """One running engine process. A context manager: leaving ends the process.

    Args:
        job: decides the threads in the environment of the process.
        patience: seconds to wait for any answer but a build's.
    """

    def __init__(self, job: Job, *, patience: float = 600.0) -> None:
        self.job, self.patience = job, patience
        self._folder = tempfile.TemporaryDirectory(prefix="tvmopt-bench-")  # an engine that is killed clears up nothing
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe could fill and stop the engine in the middle of a turn
        to_child, from_parent = Pipe(duplex=False)[::-1]
        from_child, to_parent = Pipe(duplex=False)
        command = [
            sys.executable, "-P", "-m", "tvmopt.bench.worker", str(from_parent.fileno()),
            str(to_parent.fileno()),
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            pass_fds=[from_parent.fileno(), to_parent.fileno()],
            env={**os.environ, **environment(job), "TMPDIR": self._folder.name},
        )
        from_parent.close()
        to_parent.close()
        self.writer, self.reader = to_child, from_child

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, command: str, argument: Any = None, *, patience: float | None = None) -> Any:
        """Send a command and wait for its answer.

        Raises:
            EngineError: the engine failed, died, or took longer than its patience.
            TvmoptError: an error of ours that the runner raised (a missing package, a bad option).
        """
        try:
            self.writer.send((command, argument))
            deadline = time.monotonic() + (patience or self.patience)
            while not self.reader.poll(0.5):
                if time.monotonic() > deadline:
                    self.process.kill()
                    raise EngineError(
                        f"{self.job.engine} did not answer '{command}' in {patience or self.patience:.0f} s"
                    )
            status, value = self.reader.recv()
        except (EOFError, OSError) as error:
            code = self.process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise EngineError(f"the {self.job.engine} process {how} during '{command}'", where=self.tail()) from error
        if status == "ok":
            return value
        kind, what, where, fix = value
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, TvmoptError):
            raise known(what, where=where, fix=fix)
        raise EngineError(f"{kind}: {what}", where=where or f"{self.job.engine}, '{command}'", fix=fix, kind=kind)

    def turn(self, seconds: float, least: int = 3) -> Turn:
        """One turn of calls."""
        turn: Turn = self.ask("turn", (seconds, least))
        return turn

    def settle(self, least: float, most: float = 2.0) -> float:
        """Wait until the engine's threads have stopped spinning; the seconds waited.

        At least `least` seconds; then until the process uses next to no processor; at most `most`.
        """
        start = time.perf_counter()
        time.sleep(least)
        while time.perf_counter() - start < most:
            before = Usage.of(self.process.pid)
            time.sleep(0.01)
            if Usage.of(self.process.pid).run - before.run < QUIET * 0.01:
                break
        return time.perf_counter() - start

    def tail(self) -> str:
        """The last line the process wrote to stderr."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 4096))
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Ask the process to quit; kill it if it does not."""
        with suppress(OSError):
            self.writer.send(("quit", None))
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for end in (self.writer, self.reader, self.log):
            end.close()
        self._folder.cleanup()


def environment(job: Job) -> dict[str, str]:
    """Threads for every library that reads them from the environment."""
    threads = str(job.threads)
    names = ("OMP_NUM_THREADS", "TVM_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, threads)
