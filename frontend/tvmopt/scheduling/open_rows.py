"""Kernels whose number of rows is known at run time only: static tiles of rows, scheduled by their family and moved
along the open axes - so that one kernel serves every length and batch, and nothing is padded.

    y[m, :] = f(x[m, :]), m < M       for task in parallel(tasks of a tile):
                                        for tile:       f of `height` rows          at base = height * tile; where there
                                                                                    are two, they prefetch weights
                                        lower tiles:    f of fewer rows             at what is left

What is left behind whole tiles is a tile moved back, which computes some rows twice, where the next lower one does not
hold it and there are rows enough. With tiles of 8, 4, 2 and 1 rows::

    15 rows   8 8 (moved back by 1)      13   8 4 1      11   8 4 (moved back by 1)      7   4 4 (moved back by 1)

Each body is the family's schedule of the function at that many rows; `base` is added to its row indices. That is right
only where every access to an open axis is the row itself, which :func:`rows_of` proves: a tensor [seq, seq] would be
moved along both axes, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import renew_defs
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import StructuralKey, structural_map, structural_mutate

from tvmopt.errors import ScheduleError
from tvmopt.scheduling.blocks import blocks_of
from tvmopt.scheduling.family import Declined, RowTiles
from tvmopt.scheduling.open_loops import STEP, Names, moved, number, of_task, quotient, remainder, shared_where

Scheduler = Callable[[tirx.PrimFunc, bool], tirx.PrimFunc]
Place = tuple[int, int]
"""A row axis: the number of its group, and its place in the group."""


@dataclass(frozen=True)
class Rows:
    """The open axes of a kernel, all of them rows.

    Attributes:
        groups: for each group of neighbouring axes that count as one, their sizes as expressions of the function's
            symbols; the tiles are cut in the last group, loops over single rows of the others go around them.
        moved: for each parameter, axis -> group: where the first row of a tile is added.
        axes: the function whose open sizes are variables of their own: what :meth:`at` fills in.
        sizes: those variables, group by group.
    """

    groups: tuple[tuple[Any, ...], ...]
    moved: tuple[Mapping[int, int], ...]
    axes: tirx.PrimFunc
    sizes: tuple[tuple[Any, ...], ...]

    @property
    def together(self) -> bool:
        """Whether the rows of a tile lie one behind the other: no axis of a known size stands before theirs."""
        last = len(self.groups) - 1
        for param, axes in zip(self.axes.params, self.moved, strict=True):
            first = min((axis for axis, group in axes.items() if group == last), default=0)
            before = [d for d in _shape(param)[:first] if isinstance(d, tirx.IntImm)]
            if any(int(d) != 1 for d in before):
                return False
        return True

    def at(self, rows: int) -> tirx.PrimFunc:
        """The function of so many rows of the last group, one of each other."""
        *_, last = [v for group in self.sizes for v in group]
        known = {v: 1 for group in self.sizes for v in group} | {last: rows}
        return at_sizes(self.axes, known)


def is_open(func: tirx.PrimFunc) -> bool:
    """Whether a size of a parameter is known at run time only."""
    return any(not isinstance(d, tirx.IntImm) for p in func.params for d in _shape(p))


def _shape(param: Any) -> list[Any]:
    return list(getattr(param.ty, "shape", None) or [])


def _is_tensor(param: Any) -> bool:
    """Whether a parameter is no size that is handed over."""
    return hasattr(param.ty, "shape")


def at_sizes(func: tirx.PrimFunc, sizes: Mapping[Any, int]) -> tirx.PrimFunc:
    """The function with variables of its sizes replaced by numbers, without the parameters that hand sizes over."""

    def known(var: Any) -> Any:
        return tirx.const(sizes[var], str(var.ty.dtype)) if var in sizes else var

    kept = [p for p in func.params if _is_tensor(p)]
    func = tirx.PrimFunc(kept, func.body, func.ret_type, func.attrs, func.span)
    return structural_map(func, (tirx.Var, known))


def at_shapes(func: tirx.PrimFunc, shapes: Sequence[Sequence[int]]) -> tirx.PrimFunc:
    """The function of tensors of these shapes, one a parameter; as it is where they are not known."""
    tensors = sum(map(_is_tensor, func.params))
    if not is_open(func) or len(shapes) != tensors:
        return func
    func, sizes = with_size_variables(func)
    known = {
        dim: size
        for param, shape in zip(filter(_is_tensor, func.params), shapes, strict=True)
        for dim, size in zip(_shape(param), shape, strict=True)
        if dim in sizes
    }
    return at_sizes(func, known)


def with_size_variables(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[Any, Any]]:
    """The function with each open size (`past + 1`) a variable of its own, and variable -> size."""
    sizes: dict[Any, Any] = {}
    variables: dict[Any, Any] = {}
    kinds: set[type] = set()
    for param in func.params:
        for dim in _shape(param):
            if isinstance(dim, tirx.IntImm) or StructuralKey(dim) in variables:
                continue
            kinds.add(type(dim))
            # as the extents of loops are written: `n - 2`, not `n + -2`
            simple = StructuralKey(Analyzer().simplify(dim))
            if simple not in variables:
                var = dim if isinstance(dim, tirx.Var) else tirx.Var(f"size{len(sizes)}", dim.ty.dtype)
                variables[simple], sizes[var] = var, dim
            variables[StructuralKey(dim)] = variables[simple]
    if all(var.same_as(dim) for var, dim in sizes.items()):
        return func, sizes

    def named(node: Any, mutator: Any) -> Any:
        # The whole before its parts, which may be sizes too: `past + 1`, `(past + 1)*2`.
        found = variables.get(StructuralKey(node))
        return mutator.default_mutate(node) if found is None else found

    return structural_mutate(func, tuple((kind, named) for kind in kinds - {tirx.Var})), sizes


# -- the proof ---------------------------------------------------------------------------------------------------------


def rows_of(func: tirx.PrimFunc) -> Rows | Declined:
    """The open axes of a function if all of them are rows of it, in groups as large as the tensors allow."""
    axes, sizes = with_size_variables(func)
    outputs = [p for p in axes.params if any(p.same_as(r.source) for b in blocks_of(axes) for r in b.writes)]
    opened = [[k for k, d in enumerate(_shape(p)) if d in sizes] for p in outputs]
    if not outputs or not opened[0]:
        return Declined("a result of a fixed size")
    shape = _shape(outputs[0])
    if any(
        k != opened[0] or any(not _shape(p)[a].same_as(shape[a]) for a in k)
        for p, k in zip(outputs, opened, strict=True)
    ):
        return Declined("results of other sizes")
    runs = list(_runs(opened[0]))
    found: tuple[Mapping[int, int], ...] | Declined = Declined("no rows")
    for groups in dict.fromkeys((tuple(runs), tuple((k,) for k in opened[0]))):
        found = _Proof(axes, groups, shape, outputs).result()
        if not isinstance(found, Declined):
            names = tuple(tuple(shape[k] for k in group) for group in groups)
            if len({v for group in names for v in group}) < len(opened[0]):
                return Declined("a size that counts rows twice")
            exact = tuple(tuple(sizes[v] for v in group) for group in names)
            return Rows(exact, found, axes, names)
    assert isinstance(found, Declined)
    return found


def _runs(axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    run: list[int] = []
    for axis in axes:
        if run and axis != run[-1] + 1:
            yield tuple(run)
            run = []
        run.append(axis)
    yield tuple(run)


def variables_beside(block: Any, fixed: Callable[[Any, Any], list[Any]]) -> list[Any]:
    """The variables of a block's arithmetic, beside those of its accesses.

    Args:
        fixed: the indices to look at in place of those of an access, given its buffer and its indices.
    """

    def load(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return tirx.BufferLoad(node.source, fixed(node.source, node.indices))

    def store(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return tirx.BufferStore(node.buffer, node.value, fixed(node.buffer, node.indices))

    parts = [part for part in (block.body, block.init) if part is not None]
    accesses = ((TensorLoad, load), (tirx.BufferStore, store))
    return [v for part in parts for v in undefined_vars(structural_mutate(part, accesses), [])]


class _Proof:
    """Follows the rows from the results to the operands, block by block, backwards.

    Attributes:
        places: buffer -> axis -> which row axis indexes it there, in every access.
    """

    def __init__(
        self, func: tirx.PrimFunc, groups: Sequence[Sequence[int]], shape: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        self.func, self.groups = func, groups
        self.sizes = {(g, k): shape[axis] for g, group in enumerate(groups) for k, axis in enumerate(group)}
        first = {axis: (g, k) for g, group in enumerate(groups) for k, axis in enumerate(group)}
        self.places: dict[Any, dict[int, Place]] = {p: first for p in outputs}
        self.opened = {d for p in func.params for d in _shape(p) if not isinstance(d, tirx.IntImm)}
        self.opened |= {p for p in func.params if not _is_tensor(p)}

    def result(self) -> tuple[Mapping[int, int], ...] | Declined:
        """Where each parameter is moved, or why it cannot be."""
        for block in reversed(blocks_of(self.func)):
            if (reason := self._block(block)) is not None:
                return Declined(reason)
        found = []
        for param in self.func.params:
            places = self.places.get(param, {})
            if not self._together(param, places):
                return Declined("an operand that has some of the open axes")
            last = {(g, len(group) - 1): g for g, group in enumerate(self.groups)}
            if _is_tensor(param):
                found.append({axis: last[place] for axis, place in places.items() if place in last})
        return tuple(found)

    def _block(self, block: Any) -> str | None:
        rows: dict[Any, Place] = {}
        for region in block.writes:
            for axis, place in self.places.get(region.source, {}).items():
                var = region.region[axis].min
                if not isinstance(var, tirx.Var) or rows.setdefault(var, place) != place:
                    return "a result that is not written row by row"
        for iv in block.iter_vars:
            if not isinstance(iv.dom.extent, tirx.IntImm) and iv.var not in rows:
                return "a sum over an open axis, or all of it read for each row"
            if iv.var in rows and not iv.dom.extent.same_as(self.sizes[rows[iv.var]]):
                return "a part of the rows"
        wrong: list[str] = []

        def fixed(buffer: Any, indices: Any) -> list[Any]:
            here = {k: rows[i] for k, i in enumerate(indices) if isinstance(i, tirx.Var) and i in rows}
            if self.places.setdefault(buffer, here) != here:
                wrong.append("an operand that is read at other rows too")
            return [tirx.const(0, str(i.ty.dtype)) if k in here else i for k, i in enumerate(indices)]

        left = variables_beside(block, fixed)
        if any(v in rows for v in left):
            wrong.append("the number of a row in its arithmetic")
        if any(v in self.opened for v in left):
            wrong.append("an open size in its arithmetic")
        if any(not isinstance(d, tirx.IntImm) for buffer in block.alloc_buffers for d in buffer.shape):
            wrong.append("a row of its own that is as long as an open size")
        return wrong[0] if wrong else None

    def _together(self, param: Any, places: Mapping[int, Place]) -> bool:
        """Whether the axes of each group that a parameter has lie next to each other, in order, with their sizes."""
        shape = _shape(param)
        for g, group in enumerate(self.groups):
            mine = [(axis, k) for axis, (h, k) in sorted(places.items()) if h == g]
            if not mine:
                continue
            start = mine[0][0]
            if mine != [(start + k, k) for k in range(len(group))]:
                return False
            if any(not shape[axis].same_as(self.sizes[g, k]) for axis, k in mine[1:]):
                return False
        return True


# -- the loops ---------------------------------------------------------------------------------------------------------


def in_tiles(
    func: tirx.PrimFunc,
    rows: Rows,
    tiles: RowTiles,
    scheduled: Scheduler,
    parallel_from: int | None,
) -> tirx.PrimFunc:
    """The scheduled function for any number of rows.

    Args:
        scheduled: schedules the function at a number of rows; whether it fetches the next weights meanwhile.
        parallel_from: rows from which the work is worth threads; None: never.
    """
    build = _Tiles(func, rows, tiles, scheduled)
    body = build.parallel() if parallel_from is not None else build.by_tasks(tirx.ForKind.SERIAL)
    if parallel_from is not None and parallel_from > 1:
        body = shared_where(build.all >= parallel_from, body)
    root = SBlock([], [], [], "root", body, None, build.buffers, [], {})
    done = func.with_body(SBlockRealize([], tirx.const(True, "bool"), root))
    return done.with_attr("tirx.is_scheduled", True)


def _no_threads(outermost: Any, loop: Any, mutator: Any) -> Any:
    """A loop within that over tasks, which threads share: they share no further one."""
    loop = mutator.default_mutate(loop)
    if loop.kind != tirx.ForKind.PARALLEL or loop.loop_var.same_as(outermost):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, None, loop.annotations)


class _Tiles:
    """Puts the bodies together.

    Attributes:
        others, count: the rows of all groups but the last; of the last, which tiles cut; `all`: their product.
        tasks: iterations of the outermost loop of a tile, whatever its height.
        buffers: those of the bodies.
    """

    def __init__(self, func: tirx.PrimFunc, rows: Rows, tiles: RowTiles, scheduled: Scheduler) -> None:
        self.rows, self.tiles, self.scheduled = rows, tiles, scheduled
        self.tensors = [p for p in func.params if _is_tensor(p)]
        *self.others, self.count = [_product(group) for group in rows.groups]
        self.all = _product([*self.others, self.count])
        self.buffers: list[Any] = []
        self._made: dict[tuple[int, bool], tirx.PrimFunc] = {}
        self.tasks = int(self._static(tiles.height)[1].extent)

    def parallel(self) -> Any:
        """Threads get tasks, as of a static kernel. Where a tile is one task they get rows; where it has few, rows
        if there are enough of them."""
        if self.tasks == 1:
            return self.by_rows()
        return self.by_tasks(tirx.ForKind.PARALLEL)

    def by_tasks(self, kind: Any) -> Any:
        """A loop over tasks, in it those over rows: the weights of a task stay in the cache. Where there are rows
        enough for pieces, a loop over these lies around it, and threads share both."""
        tiles, task = quotient(self.count, self.tiles.height), tirx.Var("task", "int32")
        bases = [tirx.Var("row", "int64") for _ in self.others]

        def loops(begin: Any, end: Any, last: Any) -> Any:
            body = self._tiles(begin, end, last, task, bases)
            for base, size in zip(reversed(bases), reversed(self.others), strict=True):
                body = tirx.For(base, number(0), size, tirx.ForKind.SERIAL, body)
            return body

        pieces = self._pieces()
        if pieces is None:
            tasks = tirx.const(self.tasks, "int32")
            return tirx.For(task, tirx.const(0, "int32"), tasks, kind, loops(number(0), tiles, True))
        q, around, names = tirx.Var("q", "int64"), Names(self.buffers), Names(self.buffers)
        pieces = around.of("pieces", pieces)
        piece = names.of("piece", quotient(q, number(self.tasks)))
        begin = names.of("begin", quotient(tiles * piece, pieces))
        end = names.of("end", quotient(tiles * (piece + 1), pieces))
        inner = tirx.Bind(task, remainder(q, number(self.tasks)).astype("int32"))
        body = tirx.SeqStmt([*names.statements, inner, loops(begin, end, (piece + 1).equal(pieces))])
        loop = tirx.For(q, number(0), pieces * number(self.tasks), kind, body)
        return tirx.SeqStmt([*around.statements, loop])

    def _pieces(self) -> Any | None:
        """Into how many pieces rows are cut; None: always one."""
        pieces, cached = None, self.tiles.cached
        if self.tiles.pieces > 1:
            enough = self.tiles.enough * self.tiles.pieces * self.tiles.height
            pieces = tirx.Select(self.count >= enough, number(self.tiles.pieces), number(1))
        if cached:
            most = quotient(self.count + (cached - 1), number(cached))
            pieces = tirx.Select(self.count > cached + cached // 4, most, number(1) if pieces is None else pieces)
        return pieces

    def by_rows(self) -> Any:
        """A parallel loop over pieces of the rows, in it that over tasks."""
        q, task = tirx.Var("q", "int64"), tirx.Var("task", "int32")
        tiles, names = quotient(self.count, self.tiles.height), Names(self.buffers)
        pieces = tiles if self.tiles.height == 1 else tirx.max(tirx.min(tiles, number(self.tiles.pieces)), number(1))
        work, bases = pieces, list[Any]()
        for size in reversed(self.others):
            bases.insert(0, names.of("row", remainder(quotient(q, work), size)))
            work = work * size
        piece = names.of("piece", remainder(q, pieces) if self.others else q)
        begin = names.of("begin", quotient(tiles * piece, pieces))
        end = names.of("end", quotient(tiles * (piece + 1), pieces))
        body = self._tiles(begin, end, (piece + 1).equal(pieces), task, bases)
        body = tirx.For(task, tirx.const(0, "int32"), tirx.const(self.tasks, "int32"), tirx.ForKind.SERIAL, body)
        body = tirx.SeqStmt([*names.statements, body])
        return tirx.For(q, number(0), work, tirx.ForKind.PARALLEL, body)

    def _static(self, rows: int, fetching: bool = False) -> tuple[tirx.PrimFunc, Any]:
        """The scheduled function for `rows` rows, with buffers and variables of its own, and its loop over tasks."""
        if (rows, fetching) not in self._made:
            self._made[rows, fetching] = self.scheduled(self.rows.at(rows), fetching)
        func = renew_defs(self._made[rows, fetching])
        loop = func.body.block.body
        if not isinstance(loop, tirx.For):
            raise ScheduleError("the schedule of a tile is not one loop over tasks")
        return func, structural_mutate(loop, ((tirx.For, partial(_no_threads, loop.loop_var)),))

    def _tiles(self, begin: Any, end: Any, last: Any, task: Any, bases: Sequence[Any]) -> Any:
        """The tiles from `begin` to `end` of one task, and where `last` holds the rows that are left over."""
        height, steps, names = self.tiles.height, list[Any](), Names(self.buffers)
        if self.tiles.fetching:
            fetching = tirx.Select(end - begin >= 2, end - begin, number(0))
            fetching, tile = names.of("fetching", fetching), tirx.Var("tile", "int64")
            here = self._moved(height, [*bases, (begin + tile) * height], task, fetching=True)
            steps.append(tirx.For(tile, number(0), fetching, tirx.ForKind.SERIAL, here, None, {STEP: 1}))
            begin = names.of("after", begin + fetching)
        at, whole, left = begin * height, end - begin, number(0)
        if height > 1:
            left = remainder(self.count, height)
            left = names.of("left", left if last is True else tirx.Select(last, left, number(0)))
        for rows, fewer in pairwise((height, *self.tiles.lower, 0)):
            if rows < height:
                at, whole = self.count - left, names.of("whole", quotient(left, rows))
                left = left - whole * rows
            if rows - fewer > 1:
                more = tirx.And(left > fewer, self.count >= rows)
                whole = names.of("tiles", tirx.Select(more, whole + 1, whole))
                left = names.of("left", tirx.Select(more, number(0), left))
            steps.append(self._loop(rows, at, whole, bases, task))
        return tirx.SeqStmt([*names.statements, *steps]) if len(steps) > 1 else steps[0]

    def _loop(self, rows: int, at: Any, count: Any, bases: Sequence[Any], task: Any) -> Any:
        """So many tiles of `rows` rows from row `at` on, the last of which is moved back to end with the last row."""
        tile, names = tirx.Var("tile", "int64"), Names(self.buffers)
        base = at + tile * rows
        if rows > 1:
            base = names.of("base", tirx.min(base, self.count - rows))
        body = self._moved(rows, [*bases, base], task)
        body = tirx.SeqStmt([*names.statements, body]) if names.statements else body
        return tirx.For(tile, number(0), count, tirx.ForKind.SERIAL, body)

    def _moved(self, rows: int, bases: Sequence[Any], task: Any, fetching: bool = False) -> Any:
        """One task of the body for `rows` rows that begin at `bases`, on the open function's parameters."""
        static, loop = self._static(rows, fetching)
        self.buffers.extend(static.body.block.alloc_buffers)
        added = [{axis: bases[group] for axis, group in axes.items()} for axes in self.rows.moved]
        targets = dict(zip(static.params, zip(self.tensors, added, strict=True), strict=True))
        return of_task(moved(loop.body, targets), loop, task)


def _product(sizes: Sequence[Any]) -> Any:
    return prod(sizes[1:], start=number(sizes[0])) if sizes else number(1)
