"""Pieces of a picture of which a task copies only the channels that it reads, with their border - for kernels of open
pictures whose tasks are blocks of channels (depthwise convolutions, poolings).

    for piece of the rows:
      for block of channels:
        b = the piece's rows of these channels, with their border
        for row: tiles of pixels, which read b

The rows of all channels do not stay in the cache, so pieces were short, and those of a 5x5 window copied up to three
times; a block's rows lie together, where those of the picture are as far apart as it has channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.stmt import BufferRegion
from tvm_ffi import structural_mutate, structural_walk

from tvmopt.scheduling.facts import itemsize
from tvmopt.scheduling.family import PixelTiles
from tvmopt.scheduling.open_borders import CHANNELS, LEFT, TOP
from tvmopt.scheduling.open_loops import Names, number
from tvmopt.scheduling.open_pictures import PICTURE, PIXEL, ROW, Pictures
from tvmopt.scheduling.picture_tasks import Tasks


def in_pixels(
    pictures: Pictures, tiles: PixelTiles, scheduled: Callable[[tirx.PrimFunc], tirx.PrimFunc], cores: int
) -> tirx.PrimFunc:
    """The scheduled function for pictures of any size.

    Args:
        scheduled: schedules the function for one row of a number of pixels.
    """
    kind = Channels if tiles.by_channels and copies_channels(pictures) else Tasks
    build = kind(pictures, tiles, scheduled, cores)
    if cores > 1 and tiles.threads_from <= 1:
        body = build.loop(tirx.ForKind.PARALLEL)
    else:
        body = build.loop(tirx.ForKind.SERIAL)
    if cores > 1 and tiles.threads_from > 1:
        parallel = build.loop(tirx.ForKind.PARALLEL)
        count = build.size[PICTURE] * build.size[ROW] * build.size[PIXEL]
        body = tirx.IfThenElse(count >= number(tiles.threads_from), parallel, body)
    root = SBlock([], [], [], "root", body, None, build.buffers, [], {})
    done = pictures.func.with_body(SBlockRealize([], tirx.const(True, "bool"), root))
    return done.with_attr("tirx.is_scheduled", True)


def copies_channels(pictures: Pictures) -> bool:
    """Whether the bordered picture has the picture's channels, each at its place."""
    if pictures.border is None:
        return False
    picture, at = _picture(pictures)
    channel = pictures.border.iter_vars[3].var
    deep = pictures.core.params[-1].ty.shape[3]
    whole = int(pictures.border.annotations[CHANNELS]) == int(deep) == int(picture.ty.shape[3])
    return whole and at[3].same_as(channel)


def _picture(pictures: Pictures) -> tuple[Any, Any]:
    """The picture that the border is around, and where it is read."""
    loads: list[Any] = []
    structural_walk(pictures.border.body.value, ((TensorLoad, loads.append),))  # type: ignore[union-attr]
    return loads[0].source, loads[0].indices


class Channels(Tasks):
    """See the module's text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        block, self.whole = self.pictures.border, self.pictures.core.params[-1]
        assert block is not None
        self.places, self.deep = self.pictures.places[self.whole], int(self.whole.ty.shape[3]) // self.steps
        self.top, self.left = (int(block.annotations[name]) for name in (TOP, LEFT))
        self.source, _ = _picture(self.pictures)
        value = block.body.value
        inside = getattr(getattr(value, "op", None), "name", "") != "prim.if_then_else"
        self.fill = tirx.const(0, str(self.source.ty.dtype)) if inside else value.args[2]

    def _row_bytes(self) -> Any:
        return self.whole.ty.shape[2] * (self.deep * itemsize(self.whole))

    def _bordered(self, most: Any) -> Any:
        shape = [number(1), self._rows_of(most), self.whole.ty.shape[2], number(self.deep)]
        return tirx.decl_buffer(shape, str(self.whole.dtype), "border", layout=None)

    def _filled(self, buffer: Any, picture: Any, first: Any, last: Any) -> list[Any]:
        return []

    def _rows(self, body: Any, task: Any, picture: Any, first: Any, last: Any, border: Any) -> Any:
        """The rows of a piece, behind the copy of the channels that the task reads."""
        high, across = (number(d) for d in self.source.ty.shape[1:3])
        names, r, wide = Names(self.buffers), tirx.Var("r", "int64"), self.whole.ty.shape[2]
        channel = names.of("channel", tirx.Cast("int64", task) * self.deep)
        row = first * self.places[ROW].stride - self.top + r

        def pixels(begin: Any, count: Any, value: Callable[[Any, Any], Any]) -> Any:
            x, c = tirx.Var("x", "int64"), tirx.Var("c", "int64")
            put: Any = tirx.BufferStore(border, value(x, c), [number(0), r, begin + x, c])
            put = tirx.For(c, number(0), number(self.deep), tirx.ForKind.VECTORIZED, put)
            return tirx.For(x, number(0), count, tirx.ForKind.SERIAL, put)

        def copied(x: Any, c: Any) -> Any:
            return tirx.BufferLoad(self.source, [picture, row, x, channel + c])

        def outside(begin: Any, count: Any) -> Any:
            return pixels(begin, count, lambda x, c: self.fill)

        left, right = number(self.left), wide - across - self.left
        parts = [outside(number(0), left), pixels(left, across, copied), outside(left + across, right)]
        within = tirx.And(row >= number(0), row < high)
        fill: Any = tirx.IfThenElse(within, tirx.SeqStmt(parts), outside(number(0), wide))
        fill = tirx.For(r, number(0), self._rows_of(last - first), tirx.ForKind.SERIAL, fill)
        return tirx.SeqStmt([*names.statements, fill, body])

    def _body(self, loop: Any, bordered: Any, border: Any) -> Any:
        """In the copy the channels of each task are the first ones."""
        analyzer, blocks = Analyzer(), list[Any]()
        structural_walk(loop.body, ((SBlock, blocks.append),))
        for iv in (iv for block in blocks for iv in block.iter_vars):
            analyzer.bind(iv.var, iv.dom)

        def own(indices: Any) -> list[Any]:
            *pixel, channel = indices
            return [*pixel, analyzer.simplify(tirx.floormod(channel, tirx.const(self.deep, str(channel.ty.dtype))))]

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            return tirx.BufferLoad(node.source, own(node.indices)) if node.source.same_as(bordered) else node

        def region(node: Any) -> Any:
            if not node.source.same_as(bordered):
                return node
            starts = own([r.min for r in node.region])
            ranges = [Range.from_min_extent(s, r.extent) for s, r in zip(starts, node.region, strict=True)]
            return BufferRegion(node.source, ranges)

        def block(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            return SBlock(
                node.iter_vars, list(map(region, node.reads)), node.writes, node.name_hint, node.body, node.init,
                node.alloc_buffers, node.match_buffers, node.annotations,
            )  # fmt: skip

        return structural_mutate(loop.body, ((TensorLoad, load), (SBlock, block)))
