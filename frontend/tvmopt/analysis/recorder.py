"""Times of every call of a run, taken by TVM's instrument hook - for `tvmopt profile`.

The hook calls a function before and after each kernel. A native one (``instrument.c``, built with the C
compiler that linking needs anyway) costs some 0.2 to 0.7 us a call and its times add up to the plain
latency uncorrected: 98.4 to 100.5 % on ShuffleNet and SqueezeNet, one and two threads. In Python the hook
costs 2 to 3 us a call and pushes the kernels' data out of the caches: the same sums were 102 to 111 %. It
is used only where there is no compiler; the profile says which one it was. On a GPU CUDA's events give the
times (:mod:`tvmopt.runtime.cuda_events`), and NVTX ranges the names that Nsight Systems shows, if the package
nvtx is there; without CUDA's runtime library every kernel is waited for.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tvmopt.analysis.contention import Usage
from tvmopt.errors import MissingDependency, TvmoptError
from tvmopt.runtime.cuda_events import EventTimer, load_cudart
from tvmopt.runtime.library import Session, ffi
from tvmopt.runtime.model import Model
from tvmopt.runtime.nvtx import Labels, instrument, load_nvtx
from tvmopt.toolchain.linking import build

T = TypeVar("T")
BUILTIN = "vm.builtin."

LEAST = 20  # undisturbed runs of a mean: with 5 to 10 sums were up to 6 % off, with 14 and more 2.6 %
PATIENCE = 3  # times as long again to wait for quiet runs on a busy machine
BUILTIN = "vm.builtin."
_LOCK = threading.Lock()  # the native instrument keeps its readings in static memory


@dataclass
class Recording:
    """What was measured, in seconds.

    Attributes:
        names: the symbol of each call of a run, in order.
        plain: of runs without the instrument; `total` of runs with it.
        times: for each instrumented run, the time of every call.
        disturbed: too few runs had the processor to themselves; all runs were kept.
        instrument: ``"native"``, ``"python"`` or ``"cuda events"``.
    """

    names: list[str]
    plain: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    times: list[Any] = field(default_factory=list)
    disturbed: bool = False
    instrument: str = "python"


class Recorder:
    """Plain and instrumented runs of one model, in turn, so that both see the same machine.

    Args:
        native: use the native instrument where it can be built.
    """

    def __init__(self, model: Model, feeds: Mapping[str, Any], *, native: bool = True) -> None:
        self.arguments = model.arguments(feeds)
        self.session, self.seen = model.session(), model.instrumented()
        self.wait = _cuda_wait() if model.manifest.kind == "cuda" else None
        self.native = _native() if native and self.wait is None else None
        cudart = load_cudart() if self.wait else None
        self.timer = EventTimer(cudart) if cudart else None
        self.ranges = _ranges(model.manifest.report) if self.timer else None
        self.events: list[tuple[str, int, int]] = []
        self._open: list[int] = []
        self._inner: list[int] = []

    def plain(self, session: Session | None = None) -> float:
        """Seconds of one run."""
        start = time.perf_counter_ns()
        (session or self.session).main(*self.arguments)
        if self.wait:
            self.wait()
        return (time.perf_counter_ns() - start) / 1e9

    def measure(self, runs: int, seconds: float) -> Recording:
        """Runs of both kinds until there are `runs` undisturbed ones of each, or the time is up (four times
        as long where the machine is so busy that there are not even LEAST).
        """
        with _LOCK:
            return self._measure(runs, seconds)

    def _measure(self, runs: int, seconds: float) -> Recording:
        for _ in range(2):
            self.plain()
            self.plain(self.seen)
        self._python()
        found = Recording(
            [symbol for symbol, _, _ in self.events],
            instrument="native" if self.native else "cuda events" if self.timer else "python",
        )
        record = self._native_run if self.native else self._events if self.timer else self._python
        record()
        kept: list[tuple[bool, float]] = []
        every: list[tuple[bool, float, Any]] = []
        stop = time.perf_counter() + seconds
        while min(sum(q for q, _ in kept), sum(q for q, _, _ in every)) < runs:
            took, quiet = undisturbed(self.plain)
            kept.append((quiet, took))
            (took, times), quiet = undisturbed(record)
            every.append((quiet, took, times))
            late = time.perf_counter() - stop
            few = min(sum(q for q, _ in kept), sum(q for q, _, _ in every)) < LEAST
            if late > (PATIENCE * seconds if few else 0) and len(every) >= LEAST:
                break
        found.disturbed = min(sum(q for q, _ in kept), sum(q for q, _, _ in every)) < LEAST
        found.plain = [t for q, t in kept if q or found.disturbed]
        found.total = [t for q, t, _ in every if q or found.disturbed]
        found.times = [d for q, _, d in every if q or found.disturbed]
        return found

    def _native_run(self) -> tuple[float, Any]:
        """One run with the native instrument: its seconds, and those of every call."""
        library = self.native
        assert library is not None
        library["tvmopt_reset"]()
        total = self._watched(library["tvmopt_instrument"])
        count = min(int(library["tvmopt_count"]()), 1 << 16)
        buffer = np.empty(2 * count, np.int64)
        library["tvmopt_take"](buffer.ctypes.data)
        return total, (buffer[count:] - buffer[:count]) / 1e9

    def _events(self) -> tuple[float, Any]:
        """The same on a GPU, with CUDA events round the kernels: one wait, at the end. What the virtual machine itself
        does takes the GPU no time."""
        timer, ranges = self.timer, self.ranges
        assert timer is not None
        timer.reset()
        opened: list[int] = []
        places: list[int] = []  # of each pair of events, among the calls as they end
        ended = 0

        def around(function: Any, symbol: str, before: bool, result: Any, *arguments: Any) -> int:
            nonlocal ended
            kernel = not symbol.startswith(BUILTIN)
            if before:
                if ranges:
                    ranges(function, symbol, True, result)
                if kernel:
                    timer.begin()
                    opened.append(len(places))
                    places.append(0)
            else:
                if kernel:
                    timer.end()
                    places[opened.pop()] = ended
                ended += 1
                if ranges:
                    ranges(function, symbol, False, result)
            return 0

        total = self._watched(around)
        times = np.zeros(ended)
        times[places] = timer.seconds()
        return total, times

    def _watched(self, instrument: Any) -> float:
        """Seconds of one run with an instrument."""
        self.seen.set_instrument(instrument)
        try:
            return self.plain(self.seen)
        finally:
            self.seen.set_instrument(None)

    def _python(self) -> tuple[float, Any]:
        """The same with an instrument in Python; it leaves symbols and readings in `events`."""
        self.events, self._open, self._inner = [], [], []
        total = self._watched(self._instrument)
        return total, np.array([end - start for _, start, end in self.events]) / 1e9

    def _instrument(self, function: Any, symbol: str, before: bool, result: Any, *arguments: Any) -> int:
        if self.wait:
            self.wait()
        if before:
            self._inner.append(0)
            self._open.append(time.perf_counter_ns())
        else:
            end, start, inner = time.perf_counter_ns(), self._open.pop(), self._inner.pop()
            self.events.append((symbol, start + inner, end))  # the calls inside a loop's are calls of their own
            if self._inner:
                self._inner[-1] += end - start
        return 0


def undisturbed(call: Callable[[], T]) -> tuple[T, bool]:
    """A call's result, and whether this process got its processors throughout (98 % of the time)."""
    before, start = Usage.of(), time.perf_counter()
    result = call()
    wall, after = time.perf_counter() - start, Usage.of()
    return result, (after.wait or 0.0) - (before.wait or 0.0) <= 0.02 * wall


_built: list[Any] = []


def _native() -> Any:
    """The native instrument's library, built once a process; None where it cannot be."""
    if not _built:
        _built.append(_build())
    return _built[0]


def _build() -> Any:
    source = (resources.files("tvmopt.analysis") / "instrument.c").read_bytes()
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        code, library = Path(folder) / "instrument.c", Path(folder) / "instrument.so"
        code.write_bytes(source)
        try:
            build(code, library, "-O2", "-shared", "-fPIC")
            return ffi().load_module(str(library))
        except (TvmoptError, OSError, subprocess.SubprocessError, RuntimeError):
            return None


def _ranges(report: Mapping[str, Any]) -> Callable[..., int] | None:
    """NVTX ranges around kernels, where the package is."""
    try:
        return instrument(Labels(report), load_nvtx())
    except MissingDependency:
        return None


def _cuda_wait() -> Any:
    from tvmopt.runtime.model import _synchronise

    return _synchronise
