"""TVM's own max pools with minus infinity in the place of the lowest finite number - for pools that no family takes.

TOPI begins with the lowest finite number, and pads with it: a window that holds nothing but -inf gave -3.4e38.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm import relax, tirx

from tvmopt.operators.register import rewrite_stock

POOLS = ("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")


@lru_cache(maxsize=1)
def install() -> None:
    """Register the forms with TVM, once a process."""
    for name in POOLS:
        rewrite_stock(name, _infinities)


def _infinities(call: relax.Call) -> list[Any]:
    dtype = str(call.args[0].ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        return []
    lowest = tirx.min_value(dtype).value

    def infinite(number: Any) -> Any:
        same = str(number.ty.dtype) == dtype and number.value == lowest
        return tirx.const(float("-inf"), dtype) if same else number

    return [(tirx.FloatImm, infinite)]
