"""Fetching the rows of a channel that comes soon, while those of this one are multiplied.

    for c in range(192):  # AHEAD=1            for c in range(192):
      for ky in range(3):                        for ky in range(3):
        for kx in range(3):               ->       fetch the lines of rows[c + 1, .., ky, ..] of each phase of columns
          acc += rows[c, ..] * W[c, ky, kx]        for kx in range(3): ...

Why, and how far: :mod:`tvmopt.schedules.cpu._ahead`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.lowering.prefetch import prefetch, with_prefetch
from tvmopt.schedules.cpu._ahead import lines
from tvmopt.scheduling.blocks import asks

AHEAD, SPAN, PHASES = "tvmopt.planes_ahead", "tvmopt.planes_span", "tvmopt.planes_phases"
"""Annotations of the loop over channels: how many channels ahead it fetches, columns of a plane that all taps of a tile
read, and the phases of columns."""
COPY = "rows"
"""The block that copies a task's planes, and the name of its buffer."""


def fetch_ahead(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the fetches that its loops over channels ask for."""
    if not asks(func, AHEAD):
        return func

    def loop(node: Any, mutator: Any) -> Any:
        return _fetching(node) if AHEAD in node.annotations else mutator.default_mutate(node)

    return with_prefetch(func, structural_mutate(func.body, ((tirx.For, loop),)))


def _fetching(channels: Any) -> Any:
    """The loop over channels, with what it fetches in front of the taps of each row of the window."""
    ky, kx = channels.body, channels.body.body
    found: list[Any] = []
    structural_walk(kx, ((SBlockRealize, found.append),))
    realize = found[0]
    structural_walk(realize.block.body, ((TensorLoad, found.append),))
    load = next(one for one in found[1:] if one.source.name == COPY)
    values = dict(zip((iv.var for iv in realize.block.iter_vars), realize.iter_values, strict=True))
    first: dict[Any, Any] = {}  # the tile's first pixel
    structural_walk(kx.body, ((tirx.For, lambda node: first.update({node.loop_var: node.min})),))
    ahead, span, phases = (int(channels.annotations[name]) for name in (AHEAD, SPAN, PHASES))

    def fetched(tap: int, column: int) -> Any:
        known = first | {kx.loop_var: kx.min + tap, channels.loop_var: channels.loop_var + ahead}
        place = list(load.indices)
        for one in (values, known):
            place = [structural_map(index, (tirx.Var, lambda var, one=one: one.get(var, var))) for index in place]
        return prefetch(load.source, [*place[:-1], place[-1] + column])  # a plane's rows lie one behind the other

    fetches = [fetched(tap, column) for tap in range(phases) for column in lines(span)]
    rows = tirx.SeqStmt([*fetches, ky.body])
    kept = {key: value for key, value in channels.annotations.items() if key not in (AHEAD, SPAN, PHASES)}
    return _with(channels, _with(ky, rows, ky.annotations), kept)


def _with(loop: Any, body: Any, notes: Any) -> Any:
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, dict(notes))
