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
from tvmopt.tuning.record import Verdict
from tvmopt.tuning.statistics import median, verdict

if TYPE_CHECKING:
    from tvmopt.tuning.search import Tuner

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
        pairs = [
            (sum(a.get(n, 0.0) for n in state.task.names), sum(b.get(n, 0.0) for n in state.task.names))
            for a, b in zip(base, other, strict=True)
        ]
        if min(min(p) for p in pairs) <= 0:
            continue  # not called: nothing to judge by
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
        """Seconds of each kernel in one inference, all its calls together."""
        seconds: dict[str, float] = {}
        clock, started = time.perf_counter, [0.0]

        def instrument(_func: Any, symbol: str, before: bool, _ret: Any, *_args: Any) -> int:
            if before:
                started[0] = clock()
            else:
                seconds[symbol] = seconds.get(symbol, 0.0) + clock() - started[0]
            return 0

        self._vm.set_instrument(instrument)
        try:
            self.run()
        finally:
            self._vm.set_instrument(None)
        return seconds


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
    calls: Sequence[Callable[[], Any]], rounds: int = 100, seconds: float = 20.0, least: int = 20
) -> list[tuple[float, float]]:
    """Times of two functions in turn, the order swapped every round; until `rounds`, or `seconds` and
    `least`.

    A time is the median of three calls: between rounds the other's data is in the caches.
    """
    for call in calls:
        call(), call()
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < rounds and (len(pairs) < least or time.perf_counter() < end):
        took = [0.0, 0.0]
        for i in (0, 1) if len(pairs) % 2 else (1, 0):
            calls[i]()
            took[i] = median([_timed(calls[i]) for _ in range(3)])
        pairs.append((took[0], took[1]))
    return pairs


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
