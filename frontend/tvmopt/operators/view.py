"""A tensor with another shape, which takes no kernel - for reshapes between open sizes, while kernels are fused.

    y = tvmopt.view(x, shape)       y's numbers are x's, in their order

A `R.reshape` that is lowered is a kernel, of which TVM must find out again that it moves nothing. It does not where
sizes are sums of products, `h*w + (h//2)*(w//2)`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tvm
from tvm import relax

from tvmopt.operators.register import register

OP = "tvmopt.view"


def view(x: Any, shape: Any) -> Any:
    """The call; `shape`: a ShapeExpr."""
    _register()
    return relax.Call(tvm.ir.Op.get(OP), [x, shape])


def _type(call: Any, _bb: Any) -> Any:
    return relax.TensorType(call.args[1], call.args[0].ty.dtype)


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
