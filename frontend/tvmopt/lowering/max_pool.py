"""TVM's own max pools with minus infinity in the place of the lowest finite number - for pools that no family takes.

TOPI begins with the lowest finite number, and pads with it: a window that holds nothing but -inf gave -3.4e38.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_map

from tvmopt.operators.register import legalize_by

POOLS = ("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")


@lru_cache(maxsize=1)
def install() -> None:
    """Register the forms with TVM, once a process."""
    for name in POOLS:
        legalize_by(name, partial(_pooled, tvm.ir.Op.get(name).get_attr("FLegalize")), instead=True)


def _pooled(stock: Any, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    made = stock(bb, call)
    dtype = str(call.args[0].ty.dtype)
    if not dtype.startswith(("float", "bfloat")) or not isinstance(made, relax.Call) or made.same_as(call):
        return made
    lowest = tirx.min_value(dtype).value

    def infinite(number: Any) -> Any:
        same = str(number.ty.dtype) == dtype and number.value == lowest
        return tirx.const(float("-inf"), dtype) if same else number

    gvar = made.args[0]
    func = bb.get()[gvar]
    bb.update_func(gvar, func.with_body(structural_map(func.body, ((tirx.FloatImm, infinite),))))
    return made
