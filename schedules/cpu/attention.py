"""Attention, CPU: heads and runs of queries to threads; the kernel is `tvmopt.legalize.attention`'s.

registers  scores mk*nq + nq + 1, output mo*no + no + 1 <= vector_regs     13*2 + 3 = 29, 8*2 + 3 = 19 <= 32
floor      4*B*N*Sq*Sk*H / peak + B*N*Sq*Sk/lanes * 13 cycles of exp
Measured   Zen 5, 1 thread, us (GFLOP/s of 267), beside torch 2's flash attention: 12 heads of 64: S=128
           244 (206), torch 626; S=64 causal 58, torch 173; S=197 646 (185), torch 1507; 8 heads, S=512
           2670 (201), torch 10200; 2 heads of 128, S=1024 7570 (142: scores of 128 KB in L2),
           torch 19600
tasks      three a core where there are strips enough
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cpu._loops import spatial_nest, worth_threads
from tvmopt.scheduling.blocks import annotated, extents, root_blocks
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

NAME, VERSION = "attention", 1


@dataclass(frozen=True)
class Shape:
    """tasks: heads and runs of queries; flops: of both products."""

    tasks: int
    flops: float
    nanoseconds: float


def recognise(func: Any, machine: Machine, kernel: str = NAME) -> Shape | None:
    """A block that the legalizer marked `attention`."""
    block = annotated(func, kernel)
    if block is None:
        return None
    batch, heads, chunks = extents(block)
    q, k = ([int(d) for d in region.source.shape] for region in block.reads[:2])
    flops = 4.0 * batch * heads * q[1] * k[1] * q[3]
    return Shape(batch * heads * chunks, flops, 1.5 * flops / (machine.peak_flops / machine.cores) * 1e9)


def knobs(shape: Shape, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(shape.tasks > 1 and worth_threads(shape.nanoseconds, machine))
    return Space({"parallel": (parallel, 1 - parallel)})


def apply(sch: Any, shape: Shape, knobs: Knobs, kernel: str = NAME) -> None:
    """One parallel loop over the tasks; an epilogue stays behind it, in one pass of its own."""
    main = sch.get_sblock(kernel)
    task = sch.fuse(*sch.get_loops(main))
    if knobs["parallel"]:
        sch.parallel(task)
    names = [sch.get(b).name_hint for b in root_blocks(sch)]
    after = root_blocks(sch)[names.index(kernel) + 1 :]
    for block in after[:-1]:
        sch.compute_inline(block)
    if after:
        spatial_nest(sch, after[-1], bool(knobs["parallel"]))
