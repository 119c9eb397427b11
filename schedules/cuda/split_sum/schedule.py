"""The sum of a split K's parts, with the epilogue of the product: out[m, n] = f(sum_p parts[p, m, n]).

Each thread adds one run of neighbours (16 bytes of output) over all parts, which lie m*n apart, and applies the
epilogue as the product itself would. Bound by memory: parts*m*n*4 bytes, in L2 since the product wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue, copy, ends_in, loads
from tvmopt.schedules.cuda._mainloop import rows_of
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


@dataclass(frozen=True)
class SplitSumProblem:
    """`parts` of `m` rows and `n` columns."""

    parts: int
    m: int
    n: int


def recognise(func: Any, machine: Machine) -> SplitSumProblem | None:
    """A block that the lowering marked `split_sum`, and the epilogue behind it."""
    block, out = annotated(func, "split_sum"), consumer(func, "split_sum")
    if block is None or out is None:
        return None
    if not ends_in(func, block, out):
        return None
    *rows, n, parts = extents(block)
    m = 1
    for extent in rows:
        m *= extent
    return SplitSumProblem(parts, m, n)


def knobs(problem: SplitSumProblem, machine: Machine) -> Space:
    """`threads` of a block."""
    return Space({"threads": (128, 64, 256)})


def apply(sch: Any, problem: SplitSumProblem, knobs: Knobs) -> None:
    """One run a thread."""
    func = sch.mod["main"]
    block, out = annotated(func, "split_sum"), consumer(func, "split_sum")
    assert block is not None
    (parts,) = {load.source for load in loads(block.body.value) if not load.source.same_as(block.body.buffer)}
    epilogue = Epilogue(out, block.body.buffer, problem.n)
    width, threads = epilogue.width, knobs["threads"]
    runs = problem.m * (problem.n // width)
    kernel = T.GridProgram(threads, [T.ceildiv(runs, threads)])
    sums, part = (kernel.alloc(T.local(width, "float32", name)) for name in ("sums", "part"))
    index = kernel.block[0] * threads + kernel.tx
    m, n = index // (problem.n // width), index % (problem.n // width) * width

    def add(p: Any) -> Any:
        lane = tirx.Var("v", T.INDEX)
        plus = tirx.BufferStore(sums, tirx.BufferLoad(sums, [lane]) + tirx.BufferLoad(part, [lane]), [lane])
        add_all = tirx.For(lane, T.int_(0), T.int_(width), tirx.ForKind.UNROLLED, plus)
        return T.seq([*copy(part, None, parts, [p, m, n], width), add_all])

    body = T.seq(
        [
            T.call(f"zero<{width}>", T.pointer(sums)),
            T.loop(problem.parts, add, "p", unroll=True),
            *epilogue.run([*rows_of(extents(out)[:-1], m), n], sums),
        ]
    )
    statement = T.when(None if runs % threads == 0 else index < runs, body)
    kernel.buffers.extend(epilogue.buffers)
    T.install(sch, kernel, [statement])
