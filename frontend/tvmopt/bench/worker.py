"""An engine's own process: loads one engine, then does what the bench asks over a pipe until told to quit.

Engines disturb each other inside one process (thread pools spin, allocators and OpenMP runtimes collide), and one may
crash; so each lives alone. Messages are pickled tuples ``(command, argument)`` and ``("ok", value)`` or ``("error",
(kind, what, where, fix))`` on descriptors of their own: whatever an engine prints does no harm.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tvmopt.analysis.contention import Usage, disturbed, others
from tvmopt.bench.records import Job, Turn
from tvmopt.children import die_with_parent
from tvmopt.errors import TvmoptError
from tvmopt.files import save_arrays

DISCARDED_SHARE = 0.15  # of a turn: first calls, which fetch code and weights back into the caches


class Worker:
    """The commands, one method each."""

    def __init__(self) -> None:
        self.runner: Any = None
        self.job: Job | None = None
        self.callers: list[Callable[[], None]] = []

    def build(self, job: Job) -> float:
        """Compile to ``job.prepared``; seconds."""
        from tvmopt.bench.runners import make

        start = time.perf_counter()
        make(job).build(Path(job.prepared))
        return time.perf_counter() - start

    def load(self, job: Job) -> dict[str, Any]:
        """Load the engine: its facts, the seconds, and the memory before."""
        from tvmopt.bench.runners import make

        base = peak_memory()
        start = time.perf_counter()
        self.runner, self.job = make(job), job
        facts = self.runner.load()
        return {
            "facts": facts,
            "seconds": time.perf_counter() - start,
            "base": base,
            "builds": self.runner.builds,
        }

    def bind(self, path: str) -> None:
        """Take inputs from an ``.npz`` file."""
        import numpy as np

        assert self.job is not None
        with np.load(path) as file:
            self.runner.bind({name: aligned(file[name]) for name in file.files})
        self.callers = [self.runner.run]
        if self.job.streams > 1:
            self.callers = [self.runner.caller() for _ in range(self.job.streams)]

    def check(self, path: str) -> None:
        """Run once and write the outputs to an ``.npz`` file."""

        self.runner.run()
        save_arrays(path, self.runner.outputs())

    def turn(self, plan: tuple[float, int]) -> Turn:
        """Call for so many seconds, at least so many times."""
        seconds, least = plan
        assert self.job is not None
        gc.collect()
        gc.disable()
        before, start = Usage.of(), time.perf_counter()
        if len(self.callers) == 1:
            samples = timed(self.callers[0], seconds, least)
        else:
            samples = timed_together(self.callers, seconds, least)
        wall = time.perf_counter() - start
        after = Usage.of()
        gc.enable()
        threads = max(self.job.threads, self.job.streams)
        return Turn(tuple(samples), wall, disturbed(before, after, wall, threads), others(before, after, wall))

    def transfers(self, _: None) -> dict[str, float]:
        """Copy times, where there is a device."""
        found: dict[str, float] = self.runner.transfers()
        return found

    def memory(self, _: None) -> int:
        """Peak resident bytes so far."""
        return peak_memory()


def timed(call: Callable[[], None], seconds: float, least: int) -> list[float]:
    """Times of single calls in seconds; the first part of the turn runs but does not count."""
    clock = time.perf_counter_ns
    begin = clock()
    warm = begin + int(seconds * DISCARDED_SHARE * 1e9)
    call()
    while clock() < warm:
        call()
    stop = begin + int(seconds * 1e9)
    samples: list[int] = []
    while len(samples) < least or clock() < stop:
        start = clock()
        call()
        samples.append(clock() - start)
    return [s / 1e9 for s in samples]


def timed_together(calls: list[Callable[[], None]], seconds: float, least: int) -> list[float]:
    """The same from several threads at once; all their samples."""
    found: list[list[float]] = [[] for _ in calls]
    errors: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def work(index: int) -> None:
        try:
            gate.wait()
            found[index] = timed(calls[index], seconds, least)
        except BaseException as error:
            errors.append(error)
            gate.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [s for samples in found for s in samples]


def aligned(array: Any, boundary: int = 64) -> Any:
    """A copy whose memory starts at a multiple of `boundary` bytes, so that no engine pays for alignment."""
    import numpy as np

    raw = np.empty(array.nbytes + boundary, np.uint8)
    offset = -raw.ctypes.data % boundary
    copy = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def peak_memory() -> int:
    """The most bytes this process has had resident: the kernel's VmHWM."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(reader: Connection, writer: Connection) -> None:
    """Answer commands until ``quit`` or the end of the pipe."""
    worker = Worker()
    while True:
        try:
            command, argument = reader.recv()
        except EOFError:
            return
        if command == "quit":
            return
        try:
            answer = ("ok", getattr(worker, command)(argument))
        except TvmoptError as error:
            answer = ("error", (type(error).__name__, str(error.what), error.where, error.fix))
        except Exception as error:  # an engine's own error: a row of the table, not the end of the bench
            text = " ".join(str(error).split())
            answer = ("error", (type(error).__name__, text[:2000], "", ""))
        writer.send(answer)


def main(arguments: list[str]) -> None:
    """Entry of the process: the two descriptors of the pipe."""
    die_with_parent()
    incoming, outgoing = map(int, arguments)
    os.set_inheritable(incoming, False)
    os.set_inheritable(outgoing, False)
    serve(Connection(incoming, writable=False), Connection(outgoing, readable=False))


if __name__ == "__main__":
    main(sys.argv[1:])
