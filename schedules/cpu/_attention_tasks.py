"""Tasks of an attention kernel: heads and runs of queries to threads - for the kernels in vectors and in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi import structural_mutate

from tvmopt.schedules.cpu._loops import spatial_nest
from tvmopt.scheduling.blocks import annotated, extents, root_blocks
from tvmopt.scheduling.cost_model import worth_threads
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

KEYS_AXIS = "tvmopt.keys_axis"
"""The annotation of a kernel that reads caches: see :func:`keys_axis`."""


@dataclass(frozen=True)
class AttentionProblem:
    """tasks: heads and runs of queries; flops: of both products."""

    tasks: int
    flops: float
    nanoseconds: float


def recognise(func: Any, machine: Machine, kernel: str) -> AttentionProblem | None:
    """The one block that is annotated `kernel`."""
    block = annotated(func, kernel)
    if block is None:
        return None
    batch, heads, chunks = extents(block)
    q, k = ([int(d) for d in region.source.shape] for region in block.reads[:2])
    flops = 4.0 * batch * heads * q[1] * k[keys_axis(block)] * q[3]
    return AttentionProblem(batch * heads * chunks, flops, 1.5 * flops / (machine.peak_flops / machine.cores) * 1e9)


def keys_axis(block: Any) -> int:
    """The axis of the keys: of [B, S, N, H] the second, of caches [B, N, S, H] the third."""
    return int(block.annotations.get(KEYS_AXIS, 1))


def open_loops(func: Any, kernel: str, parallel: bool, behind: Sequence[str] = ()) -> Any:
    """A kernel with open sizes: one loop over the tasks; an epilogue stays behind it, in loops of its own.

    Args:
        behind: blocks that end the kernel, in one thread.
    """
    sch = Schedule(func)
    sch.fuse(*sch.get_loops(sch.get_sblock(kernel)))
    own = {kernel, *behind}
    blocks = root_blocks(sch)
    last = max(i for i, b in enumerate(blocks) if sch.get(b).name_hint in own)
    after = blocks[last + 1 :]
    for block in after[:-1]:
        sch.compute_inline(block)
    if after and parallel:
        sch.parallel(sch.fuse(*sch.get_loops(after[-1])[:-1]))
    return _in_parallel(sch.mod["main"], kernel) if parallel else sch.mod["main"]


def _in_parallel(func: Any, kernel: str) -> Any:
    """The loop around a block in parallel. A schedule refuses that where a second block writes the same tensor."""

    def loop(node: Any, mutator: Any) -> Any:
        if not isinstance(node.body, SBlockRealize) or node.body.block.name_hint != kernel:
            return mutator.default_mutate(node)
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.PARALLEL, node.body, None, node.annotations)

    return func.with_body(structural_mutate(func.body, ((tirx.For, loop),)))


def knobs(problem: AttentionProblem, machine: Machine) -> Space:
    """Threads or not."""
    parallel = int(problem.tasks > 1 and worth_threads(problem.nanoseconds, machine))
    return Space({"parallel": (parallel, 1 - parallel)})


def apply(sch: Any, problem: AttentionProblem, knobs: Knobs, kernel: str) -> None:
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
