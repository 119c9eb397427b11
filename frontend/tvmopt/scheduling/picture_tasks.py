"""The loops of kernels over pictures of open height or width: tasks, the rows of each with their border, and in them
the tiles of :mod:`tvmopt.scheduling.open_pictures`, of which the last is moved back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tvm import tirx
from tvm.s_tir import renew_defs
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmopt.errors import ScheduleError
from tvmopt.scheduling.facts import itemsize
from tvmopt.scheduling.family import PixelTiles
from tvmopt.scheduling.open_borders import Copy
from tvmopt.scheduling.open_loops import Names, Target, moved, number, of_task, quotient, remainder
from tvmopt.scheduling.open_pictures import PICTURE, PIXEL, ROW, Pictures


@dataclass
class Tasks:
    """Puts the bodies together.

    Attributes:
        buffers: those of the bodies.
    """

    pictures: Pictures
    tiles: PixelTiles
    scheduled: Callable[[tirx.PrimFunc], tirx.PrimFunc]
    cores: int
    buffers: list[Any] = field(default_factory=list)
    _made: dict[int, tirx.PrimFunc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.size = tuple(number(d) for d in self.pictures.size)
        self.steps = int(self._static(self.tiles.widths[0])[1].extent)

    def loop(self) -> Any:
        """One loop over tasks: pictures, pieces of their rows, and parts of a tile's own tasks."""
        count, rows, _ = self.size
        kind = tirx.ForKind.PARALLEL if self.cores > 1 else tirx.ForKind.SERIAL
        names, together = Names(self.buffers), self._together(rows) if self.cores > 1 else None
        height = self.tiles.height
        strips = rows if height == 1 else quotient(rows + (height - 1), height)
        chunks = self._chunks(count, strips, together)
        border = self._bordered(quotient(strips + chunks - 1, chunks) * height)  # TVM allocates it before all names
        chunks = names.of("chunks", chunks)
        q, j, inner = tirx.Var("q", "int64"), tirx.Var("j", "int64"), Names(self.buffers)
        pieces, around, part, parts = count * chunks, None, number(0), number(1)
        piece: Any = q
        if together is not None:  # a thread has one part of the tasks, whose weights stay in its cache, of all pieces
            number_of_parts = number(self.tiles.parts)
            together = names.of("together", tirx.Select(together, number(1), number(0))).equal(number(1))
            around = tirx.Select(together, pieces, number(1))
            pieces = names.of("pieces", tirx.Select(together, number_of_parts, pieces))
            piece = inner.of("piece", tirx.Select(together, j, q))
            part, parts = tirx.Select(together, q, part), tirx.Select(together, number_of_parts, parts)
        picture, chunk = inner.of("picture", quotient(piece, chunks)), remainder(piece, chunks)
        first = inner.of("first", quotient(strips * chunk, chunks))
        last = inner.of("last", quotient(strips * (chunk + 1), chunks))
        task, row = tirx.Var("task", "int32"), tirx.Var("row", "int64")
        top, end = first, last
        if height > 1:  # the last strip is moved back
            top = inner.of("top", tirx.min(first * height, rows - height))
            end = inner.of("end", tirx.min(last * height, rows))
        strip, y = Names(self.buffers), first + row
        if height > 1:
            y = strip.of("y", tirx.min(y * height, rows - height))
        body: Any = self._row(task, picture, y, top, border)
        body = tirx.SeqStmt([*strip.statements, body]) if strip.statements else body
        body = tirx.For(row, number(0), last - first, tirx.ForKind.SERIAL, body)
        body = self._rows(body, task, picture, top, end, border)
        if around is not None:  # asked, not counted from there: where a task begins is then in no place's arithmetic
            begin = inner.of("begin", quotient(part * self.steps, parts)).astype("int32")
            stop = inner.of("stop", quotient((part + 1) * self.steps, parts)).astype("int32")
            body = tirx.IfThenElse(tirx.And(task >= begin, task < stop), body, None)
        steps = tirx.const(self.steps, "int32")
        body = tirx.For(task, tirx.const(0, "int32"), steps, tirx.ForKind.SERIAL, body)
        fill = self._filled(border, picture, top, end)
        block = SBlock([], [], [], "task", tirx.SeqStmt([*fill, body]) if fill else body, None,
                       [] if border is None else [border], [], {})  # fmt: skip
        body = tirx.SeqStmt([*inner.statements, SBlockRealize([], tirx.const(True, "bool"), block)])
        if around is not None:
            body = tirx.For(j, number(0), names.of("around", around), tirx.ForKind.SERIAL, body)
        return tirx.SeqStmt([*names.statements, tirx.For(q, number(0), pieces, kind, body)])

    def _together(self, rows: Any) -> Any | None:
        """Whether threads share a tile's tasks; None: never."""
        if self.tiles.parts == 1:
            return None
        tiles = self.tiles
        if not tiles.parts_up_to:
            return tirx.const(True, "bool")
        asked = [rows <= number(tiles.parts_up_to)]
        if tiles.parts_uneven:
            uneven = remainder(rows, number(self.cores)) > number(0)
            asked.append(tirx.And(rows <= number(tiles.parts_uneven), uneven))
        if tiles.parts_below:
            asked.append(rows * self.size[PIXEL] < number(tiles.parts_below))
        return tirx.any(*asked)

    def _chunks(self, count: Any, rows: Any, together: Any | None) -> Any:
        """Into how many pieces the rows of a picture are cut: none of them longer than `tiles.bytes` of bordered rows
        allow, and a multiple of the cores where these share nothing else."""
        least = self._least(rows)
        if self.cores > 1:
            shared = quotient(least + (2 * self.cores - 1), self.cores) * self.cores
            enough = count >= number(4 * self.cores)
            least = tirx.Select(enough if together is None else tirx.Or(together, enough), least, shared)
        return tirx.max(tirx.min(least, rows), number(1))

    def _least(self, rows: Any) -> Any:
        """Into how many pieces the bytes of bordered rows cut the rows."""
        if self.pictures.border is None:
            return number(1)
        room = tirx.max(quotient(self.tiles.bytes, self._row_bytes() * self.tiles.height), number(1))
        return quotient(rows + room - 1, room)

    def _row_bytes(self) -> Any:
        """Bytes of a bordered row."""
        whole = self.pictures.core.params[-1]
        return whole.ty.shape[2] * whole.ty.shape[3] * itemsize(whole)

    def _static(self, pixels: int) -> tuple[tirx.PrimFunc, Any]:
        """The scheduled function for so many pixels, with buffers and variables of its own, and its loop over tasks."""
        if pixels not in self._made:
            self._made[pixels] = self.scheduled(self.pictures.at(pixels, self.tiles.height))
        func = renew_defs(self._made[pixels])
        loop = func.body.block.body
        if not isinstance(loop, tirx.For):
            raise ScheduleError("the schedule of a tile is not one loop over tasks")
        return func, loop

    def _row(self, task: Any, picture: Any, y: Any, first: Any, border: Any) -> Any:
        """One row of the result: tiles of each width, and behind the last whole one one that is moved back."""
        width, names, steps = self.size[PIXEL], Names(self.buffers), list[Any]()
        at, left = number(0), width
        for wide, next_wide in pairwise((*self.tiles.widths, 0)):
            whole = quotient(left, wide)
            rest = left - whole * wide
            if wide > 1:
                more = tirx.And(rest > number(next_wide), width >= number(wide))
                count = names.of("tiles", tirx.Select(more, whole + 1, whole))
            else:
                more, count = None, names.of("tiles", whole)
            tile = tirx.Var("tile", "int64")
            place = at + tile * wide
            x = place if more is None else tirx.min(place, width - wide)
            x_names = Names(self.buffers)
            x = x_names.of("x", x)
            body = self._moved(wide, task, picture, y, x, first, border)
            body = tirx.SeqStmt([*x_names.statements, body])
            steps.append(tirx.For(tile, number(0), count, tirx.ForKind.SERIAL, body))
            if more is not None:
                left = names.of("left", tirx.Select(more, number(0), rest))
                at = width - left
        return tirx.SeqStmt([*names.statements, *steps])

    def _moved(self, pixels: int, task: Any, picture: Any, y: Any, x: Any, first: Any, border: Any) -> Any:
        """One task of the tile of so many pixels that begins at [picture, y, x]."""
        static, loop = self._static(pixels)
        self.buffers.extend(static.body.block.alloc_buffers)
        originals = [p for p in self.pictures.core.params if hasattr(p.ty, "shape")]
        targets = {}
        for mine, original in zip(static.params, originals, strict=True):
            follows = self.pictures.places.get(original, {})
            if border is not None and original.same_as(self.pictures.core.params[-1]):
                targets[mine] = self._source(border, picture, y, x, first)
            else:
                base = {PICTURE: picture, ROW: y, PIXEL: x}
                targets[mine] = (original, {k: base[f.axis] * f.stride for k, f in follows.items()})
        return of_task(moved(self._body(loop, static.params[-1], border), targets), loop, task)

    def _body(self, loop: Any, bordered: Any, border: Any) -> Any:
        """The body of a tile's loop over tasks, which reads `bordered`."""
        return loop.body

    def _source(self, border: Any, picture: Any, y: Any, x: Any, first: Any) -> Target:
        """Where a tile reads the bordered picture."""
        base = {ROW: y - first, PIXEL: x}
        follows = self.pictures.places[self.pictures.core.params[-1]]
        return border, {k: base[f.axis] * f.stride for k, f in follows.items() if f.axis != PICTURE}

    def _rows(self, body: Any, task: Any, picture: Any, first: Any, last: Any, border: Any) -> Any:
        """The loop over the rows of a piece, for one task of a tile."""
        return body

    # -- the border ----------------------------------------------------------------------------------------------------

    def _bordered(self, most: Any) -> Any | None:
        """Memory for the bordered rows that `most` rows of the result need."""
        if self.pictures.border is None:
            return None
        whole = self.pictures.core.params[-1]
        return tirx.decl_buffer(
            [number(1), self._rows_of(most), *whole.ty.shape[2:]], str(whole.dtype), "border", layout=None
        )

    def _rows_of(self, count: Any) -> Any:
        """The bordered rows that so many rows of the result need."""
        follows = self.pictures.places[self.pictures.core.params[-1]][ROW]
        return (count - 1) * follows.stride + (follows.reach + 1)

    def _filled(self, buffer: Any, picture: Any, first: Any, last: Any) -> list[Any]:
        """Rows of the picture with their border, copied into `buffer`: what a task begins with."""
        if buffer is None:
            return []
        copy = Copy(self.pictures.border, buffer, picture)
        stride = self.pictures.places[self.pictures.core.params[-1]][ROW].stride
        row = tirx.Var("row", "int64")
        rows = self._rows_of(last - first)
        return [tirx.For(row, number(0), rows, tirx.ForKind.SERIAL, copy.row(row, first * stride))]
