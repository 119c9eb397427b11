"""Weights of a few bits in float32, where no kernel multiplies by them as they are."""

from __future__ import annotations

from tvmopt.operators.packed_product import OP, packing_of, unpacked
from tvmopt.passes.graph import Expr, Graph, Var, rewrite_pass
from tvmopt.passes.without_kernel import WithoutKernel


@rewrite_pass("tvmopt.UnpackWeights")
class UnpackWeights(WithoutKernel):
    """Write a product of packed weights that the machine has no kernel for as one of a float32 matrix.

        Before                                               After
        y = tvmopt.packed_product(x, codes, scales)          y = R.matmul(x, w)

    Applies when   `unsupported` gives a reason: fewer columns than a vector has, another type than float32, a GPU.
    Declines when  a family has a kernel: then the operator stays, and is lowered as one.
    Gain           none: the matrix takes 4 to 16 times as much memory. It is the form that always works.
    Order          before FoldConstant and everything that looks for products.
    """

    operator = OP

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """The product with the matrix."""
        if (reason := self.reason(value)) is None:
            return None
        self.applied(var, f"weights of {packing_of(value).bits} bits unpacked to float32: {reason}")
        return unpacked(None, value)
