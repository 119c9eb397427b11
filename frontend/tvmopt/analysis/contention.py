"""Who else used the processor during a turn - read from Linux's scheduler statistics.

The kernel keeps, for every thread, how long it was ready to run and had to wait for a processor
(``/proc/PID/task/TID/schedstat``). For an engine's threads that is time taken by somebody else, whatever it
was: another program, another container, a spinning pool. Where the kernel lacks it, the load of the whole
machine less the engine's own is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

WAIT_LIMIT = 0.03  # of a turn's wall time: more and the turn is disturbed
OTHERS_LIMIT = 0.06  # processors: what daemons may use


@dataclass(frozen=True)
class Usage:
    """Counters of one process and of the machine, in seconds since some beginning.

    Attributes:
        run: processor time of the process's threads.
        wait: time its threads were ready and had none; None where the kernel does not tell.
        busy: processor time of the whole machine, idle and I/O wait left out, time stolen by a hypervisor
            included.
    """

    run: float
    wait: float | None
    busy: float

    @classmethod
    def of(cls, pid: int | None = None) -> Usage:
        """The counters now, of a process (default: this one)."""
        pid = pid or os.getpid()
        run, wait, known = 0.0, 0.0, False
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                ran, waited, _ = task.read_text().split()
            except (OSError, ValueError):
                continue  # a thread that has just ended
            run += int(ran) / 1e9
            wait += int(waited) / 1e9
            known = True
        if not known:
            try:
                times = psutil.Process(pid).cpu_times()
                run = times.user + times.system
            except psutil.Error:
                pass
        t = psutil.cpu_times()
        busy = sum(t) - t.idle - getattr(t, "iowait", 0.0) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0)
        return cls(run, wait if known else None, busy)


def others(before: Usage, after: Usage, wall: float) -> float:
    """Processors that others used on average between two readings (0.5: half of one)."""
    return max(0.0, (after.busy - before.busy) - (after.run - before.run)) / max(wall, 1e-9)


def disturbed(before: Usage, after: Usage, wall: float, threads: int, cores: int | None = None) -> bool:
    """Whether somebody else slowed the engine between two readings of its counters.

    An engine that starts more threads than there are processors makes its own threads wait; so waiting
    counts only together with others' use. The machine's counters tick at 10 ms, hence the slack.
    """
    cores = cores or os.cpu_count() or 1
    slack = 0.02 / max(wall, 1e-9)
    foreign = others(before, after, wall) - OTHERS_LIMIT - slack
    if before.wait is None or after.wait is None:
        return foreign > max(0, cores - threads)
    waited = (after.wait - before.wait) / max(wall, 1e-9)
    return waited > WAIT_LIMIT and foreign > 0
