"""Attention, AMX: heads and runs of 32 queries to threads; compute.py writes the kernel.

products   2 * Sq*Sk*D / 8192 tdpbf16ps a head, 16 cycles each: 128 queries, 128 keys, D = 64: 4096 cycles
softmax    Sq*Sk/lanes * 13 cycles of exp: 13300 cycles, the longer part
Measured   not yet: checked by running the machine code in an emulator (tests/amx).
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu import _attention_tasks
from tvmopt.schedules.cpu._attention_tasks import AttentionProblem
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> AttentionProblem | None:
    """A block that the lowering marked."""
    return _attention_tasks.recognise(func, machine, "amx_attention")


def knobs(problem: AttentionProblem, machine: Machine) -> Space:
    """Threads or not."""
    return _attention_tasks.knobs(problem, machine)


def apply(sch: Any, problem: AttentionProblem, knobs: Knobs) -> None:
    """One parallel loop over the tasks."""
    _attention_tasks.apply(sch, problem, knobs, "amx_attention")
