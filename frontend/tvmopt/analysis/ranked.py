"""Outputs whose rows are in the order of a score - a detector's boxes, labels and scores - for the judge.

Where two scores are so near that rounding decides which is larger, engines have two rows in another order, and a row
that was only just kept, or only just suppressed, may be there or not:

    oracle      scores  0.91  0.80  0.7999999  0.10     labels  3  5  1  2
    artifact    scores  0.91  0.80  0.7999999  0.10     labels  3  1  5  2

So each row is compared with the row of the oracle that it is, or with one that a run which only rounds has. Rows must
be in falling order of their own scores; and no more of them may be nobody's, or missing, than such a run, or
onnxruntime, loses of the oracle's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.oracle.evaluate import reads

RANKS = {"TopK", "NonMaxSuppression"}
"""Operators whose results are in the order of scores."""
CLOSE = 1e-2
"""How far, in units of the largest number of an output, two rows may be apart that are the same one; how far they
really are is judged afterwards."""
MOST = 2000
"""Rows that are compared with each other at most: a detector has some hundreds, and a sorted tensor's elements, which
:mod:`tvmopt.analysis.ties` judges, may be millions."""
SLACK = 1e-5
"""By how much, in units of the largest, a score may be larger than the one before: it may have been rounded again."""

Judged = Callable[[str, Array, Array, Sequence[Array], Array | None], OutputComparison]
"""One output: the oracle's, the artifact's, those of runs that round, onnxruntime's."""


@dataclass(frozen=True)
class Ranked:
    """Outputs whose rows belong together.

    Attributes:
        outputs: their names, all behind the same operators that rank.
    """

    outputs: tuple[str, ...]

    def judged(
        self, exact: Mapping[str, Array], found: Mapping[str, Array], naturals: Sequence[Mapping[str, Array]],
        peer: Mapping[str, Array] | None, judge: Judged,
    ) -> dict[str, OutputComparison]:  # fmt: skip
        """Each output, compared row by row; nothing where the outputs have no rows in the order of a score.

        Args:
            naturals: outputs of runs that only round. peer: onnxruntime's. judge: compares one output.
        """
        truth, mine = self._rows(exact), self._rows(found)
        if truth is None or mine is None or not self._in_order(truth, mine):
            return {}
        runs = [rows for one in (*naturals, *([peer] if peer else ())) if (rows := self._rows(one)) is not None]
        known = [pairs(truth, rows) for rows in runs]
        every = truth
        for rows, partner in zip(runs, known, strict=True):
            every = [np.concatenate([e, r[partner < 0]]) for e, r in zip(every, rows, strict=True)]
        chosen, length = pairs(every, mine), len(truth[0])
        lost = max((_lost(partner, length) for partner in known), default=0)
        if _lost(np.where(chosen < length, chosen, -1), length, (chosen < 0).sum()) > lost:
            return {n: OutputComparison(n, "has rows that are none of the reference's") for n in self.outputs}
        if 2 * (chosen < 0).sum() > len(chosen):  # these inputs decide next to nothing: the figures tell it
            return {n: self._told(n, exact, found, peer, judge) for n in self.outputs}
        wanted = [np.where((chosen >= 0)[:, None], e[chosen], f) for e, f in zip(every, mine, strict=True)]
        alike = [_instead(wanted, chosen, rows, partner) for rows, partner in zip(runs, known, strict=True)]
        results = {}
        for i, name in enumerate(self.outputs):
            reference, *others = (x[i].reshape(found[name].shape) for x in (wanted, *alike))
            results[name] = judge(name, reference, np.asarray(found[name]), others, others[-1] if peer else None)
        return results

    def _told(
        self, name: str, exact: Mapping[str, Array], found: Mapping[str, Array], peer: Mapping[str, Array] | None,
        judge: Judged,
    ) -> OutputComparison:  # fmt: skip
        """How far an output is from the oracle's, row by row as they stand; it is accepted."""
        if exact[name].shape != found[name].shape:
            return OutputComparison(name)
        one = judge(name, exact[name], np.asarray(found[name]), [], None if peer is None else peer.get(name))
        return replace(one, problem="", tolerance=max(one.tolerance, one.needed))

    def reordered(self, found: Mapping[str, Array], peer: Mapping[str, Array]) -> dict[str, Array]:
        """onnxruntime's outputs in our order, where both have the same rows; nothing where they have not."""
        mine, theirs = self._rows(found), self._rows(peer)
        if mine is None or theirs is None or len(mine[0]) != len(theirs[0]) or not self._in_order(theirs, mine):
            return {}
        chosen = pairs(theirs, mine)
        if (chosen < 0).any():
            return {}
        return {n: rows[chosen].reshape(peer[n].shape) for n, rows in zip(self.outputs, theirs, strict=True)}

    def _rows(self, outputs: Mapping[str, Array]) -> list[Array] | None:
        """Of each output a matrix, a row an element; None where they have not as many, or too many."""
        if any(n not in outputs for n in self.outputs):
            return None
        arrays = [np.asarray(outputs[n]) for n in self.outputs]
        while all(a.ndim > 1 and a.shape[0] == 1 for a in arrays):  # the batch
            arrays = [a[0] for a in arrays]
        if any(not a.ndim or a.dtype.kind not in "fiub" for a in arrays) or len({len(a) for a in arrays}) > 1:
            return None
        if len(arrays[0]) > MOST:
            return None
        return [a.reshape(len(a), int(np.prod(a.shape[1:]))) for a in arrays]

    def _in_order(self, truth: Sequence[Array], mine: Sequence[Array]) -> bool:
        """Whether one of the outputs is the score: the oracle's falls, and so does the artifact's."""
        for exact, found in zip(truth, mine, strict=True):
            if exact.dtype.kind == "f" and exact.shape[1] == 1 and (np.diff(exact[:, 0]) <= 0).all():
                step = np.diff(found[:, 0].astype(np.float64))
                return bool((step <= SLACK * float(np.abs(exact).max(initial=0.0))).all())
        return False


def ranked(model: Any, names: Collection[str]) -> list[Ranked]:
    """Outputs that are behind the same operators that rank.

    Args:
        names: of the model's outputs, or what else is judged.
    """
    behind: dict[str, frozenset[str]] = {}
    for node in model.graph.node:
        before = frozenset[str]().union(*(behind.get(n, frozenset()) for n in reads(node)))
        if node.op_type in RANKS and node.domain in ("", "ai.onnx"):
            before |= {node.output[0]}
        if before:
            behind.update((o, before) for o in node.output if o)
    groups: dict[frozenset[str], list[str]] = {}
    for name in names:
        if name in behind:
            groups.setdefault(behind[name], []).append(name)
    return [Ranked(tuple(group)) for group in groups.values()]


def pairs(every: Sequence[Array], rows: Sequence[Array]) -> Array:
    """Which of `every` each row is, -1 for none: each once, the nearest pairs first; integers must be equal.

    >>> pairs([np.array([[3.0], [2.0], [1.0]])], [np.array([[2.001], [3.0], [9.0]])])
    array([ 1,  0, -1])
    """
    apart = np.zeros((len(rows[0]), len(every[0])))
    for exact, found in zip(every, rows, strict=True):
        real = exact.dtype.kind == "f"
        scale = float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0)) or 1.0 if real else 1.0
        for i, row in enumerate(found):
            with np.errstate(all="ignore"):
                same = (exact == row) | ((exact != exact) & (row != row))
                error = np.abs(exact.astype(np.float64) - row.astype(np.float64)) / scale if real else np.inf
                error = np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
            apart[i] = np.maximum(apart[i], error.max(1, initial=0.0))
    partner, free = np.full(len(rows[0]), -1), np.ones(len(every[0]), bool)
    near = np.argwhere(apart <= CLOSE)
    for i, j in near[np.argsort(apart[apart <= CLOSE], kind="stable")]:
        if partner[i] < 0 and free[j]:
            partner[i], free[j] = j, False
    return partner


def _lost(partner: Array, length: int, unknown: int | None = None) -> int:
    """How many rows of a run are none of the oracle's `length`, or how many of those it has not: the larger number.

    Args:
        partner: which row of the oracle each is. unknown: how many count as none, where not all that are none do.
    """
    none = int((partner < 0).sum()) if unknown is None else int(unknown)
    return max(none, length - int((partner >= 0).sum()))


def _instead(wanted: Sequence[Array], chosen: Array, rows: Sequence[Array], partner: Array) -> list[Array]:
    """Another run's rows in place of those of `wanted` that it has, too.

    Args:
        chosen: which rows of the oracle `wanted` are. partner: which `rows` are.
    """
    at = {int(p): i for i, p in enumerate(partner) if p >= 0}
    result = [w.copy() for w in wanted]
    for place, index in enumerate(map(int, chosen)):
        if index in at:
            for mine, theirs in zip(result, rows, strict=True):
                mine[place] = theirs[at[index]]
    return result
