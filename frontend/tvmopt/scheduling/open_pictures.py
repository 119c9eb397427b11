"""Kernels over pictures whose height or width is known at run time only: static tiles of a row's pixels, scheduled by
their family and moved over the picture - so that one kernel serves every size, and nothing is padded but the border.

    y[n, y, x, :] = f(b[n, y*s + ky, x*s + kx, :])     for task in parallel(pictures x pieces of their rows):
                                                         b = the piece's rows of the picture, with their border
    b: the picture with its border                       for part of a tile's tasks (panels of weights):
                                                           for row of the piece:
                                                             tiles of 8, 6, 4 pixels, and single ones

Each body is the family's schedule of the function for one row of so many pixels. That is right only where every access
follows the pixel, `pixel * stride + offset`, or does not depend on it, which :func:`pictures_of` proves. What is left
of a row behind its whole tiles is a tile moved back, which computes some pixels twice; only where a row is shorter than
that tile are there several small ones::

    23 pixels   8 8 6 1          21   8 8 6 (moved back by 1)          7   6 1          3   1 1 1 (4 are too many)

The bordered rows are memory of the task, which stays in L2, as in a kernel of a known size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import renew_defs
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal, structural_map, structural_mutate, structural_walk

from tvmopt.errors import ScheduleError
from tvmopt.scheduling.blocks import blocks_of
from tvmopt.scheduling.facts import itemsize
from tvmopt.scheduling.family import Declined, PixelTiles
from tvmopt.scheduling.open_borders import TOP, Copy
from tvmopt.scheduling.open_rows import Names, moved, number, of_task, quotient, remainder, variables_beside

PICTURE, ROW, PIXEL = 0, 1, 2
"""The first three axes of a result [n, y, x, c]."""


@dataclass(frozen=True)
class Follows:
    """How an index follows an axis of the result: `pixel * stride + offset`, offset from 0 to `reach`."""

    axis: int
    stride: int = 1
    reach: int = 0

    def room(self, pixels: int) -> int:
        """The extent that so many pixels need."""
        return (pixels - 1) * self.stride + self.reach + 1


@dataclass(frozen=True)
class Pictures:
    """A kernel over pictures.

    Attributes:
        func: the function.
        core: it without the block that makes the border, whose buffer is its last parameter.
        size: of the result: pictures, rows, pixels of a row.
        places: buffer of `core` -> axis -> what its index follows.
        pixels: variable of a block -> the axis of the result that it counts.
        border: the block that makes the border, if there is one.
    """

    func: tirx.PrimFunc
    core: tirx.PrimFunc
    size: tuple[Any, Any, Any]
    places: Mapping[Any, Mapping[int, Follows]]
    pixels: Mapping[Any, int]
    border: Any | None

    def at(self, pixels: int) -> tirx.PrimFunc:
        """The static function for one row of so many pixels of one picture; its last parameter is the border's buffer,
        if there is one."""
        return _resized(self, (1, 1, pixels))


# -- the proof ---------------------------------------------------------------------------------------------------------


def pictures_of(func: tirx.PrimFunc) -> Pictures | Declined:
    """The kernel as one over pictures [n, y, x, c], or why it is none."""
    core, border = _without_border(func)
    written = [r.source for b in blocks_of(core) for r in b.writes]
    results = [p for p in core.params if any(p.same_as(w) for w in written)]
    shapes = [list(p.ty.shape) for p in results]
    if not results or any(len(s) != 4 for s in shapes) or not isinstance(shapes[0][3], tirx.IntImm):
        return Declined("a result that is no picture with its channels last")
    if any(not structural_equal(s[:3], shapes[0][:3]) for s in shapes):
        return Declined("results of other sizes")
    proof = _Proof(core, tuple(shapes[0][:3]), results)
    for realize in reversed(list(_realizes(core))):
        if (reason := proof.block(realize)) is not None:
            return Declined(reason)
    return Pictures(func, core, proof.size, proof.places, proof.pixels, border)


def _without_border(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Any | None]:
    """The function without the block that makes a border, and that block."""
    found = [b for b in blocks_of(func) if TOP in b.annotations]
    if len(found) != 1:
        return func, None
    (border,), realize = found, func.body
    root, buffer = realize.block, found[0].writes[0].source
    steps = [s for s in root.body.seq if not _contains(s, border)]
    body = steps[0] if len(steps) == 1 else tirx.SeqStmt(steps)
    left = [b for b in root.alloc_buffers if not b.same_as(buffer)]
    inner = SBlock([], [], [], "root", body, None, left, [], root.annotations)
    whole = SBlockRealize([], tirx.const(True, "bool"), inner)
    return tirx.PrimFunc([*func.params, buffer], whole, func.ret_type, func.attrs, func.span), border


def _contains(statement: Any, block: Any) -> bool:
    return any(b.block.same_as(block) for b in _under(statement))


def _realizes(func: tirx.PrimFunc) -> Iterator[Any]:
    """The blocks with what binds their variables, in program order."""
    return iter(_under(func.body.block.body))


def _under(statement: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(statement, ((SBlockRealize, found.append),))
    return found


class _Proof:
    """Follows the pixels from the results to the operands, block by block, backwards."""

    def __init__(self, core: tirx.PrimFunc, size: tuple[Any, Any, Any], results: Sequence[Any]) -> None:
        self.size = size
        self.params = list(core.params)
        exact = {k: Follows(k) for k in (PICTURE, ROW, PIXEL)}
        self.places: dict[Any, dict[int, Follows]] = {p: dict(exact) for p in results}
        self.pixels: dict[Any, int] = {}
        self.sizes = {v for p in self.params for d in _shape(p) for v in undefined_vars(d, [])}
        self.sizes |= {p for p in self.params if not hasattr(p.ty, "shape")}

    def block(self, realize: Any) -> str | None:
        """Why a block does not follow the pixels; None where it does."""
        block, mine = realize.block, dict[Any, int]()
        for region in block.writes:
            for axis, place in self.places.get(region.source, {}).items():
                var = region.region[axis].min
                if not isinstance(var, tirx.Var) or mine.setdefault(var, place.axis) != place.axis:
                    return "a result that is not written pixel by pixel"
        if not isinstance(realize.predicate, tirx.IntImm) or not mine:
            return "a block of other results"
        for iv, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if iv.var not in mine:
                if not isinstance(iv.dom.extent, tirx.IntImm):
                    return "a sum over an open size, or all of it read for each pixel"
            elif not structural_equal(iv.dom.extent, self.size[mine[iv.var]]) or not isinstance(value, tirx.Var):
                return "a part of the pixels"
        self.pixels |= mine
        ranges = {iv.var: iv.dom for iv in block.iter_vars if iv.var not in mine}
        wrong: list[str] = []

        def fixed(buffer: Any, indices: Any) -> list[Any]:
            here = {k: self._follows(i, mine, ranges) for k, i in enumerate(indices)}
            if any(isinstance(f, str) for f in here.values()):
                wrong.append("an operand that is read at places that do not follow the pixel")
            found = {k: f for k, f in here.items() if isinstance(f, Follows)}
            if not self._agree(buffer, found):
                wrong.append("an operand that is read at other pixels too")
            return [tirx.const(0, str(i.ty.dtype)) if k in found else i for k, i in enumerate(indices)]

        left = variables_beside(block, fixed)
        if any(v in mine for v in left):
            wrong.append("the number of a pixel in its arithmetic")
        if any(v in self.sizes for v in left):
            wrong.append("an open size in its arithmetic")
        return wrong[0] if wrong else None

    def _follows(self, index: Any, mine: Mapping[Any, int], ranges: Mapping[Any, Any]) -> Follows | str | None:
        used = [v for v in undefined_vars(index, []) if v in mine]
        if not used:
            return None
        if isinstance(index, tirx.Var):
            return Follows(mine[index])
        if len(used) > 1 or len(terms := detect_linear_equation(index, used)) != 2:
            return "no multiple of one pixel"
        stride, offset = terms
        analyzer = Analyzer()
        for var, dom in ranges.items():
            analyzer.bind(var, dom)
        bound = analyzer.const_int_bound(offset)
        if not isinstance(stride, tirx.IntImm) or int(stride) < 1 or bound.min_value < 0 or bound.max_value > 1 << 30:
            return "no multiple of one pixel"
        return Follows(mine[used[0]], int(stride), int(bound.max_value))

    def _agree(self, buffer: Any, found: Mapping[int, Follows]) -> bool:
        """Whether all accesses of a buffer follow the pixels alike; only parameters are read beside them."""
        known = self.places.setdefault(buffer, dict(found))
        if known.keys() != found.keys():
            return False
        for axis, new in found.items():
            old = known[axis]
            if (old.axis, old.stride) != (new.axis, new.stride):
                return False
            known[axis] = Follows(old.axis, old.stride, max(old.reach, new.reach))
        inside = any(buffer.same_as(p) for p in self.params)
        return inside or all(f == Follows(f.axis) for f in known.values())


def _shape(param: Any) -> list[Any]:
    return list(getattr(param.ty, "shape", None) or [])


def _resized(pictures: Pictures, size: tuple[int, int, int]) -> tirx.PrimFunc:
    """The core function for a result of another size, each buffer only as large as it needs."""
    core, places = pictures.core, pictures.places
    buffers: dict[Any, Any] = {}

    def smaller(buffer: Any) -> Any:
        """The buffer with what its indices follow as long as they need; what is open and is not read: 1."""
        if not _shape(buffer):
            return buffer
        if buffer not in buffers:
            follows = places.get(buffer, {})
            shape = [
                follows[k].room(size[follows[k].axis]) if k in follows else d for k, d in enumerate(_shape(buffer))
            ]
            shape = [1 if not isinstance(d, int | tirx.IntImm) else int(d) for d in shape]
            buffers[buffer] = tirx.decl_buffer(shape, str(buffer.dtype), str(buffer.name), layout=None)
        return buffers[buffer]

    loops: dict[Any, int] = {}
    for realize in _realizes(core):
        for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if iv.var in pictures.pixels:
                loops[value] = size[pictures.pixels[iv.var]]

    def loop(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.loop_var not in loops:
            return node
        extent = tirx.const(loops[node.loop_var], str(node.loop_var.ty.dtype))
        return tirx.For(node.loop_var, node.min, extent, node.kind, node.body, None, node.annotations)

    def block(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        iters = [
            tirx.IterVar(
                Range(iv.dom.min, tirx.const(size[pictures.pixels[iv.var]], str(iv.var.ty.dtype))), iv.var, iv.iter_type
            )
            if iv.var in pictures.pixels
            else iv
            for iv in node.iter_vars
        ]
        return SBlock(
            iters, node.reads, node.writes, node.name_hint, node.body, node.init,
            [smaller(b) for b in node.alloc_buffers], node.match_buffers, node.annotations,
        )  # fmt: skip

    body = structural_mutate(core.body, ((tirx.For, loop), (SBlock, block)))
    params = [smaller(p) for p in core.params if _shape(p)]
    body = structural_map(body, (tirx.Var, lambda v: buffers.get(v, v)))
    return tirx.PrimFunc(params, body, core.ret_type, core.attrs, core.span)


# -- the loops ---------------------------------------------------------------------------------------------------------


def in_pixels(
    pictures: Pictures, tiles: PixelTiles, scheduled: Callable[[tirx.PrimFunc], tirx.PrimFunc], cores: int
) -> tirx.PrimFunc:
    """The scheduled function for pictures of any size.

    Args:
        scheduled: schedules the function for one row of a number of pixels.
    """
    build = _Tasks(pictures, tiles, scheduled, cores)
    body = build.loop(tirx.ForKind.SERIAL)
    if cores > 1:
        parallel = build.loop(tirx.ForKind.PARALLEL)
        count = build.size[PICTURE] * build.size[ROW] * build.size[PIXEL]
        body = tirx.IfThenElse(count >= number(tiles.threads_from), parallel, body)
    root = SBlock([], [], [], "root", body, None, build.buffers, [], {})
    done = pictures.func.with_body(SBlockRealize([], tirx.const(True, "bool"), root))
    return done.with_attr("tirx.is_scheduled", True)


@dataclass
class _Tasks:
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

    def loop(self, kind: Any) -> Any:
        """One loop over tasks: pictures, pieces of their rows, and parts of a tile's own tasks."""
        count, rows, _ = self.size
        names, parts = Names(self.buffers), self.tiles.parts if kind == tirx.ForKind.PARALLEL else 1
        chunks = self._chunks(count, rows, 1 if kind == tirx.ForKind.SERIAL else self.cores, parts)
        border = self._bordered(quotient(rows + chunks - 1, chunks))  # TVM allocates it in front of all names
        chunks = names.of("chunks", chunks)
        q, inner = tirx.Var("q", "int64"), Names(self.buffers)
        part, chunk = remainder(q, parts), remainder(quotient(q, parts), chunks)
        picture = inner.of("picture", quotient(q, chunks * parts))
        first = inner.of("first", quotient(rows * chunk, chunks))
        last = inner.of("last", quotient(rows * (chunk + 1), chunks))
        begin, end = quotient(part * self.steps, parts), quotient((part + 1) * self.steps, parts)
        task, row = tirx.Var("task", "int32"), tirx.Var("row", "int64")
        body: Any = self._row(task, picture, first + row, first, border)
        body = tirx.For(row, number(0), last - first, tirx.ForKind.SERIAL, body)
        begin, many = tirx.Cast("int32", begin), tirx.Cast("int32", end - begin)
        step = tirx.Var("step", "int32")
        body = structural_map(body, (tirx.Var, lambda v: step + begin if v.same_as(task) else v))
        body = tirx.For(step, tirx.const(0, "int32"), many, tirx.ForKind.SERIAL, body)
        fill = [] if border is None else [self._filled(border, picture, first, last)]
        block = SBlock([], [], [], "task", tirx.SeqStmt([*fill, body]) if fill else body, None,
                       [] if border is None else [border], [], {})  # fmt: skip
        body = tirx.SeqStmt([*inner.statements, SBlockRealize([], tirx.const(True, "bool"), block)])
        return tirx.SeqStmt([*names.statements, tirx.For(q, number(0), count * chunks * parts, kind, body)])

    def _chunks(self, count: Any, rows: Any, cores: int, parts: int) -> Any:
        """Into how many pieces the rows of a picture are cut: none of them longer than `tiles.bytes` of bordered rows
        allow, and a multiple of the cores where these share nothing else."""
        least = number(1)
        if self.pictures.border is not None:
            _, _, wide, deep = self.pictures.core.params[-1].ty.shape
            row = wide * deep * itemsize(self.pictures.core.params[-1])
            room = tirx.max(quotient(self.tiles.bytes, row), number(1))
            least = quotient(rows + room - 1, room)
        if parts == 1 and cores > 1:
            shared = quotient(least + (2 * cores - 1), cores) * cores
            least = tirx.Select(count >= number(4 * cores), least, shared)
        return tirx.max(tirx.min(least, rows), number(1))

    def _static(self, pixels: int) -> tuple[tirx.PrimFunc, Any]:
        """The scheduled function for so many pixels, with buffers and variables of its own, and its loop over tasks."""
        if pixels not in self._made:
            self._made[pixels] = self.scheduled(self.pictures.at(pixels))
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
        originals = [p for p in self.pictures.core.params if _shape(p)]
        targets = {}
        for mine, original in zip(static.params, originals, strict=True):
            follows = self.pictures.places.get(original, {})
            if border is not None and original.same_as(self.pictures.core.params[-1]):
                base = {ROW: y - first, PIXEL: x}
                added = {k: base[f.axis] * f.stride for k, f in follows.items() if f.axis != PICTURE}
                targets[mine] = (border, added)
            else:
                base = {PICTURE: picture, ROW: y, PIXEL: x}
                targets[mine] = (original, {k: base[f.axis] * f.stride for k, f in follows.items()})
        return of_task(moved(loop.body, targets), loop, task)

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

    def _filled(self, buffer: Any, picture: Any, first: Any, last: Any) -> Any:
        """Rows of the picture with their border, copied into `buffer`."""
        copy = Copy(self.pictures.border, buffer, picture)
        stride = self.pictures.places[self.pictures.core.params[-1]][ROW].stride
        row = tirx.Var("row", "int64")
        return tirx.For(row, number(0), self._rows_of(last - first), tirx.ForKind.SERIAL, copy.row(row, first * stride))
