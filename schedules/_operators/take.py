"""Gather along an axis, safe for any index - for embeddings.

TVM's `take` in its default mode reads where the index says: a token id out of range reads foreign memory or crashes.
Here it is clipped (onnxruntime raises an error; a kernel cannot), unless the indices are constants in range.

Constant indices of a few runs, as of a picture that is padded by its mirror image, need no table: each run is copied::

    take(x, [2, 1, 0, 1, .., 9, 8, 7])[j] = x[2 - j] if j < 3, x[j - 2] if j < 12, else x[20 - j]
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import tvm
from tvm import relax, te

from tvmopt.lowering.common import constant, static_shape
from tvmopt.targets import Machine


def take(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.take` with mode "fast", clipped."""
    x, indices = call.args
    shape, axis = static_shape(x), call.attrs.axis
    if str(call.attrs.mode) != "fast":
        return None
    known = constant(bb, indices)
    if shape is not None and known is not None and known.size:
        extent = int(np.prod(shape)) if axis is None else shape[int(axis)]
        if known.min() >= 0 and known.max() < extent:
            if axis is None:
                return None
            at = int(axis) % len(shape)
            runs = runs_of(known) if known.ndim == 1 else []
            if 0 < len(runs) <= min(RUNS, known.size // 4):
                return bb.call_te(_copied, x, runs, known.size, at, primfunc_name_hint="take")
            return bb.call_te(_gather, x, indices, at, primfunc_name_hint="take")
    clipped = bb.normalize(relax.op.take(x, indices, None if axis is None else int(axis), mode="clip"))
    return tvm.ir.Op.get("relax.take").get_attr("FLegalize")(bb, clipped)


def _gather(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """The elements at indices that are known to be in range: TVM's own form prints a warning that it may crash."""
    rank = len(indices.shape)

    def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
        return x(*i[:axis], indices(*i[axis : axis + rank]), *i[axis + rank :])

    return te.compute((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), element, name="take")


RUNS = 5
"""Runs of indices at most that are copied one by one: each is a loop."""


def runs_of(indices: np.ndarray) -> list[tuple[int, int, int]]:
    """Where each run begins, its first index and its step, -1, 0 or 1.

    >>> runs_of(np.array([2, 1, 0, 1, 2, 3, 2, 5, 5]))
    [(0, 2, -1), (3, 1, 1), (6, 2, 0), (7, 5, 0)]
    """
    runs, at = [], 0
    while at < len(indices):
        step = int(indices[at + 1] - indices[at]) if at + 1 < len(indices) else 0
        step = step if abs(step) <= 1 else 0
        runs.append((at, int(indices[at]), step))
        first, at = at, at + 1
        while at < len(indices) and indices[at] == indices[first] + step * (at - first):
            at += 1
    return runs


def _copied(x: te.Tensor, runs: list[tuple[int, int, int]], count: int, axis: int) -> te.Tensor:
    """Run by run."""

    def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
        def of(run: tuple[int, int, int]) -> tvm.tirx.Expr:
            begin, first, step = run
            place = i[axis] - begin + first if step == 1 else begin + first - i[axis] if step else first
            return x(*i[:axis], place, *i[axis + 1 :])

        value = of(runs[-1])
        for run, after in reversed(list(pairwise(runs))):
            value = te.if_then_else(i[axis] < after[0], of(run), value)
        return value

    return te.compute((*x.shape[:axis], count, *x.shape[axis + 1 :]), element, name="take")


LOWERS = {"relax.take": take}
