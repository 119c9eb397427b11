"""Rows on a GPU: softmax, LayerNorm, RMSNorm and reductions of the last axes - a warp or a block a row.

row        every pass of a row (maximum, sum, result) in one kernel: the first reads it from memory, the others
           find it in L1 (C * itemsize << 192 KiB)
loads      vectors of 16 bytes: lane l of T takes vectors l, l + T, ...; neighbouring lanes, neighbouring vectors
reduction  in registers over a lane's elements, then shuffles within a warp and one exchange through shared memory
           between warps; every lane has the result
threads    a warp a row up to 8 vectors a lane; longer rows, or fewer rows than multiprocessors, get more
floor      bytes of inputs and outputs once / bandwidth
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmopt.schedules.cuda._threads import LINE, WORD, fused, power_of_two, staged, vectors
from tvmopt.scheduling.blocks import inline_spatial
from tvmopt.scheduling.facts import BlockFacts, facts, itemsize
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.strides import step
from tvmopt.targets import Machine

NAME, VERSION = "rows", 1


@dataclass(frozen=True)
class Shape:
    """rows: their number; length: elements of a row; width: elements of 16 bytes that divide it."""

    rows: int
    length: int
    width: int


def recognise(func: Any, machine: Machine) -> Shape | None:
    """Reductions over the same contiguous trailing axes, and spatial blocks over rows or rows x length."""
    blocks = facts(func)
    if blocks is None or any(b.kernel or b.store is None or not b.trivial or "O" in b.kinds for b in blocks):
        return None
    shapes = {row_shape(b) for b in blocks if "R" in b.kinds}
    if len(shapes) != 1 or None in shapes:
        return None
    (found,) = shapes
    assert found is not None
    rows, length = found
    if any(b.spatial and b.elements not in (rows, rows * length) for b in blocks):
        return None
    last = blocks[-1]
    if last.spatial and last.elements == rows * length and _prefix(last.extents, rows) is None:
        return None
    big = [a for b in blocks for a in b.loads if math.prod(int(d) for d in a.buffer.shape) >= length]
    width = LINE // max([itemsize(a.buffer) for a in big] or [4])
    return Shape(rows, length, math.gcd(length, width))


def row_shape(block: BlockFacts) -> tuple[int, int] | None:
    """(rows, length) of a reduction over contiguous trailing axes that reads each element once; else None."""
    spatial = len(block.kinds.rstrip("R"))
    if "R" in block.kinds[:spatial]:
        return None
    rows, length = math.prod(block.extents[:spatial]), math.prod(block.extents[spatial:])
    loads = [a for a in block.loads if block.store is None or a.buffer is not block.store.buffer]
    loads = [a for a in loads if block.store is None or not a.buffer.same_as(block.store.buffer)]
    reduced = [a for a in loads if step(a, block.variables, block.extents, spatial) != 0]
    if length == 1:
        return None  # TVM aborts on a reduction of one element over threads
    if not reduced or any(step(a, block.variables, block.extents, spatial) != 1 for a in reduced):
        return None
    whole = max(math.prod(int(d) for d in a.buffer.shape) for a in reduced)
    if whole < rows * length or is_product(block):
        return None
    return rows, length


def is_product(block: BlockFacts) -> bool:
    """Whether a reduction adds products of two tensors: that is a matrix product or a convolution."""
    update = getattr(block.body, "value", None)
    terms = [_uncast(getattr(update, side, None)) for side in ("a", "b")]
    for term in terms:
        if type(term).__name__ == "Mul":
            factors = [_uncast(term.a), _uncast(term.b)]
            if all(type(f).__name__ == "TensorLoad" for f in factors):
                return not factors[0].source.same_as(factors[1].source)
    return False


def _uncast(expr: Any) -> Any:
    while type(expr).__name__ == "Cast":
        expr = expr.value
    return expr


def _prefix(extents: tuple[int, ...], rows: int) -> int | None:
    """How many leading extents have the product `rows` (all that follow of 1 excluded)."""
    return next((d for d in range(len(extents) + 1) if math.prod(extents[:d]) == rows), None)


def threads_of(shape: Shape, machine: Machine) -> int:
    """Threads a row: see the module's text.

    >>> h100 = Machine.load("nvidia-h100")
    >>> [threads_of(Shape(r, c, 8), h100) for r, c in ((4096, 768), (4096, 8192), (1, 1000), (4096, 32))]
    [32, 128, 128, 32]
    """
    vectors = -(-shape.length // shape.width)
    a_lane = 8 if shape.rows >= machine.cores else 1
    return min(1024, max(32, power_of_two(-(-vectors // a_lane))))


def knobs(shape: Shape, machine: Machine) -> Space:
    """`threads` a row, `vector`: elements of an access."""
    threads = threads_of(shape, machine)
    return Space(
        {
            "threads": (threads, *(t for t in (32, 64, 128, 256, 512, 1024) if t != threads)),
            "vector": vectors(shape.width, shape.width),
        }
    )


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """One nest over the rows; every reduction and the result inside it."""
    blocks = inline_spatial(sch)
    schedule_rows(sch, blocks, shape.rows, knobs)


def schedule_rows(sch: Any, blocks: list[Any], count: int, knobs: Knobs) -> None:
    """Rows to blocks; a row's elements to threadIdx.x."""
    *before, last = blocks
    loops = sch.get_loops(last)
    if not _is_reduction(sch, last):
        extents = tuple(int(sch.get(loop).extent) for loop in loops)
        depth = _prefix(extents, count) or 0
        row = fused(sch, loops[:depth]) if depth else sch.add_unit_loop(loops[0] if loops else last)
        columns = sch.get_loops(last)[1:]
    else:
        spatial = sum(int(v.iter_type) == 0 for v in sch.get(last).iter_vars)
        row = fused(sch, loops[:spatial]) if spatial else sch.add_unit_loop(loops[0])
        columns = []
    sch.bind(row, "blockIdx.x")
    for block in reversed(before):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, row, preserve_unit_loops=False)
    copies = _held(sch, blocks, count, knobs)
    for copy in copies:
        sch.compute_at(copy, row, preserve_unit_loops=True)
        _columns(sch, copy, sch.get_loops(copy)[1:], knobs, vectorize=False)
        sch.vectorize(sch.get_loops(copy)[-1])
    for block in before:
        _columns(sch, block, sch.get_loops(block)[1:], knobs, vectorize=False)
    if _is_reduction(sch, last):
        _columns(sch, last, sch.get_loops(last)[1:], knobs, vectorize=False)
    elif columns:
        _columns(sch, last, columns, knobs, vectorize=True)


def _is_reduction(sch: Any, block: Any) -> bool:
    return any(int(v.iter_type) == 2 for v in sch.get(block).iter_vars)


def _columns(sch: Any, block: Any, loops: list[Any], knobs: Knobs, vectorize: bool) -> None:
    """A row's elements: `rest x threadIdx.x x vector`, the same for every stage, so that registers are a thread's."""
    outer, lanes = sch.split(fused(sch, loops), [None, knobs["vector"]])
    _, thread = sch.split(outer, [None, knobs["threads"]])
    sch.bind(thread, "threadIdx.x")
    if vectorize and knobs["vector"] > WORD:
        staged(sch, block, thread, lanes, knobs["vector"])
    elif vectorize:
        sch.vectorize(lanes)


def _held(sch: Any, blocks: list[Any], count: int, knobs: Knobs) -> list[Any]:
    """Copies in registers of the inputs that reductions read."""
    copies = []
    for block in blocks:
        if not _is_reduction(sch, block):
            continue
        for k, region in enumerate(sch.get(block).reads):
            shape = [int(d) for d in region.source.shape]
            if str(region.source.scope()) != "global" or math.prod(shape) % count or math.prod(shape) < 2 * count:
                continue
            copies.append(sch.cache_read(block, k, "local"))
    return copies
