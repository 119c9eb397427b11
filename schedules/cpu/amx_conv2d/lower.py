"""AMX instructions in the place of a scheduled convolution's loops (see _amx/lower.py)."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import MatchBufferRegion
from tvm.tirx.op import address_of

from tvmopt.schedules.cpu._amx.instructions import (
    WORD_BYTES,
    Operands,
    add,
    byte_count,
    integer,
    long,
    loop,
    product,
    sequence,
)
from tvmopt.schedules.cpu._amx.lower import (
    HEIGHT,
    Expr,
    TileWriter,
    lower_tiles,
    parts_of,
    region,
    steps_of,
    tile_block,
    view_of,
    whole,
)

LINES = "tvmopt.lines"
"""The annotation of a scheduled block: output rows of a task."""


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its product as instructions; itself where it has none."""
    return lower_tiles(func, "amx_conv2d", write)


def write(writer: TileWriter, block: Any, origin: dict[Any, Expr]) -> Any:
    """conv[n, y .. y + lines, :, p, :], as rows y*pitch + x of one product."""
    n, y, _, p, _, _, _, _ = (iv.var for iv in block.iter_vars)
    width_out, kh = int(block.iter_vars[2].dom.extent), int(block.iter_vars[5].dom.extent)
    names = ("pitch", "stride", "terms", "row_stride", "dilation")
    note = {name: int(block.annotations[f"tvmopt.{name}"]) for name in names}
    lines, height, pitch = int(block.annotations[LINES]), int(block.annotations[HEIGHT]), note["pitch"]
    data, weight, out = parts_of(block)
    width, steps = int(weight.source.shape[-1]), steps_of(weight.source, note["terms"])
    batch, out_h, _, panels, _ = (int(d) for d in out.shape)
    wide = tirx.decl_buffer((batch, out_h, pitch, panels, width), out.dtype, out.name)
    writer.replaced.append((out, wide))
    _, phases, _, columns, channels = (int(d) for d in data.source.shape)
    pixel = WORD_BYTES // steps.word * note["stride"] * channels  # bytes from one to the next
    deep = lines + ((kh - 1) * note["dilation"]) // note["row_stride"]
    pad, _ = view_of(data.source, "a", (1, phases, deep, columns, channels))
    sub, strides = view_of(out, "c", (1, lines, pitch, 1, width))

    def a(row: Expr, line: Expr) -> Expr:
        at, step = line * note["dilation"], note["row_stride"]
        place = [0, tirx.floormod(at, step), tirx.floordiv(at, step), 0, 0] if step > 1 else [0, 0, at, 0, 0]
        return add(address_of(tirx.BufferLoad(pad, place)), row, pixel)

    operands = Operands(
        a, lambda line: address_of(tirx.BufferLoad(weight.source, [origin[p], line, 0, 0, 0])),
        lambda r: add(address_of(tirx.BufferLoad(sub, [0] * 5)), strides[2] * r, 4),
        long(pixel), 4 * width, byte_count(strides[2], 4), kh, steps, width,
    )  # fmt: skip
    rows = (lines - 1) * pitch + width_out
    full, tail = divmod(rows, height)
    parts = []
    if full:
        parts.append(loop(full, "q", lambda q: product(operands, q * height, height)))
        writer.remember(height, steps, width)
    if tail:
        last = product(operands, integer(full * height), tail)
        parts.append(writer.guarded(tail, steps, width, last) if full else last)
        writer.remember(tail, steps, width)
    source = region(data.source, [(origin[n], 1), (0, phases), (origin[y], deep), (0, columns), (0, channels)])
    target = region(wide, [(origin[n], 1), (origin[y], lines), (0, pitch), (origin[p], 1), (0, width)])
    views = [MatchBufferRegion(pad, source), MatchBufferRegion(sub, target)]
    return tile_block(sequence(parts), [source, whole(weight.source)], target, views)
