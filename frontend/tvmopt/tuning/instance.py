"""A model built and ready to run, timed as a whole and kernel by kernel, in turn with another - for the tuner's
last judgements."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from tvmopt.targets import Machine
from tvmopt.tuning.disturbance import RunDelay, disturbed, timed
from tvmopt.tuning.record import Verdict
from tvmopt.tuning.statistics import median, verdict

Profile = dict[str, float]
"""Seconds of each kernel in one inference, all its calls together; kernels that were disturbed are left out."""
LEAST = 8
"""Undisturbed pairs without which nothing is judged."""


class Instance:
    """A module built and ready to run on seeded inputs; on a GPU, a run ends when the GPU is done."""

    def __init__(self, module: Any, machine: Machine, lookup: Any, precision: str = "fp32") -> None:
        import tvm
        from tvm import relax

        from tvmopt import pipeline
        from tvmopt.toolchain.cuda import compiling_here
        from tvmopt.tuning.kernel import seeded

        lowered = pipeline.lower(module, machine, lookup=lookup, precision=precision)
        params = list(lowered.module["main"].params)
        gpu = machine.kind == "cuda"
        with compiling_here(machine) if gpu else nullcontext():
            built = pipeline.build(lowered, machine)
        device = tvm.cuda(0) if gpu else tvm.cpu()
        self._wait: Callable[[], None] | None = device.sync if gpu else None
        self._vm = relax.VirtualMachine(built, device)
        self._main = self._vm["main"]
        self._inputs = [tvm.runtime.tensor(a, device) for a in seeded(params)]

    def run(self) -> None:
        self._main(*self._inputs)
        if self._wait is not None:
            self._wait()

    def profile(self) -> Profile:
        """One inference, every kernel timed. On a GPU, kernels in captured graphs are not seen."""
        seconds: Profile = {}
        bad: set[str] = set()
        clock, delay = time.perf_counter, RunDelay()
        begun = [0.0, 0.0]

        def instrument(_func: Any, symbol: str, before: bool, _ret: Any, *_args: Any) -> int:
            if before:
                begun[:] = delay(), clock()
            else:
                if self._wait is not None:
                    self._wait()
                took = clock() - begun[1]
                seconds[symbol] = seconds.get(symbol, 0.0) + took
                if disturbed(took, delay() - begun[0]):
                    bad.add(symbol)
            return 0

        self._vm.set_instrument(instrument)
        try:
            self.run()
        finally:
            self._vm.set_instrument(None)
        return {name: value for name, value in seconds.items() if name not in bad}


def profiles(instances: Sequence[Instance], rounds: int = 40, seconds: float = 20.0) -> list[list[Profile]]:
    """Profiles of both, taken in turn."""
    found: list[list[Profile]] = [[] for _ in instances]
    for instance in instances:
        instance.run()
    end = time.perf_counter() + seconds
    for number in range(rounds):
        if number >= 10 and time.perf_counter() > end:
            break
        for index in range(len(instances)) if number % 2 else reversed(range(len(instances))):
            found[index].append(instances[index].profile())
    return found


def interleaved(
    calls: Sequence[Callable[[], Any]], rounds: int = 100, seconds: float = 20.0
) -> list[tuple[float, float]]:
    """Times of two functions in turn, the order swapped every round; until `rounds` undisturbed pairs, or `seconds`.

    A time is the median of three calls: after the other's turn, the first finds the other's data in the
    caches. Where undisturbed pairs are too few, all are returned: the machine is what it is.
    """
    for call in calls:
        call(), call()
    delay = RunDelay()
    pairs, clean = list[tuple[float, float]](), list[tuple[float, float]]()
    end = time.perf_counter() + seconds
    while len(clean) < rounds and (len(pairs) < 2 * LEAST or time.perf_counter() < end):
        took, good = [0.0, 0.0], True
        for i in (0, 1) if len(pairs) % 2 else (1, 0):
            calls[i]()
            samples = [timed(calls[i], delay) for _ in range(3)]
            took[i] = median([s for s, _ in samples])
            good = good and sum(fine for _, fine in samples) >= 2
        pairs.append((took[0], took[1]))
        clean += [pairs[-1]] if good else []
    return clean if len(clean) >= 2 * LEAST else pairs


def inside_verdict(names: Sequence[str], base: Sequence[Profile], other: Sequence[Profile]) -> Verdict | None:
    """A task's kernels in profiles of two models taken in turn; None: disturbed too often to be judged."""
    pairs = [
        (sum(a[n] for n in names), sum(b[n] for n in names))
        for a, b in zip(base, other, strict=True)
        if all(n in a and n in b for n in names)
    ]
    return verdict(pairs) if len(pairs) >= LEAST else None
