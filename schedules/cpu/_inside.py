"""Rows of taps that lie outside the picture are left out of the sums, where they are many.

    for ky in range(9):                          for ky in range(max(0, 4 - y), min(9, 13 - y)):    9 rows, padding 4
      for kx, c: acc += pad[y + ky, ..] * W ->     for kx, c: acc += pad[y + ky, ..] * W

What is left out is products with zeros of the border. 3x3 over three rows: 0.78 of the products; 3x3 with a dilation of
6 over 7x7: 0.43.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.scheduling.blocks import asks

INSIDE = "tvmopt.inside"
"""The annotation of the loop over rows of taps; those of its block say where the picture begins: :func:`row_marks`."""
FROM = 0.12
"""The share of rows of taps outside from which it is done. Loops of lengths that vary must be paid for: of 7x7 over
13x13, where 0.13 are outside, 0.87 of the time is left; 3x3 over 7x7, of which 0.1 are, keeps its code."""
MARKS = ("tvmopt.row_stride", "tvmopt.row_dilation", "tvmopt.row_before", "tvmopt.row_count")


def outside(taps: int, stride: int, dilation: int, before: int, size: int, out: int) -> float:
    """The share of rows of taps that lie outside, over all rows of the result.

    >>> [round(outside(*layer), 2) for layer in ((9, 1, 1, 4, 13, 13), (3, 1, 6, 6, 7, 7), (3, 1, 1, 1, 56, 56))]
    [0.17, 0.57, 0.01]
    """
    places = [y * stride + tap * dilation - before for y in range(out) for tap in range(taps)]
    return sum(not 0 <= place < size for place in places) / len(places)


def row_marks(taps: int, stride: int, dilation: int, before: int, size: int, out: int) -> dict[str, int]:
    """What :func:`finish` reads of a block, where it pays; else nothing."""
    if outside(taps, stride, dilation, before, size, out) < FROM:
        return {}
    return dict(zip(MARKS, (stride, dilation, before, size), strict=True))


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with shorter loops over rows of taps."""
    if not asks(func, INSIDE):
        return func

    def loop(node: Any, mutator: Any) -> Any:
        notes = dict(node.annotations)
        if not notes.pop(INSIDE, 0):
            return mutator.default_mutate(node)
        row, marks = _row_of(node)
        if row is None:
            return mutator.default_mutate(node)
        stride, dilation, before, size = (int(marks[name]) for name in MARKS)
        place = row * stride - before  # of the first tap
        first = tirx.max(0, tirx.floordiv(dilation - 1 - place, dilation))
        last = tirx.min(node.extent, tirx.floordiv(size - 1 - place, dilation) + 1)
        first, last = Analyzer().simplify(first), Analyzer().simplify(last)
        return tirx.For(node.loop_var, first, tirx.max(0, last - first), node.kind, node.body, None, notes)

    return func.with_body(structural_mutate(func.body, ((tirx.For, loop),)))


def _row_of(node: Any) -> tuple[Any, dict[str, Any]]:
    """The row of the result that a loop over rows of taps is of, and the marks of its block; None where it is not one
    row."""
    found: list[Any] = []
    single: dict[Any, Any] = {}

    def block(realize: Any) -> None:
        if all(name in realize.block.annotations for name in MARKS):
            found.append(realize)

    def inner(one: Any) -> None:
        if isinstance(one.extent, tirx.IntImm) and int(one.extent) == 1:
            single[one.loop_var] = tirx.const(0, "int32")

    structural_walk(node.body, ((SBlockRealize, block), (tirx.For, inner)))
    if len(found) != 1:
        return None, {}
    row = structural_map(found[0].iter_values[1], (tirx.Var, lambda var: single.get(var, var)))
    return row, dict(found[0].block.annotations)
