"""What both products by packed weights take: which calls they can be, and their operands in the form of a kernel's."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax, tirx

from tvmopt.lowering.common import constant, flat, sizes
from tvmopt.lowering.loops import INDEX
from tvmopt.operators.packed_product import Packing, packing_of
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def declines(call: relax.Call, machine: Machine) -> str | None:
    """Why this machine has no kernel for a call of a product by packed weights; None if it has one."""
    shape, packing = sizes(call.args[0]), packing_of(call)
    if str(call.args[0].ty.dtype) != "float32":
        return f"{call.args[0].ty.dtype} operands"
    if shape is None or not isinstance(shape[-1], int):
        return "an open shape"
    if 0 in shape:
        return "no rows"
    if packing.n < machine.lanes("float32"):
        return f"{packing.n} columns, less than a vector"
    return None


@dataclass(frozen=True)
class Operands:
    """Those of one call.

    Attributes:
        x: `count` rows of whole groups, zeros behind the numbers that there are.
        outer: the axes of the result in front of its columns, which `count` is the product of.
        codes, scales, zeros: NumPy arrays; zeros are None where the middle of the codes is zero.
    """

    packing: Packing
    x: relax.Expr
    outer: tuple[Any, ...]
    count: Any
    codes: Any
    scales: Any
    zeros: Any

    @property
    def rows(self) -> Any:
        """How many a kernel has; its own name for an open number of them."""
        return self.count if isinstance(self.count, int) else tirx.Var("rows", INDEX)


def operands_of(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Operands | Declined:
    """The operands of a call, `x` emitted as rows; or why there is no kernel."""
    if (reason := declines(call, machine)) is not None:
        return Declined(reason)
    x, *weights = call.args
    codes, scales, *zeros = (constant(bb, w) for w in weights)
    if codes is None or scales is None or any(z is None for z in zeros):
        return Declined("a weight that is no constant")
    packing, outer = packing_of(call), (sizes(x) or ())[:-1]
    count = prod(outer)
    x = flat(bb, x, (count, packing.k))
    if more := packing.groups * packing.group - packing.k:
        x = bb.emit(relax.op.nn.pad(x, [0, 0, 0, more]))
    return Operands(packing, x, outer, count, codes, scales, zeros[0] if zeros else None)
