"""A sum of quantised tensors, each with a scale of its own, as one Relax operator - for residuals.

    out = tvmopt.scaled_sum(y, x1, m1, x2, m2, ...)        out = y + float32(x1) * m1 + float32(x2) * m2 + ...

    y       float32 that broadcasts to the result
    x1..    integers of the result's shape, as they lie in memory
    m1..    float32 constants that broadcast against them, with as many axes

As one operator it keeps the tensors between kernels in eight bits: of operators of their own, TVM's FuseOps would join
the multiplication with the kernel that made x1, which then wrote four bytes a number instead of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax, te

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.scaled_sum"


def scaled_sum(y: Any, terms: Sequence[tuple[Any, Any]]) -> Any:
    """The call; its shape is that of the first term's tensor."""
    _register()
    return relax.Call(tvm.ir.Op.get(OP), [y, *(part for term in terms for part in term)])


def _type(call: Any, _bb: Any) -> Any:
    return relax.TensorType(call.args[1].ty.shape, "float32")


def _loops(bb: relax.BlockBuilder, call: Any) -> Any:
    def compute(y: te.Tensor, *terms: te.Tensor) -> te.Tensor:
        def at(tensor: te.Tensor, place: Sequence[Any]) -> Any:
            place = place[len(place) - len(tensor.shape) :]
            return tensor(*(0 if int(d) == 1 else i for d, i in zip(tensor.shape, place, strict=True)))

        def value(*place: Any) -> Any:
            total = at(y, place)
            for x, m in zip(terms[::2], terms[1::2], strict=True):
                total = x(*place).astype("float32") * at(m, place) + total
            return total

        return te.compute(terms[0].shape, value, name="scaled_sum")

    return bb.call_te(compute, *call.args, primfunc_name_hint="scaled_sum")


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
    legalize_by(OP, _loops)
