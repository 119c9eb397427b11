"""Gather along an axis, safe for any index - for embeddings.

TVM's `take` in its default mode reads where the index says: a token id out of range reads foreign memory or crashes.
Here it is clipped (onnxruntime raises an error; a kernel cannot), unless the indices are constants in range.
"""

from __future__ import annotations

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
            at = None if axis is None else int(axis) % len(shape)
            return None if at is None else bb.call_te(_gather, x, indices, at, primfunc_name_hint="take")
    clipped = bb.normalize(relax.op.take(x, indices, None if axis is None else int(axis), mode="clip"))
    return tvm.ir.Op.get("relax.take").get_attr("FLegalize")(bb, clipped)


def _gather(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """The elements at indices that are known to be in range: TVM's own form prints a warning that it may crash."""
    rank = len(indices.shape)

    def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
        return x(*i[:axis], indices(*i[axis : axis + rank]), *i[axis + rank :])

    return te.compute((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), element, name="take")


LOWERS = {"relax.take": take}
