"""Weights of a few bits in float32, where no kernel multiplies by them as they are."""

from __future__ import annotations

from collections.abc import Callable

from tvmopt.operators.packed_product import OP, packing_of, unpacked
from tvmopt.passes.graph import Call, Expr, Graph, Rewrite, Var, op_name, rewrite_pass
from tvmopt.report import DecisionLog

Reason = Callable[[Call], "str | None"]
"""Why the machine has no kernel for this product, or None if it has one."""


@rewrite_pass("tvmopt.UnpackWeights")
class UnpackWeights(Rewrite):
    """Write a product of packed weights that the machine has no kernel for as one of a float32 matrix.

        Before                                               After
        y = tvmopt.packed_product(x, codes, scales)          y = R.matmul(x, w)

    Applies when   `unsupported` gives a reason: many rows, a GPU, a machine without the instructions.
    Declines when  a family has a kernel: then the operator stays, and is lowered as one.
    Gain           none: the matrix takes 4 to 16 times as much memory. It is the form that always works.
    Order          before FoldConstant and everything that looks for products.

    Args:
        unsupported: see :data:`Reason`; default: no machine has such kernels.
    """

    def __init__(self, log: DecisionLog | None = None, unsupported: Reason | None = None) -> None:
        super().__init__(log)
        self.unsupported = unsupported or (lambda call: "no kernel")

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """The product with the matrix."""
        if op_name(value) != OP or (reason := self.unsupported(value)) is None:
            return None
        packing = packing_of(value)
        self.applied(var, f"weights of {packing.bits} bits unpacked to float32: {reason}")
        return unpacked(None, value)
