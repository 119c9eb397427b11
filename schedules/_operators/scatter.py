"""ScatterND over sizes that are expressions.

TVM's form compares the sizes of data and updates by identity, so that `2*n - 1` is not `2*n - 1`. Here the updates are
given the sizes of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx, topi

from tvmopt.targets import Machine


def scatter_nd(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`R.scatter_nd`, on CPUs."""
    if machine.kind != "llvm":
        return None
    reduction = str(call.attrs.reduction)

    def compute(data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> te.Tensor:
        last = len(indices.shape) - 1
        at = topi.transpose(indices, [last, *range(last)])
        shape = [*at.shape[1:], *data.shape[int(at.shape[0]) :]]
        if not _same(shape, updates.shape):
            given = updates
            updates = te.compute(shape, lambda *i: given(*i), name="updates")
        return topi.scatter_nd(data, at, updates, reduction)

    return bb.call_te(compute, *call.args, primfunc_name_hint="scatter_nd")


def _same(wanted: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether TVM sees that these are the same sizes."""
    pairs = zip(wanted, given, strict=True)
    return all(isinstance(a, tirx.IntImm) or a.same_as(b) for a, b in pairs)


LOWERS = {"relax.scatter_nd": scatter_nd}
