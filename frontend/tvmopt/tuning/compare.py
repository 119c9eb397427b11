"""The last judge of a record is the model: each tuned kernel inside the running model, then the model as a
whole.

A kernel alone meets other caches than between its neighbours. So tuned and untuned model run in turn with
every kernel
timed; a record whose kernels do not take less time there is withdrawn, and what stays is compared end to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmopt.targets import Machine
from tvmopt.tuning.disturbance import RunDelay, disturbed, timed
from tvmopt.tuning.record import Verdict
from tvmopt.tuning.statistics import median, verdict

if TYPE_CHECKING:
    from tvmopt.tuning.search import Tuner

LEAST = 8
"""Undisturbed pairs without which nothing is judged."""
KEEP = 0.995
"""A record stays if its kernels take at most this share of the analytic time inside the model."""


def model_verdict(module: Any, machine: Machine, tuner: Tuner) -> Verdict | None:
    """Tuned against untuned model, after records that do not help inside it were withdrawn; None: none is
    left.

    A model that is slower as a whole loses all its records.
    """
    if all(s.winner is None for s in tuner.states):
        return None
    plain = Instance(module, machine, None)
    if withdraw_useless(plain, Instance(module, machine, _lookup(machine, tuner)), tuner):
        tuner.refresh()
        if all(s.winner is None for s in tuner.states):
            return None
    tuned = Instance(module, machine, _lookup(machine, tuner))
    found = verdict(interleaved([plain.run, tuned.run]), margin=0.0)
    if found.low > 1.0:
        for state in tuner.states:
            if state.winner is not None:
                _withdraw(tuner, state, found)
        tuner.refresh()
    return found


def withdraw_useless(plain: Instance, tuned: Instance, tuner: Tuner) -> int:
    """Withdraw the records that do not make their kernels faster inside the model; how many."""
    base, other = profiles([plain, tuned])
    gone = 0
    for state in tuner.states:
        if state.winner is None:
            continue
        names = state.task.names
        pairs = [
            (sum(a[n] for n in names), sum(b[n] for n in names))
            for a, b in zip(base, other, strict=True)
            if all(n in a and n in b for n in names)
        ]
        if len(pairs) < LEAST:
            continue  # disturbed too often to be judged here
        found = verdict(pairs)
        if found.ratio > KEEP:
            _withdraw(tuner, state, found)
            gone += 1
    return gone


def _withdraw(tuner: Tuner, state: Any, inside: Verdict) -> None:
    record = state.winner
    lost = replace(record.verdict, won=False, inside=inside.ratio)
    tuner.store.judge(state.task.key, record.candidate, lost)


def _lookup(machine: Machine, tuner: Tuner) -> Any:
    from tvmopt.tuning.logs import RecordLookup

    lookup = RecordLookup(machine)
    lookup.take((s.winner for s in tuner.states if s.winner is not None), "store")
    return lookup


class Instance:
    """A module built and ready to run on seeded inputs."""

    def __init__(self, module: Any, machine: Machine, lookup: Any) -> None:
        import tvm
        from tvm import relax

        from tvmopt import pipeline
        from tvmopt.tuning.kernel import seeded

        lowered = pipeline.lower(module, machine, lookup=lookup)
        params = list(lowered.module["main"].params)
        self._vm = relax.VirtualMachine(pipeline.build(lowered, machine), tvm.cpu())
        self._main = self._vm["main"]
        self._inputs = [tvm.runtime.tensor(a) for a in seeded(params)]

    def run(self) -> None:
        self._main(*self._inputs)

    def profile(self) -> dict[str, float]:
        """Seconds of each kernel in one inference, all its calls together; kernels that were disturbed are
        left
        out."""
        seconds: dict[str, float] = {}
        bad: set[str] = set()
        clock, delay = time.perf_counter, RunDelay()
        begun = [0.0, 0.0]

        def instrument(_func: Any, symbol: str, before: bool, _ret: Any, *_args: Any) -> int:
            if before:
                begun[:] = delay(), clock()
            else:
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


def profiles(
    instances: Sequence[Instance], rounds: int = 40, seconds: float = 20.0
) -> list[list[dict[str, float]]]:
    """Profiles of both, taken in turn."""
    found: list[list[dict[str, float]]] = [[] for _ in instances]
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
    """Times of two functions in turn, the order swapped every round; until `rounds` undisturbed pairs, or
    `seconds`.

    A time is the median of three calls: after the other's turn, the first finds the other's data in the
    caches. Where
    undisturbed pairs are too few, all are returned: the machine is what it is.
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
