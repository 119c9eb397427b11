"""Taps that lie outside the picture are left out of the sums, where they are many.

    for ky in range(9):                          for ky in range(max(0, 4 - y), min(9, 13 - y)):    9 rows, padding 4
      for kx, c: acc += pad[y + ky, ..] * W ->     for kx, c: acc += pad[y + ky, ..] * W

    for kx in range(9):                          if x == 0:  for c: acc[4:13] += .. W[ky, 0, c]    tiles of 13 pixels
      for c: acc[0:13] += .. W[ky, kx, c]   ->               for c: acc[3:13] += .. W[ky, 1, c]
                                                             ..
                                                 else:       as before

What is left out is products with zeros of the border: of 3x3 with a dilation of 6 over 7x7 0.81. Rows of taps are left
out by the bounds of their loop; columns in the first and in the last tile of a row, whose code is written for each.

Measured   Zen 5, one core, us, in brackets without this and OpenVINO: 11x11 of 96 to 256 channels of 13x13 2530 (3080,
           2680), 5x5 of 256 to 256 of 14x14 2140 (2510, 2130), 3x3 with a dilation of 6, 512 to 48 of 13x13, 167 (222,
           192)
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.scheduling.blocks import asks

INSIDE = "tvmopt.inside"
"""The annotation of the loop over rows of taps; those of its block say where the picture begins: :func:`row_marks`."""
BESIDE = "tvmopt.beside"
"""The annotation of the loop over columns of taps; those of its block say where the row begins."""
FEW = 8
"""Channels below which the loop over them is too short for the code around it."""
FROM, FROM_FEW = 0.04, 0.12
"""The share of taps outside from which they are left out, of pictures with many channels and, for rows, with few."""
MARKS = ("tvmopt.row_stride", "tvmopt.row_dilation", "tvmopt.row_before", "tvmopt.row_count")
COLUMNS = "tvmopt.columns"
"""The annotation of a block whose columns are left out: how many columns the result has."""
COLUMN_MARKS = ("tvmopt.column_stride", "tvmopt.column_dilation", "tvmopt.column_before", "tvmopt.column_count")


def outside(taps: int, stride: int, dilation: int, before: int, size: int, out: int) -> float:
    """The share of rows of taps that lie outside, over all rows of the result.

    >>> [round(outside(*layer), 2) for layer in ((9, 1, 1, 4, 13, 13), (3, 1, 6, 6, 7, 7), (3, 1, 1, 1, 56, 56))]
    [0.17, 0.57, 0.01]
    """
    places = [y * stride + tap * dilation - before for y in range(out) for tap in range(taps)]
    return sum(not 0 <= place < size for place in places) / len(places)


def row_marks(taps: int, stride: int, dilation: int, before: int, size: int, out: int, channels: int) -> dict[str, int]:
    """What :func:`finish` reads of a block, where it pays; else nothing."""
    share = outside(taps, stride, dilation, before, size, out)
    pays = share >= (FROM if channels >= FEW else FROM_FEW)
    return dict(zip(MARKS, (stride, dilation, before, size), strict=True)) if pays else {}


def column_marks(
    taps: int, stride: int, dilation: int, before: int, size: int, out: int, channels: int
) -> dict[str, int]:
    """The same of columns."""
    pays = channels >= FEW and outside(taps, stride, dilation, before, size, out) >= FROM
    return dict(zip(COLUMN_MARKS, (stride, dilation, before, size), strict=True)) if pays else {}


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with shorter loops over rows of taps, and columns of taps apart."""
    for mark, rule in ((INSIDE, _rows), (BESIDE, _columns)):
        if asks(func, mark):
            func = func.with_body(structural_mutate(func.body, ((tirx.For, rule),)))
    return func


def _rows(node: Any, mutator: Any) -> Any:
    """A loop over rows of taps: over those inside."""
    notes = dict(node.annotations)
    if not notes.pop(INSIDE, 0):
        return mutator.default_mutate(node)
    row, marks = _place_of(node, 1, MARKS)
    if row is None:
        return mutator.default_mutate(node)
    stride, dilation, before, size = (int(marks[name]) for name in MARKS)
    place = row * stride - before  # of the first tap
    first = tirx.max(0, tirx.floordiv(dilation - 1 - place, dilation))
    last = tirx.min(node.extent, tirx.floordiv(size - 1 - place, dilation) + 1)
    first, last = Analyzer().simplify(first), Analyzer().simplify(last)
    return tirx.For(node.loop_var, first, tirx.max(0, last - first), node.kind, node.body, None, notes)


def _columns(node: Any, mutator: Any) -> Any:
    """A loop over columns of taps: for the first tile and the last one a loop over the sum for each column, over those
    pixels of the tile for which it lies inside."""
    notes = dict(node.annotations)
    if not notes.pop(BESIDE, 0):
        return mutator.default_mutate(node)
    node = tirx.For(node.loop_var, node.min, node.extent, node.kind, node.body, None, notes)
    at, marks = _place_of(node, 2, COLUMN_MARKS)
    pixels = _loop_of_pixels(node, at)
    if pixels is None:
        return node
    count, start = int(pixels.extent), structural_map(at, _with(pixels.loop_var, 0))
    tile = list(undefined_vars(start))
    first, step = (_number(start, tile, k) for k in (0, 1))
    if first != 0 or len(tile) > 1 or (tile and step != count):
        return node
    stride, dilation, before, size = (int(marks[name]) for name in COLUMN_MARKS)
    columns = int(marks[COLUMNS])
    tiles = -(-columns // count)

    def apart(number: int) -> Any:
        """The loops for the tile of this number."""
        parts = []
        for tap in range(int(node.extent)):
            pixels_here = range(min(count, columns - number * count))
            inside = [p for p in pixels_here if 0 <= (number * count + p) * stride + tap * dilation - before < size]
            if inside:
                body = structural_map(node.body, _with(node.loop_var, tap))
                parts.append(_over(body, pixels.loop_var, inside[0], len(inside)))
        return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0] if parts else tirx.Evaluate(0)

    if not tile or tiles == 1:
        return apart(0)
    rest = tirx.IfThenElse(tile[0].equal(tiles - 1), apart(tiles - 1), node)
    return tirx.IfThenElse(tile[0].equal(0), apart(0), rest)


def _with(var: Any, value: int) -> tuple[Any, Any]:
    """A rule that puts a number in the place of a variable."""
    return tirx.Var, lambda one: tirx.const(value, one.ty) if one.same_as(var) else one


def _number(value: Any, tile: list[Any], at: int) -> int | None:
    """The value of the first pixel of a tile."""
    for var in tile:
        value = structural_map(value, _with(var, at))
    found = Analyzer().simplify(value)
    return int(found) if isinstance(found, tirx.IntImm) else None


def _loop_of_pixels(node: Any, at: Any) -> Any:
    """The loop over the pixels of a tile within a loop over taps, given the column that they compute."""
    found: list[Any] = []

    def look(one: Any) -> None:
        if at is not None and any(one.loop_var.same_as(var) for var in undefined_vars(at)):
            found.append(one)

    structural_walk(node.body, ((tirx.For, look),))
    return found[0] if len(found) == 1 else None


def _over(body: Any, var: Any, first: int, count: int) -> Any:
    """Loops in which the one over `var` begins at `first` and has `count` steps."""

    def loop(one: Any, mutator: Any) -> Any:
        if not one.loop_var.same_as(var):
            return mutator.default_mutate(one)
        new = tirx.Var(var.name, var.ty)
        inner = structural_map(one.body, (tirx.Var, lambda v: new + first if v.same_as(var) else v))
        return tirx.For(new, one.min, tirx.const(count, var.ty), one.kind, inner, None, one.annotations)

    return structural_mutate(body, ((tirx.For, loop),))


def _place_of(node: Any, axis: int, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """The row (axis 1) or column (axis 2) of the result that a loop over taps is of, and the marks of its block, which
    has these names; None where it is not one block."""
    found: list[Any] = []
    single: dict[Any, Any] = {}

    def block(realize: Any) -> None:
        if all(name in realize.block.annotations for name in names):
            found.append(realize)

    def inner(one: Any) -> None:
        if isinstance(one.extent, tirx.IntImm) and int(one.extent) == 1:
            single[one.loop_var] = tirx.const(0, "int32")

    structural_walk(node.body, ((SBlockRealize, block), (tirx.For, inner)))
    if len(found) != 1:
        return None, {}
    place = structural_map(found[0].iter_values[axis], (tirx.Var, lambda var: single.get(var, var)))
    return place, dict(found[0].block.annotations)
