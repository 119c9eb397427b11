"""AMX instructions in the place of a scheduled GEMM's loops (see _amx/lower.py)."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import MatchBufferRegion
from tvm.tirx.op import address_of

from tvmopt.schedules.cpu._amx.instructions import WORD_BYTES, Operands, byte_count, integer, long, product
from tvmopt.schedules.cpu._amx.lower import (
    HEIGHT,
    Expr,
    TileWriter,
    indices_at,
    lower_tiles,
    parts_of,
    region,
    steps_of,
    tile_block,
    view_of,
    whole,
)


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its product as instructions; itself where it has none."""
    return lower_tiles(func, "amx_gemm", write)


def write(writer: TileWriter, block: Any, origin: dict[Any, Expr]) -> Any:
    """gemm[m .. m + height, p, :] for one place (m, p)."""
    m, p, _, _, _ = (iv.var for iv in block.iter_vars)
    total, height = int(block.iter_vars[0].dom.extent), int(block.annotations[HEIGHT])
    data, weight, out = parts_of(block)
    width, steps = int(weight.source.shape[-1]), steps_of(weight.source, int(data.source.shape[-1]))
    row, pitch = origin[m], WORD_BYTES // steps.word * int(data.source.shape[-1])

    def rows(count: int) -> Any:
        sub, strides = view_of(out, "c", (count, 1, width))

        def a(r: Expr, _line: Expr) -> Expr:
            return address_of(tirx.BufferLoad(data.source, indices_at(data, {**origin, m: row + r}, 0)))

        operands = Operands(
            a, lambda _line: address_of(tirx.BufferLoad(weight.source, [origin[p], 0, 0, 0])),
            lambda r: address_of(tirx.BufferLoad(sub, [r, 0, 0])),
            long(pitch), 4 * width, byte_count(strides[0], 4), 1, steps, width,
        )  # fmt: skip
        target = region(out, [(row, count), (origin[p], 1), (0, width)])
        reads = [whole(data.source), whole(weight.source)]
        return tile_block(product(operands, integer(0), count), reads, target, [MatchBufferRegion(sub, target)])

    writer.remember(min(height, total), steps, width)
    if total < height or total == height:
        return writer.guarded(total, steps, width, rows(total))
    full, tail = rows(height), total % height
    if tail == 0:  # pieces of rows that do not come out even: the last one has a block less
        return tirx.IfThenElse(row + height <= total, full, None)
    last = writer.guarded(tail, steps, width, rows(tail))
    return tirx.IfThenElse(row + height <= total, full, tirx.IfThenElse(row < total, last, None))
