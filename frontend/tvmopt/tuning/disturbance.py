"""Was a sample disturbed? The kernel's own account of how long our threads were ready to run and did not - for
every timing of the tuner.

A schedule with one task looks better than one with two when a neighbour takes a core away, and interleaving cannot
mend that: the neighbour meets both alike, and the truth on a quiet machine is the other way round. So samples
during which a thread of this process had to wait for a core are set aside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

SHARE = 0.02
"""A sample is disturbed if its threads together waited longer than this share of it ..."""
SLACK = 2e-6
"""... and longer than this, in seconds: a thread's ordinary way from wake-up to core."""


class RunDelay:
    """Seconds that the threads of this process waited for a core, from /proc/self/task/*/schedstat (second field,
    nanoseconds; Linux, Documentation/scheduler/sched-stats.rst). Elsewhere always 0: nothing is known to be disturbed.

    Threads are looked up when it is made: make it after the pool has started.
    """

    def __init__(self) -> None:
        self._files: list[int] = []
        for path in Path("/proc/self/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                self._files.append(os.open(path, os.O_RDONLY))

    def __call__(self) -> float:
        total = 0
        for file in self._files:
            with contextlib.suppress(OSError, IndexError, ValueError):  # a thread has ended
                total += int(os.pread(file, 96, 0).split()[1])
        return total * 1e-9

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)


def disturbed(seconds: float, delay: float) -> bool:
    """Whether a sample of `seconds`, during which threads waited for `delay`, is to be set aside.

    >>> disturbed(1e-3, 0.0), disturbed(1e-3, 3e-4), disturbed(20e-6, 1e-6)
    (False, True, False)
    """
    return delay > max(SLACK, SHARE * seconds)


def timed(call: Callable[[], object], delay: RunDelay) -> tuple[float, bool]:
    """(seconds, whether it is clean) of one call."""
    waited, start = delay(), perf_counter()
    call()
    seconds = perf_counter() - start
    return seconds, not disturbed(seconds, delay() - waited)
