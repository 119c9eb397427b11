"""Results as long as values decide (NonZero, Compress): what an artifact chose, and whether it may - for the judge.

An element is chosen where a number is not 0, or where a condition holds. Where rounding decides that, an engine may
choose it or not, and all that stands behind it moves up by a place:

    oracle      4e-113  0.76  6e-200  1.0     places  0  1  2  3
    artifact         0  0.76       0  1.0     places  1  3

So the elements in doubt are found first. With all of them chosen, the oracle's results have the artifact's as a part,
in order; those of them are left out whose absence fits best. Then the outputs are judged as ever, by an oracle that
makes this choice: an element that is lost without a doubt is missing there, too, and shows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array
from tvmopt.analysis.deviation import limits_of
from tvmopt.analysis.oracle.evaluate import reads
from tvmopt.analysis.oracle.values import Value

DECIDES = {"NonZero": 0, "Compress": 1}
"""Operators that choose, and which input of theirs decides."""
ROOM = 1 << 24
"""Distances between entries that are computed at the most."""


@dataclass(frozen=True)
class Selection:
    """A node that chooses.

    Attributes:
        op: the operator. decides: the tensor whose values decide; `result` of the node.
        outputs: of the model, or what else is judged, whose sizes or values follow from it.
    """

    op: str
    decides: str
    result: str
    outputs: tuple[str, ...]

    def known(self, chosen: Array) -> dict[str, Value]:
        """What an oracle is told so that it chooses these elements of the tensor that decides."""
        if self.op == "NonZero":
            return {self.result: Value(np.array(np.nonzero(np.atleast_1d(chosen)), np.int64), np.dtype(np.int64))}
        return {self.decides: Value(chosen.copy(), np.dtype(bool))}


def selections(model: Any, names: Collection[str]) -> list[Selection]:
    """The nodes of a model that choose, each with those of these tensors behind it. One that chooses from what another
    one chose is left out, and so are tensors behind several."""
    behind: dict[str, set[str]] = {}
    found: list[Selection] = []
    for node in model.graph.node:
        before = set().union(*(behind.get(n, ()) for n in reads(node)))
        chooses = node.op_type in DECIDES and node.domain in ("", "ai.onnx") and not before
        if chooses:
            found.append(Selection(node.op_type, node.input[DECIDES[node.op_type]], node.output[0], ()))
            before = {node.output[0]}
        if before:
            behind.update((o, before) for o in node.output if o)
    told = [replace(s, outputs=tuple(n for n in names if behind.get(n) == {s.result})) for s in found]
    return [s for s in told if s.outputs]


def doubtful(exact: Array, naturals: Sequence[Array], precision: str) -> Array:
    """Of which elements rounding decides whether they are other than 0: runs that only round differ in that, or such a
    run is as far from the number as the number is from 0.

    Args:
        exact: the oracle's. naturals: of runs that only round.

    >>> doubtful(np.array([0, 1e-9, 2e-3, -3]), [np.array([0, 1e-8, 2e-3 + 1e-8, -3])], "fp32")
    array([False,  True, False, False])
    """
    doubt = np.zeros(exact.shape, bool)
    factor = limits_of(precision, np.dtype(np.float32)).factor
    for natural in naturals:
        if natural.shape == exact.shape:
            doubt |= (natural != 0) != (exact != 0)
            if exact.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    doubt |= (exact != 0) & (np.abs(exact) <= factor * np.abs(natural - exact))
    return doubt


def chosen_by(pairs: Sequence[tuple[Array, Array]], doubt: Array) -> Array | None:
    """Which entries an artifact left out; None where that cannot be told.

    Args:
        pairs: of each output the oracle's, all entries in doubt being chosen, and the artifact's.
        doubt: which of the entries are in doubt.
    """
    number, rows = doubt.size, []
    for every, found in pairs:
        axes = [a for a, (m, n) in enumerate(zip(every.shape, found.shape, strict=False)) if m != n]
        if every.ndim == found.ndim and len(axes) == 1 and every.shape[axes[0]] == number:
            rows.append([_rows(x, axes[0]) for x in (every, found)])
        elif axes or every.ndim != found.ndim:
            return None
    lengths = {len(found) for _, found in rows} or {number}
    out = number - min(lengths)
    if len(lengths) > 1 or not 0 <= out <= int(doubt.sum()) or (out + 1) * number > ROOM:
        return None
    cost = np.zeros((out + 1, number))
    for every, found in rows:
        cost += _distances(every, found, out)
    return _left_out(cost, np.flatnonzero(doubt), out)


def _rows(x: Array, axis: int) -> Array:
    """A matrix, a row an entry of an axis."""
    moved = np.moveaxis(x, axis, 0)
    return moved.reshape(len(moved), prod(moved.shape[1:]))


def _distances(every: Array, found: Array, out: int) -> Array:
    """How far each entry is, at most 1, from the one of `found` that it is if 0 to `out` before it were left out."""
    finite = every[np.isfinite(every)] if every.dtype.kind == "f" else every
    scale = float(np.abs(finite.astype(np.float64)).mean()) if finite.size else 0.0
    cost = np.ones((out + 1, len(every)))
    for skipped in range(out + 1):
        end = min(len(every), len(found) + skipped)
        a, b = every[skipped:end], found[: end - skipped]
        with np.errstate(all="ignore"):
            apart = np.abs(b.astype(np.float64) - a.astype(np.float64)) / (scale or 1.0)
        apart = np.where((a == b) | ((a != a) & (b != b)), 0.0, np.where(np.isnan(apart), 1.0, np.minimum(apart, 1.0)))
        cost[skipped, skipped:end] = apart.max(1, initial=0.0)
    return cost


def _left_out(cost: Array, doubt: Array, out: int) -> Array:
    """The `out` of the entries in doubt to leave out, so that the cost of all others is least: one after another.

    >>> _left_out(np.array([[0, 1, 0, 1], [1, 0, 1, 0]]), np.array([0, 2]), 1)
    array([ True, False, False, False])
    """
    total = np.concatenate([np.zeros((out + 1, 1)), np.cumsum(cost, 1)], 1)  # of the entries before each
    best = np.full(out + 1, np.inf)
    best[0] = 0.0
    skipped = np.zeros((len(doubt), out + 1), bool)
    begin = 0
    for index, at in enumerate(map(int, doubt)):
        best = best + total[:, at] - total[:, begin]
        stays, goes = best + cost[:, at], np.concatenate([[np.inf], best[:-1]])
        skipped[index] = goes < stays
        best, begin = np.minimum(stays, goes), at + 1
    left = np.zeros(cost.shape[1], bool)
    number = out
    for index in range(len(doubt) - 1, -1, -1):
        if skipped[index, number]:
            left[doubt[index]] = True
            number -= 1
    return left
