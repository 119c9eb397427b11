"""Rows of a picture with their border, copied into memory of a task - for kernels over pictures of open size."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_map, structural_walk

from tvmopt.scheduling.open_loops import number

TOP, LEFT, CHANNELS = "tvmopt.border_top", "tvmopt.border_left", "tvmopt.border_channels"
"""Annotations of the block that makes a border: rows above the picture, columns before it, channels of it."""
NOTHING = "tvmopt.border_nothing"
"""Annotates that block where its border changes no result: zeros in sums with finite weights, -inf in a maximum."""
SQUARE, REACH, FLAT = "tvmopt.square", "tvmopt.square_reach", "tvmopt.square_flat"
"""Annotations of blocks between a border and a result that compute it in squares (Winograd): pixels of a square's side,
how many more of the bordered picture it needs along it, and whether it is but one row high, and needs no further row.
The last of them writes the result pixel by pixel."""
COUNT = "tvmopt.square_pictures"
"""Annotation of such a block: which of its variables counts the pictures."""


class Copy:
    """Statements that copy rows of a picture and write its border."""

    def __init__(self, block: Any, buffer: Any, picture: Any) -> None:
        self.buffer, self.picture = buffer, picture
        self.vars = [iv.var for iv in block.iter_vars]
        value = block.body.value
        self.inside, self.fill = value, None
        if getattr(getattr(value, "op", None), "name", "") == "prim.if_then_else":
            _, self.inside, self.fill = value.args
        loads: list[Any] = []
        structural_walk(self.inside, ((TensorLoad, loads.append),))
        self.height, self.width = (number(d) for d in loads[0].source.ty.shape[1:3])
        self.top, self.left, self.channels = (int(block.annotations[name]) for name in (TOP, LEFT, CHANNELS))
        self.wide, self.deep = buffer.shape[2], int(buffer.shape[3])

    def row(self, row: Any, first: Any) -> Any:
        """Row `first + row` of the bordered picture, into row `row` of the buffer."""
        y = first + row
        if self.fill is None:
            return self._picture(row, y)
        parts = [
            self._border(row, number(0), number(self.left)),
            self._picture(row, y),
            self._border(row, self.width + self.left, self.wide - self.width - self.left),
        ]
        within = tirx.And(y >= number(self.top), y < self.height + self.top)
        return tirx.IfThenElse(within, tirx.SeqStmt(parts), self._border(row, number(0), self.wide))

    def _border(self, row: Any, start: Any, pixels: Any) -> Any:
        """Numbers of the border in some pixels."""
        i, deep = tirx.Var("i", "int64"), self.deep
        place = [number(0), row, start + tirx.floordiv(i, number(deep)), tirx.floormod(i, number(deep))]
        put = tirx.BufferStore(self.buffer, self.fill, place)
        return tirx.For(i, number(0), pixels * deep, tirx.ForKind.SERIAL, put)

    def _picture(self, row: Any, y: Any) -> Any:
        """A row of the picture."""
        if self.channels == self.deep:
            i = tirx.Var("i", "int64")
            x, c = tirx.floordiv(i, number(self.deep)), tirx.floormod(i, number(self.deep))
            return tirx.For(i, number(0), self.width * self.deep, tirx.ForKind.SERIAL, self._pixel(row, y, x, c))
        x, c, more = (tirx.Var(name, "int64") for name in ("x", "c", "c"))
        known = tirx.For(c, number(0), number(self.channels), tirx.ForKind.SERIAL, self._pixel(row, y, x, c))
        at = [number(0), row, x + self.left, more + self.channels]
        zeros = tirx.BufferStore(self.buffer, self.fill, at)
        rest = tirx.For(more, number(0), number(self.deep - self.channels), tirx.ForKind.SERIAL, zeros)
        return tirx.For(x, number(0), self.width, tirx.ForKind.SERIAL, tirx.SeqStmt([known, rest]))

    def _pixel(self, row: Any, y: Any, x: Any, c: Any) -> Any:
        known = dict(zip(self.vars, (self.picture, y, x + self.left, c), strict=True))
        value = structural_map(self.inside, (tirx.Var, lambda v: known.get(v, v)))
        return tirx.BufferStore(self.buffer, value, [number(0), row, x + self.left, c])
