"""From Relax operators to loops for GPUs: products in the form that tensor cores want; what none takes is TVM's own.

A legalizer is `fn(bb, call, machine) -> Expr | None`, as in `tvmopt.legalize`. The groups stand in one tuple.
"""

from __future__ import annotations

from typing import Any

from tvmopt.legalize import elementwise, extremes, take
from tvmopt.legalize.cuda import attention, conv, depthwise, matmul, norm

# an operator that two groups know: the first that does not return None
GROUPS: tuple[Any, ...] = (matmul, depthwise, conv, attention, norm, take, extremes, elementwise)
