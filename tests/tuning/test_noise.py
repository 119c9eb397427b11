"""A busy neighbour, a real one: it takes a core away, and must not make the one-threaded schedule win."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tvm import relax

from tvmopt.targets import Machine
from tvmopt.tuning.disturbance import RunDelay, timed
from tvmopt.tuning.driver import tasks_of
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.measure import LocalRunner
from tvmopt.tuning.record import Candidate
from tvmopt.tuning.search import PAIRS
from tvmopt.tuning.statistics import verdict

needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: threads cannot win")


@pytest.fixture
def neighbours() -> Iterator[None]:
    """As many busy loops as cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def busy() -> int:
    return sum(i * i for i in range(40_000))


@pytest.mark.usefixtures("neighbours")
def test_a_sample_knows_that_it_was_disturbed() -> None:
    delay = RunDelay()
    samples = [timed(busy, delay) for _ in range(200)]
    clean = [s for s, good in samples if good]
    dirty = [s for s, good in samples if not good]
    assert clean and dirty
    assert sorted(clean)[len(clean) // 2] < sorted(dirty)[len(dirty) // 2]


def elementwise(machine: Machine) -> Any:
    """exp of 300 000 numbers: well worth two threads."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((300, 1000), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.Tuple([builder.emit(relax.op.exp(relax.op.exp(x)))]))
        builder.emit_func_output(out)
    (task,) = tasks_of(builder.get(), machine)
    return task


@needs_two
@pytest.mark.usefixtures("neighbours")
def test_a_neighbour_does_not_make_one_thread_win() -> None:
    machine = Machine.load("cpu").with_cores(2)
    task = elementwise(machine)
    assert task.space.analytic["parallel"] == 1
    serial = Candidate({**task.space.analytic, "parallel": 0})
    with LocalRunner(machine, 1, Effort(flush="no", rounds=20)) as runner:
        runner.prepare(task)
        pairs = runner.compare(task, task.analytic, serial)
    assert pairs is not None
    if len(pairs) >= PAIRS:  # else no decision is made
        assert not verdict(pairs).won, verdict(pairs)
