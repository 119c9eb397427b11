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

from tvm import tirx

from tvmopt.schedules.cpu import _attention_tasks
from tvmopt.schedules.cpu._attention_tasks import AttentionProblem, keys_axis
from tvmopt.schedules.cpu.attention.one_query import TOGETHER
from tvmopt.scheduling.blocks import annotated
from tvmopt.scheduling.cost_model import LOOPS
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.open_loops import shared_where
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> AttentionProblem | None:
    """A block that the lowering marked."""
    return _attention_tasks.recognise(func, machine, "attention")


def open_sizes(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """A kernel with open queries, keys or batch: a loop over heads and strips, parallel where the work is worth it."""
    block = annotated(func, "attention")
    if block is None:
        return None
    q, k = ([r.extent for r in region.region] for region in block.reads[:2])
    keys = k[keys_axis(block)]
    scores = q[0].astype("int64") * q[1] * q[2] * keys
    least = LOOPS * machine.thread_ns / 1.5 * (machine.peak_flops / machine.cores) / 1e9 / (4 * int(q[3]))
    done = _attention_tasks.open_loops(func, "attention", machine.cores > 1, [TOGETHER])
    return done.with_body(shared_where(scores >= int(least) + 1, done.body))


def knobs(problem: AttentionProblem, machine: Machine) -> Space:
    """Threads or not."""
    return _attention_tasks.knobs(problem, machine)


def apply(sch: Any, problem: AttentionProblem, knobs: Knobs) -> None:
    """One parallel loop over the tasks."""
    _attention_tasks.apply(sch, problem, knobs, "attention")
