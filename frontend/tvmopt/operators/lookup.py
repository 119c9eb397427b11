"""A function of a byte, given by its 256 values, as one Relax operator.

    out = tvmopt.lookup(x, table)        out[i] = table[x[i]]

    x       uint8
    table   256 constants of 8 bits: the values for 0 to 255

Its loops load from the table like from any tensor, and schedules see an elementwise operator; `tvmopt.lowering.lookups`
makes permutations of registers of the loads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tvm
from tvm import relax, te

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.lookup"
ENTRIES = 256


def lookup(x: Any, table: Any) -> Any:
    """The call; its shape is that of x."""
    _register()
    return relax.Call(tvm.ir.Op.get(OP), [x, table])


def _type(call: Any, _bb: Any) -> Any:
    return relax.TensorType(call.args[0].ty.shape, call.args[1].ty.dtype)


def _loops(bb: relax.BlockBuilder, call: Any) -> Any:
    def compute(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *place: table(x(*place).astype("int32")), name="lookup")

    return bb.call_te(compute, *call.args, primfunc_name_hint="lookup")


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
    legalize_by(OP, _loops)
