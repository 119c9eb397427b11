"""Short rows in whole vectors, the last of which overlaps the one before - the step between scheduling and code
generation, for families that annotate their loops.

A family marks a loop over a row that is written once, of values that depend on the row's own places only, with
`OVERLAP`, the numbers of a vector::

    for i in range(49):  # OVERLAP=16         for v in unroll(4):
      y[r, i] = x[r, i] * s[r]          ->      for l in vectorized(16):
                                                  y[r, min(16 * v, 33) + l] = x[r, min(16 * v, 33) + l] * s[r]

The numbers 33 to 47 are written twice, with the same values: y must be no buffer that the row reads. Likewise the last
of several pieces of a length that they do not divide: in place of a condition on each number, it begins earlier and
ends with the whole.

Measured, one core: one scale per channel over 832 images of 7 x 7 takes 12 us so, and 38 as a loop, because LLVM's code
does 64 numbers at once and the rest one by one.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_mutate

from tvmopt.scheduling.blocks import asks

OVERLAP = "tvmopt.overlap"
"""The annotation of a loop."""
ROW = "tvmopt.overlap_row"
"""Beside it: the numbers of the row where the loop, under a condition, has more."""
LAST = "tvmopt.overlap_last"
"""The annotation of a loop over the vectors of a row, `x[v * 16 + l]`, around several loops over their numbers: how
many numbers the row has. The last vector then ends with the row, `x[min(16 * v, 4) + l]` of 20 numbers."""
UNROLLED = 16
"""Vectors of a row up to which its loop is written out."""


def vector_for(extent: int, lanes: int) -> int:
    """The numbers of a vector for rows of `extent`: a power of two, at most `lanes`.

    >>> [vector_for(extent, 16) for extent in (3, 5, 9, 15, 16, 49)]
    [2, 4, 8, 8, 16, 16]
    """
    return 1 << (min(extent, lanes).bit_length() - 1)


def loop_of(var: tirx.Var, count: int, kind: Any, body: Any, notes: Any = None) -> tirx.For:
    """A loop from 0 on, in the type of its variable: kernels of 64-bit integers count in 64 bits."""
    start, extent = (tirx.const(number, str(var.ty.dtype)) for number in (0, count))
    return tirx.For(var, start, extent, kind, body, None, notes)


def overlap_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the vectors that its loops' annotations ask for."""
    if not asks(func, OVERLAP) and not asks(func, LAST):
        return func

    def loop(node: Any, mutator: Any) -> Any:
        notes = dict(node.annotations)
        if LAST in notes:
            body = _ending_with(mutator.default_mutate(node), int(notes.pop(LAST)))
            return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, None, notes)
        if OVERLAP not in notes:
            return mutator.default_mutate(node)
        width, extent = int(notes.pop(OVERLAP)), int(notes.pop(ROW, node.extent))
        vector, lane = (tirx.Var(name, node.loop_var.ty) for name in ("vector", "lane"))
        node, earlier = _last_piece(node, extent)
        place = tirx.min(vector * width, extent - width) + lane - earlier
        body = structural_map(node.body, (tirx.Var, lambda var: place if var.same_as(node.loop_var) else var))
        inner, count = loop_of(lane, width, tirx.ForKind.VECTORIZED, body), -(-extent // width)
        kind = tirx.ForKind.UNROLLED if count <= UNROLLED else tirx.ForKind.SERIAL
        return loop_of(vector, count, kind, inner, notes)

    return func.with_body(structural_mutate(func.body, ((tirx.For, loop),)))


def _last_piece(loop: Any, extent: int) -> tuple[Any, Any]:
    """A loop over a piece of a length, without the condition that its block stands under, and by how much the piece has
    to begin earlier so that it ends with the length; the loop as it is, and 0, where it has no such condition.

    For `base + i < 19700` and pieces of 1300 numbers these are `max(base + 1300 - 19700, 0)` numbers.
    """
    realize = loop.body
    condition = getattr(realize, "predicate", None)
    if not isinstance(condition, tirx.LT) or not isinstance(condition.b, tirx.IntImm):
        return loop, 0
    base = structural_map(
        condition.a, (tirx.Var, lambda var: tirx.const(0, str(var.ty.dtype)) if var.same_as(loop.loop_var) else var)
    )
    known = Analyzer()
    one_by_one = known.can_prove_equal(condition.a - base, loop.loop_var)
    if not one_by_one or extent > int(condition.b):
        return loop, 0
    body = SBlockRealize(realize.iter_values, True, realize.block)
    whole = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return whole, tirx.max(known.simplify(base + extent - int(condition.b)), 0)


def _ending_with(loop: Any, row: int) -> Any:
    """The body of a loop over vectors whose last one ends with the row."""

    def place(node: Any) -> Any:
        mine = node.a.same_as(loop.loop_var) and isinstance(node.b, tirx.IntImm)
        return tirx.min(node, row - int(node.b)) if mine else node

    return structural_map(loop.body, (tirx.Mul, place))
