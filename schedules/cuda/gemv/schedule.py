"""Products of up to eight rows with constant weights: bound by reading the weights once.

warp     R columns (rows of W[N, K]), all rows of X; lanes take 16 bytes of K each, 512 bytes of a row a turn
sums     M*R in fp32 registers, five shuffles each at the end; lane m*R + r applies the epilogue to its sum
X        M*K*2 bytes, read by every warp: from L1 and L2
floor    N*K*itemsize / bandwidth; R = 1 until there are 16 warps an SM, for loads in flight
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda import _tir as T
from tvmopt.schedules.cuda._epilogue import Epilogue, ends_in
from tvmopt.schedules.cuda._mainloop import rows_of
from tvmopt.schedules.cuda._product import ROWS_BY_CONSTANT
from tvmopt.schedules.cuda._tiles import FEW_ROWS, operands
from tvmopt.scheduling.blocks import annotated, consumer, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

WARPS = 4


@dataclass(frozen=True)
class GemvProblem:
    """X[m, k] times W[n, k], whose rows lie `pitch` apart; chunk: elements of 16 bytes."""

    m: int
    n: int
    k: int
    pitch: int
    chunk: int
    cores: int


def recognise(func: Any, machine: Machine) -> GemvProblem | None:
    """A product of rows and a constant matrix, of at most FEW_ROWS rows."""
    block, out = annotated(func, ROWS_BY_CONSTANT), consumer(func, ROWS_BY_CONSTANT)
    if block is None or out is None or "tvmopt.mma" not in block.annotations:
        return None
    if not ends_in(func, block, out):
        return None
    *lead, m, n, _ = extents(block)
    if lead or m > FEW_ROWS:
        return None
    notes = block.annotations
    size = 4 if str(operands(block)[0].dtype) == "float32" else 2
    return GemvProblem(m, n, int(notes["tvmopt.k"]), int(notes["tvmopt.pitch"]), 16 // size, machine.cores)


def knobs(problem: GemvProblem, machine: Machine) -> Space:
    """`columns` of a warp.

    >>> [knobs(GemvProblem(1, n, 2048, 2048, 8, 132), None).analytic["columns"] for n in (1000, 5000, 32000)]
    [1, 2, 4]
    """
    enough = 16 * problem.cores
    best = next((c for c in (4, 2) if problem.n >= c * enough), 1)
    return Space({"columns": (best, *(c for c in (1, 2, 4) if c != best))})


def apply(sch: Any, problem: GemvProblem, knobs: Knobs) -> None:
    """Write the kernel."""
    func = sch.mod["main"]
    block, out = annotated(func, ROWS_BY_CONSTANT), consumer(func, ROWS_BY_CONSTANT)
    assert block is not None
    x, w = operands(block)
    columns, m = knobs["columns"], problem.m
    kernel = T.GridProgram(32 * WARPS, [T.ceildiv(problem.n, columns * WARPS)])
    acc = kernel.alloc(T.local(m * columns, "float32", "acc"))
    run = kernel.alloc(T.local(1, "float32", "run"))
    first = (kernel.block[0] * WARPS + kernel.tx // 32) * columns
    aligned = "true" if problem.k % problem.chunk == 0 else "false"
    dot = T.call(
        f"dot_rows<{m}, {columns}, {aligned}>", T.pointer(acc), T.pointer(w, first * problem.pitch),
        T.pointer(x),
        problem.n - first, problem.pitch, problem.k,
    )  # fmt: skip
    epilogue = Epilogue(out, block.body.buffer, problem.n, most=1)
    lane = kernel.tx % 32
    row, column = lane // columns, first + lane % columns
    axes = [*rows_of(extents(out)[:-1], row), column]
    store = T.seq([T.call(f"pick<{m * columns}>", T.pointer(run), T.pointer(acc), lane), *epilogue.run(axes, run)])
    whole = problem.n % (columns * WARPS) == 0
    inside = T.both(lane < m * columns, None if whole else column < problem.n)
    kernel.buffers.extend(epilogue.buffers)
    body = T.seq([dot, T.when(inside, store)])
    T.install(sch, kernel, [T.when(None if whole else first < problem.n, body)])
