"""Kernels of open pictures whose tasks are blocks of channels (depthwise convolutions, poolings): they read the picture
where it lies, and leave out what lies outside.

    for piece of the rows, block of channels, row of the piece:
      for tile of pixels whose windows lie inside:    for ky in the rows inside, all kx: y += w[ky, kx] * x[...]
      the first and the last tile:                    the same, with zeros for the columns outside
      for each other pixel:                           for ky in the rows inside, kx in the columns inside: ...

Which columns of a first or last tile lie outside is known when code is generated, if the windows step by one pixel.

A copy with a border took as long as the taps of a 3x3 window: 1.1 to 2.4 times the time of the kernel of a known size,
where this takes 0.8 to 1.3 (15 layers, two cores of a Xeon). Where numbers of the border count (the zero point of
bytes, weights that are not finite) nothing is left out: each load asks whether it is inside, in tiles once a row of
taps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_mutate, structural_walk

from tvmopt.scheduling.facts import itemsize
from tvmopt.scheduling.family import PixelTiles
from tvmopt.scheduling.open_borders import CHANNELS, LEFT, NOTHING, TOP
from tvmopt.scheduling.open_loops import Names, Target, moved, number, of_task, quotient, shared_where
from tvmopt.scheduling.open_pictures import PICTURE, PIXEL, ROW, Pictures
from tvmopt.scheduling.picture_tasks import Tasks

REDUCTION = 2
"""The type of a block's variable that a sum or a maximum goes over."""


def in_pixels(
    pictures: Pictures, tiles: PixelTiles, scheduled: Callable[[tirx.PrimFunc], tirx.PrimFunc], cores: int
) -> tirx.PrimFunc:
    """The scheduled function for pictures of any size.

    Args:
        scheduled: schedules the function for one row of a number of pixels.
    """
    kind = InPlace if tiles.by_channels and reads_channels(pictures) else Tasks
    build = kind(pictures, tiles, scheduled, cores)
    body = build.loop()
    if cores > 1 and tiles.threads_from > 1:
        count = build.size[PICTURE] * build.size[ROW] * build.size[PIXEL]
        body = shared_where(count >= number(tiles.threads_from), body)
    root = SBlock([], [], [], "root", body, None, build.buffers, [], {})
    done = pictures.func.with_body(SBlockRealize([], tirx.const(True, "bool"), root))
    return done.with_attr("tirx.is_scheduled", True)


def reads_channels(pictures: Pictures) -> bool:
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


class InPlace(Tasks):
    """See the module's text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        block = self.pictures.border
        assert block is not None
        self.places = self.pictures.places[self.pictures.core.params[-1]]
        self.top, self.left = (int(block.annotations[name]) for name in (TOP, LEFT))
        self.source, _ = _picture(self.pictures)
        static, loop = self._static(1)
        self.taps = {axis: int(node.extent) for axis, node in _taps(loop, static.params[-1]).items()}
        self.nothing = NOTHING in block.annotations and len(self.taps) == 2
        value = block.body.value
        inside = getattr(getattr(value, "op", None), "name", "") != "prim.if_then_else"
        self.fill = tirx.const(0, str(self.source.ty.dtype)) if inside else value.args[2]

    def _least(self, rows: Any) -> Any:
        """Into how many pieces the bytes of what is read, and of as many float32 written, cut the rows."""
        _, _, wide, deep = self.source.ty.shape
        read = wide * deep * itemsize(self.source) * self.places[ROW].stride
        room = tirx.max(quotient(self.tiles.bytes, read + self.size[PIXEL] * deep * 4), number(1))
        return quotient(rows + room - 1, room)

    def _bordered(self, most: Any) -> Any | None:
        return None

    def _row(self, task: Any, picture: Any, y: Any, first: Any, border: Any) -> Any:
        """One row of the result: tiles of pixels whose windows lie inside, the last of each width moved back, and the
        other pixels, of which `begin` come before these."""
        high, wide = map(number, self.source.ty.shape[1:3])
        width, names, steps = self.size[PIXEL], Names(self.buffers), list[Any]()
        row = names.of("above", y * self.places[ROW].stride - self.top)
        rows = self._taps_inside(names, row, high, ROW)
        begin, inner = self._inner(names, width, wide)
        edge, edges = self._edge(), None
        if edge:
            edges = width >= number(2 * edge)
            begin = names.of("begin", tirx.Select(edges, number(edge), begin))
            inner = names.of("between", tirx.Select(edges, width - 2 * edge, inner))
        covered, left = number(0), inner
        for size, smaller in pairwise(self.tiles.widths):
            whole = quotient(left, size)
            rest = left - whole * size
            more = tirx.And(rest > number(smaller), inner >= number(size))
            count = names.of("tiles", tirx.Select(more, whole + 1, whole))
            tile, x_names = tirx.Var("tile", "int64"), Names(self.buffers)
            x = x_names.of("x", tirx.min(covered + tile * size, inner - size) + begin)
            body = self._at(size, task, (picture, y, x), row, {ROW: rows})
            body = tirx.SeqStmt([*x_names.statements, body])
            steps.append(tirx.For(tile, number(0), count, tirx.ForKind.SERIAL, body))
            left = names.of("left", tirx.Select(more, number(0), rest))
            covered = inner - left
        covered = names.of("covered", covered)
        pixel, x_names = tirx.Var("pixel", "int64"), Names(self.buffers)
        place, count = tirx.Select(pixel < begin, pixel, pixel + covered), width - covered
        if edges is not None:
            place = tirx.Select(edges, begin + covered + pixel, place)
            count = tirx.Select(edges, inner - covered, count)
        x = x_names.of("x", place)
        columns = self._taps_inside(x_names, x * self.places[PIXEL].stride - self.left, wide, PIXEL)
        body = self._at(1, task, (picture, y, x), row, {ROW: rows, PIXEL: columns})
        body = tirx.SeqStmt([*x_names.statements, body])
        steps.append(tirx.For(pixel, number(0), count, tirx.ForKind.SERIAL, body))
        if edges is not None:
            ends = self._ends(edge, task, picture, y, row, rows)
            steps.append(tirx.IfThenElse(edges, tirx.SeqStmt(ends), None))
        return tirx.SeqStmt([*names.statements, *steps])

    def _edge(self) -> int:
        """Pixels of the first and the last tile of a row: the narrowest that reach over the border. 0: there are none,
        as which columns lie outside depends on the width, or as TVM folds 0 times a weight, which may not be finite."""
        follows, right = self.places[PIXEL], self._right()
        folds = not self.nothing and str(self.source.ty.dtype).startswith(("float", "bfloat"))
        if folds or follows.stride != 1 or right is None or not max(self.left, right) > 0:
            return 0
        return min((w for w in self.tiles.widths if w > 1 and w >= max(self.left, right)), default=0)

    def _right(self) -> int | None:
        """Columns of the border behind the picture, where windows step by one pixel."""
        more = Analyzer().simplify(self.size[PIXEL] - number(self.source.ty.shape[2]))
        return int(more) + self.places[PIXEL].reach - self.left if isinstance(more, tirx.IntImm) else None

    def _ends(self, edge: int, task: Any, picture: Any, y: Any, row: Any, rows: Any) -> list[Any]:
        """The first and the last tile of a row."""
        begin, end = number(self.left), number(edge + self.places[PIXEL].reach - int(self._right() or 0))
        last = self.size[PIXEL] - edge
        return [
            self._at(edge, task, (picture, y, number(0)), row, {ROW: rows}, lambda column: column >= begin),
            self._at(edge, task, (picture, y, last), row, {ROW: rows}, lambda column: column < end),
        ]

    def _inner(self, names: Names, width: Any, wide: Any) -> tuple[Any, Any]:
        """The first pixel of a row whose window reaches outside on no side, and how many there are."""
        follows = self.places[PIXEL]
        begin = number(-(-self.left // follows.stride))
        room = tirx.max(wide + number(self.left - follows.reach), number(0))
        end = quotient(room + (follows.stride - 1), follows.stride)
        return begin, names.of("inner", tirx.max(tirx.min(end, width) - begin, number(0)))

    def _taps_inside(self, names: Names, start: Any, size: Any, axis: int) -> tuple[Any, Any]:
        """The first tap of a window from `start` on that is inside of the picture, and how many are."""
        if not self.nothing:
            return number(0), number(0)
        taps = self.taps[axis]
        apart = self.places[axis].reach // (taps - 1) if taps > 1 else 1

        def up_to(place: Any) -> Any:
            return tirx.min(quotient(tirx.max(place, number(0)) + (apart - 1), number(apart)), number(taps))

        first = names.of("tap", up_to(-start))
        return first, names.of("taps", tirx.max(up_to(size - start) - first, number(0)))

    def _at(
        self,
        pixels: int,
        task: Any,
        place: tuple[Any, Any, Any],
        row: Any,
        inside: Mapping[int, Any],
        columns: Callable[[Any], Any] | None = None,
    ) -> Any:
        """One task of the tile of so many pixels at `place`.

        Args:
            row: of the picture, where its windows begin.
            inside: axes along which its windows may reach outside -> the first tap inside and their number.
            columns: whether a column of the tile's windows is inside, if not all are.
        """
        static, loop = self._static(pixels)
        self.buffers.extend(static.body.block.alloc_buffers)
        originals = [p for p in self.pictures.core.params if hasattr(p.ty, "shape")]
        base, targets = dict(zip((PICTURE, ROW, PIXEL), place, strict=True)), dict[Any, Target]()
        for mine, original in zip(static.params, originals, strict=True):
            follows = self.pictures.places.get(original, {})
            targets[mine] = (original, {k: base[f.axis] * f.stride for k, f in follows.items()})
        bordered, column = static.params[-1], place[2] * self.places[PIXEL].stride - self.left
        targets[bordered] = (self.source, {0: place[0], 1: row, 2: column})
        if self.nothing:
            taps = _taps(loop, bordered)
            body = _shorter(loop.body, {taps[axis].loop_var: some for axis, some in inside.items()})
        else:
            body = self._asking(loop.body, bordered, {axis: (row, column)[axis - ROW] for axis in inside})
        if columns is not None:
            body = self._outside(body, bordered, columns)
        return of_task(moved(body, targets), loop, task)

    def _outside(self, body: Any, bordered: Any, columns: Callable[[Any], Any]) -> Any:
        """Loads of `bordered` that give the border's number in columns outside."""

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            known = node.source.same_as(bordered)
            return tirx.if_then_else(columns(node.indices[PIXEL]), node, self.fill) if known else node

        return structural_mutate(body, ((TensorLoad, load),))

    def _asking(self, body: Any, bordered: Any, starts: Mapping[int, Any]) -> Any:
        """Loads of `bordered` that give the border's number where they are outside along some axes."""

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            if not node.source.same_as(bordered):
                return node
            asked = []
            for axis, start in starts.items():
                at = node.indices[axis] + start
                asked += [at >= number(0), at < number(self.source.ty.shape[axis])]
            return tirx.if_then_else(tirx.all(*asked), node, self.fill)

        return structural_mutate(body, ((TensorLoad, load),))


def _taps(body: Any, bordered: Any) -> dict[int, Any]:
    """Axis of a picture -> the loop over a window's taps along it."""
    nodes, found = list[Any](), dict[int, Any]()
    structural_walk(body, ((tirx.For, nodes.append),))
    loops = {node.loop_var: node for node in nodes}

    def block(realize: Any) -> None:
        pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        sums = {iv.var: loops[at] for iv, at in pairs if iv.iter_type == REDUCTION and at in loops}

        def load(node: Any) -> None:
            for axis in (ROW, PIXEL) if node.source.same_as(bordered) else ():
                for v in undefined_vars(node.indices[axis], []):
                    if v in sums:
                        found[axis] = sums[v]

        structural_walk(realize.block.body, ((TensorLoad, load),))

    structural_walk(body, ((SBlockRealize, block),))
    return found


def _shorter(body: Any, ranges: Mapping[Any, Any]) -> Any:
    """The statement with loops, by their variable, from a first number on, so many times."""

    def loop(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.loop_var not in ranges:
            return node
        first, many = (n.astype(str(node.loop_var.ty.dtype)) for n in ranges[node.loop_var])
        return tirx.For(node.loop_var, first, many, tirx.ForKind.SERIAL, node.body, None, {})

    return structural_mutate(body, ((tirx.For, loop),))
