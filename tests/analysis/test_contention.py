"""Disturbance is noticed from the scheduler's counters."""

import os
import subprocess
import sys
import time

import pytest

from tvmopt.analysis.contention import Usage, disturbed, others


def _at(run, wait, busy):
    return Usage(run, wait, busy)


@pytest.mark.parametrize(
    ("run", "wait", "busy", "threads", "expected"),
    [
        (2.0, 0.0, 2.0, 2, False),  # alone
        (2.0, 0.01, 2.02, 2, False),  # a daemon
        (1.5, 0.5, 2.5, 2, True),  # a busy loop on one of two
        (1.0, 0.0, 2.0, 1, False),  # a busy loop on the other one
        (2.0, 2.0, 2.0, 4, False),  # its own four threads wait for each other on two processors
        (1.0, None, 2.5, 2, True),  # no schedstat: more used than is free
        (1.0, None, 1.9, 1, False),
    ],
)
def test_rule(run, wait, busy, threads, expected):
    zero = _at(0.0, None if wait is None else 0.0, 0.0)
    assert disturbed(zero, _at(run, wait, busy), 1.0, threads, cores=2) is expected


def test_others_are_the_machine_less_the_process():
    assert others(_at(1, 0, 10), _at(2, 0, 13), 2.0) == 1.0
    assert others(_at(1, 0, 10), _at(2, 0, 10.5), 2.0) == 0.0


def test_counters_of_a_process():
    before, start = Usage.of(), time.process_time()
    while time.process_time() < start + 0.1:
        pass
    after, used = Usage.of(), time.process_time() - start
    assert after.run - before.run == pytest.approx(used, abs=0.05)
    assert Usage.of(2**22 + 1).run == 0.0  # nobody


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel keeps no scheduler statistics")
def test_waiting_is_seen_when_two_processes_share_one_processor():
    cpu = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, [{cpu}])\nprint(flush=True)\nwhile True: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for loop in loops:
            loop.stdout.readline()
        before = Usage.of(loops[0].pid)
        time.sleep(0.3)
        after = Usage.of(loops[0].pid)
        assert after.wait - before.wait > 0.05
        assert disturbed(before, after, 0.3, 1)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
            loop.stdout.close()
