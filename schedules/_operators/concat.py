"""Concatenations of very many tensors, in groups - for loops that are unrolled and files that split and join.

TVM selects an element's operand by as many nested conditions as there are operands: the recursion of TVM and of Python
ends at some hundreds. Groups of the square root of that number nest twice as deep as one of them.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any

import tvm
from tvm import relax

from tvmopt.targets import Machine

MOST = 64
"""Operands of one concatenation."""


def concat(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.concat` of more than :data:`MOST` tensors."""
    tensors = call.args[0]
    if not isinstance(tensors, relax.Tuple) or len(tensors.fields) <= MOST:
        return None
    parts, axis = list(tensors.fields), call.attrs.axis
    size = min(MOST, ceil(sqrt(len(parts))))
    while len(parts) > MOST:
        parts = [_joined(bb, parts[i : i + size], axis) for i in range(0, len(parts), size)]
    return _legal(bb, relax.op.concat(parts, axis))


def _joined(bb: relax.BlockBuilder, parts: list[Any], axis: Any) -> Any:
    return parts[0] if len(parts) == 1 else bb.emit(_legal(bb, relax.op.concat(parts, axis)))


def _legal(bb: relax.BlockBuilder, call: relax.Call) -> Any:
    """TVM's own form."""
    return tvm.ir.Op.get("relax.concat").get_attr("FLegalize")(bb, bb.normalize(call))


LOWERS = {"relax.concat": concat}
