"""What the families of reductions share: recognising rows and products, and the nest of a reduction over warps."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvmopt.schedules.cuda._threads import LINE
from tvmopt.scheduling.blocks import fused
from tvmopt.scheduling.facts import BlockFacts, facts, itemsize
from tvmopt.scheduling.strides import step
from tvmopt.targets import Machine

WARP, FEWEST = 32, 4
"""Lanes of a warp, and the fewest neighbouring outputs that a block is given in their place: TVM finds no way through
places in a tensor where a block of 32 ends beyond it."""


def _register(kind: type, sign: int) -> None:
    """Tell TVM that threads may share a maximum, or a minimum, that begins with an infinity: it knows reductions by
    their beginning, and of these only those that begin with a finite number. It asks at any time and frees what it
    asks at the very end, where there is no Python any more, so that both functions are held for ever."""

    def combined(a: list[Any], b: list[Any]) -> list[Any]:
        return [kind(a[0], b[0])]

    def first(values: list[Any]) -> list[Any]:
        dtype = values[0].ty.dtype
        return [tirx.infinity(dtype) * tirx.const(sign, dtype)]

    def held(function: Callable[..., Any]) -> Any:
        made = tvm_ffi.convert(function)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        return made

    tvm.get_global_func("s_tir.schedule.RegisterReducer")(1, held(combined), held(first))


_register(tirx.Max, -1)
_register(tirx.Min, 1)


def parts_of(outputs: int, reduced: int, machine: Machine) -> int:
    """Warps that share an output's elements.

    >>> h100 = Machine.load("nvidia-h100")
    >>> parts_of(2048, 49, h100), parts_of(1 << 20, 49, h100), parts_of(64, 4, h100)
    (16, 1, 4)
    """
    parts = 1
    while parts < WARP and 2 * parts <= reduced and outputs // WARP * parts < 4 * machine.cores:
        parts *= 2
    return parts


def cross_reduction(sch: Any, main: Any, last: Any, here: BlockFacts | None, parts: int) -> None:
    """32 neighbouring outputs, or 16, 8 or 4 that divide their number, `parts` threads each; `last` is `main` or the
    epilogue behind it.

    Where a block is left with fewer outputs than lanes, a copy stands behind the sums: TVM guards what a block writes,
    and not what a reduction over threads does.
    """
    alone = sch.get(last).name_hint == sch.get(main).name_hint
    lanes = math.gcd(_outputs(sch, main), WARP)
    lanes = lanes if lanes >= FEWEST else WARP
    copied = alone and _outputs(sch, main) % lanes != 0
    if copied:
        last, alone = sch.cache_write(main, 0, "local"), False
    loops = sch.get_loops(last)
    if alone:
        kinds = [int(v.iter_type) for v in sch.get(main).iter_vars]
        spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
        reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
        sch.reorder(*spatial, *reduced)
    else:
        spatial, reduced = loops, []
        if not copied:
            sch.set_scope(main, 0, "local")
    grid, thread = sch.split(fused(sch, spatial), [None, lanes])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if not alone:
        sch.compute_at(main, thread, preserve_unit_loops=False)
        reduced = sch.get_loops(main)[2:]
    _, part = sch.split(fused(sch, reduced), [None, parts])
    sch.bind(part, "threadIdx.y")


def _outputs(sch: Any, block: Any) -> int:
    """How many elements a reduction writes."""
    return math.prod(int(v.dom.extent) for v in sch.get(block).iter_vars if int(v.iter_type) == 0)


@dataclass(frozen=True)
class RowsProblem:
    """rows: their number; length: elements of a row; width: elements of 16 bytes that divide it."""

    rows: int
    length: int
    width: int


def find_rows(func: Any) -> RowsProblem | None:
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
    if last.spatial and last.elements == rows * length and prefix_of(last.extents, rows) is None:
        return None
    big = [a for b in blocks for a in b.loads if math.prod(int(d) for d in a.buffer.shape) >= length]
    width = LINE // max([itemsize(a.buffer) for a in big] or [4])
    return RowsProblem(rows, length, math.gcd(length, width))


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


def prefix_of(extents: tuple[int, ...], rows: int) -> int | None:
    """How many leading extents have the product `rows` (all that follow of 1 excluded)."""
    return next((d for d in range(len(extents) + 1) if math.prod(extents[:d]) == rows), None)
