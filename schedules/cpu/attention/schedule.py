"""Attention, CPU: heads and runs of queries to threads; compute.py writes the kernel.

registers  scores mk*nq + nq + 1, output mo*no + no + 1 <= vector_regs     13*2 + 3 = 29, 8*2 + 3 = 19 <= 32
floor      4*B*N*Sq*Sk*H / peak + B*N*Sq*Sk/lanes * 13 cycles of exp
Measured   Zen 5, 1 thread, us (GFLOP/s of 267), beside torch 2's flash attention: 12 heads of 64: S=128
           244 (206), torch 626; S=64 causal 58, torch 173; S=197 646 (185), torch 1507; 8 heads, S=512
           2670 (201), torch 10200; 2 heads of 128, S=1024 7570 (142: scores of 128 KB in L2),
           torch 19600
tasks      three a core where there are strips enough
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu import _attention_tasks
from tvmopt.schedules.cpu._attention_tasks import AttentionProblem
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> AttentionProblem | None:
    """A block that the lowering marked."""
    return _attention_tasks.recognise(func, machine, "attention")


def knobs(problem: AttentionProblem, machine: Machine) -> Space:
    """Threads or not."""
    return _attention_tasks.knobs(problem, machine)


def apply(sch: Any, problem: AttentionProblem, knobs: Knobs) -> None:
    """One parallel loop over the tasks."""
    _attention_tasks.apply(sch, problem, knobs, "attention")
