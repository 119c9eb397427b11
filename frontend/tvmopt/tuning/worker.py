"""The worker processes of the tuner: warm, isolated, killed without regret.

    tuner --socket--> fork server (python -m tvmopt.tuning.worker FD: TVM imported, no thread started)
                        `--fork--> worker --socket--> tuner

A fork of the warm fork server takes milliseconds, an import of TVM seconds: so a candidate that crashes, aborts or
hangs costs itself and one fork. When the tuner dies, even by SIGKILL, the fork server is sent SIGKILL by the kernel,
and the workers with it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmopt.tuning.kernel import Bench

from tvmopt.children import die_with_parent
from tvmopt.errors import TvmoptError

HELLO, FORK = b"R", b"F"


def send(sock: socket.socket, message: Any) -> None:
    """One pickled message, with its length in front."""
    data = pickle.dumps(message)
    sock.sendall(struct.pack("<Q", len(data)) + data)


def receive(sock: socket.socket) -> Any:
    """The next message.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = struct.unpack("<Q", _exactly(sock, 8))
    return pickle.loads(_exactly(sock, length))


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def serve_forks(sock: socket.socket, preload: str = "") -> None:
    """Import what workers need, then fork one for every socket that arrives.

    Args:
        preload: a further module to import: somebody's families, a test's traps.
    """
    die_with_parent()
    from tvmopt.scheduling.discover import families

    families("llvm")
    if preload:
        importlib.import_module(preload)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to handle
    sock.sendall(HELLO)
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            sock.close()
            die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(socket.socket(fileno=fds[0]))
            os._exit(0)
        os.close(fds[0])
        sock.sendall(struct.pack("<i", pid))


def serve(sock: socket.socket) -> None:
    """Answer requests until the tuner closes the socket: ("ok", result) or ("failed", message)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1) if os.environ.get("TVMOPT_WORKER_STDERR") else (0, 1, 2):
        os.dup2(null, fd)  # LLVM and TVM print what no user asked for
    state = Requests()
    while True:
        try:
            verb, arguments = receive(sock)
        except EOFError:
            return
        try:
            answer = ("ok", getattr(state, verb)(*arguments))
        except ConnectionError as error:
            answer = ("lost", _words(error))
        except Exception as error:  # whatever a schedule, the compiler or a kernel raises
            answer = ("failed", _words(error))
        send(sock, answer)


class Requests:
    """What a worker can be asked for. Arguments and results are plain data."""

    def __init__(self) -> None:
        self._benches: dict[str, Bench] = {}
        self._searches: dict[str, Any] = {}

    def open(self, kernel: Any) -> None:
        """Make a task known; the few most recent ones stay."""
        if kernel.id not in self._benches:
            while len(self._benches) > 3:
                self._benches.pop(next(iter(self._benches)))
            self._benches[kernel.id] = _bench(kernel)

    def host(self, task: str) -> str:
        """What measures, for the records."""
        return str(self._benches[task].host)

    def known(self, task: str) -> list[str]:
        return list(self._benches[task].built) if task in self._benches else []

    def reference(self, task: str) -> str:
        return self._benches[task].make_reference()

    def build(self, task: str, candidate: Any) -> None:
        self._benches[task].build(candidate)

    def measure(self, task: str, ident: str, effort: Any) -> tuple[bool, str, str, list[float], float]:
        """(right, digest, what is wrong, samples, baseline): a wrong candidate is not timed."""
        bench = self._benches[task]
        outcome = bench.checked_and_measured(ident, effort)
        bench.forget(ident)
        return outcome

    def check(self, task: str, ident: str) -> tuple[bool, str, str]:
        return self._benches[task].check(ident)

    def compare(self, task: str, first: str, second: str, rounds: int, flush: str) -> list[tuple[float, float]]:
        return self._benches[task].compare(first, second, rounds, flush)

    def generic(self, kernel: Any, seed: int, count: int, known: list[tuple[str, float]]) -> list[str]:
        """Candidates of MetaSchedule's own space, as traces."""
        from tvmopt.tuning.generic import Search

        search = self._searches.get(kernel.id)
        if search is None:
            search = self._searches[kernel.id] = Search(kernel, seed)
        return search.propose(count, known)

    def forget(self, task: str) -> None:
        self._benches.pop(task, None)


def _bench(kernel: Any) -> Any:
    """Where a kernel is measured: here or on a board, on a CPU or a GPU."""
    if kernel.machine.kind == "cuda":
        from tvmopt.tuning import gpu

        return gpu.GpuBench(kernel) if kernel.rpc is None else gpu.RemoteGpuBench(kernel)
    if kernel.rpc is not None:
        from tvmopt.tuning.remote import RemoteBench

        return RemoteBench(kernel)
    from tvmopt.tuning.kernel import Bench

    return Bench(kernel)


def _words(error: Exception) -> str:
    if isinstance(error, TvmoptError):
        return error.what[:400]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    best = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    return f"{type(error).__name__}: {best}"[:400]


if __name__ == "__main__":
    serve_forks(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
