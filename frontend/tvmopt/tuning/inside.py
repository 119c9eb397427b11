"""Candidates compete inside the model: a kernel alone meets other caches than between its neighbours.

A search measures kernels one by one, with weights evicted and inputs hot. In a model, what the neighbour wrote
lies in the cache of the core that wrote it, and a schedule that splits the work as its neighbour did wins what
no measurement of the kernel alone can show. So the best candidates of all kernels meet again: model number `j`
runs the `j`-th best candidate of every kernel, in turn with the untuned model, every kernel timed. One model
tells of as many candidates as it has kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tvmopt.targets import Machine
from tvmopt.tuning.instance import Instance, inside_verdict, profiles
from tvmopt.tuning.logs import RecordLookup
from tvmopt.tuning.record import Record, Verdict
from tvmopt.tuning.search import State, Tuner

KEEP = 0.995
"""A record stays if its kernels take at most this share of the analytic time inside the model."""
MODELS = 8
"""Candidates of a kernel that compete: as many models are built."""
SCORE = 1.05
"""Alone, a candidate took at most this share of the analytic time: inside it may still win."""
SHARE = 0.003
"""Kernels with less of the model's time do not compete: what they could win is below what can be measured."""
ROUNDS = 24


def compete(
    module: Any,
    machine: Machine,
    plain: Instance,
    tuner: Tuner,
    tell: Callable[[str], None] | None = None,
    precision: str = "fp32",
) -> int:
    """Give every kernel the candidate that is fastest inside the model; how many models were built.

    The verdict of the winner is the one inside; other candidates that had won before lose, and say at which
    ratio. What nobody wins keeps no record. Candidates that the model was not built with are not judged.
    """
    base, _ = tuner.latency
    if tell:
        tell("checking the candidates' outputs")
    field = {
        id(state): checked(tuner, state)
        for state in tuner.states
        if state.task.weight * state.analytic_seconds >= SHARE * base
    }
    found: dict[int, list[tuple[Record, Verdict]]] = {key: [] for key in field}
    count = max(map(len, field.values()), default=0)
    for number in range(count):
        if tell:
            tell(f"candidates inside the model, {number + 1} of {count}")
        lookup = lookup_of(machine, (some[number] for some in field.values() if number < len(some)))
        rounds = profiles([plain, Instance(module, machine, lookup, precision)], ROUNDS)
        used = {(record.key, record.candidate.id) for record, _ in lookup.used}
        for state in tuner.states:
            some = field.get(id(state), [])
            runs = number < len(some) and (state.task.key, some[number].candidate.id) in used
            verdict = inside_verdict(state.task.names, *rounds) if runs else None
            if verdict is not None:
                found[id(state)].append((some[number], verdict))
    for state in tuner.states:
        _settle(tuner, state, found.get(id(state), []))
    tuner.refresh()
    return count


def contenders(state: State) -> list[Record]:
    """A kernel's best candidates, those that won alone first; without those that already lost inside, and without
    those whose outputs a final did not find right."""
    able = [
        record
        for record in state.records.values()
        if record.status == "ok"
        and record.candidate.id not in {state.task.analytic.id, *state.refused}
        and not (record.verdict and record.verdict.inside)
        and (record.won or record.score < SCORE)
    ]
    able.sort(key=lambda r: (not r.won, r.verdict.ratio if r.won and r.verdict else r.score, r.candidate.id))
    return able[:MODELS]


def checked(tuner: Tuner, state: State) -> list[Record]:
    """The contenders whose outputs are right: those that this run has not measured come from an earlier run, or from
    elsewhere, and run isolated once before they run in this process."""
    while unsure := next((r for r in contenders(state) if r.candidate.id not in state.checked), None):
        tuner.recheck(state, unsure)
    return contenders(state)


def _settle(tuner: Tuner, state: State, found: list[tuple[Record, Verdict]]) -> None:
    """One winner, or none; nothing changes for a kernel that was disturbed too often to be judged."""
    if not found:
        return
    able = [(record, verdict) for record, verdict in found if verdict.won and verdict.ratio <= KEEP]
    best = min(able, key=lambda pair: pair[1].ratio, default=None)
    for record, verdict in found:
        if best is not None and record is best[0]:
            tuner.store.judge(state.task.key, record.candidate, verdict)
        elif record.won:
            withdraw(tuner, state, record, verdict)


def withdraw(tuner: Tuner, state: State, record: Record, inside: Verdict) -> None:
    """A record that had won loses, and says at which ratio inside the model."""
    assert record.verdict is not None
    lost = replace(record.verdict, won=False, inside=inside.ratio)
    tuner.store.judge(state.task.key, record.candidate, lost)


def lookup_of(machine: Machine, records: Iterable[Record]) -> RecordLookup:
    """What a model is built with that uses just these records."""
    lookup = RecordLookup(machine)
    for record in records:
        lookup.put(record, "store")
    return lookup
