"""The last judge of a record is the model: each tuned kernel inside the running model, then the model as a whole.

Candidates compete there (inside.py); what won is run once more, in turn with the untuned model and with every kernel
timed. A record whose kernels do not take less time there is withdrawn, and what stays is compared end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmopt.targets import Machine
from tvmopt.tuning.inside import KEEP, compete, contenders, lookup_of, withdraw
from tvmopt.tuning.instance import Instance, inside_verdict, interleaved, profiles
from tvmopt.tuning.record import Verdict
from tvmopt.tuning.statistics import verdict

if TYPE_CHECKING:
    from tvmopt.tuning.search import Tuner


def model_verdict(
    module: Any,
    machine: Machine,
    tuner: Tuner,
    tell: Callable[[str], None] | None = None,
    precision: str = "fp32",
) -> Verdict | None:
    """Tuned against untuned model, after the candidates competed inside it (see inside.py) and the winners were
    confirmed in fresh runs; None: no record is left.

    A model that is slower as a whole loses all its records. On a GPU that is the only judgement inside the
    model: its kernels run from one captured graph, and a kernel launched by itself takes as long as its launch.
    """
    inside = machine.kind == "llvm"
    if not any(s.winner or (inside and contenders(s)) for s in tuner.states):
        return None
    plain = Instance(module, machine, None, precision)
    if inside:
        compete(module, machine, plain, tuner, tell, precision)
        if all(s.winner is None for s in tuner.states):
            return None
        if withdraw_useless(plain, Instance(module, machine, _winners(machine, tuner), precision), tuner):
            tuner.refresh()
            if all(s.winner is None for s in tuner.states):
                return None
    tuned = Instance(module, machine, _winners(machine, tuner), precision)
    found = verdict(interleaved([plain.run, tuned.run]), margin=0.0)
    if found.low > 1.0:
        for state in tuner.states:
            if state.winner is not None:
                withdraw(tuner, state, state.winner, found)
        tuner.refresh()
    return found


def withdraw_useless(plain: Instance, tuned: Instance, tuner: Tuner) -> int:
    """Withdraw the records that do not make their kernels faster inside the model; how many."""
    base, other = profiles([plain, tuned])
    gone = 0
    for state in tuner.states:
        if state.winner is None:
            continue
        found = inside_verdict(state.task.names, base, other)
        if found is not None and found.ratio > KEEP:
            withdraw(tuner, state, state.winner, found)
            gone += 1
    return gone


def _winners(machine: Machine, tuner: Tuner) -> Any:
    return lookup_of(machine, (s.winner for s in tuner.states if s.winner is not None))
