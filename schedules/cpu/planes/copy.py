"""The loop that copies a row of a picture with its border, cut where the picture begins and ends.

    for e in range(30):  # FIRST=1, LAST=29, VECTOR=16       to[0] = 0
      to[e] = x[e - 1] if 1 <= e < 29 else 0           ->    for v in unroll(2): for l in vectorized(16):
                                                               to[1 + min(16 * v, 12) + l] = x[min(16 * v, 12) + l]
                                                             to[29] = 0

TVM proves the conditions away in each piece. The last vector overlaps the one before; with strides, where a row goes
to several planes, the middle piece is left to LLVM, which reads it in whole vectors and takes them apart.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import structural_map, structural_mutate

from tvmopt.lowering.overlap import UNROLLED, loop_of
from tvmopt.scheduling.blocks import asks

FIRST, LAST, VECTOR = "tvmopt.row_first", "tvmopt.row_last", "tvmopt.row_vector"
"""Annotations of the loop: where the middle piece begins and ends; the numbers of a vector, 0: a plain loop."""


def cut(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the loops that carry :data:`LAST` in three pieces."""
    if not asks(func, LAST):
        return func

    def loop(node: Any, mutator: Any) -> Any:
        notes = dict(node.annotations)
        if LAST not in notes:
            return mutator.default_mutate(node)
        first, last, width = (int(notes.pop(name)) for name in (FIRST, LAST, VECTOR))
        pieces = [_plain(node, start, end) for start, end in ((0, first), (last, int(node.extent))) if end > start]
        pieces.insert(int(first > 0), _vectors(node, first, last, width) if width else _plain(node, first, last))
        return tirx.SeqStmt(pieces) if len(pieces) > 1 else pieces[0]

    return func.with_body(structural_mutate(func.body, ((tirx.For, loop),)))


def _at(node: Any, place: Any) -> Any:
    return structural_map(node.body, (tirx.Var, lambda var: place if var.same_as(node.loop_var) else var))


def _plain(node: Any, start: int, end: int) -> Any:
    at = tirx.Var("column", node.loop_var.ty)
    return loop_of(at, end - start, tirx.ForKind.SERIAL, _at(node, at + start))


def _vectors(node: Any, first: int, last: int, width: int) -> Any:
    vector, lane = (tirx.Var(name, node.loop_var.ty) for name in ("vector", "lane"))
    count = -(-(last - first) // width)
    place = first + tirx.min(vector * width, last - first - width) + lane
    inner = loop_of(lane, width, tirx.ForKind.VECTORIZED, _at(node, place))
    kind = tirx.ForKind.UNROLLED if count <= UNROLLED else tirx.ForKind.SERIAL
    return loop_of(vector, count, kind, inner)
