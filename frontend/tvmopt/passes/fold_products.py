"""Factor sums of products: x1 * b + x2 * b, and x * b1 + x * b2."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.passes.affine import moderate
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, const, is_float, op_name, rewrite_pass, shape


@rewrite_pass("tvmopt.FoldProducts")
class FoldProducts(Rewrite):
    """Use the distributive law where it saves a multiplication.

        Before                                            After
        R.add(R.multiply(x, b1), R.multiply(x, b2))       R.multiply(x, b1 + b2)       # b1, b2 constants
        R.add(R.multiply(x, b), R.multiply(y, b))         R.multiply(R.add(x, y), b)   # b a constant
        R.add(x, x)                                       R.multiply(x, 2)

    Also with subtract. The first adds the constants in float64.

    Applies when   both products have no other user.
    Declines when  1. a product has other users: it is computed anyway
                   2. the constants are so large that a product or their sum may leave the type.
    Gain           one multiplication an element, and one operand.
    Order          after EliminateIdentities; before FoldScaleShift, which finds the multiply that is left.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a sum of two products."""
        name = op_name(value)
        if name not in ("add", "subtract") or not is_float(value):
            return None
        left, right = value.args
        if left.same_as(right) and name == "add":
            self.applied(var, "x + x")
            return relax.op.multiply(left, const(np.float64(2), like=value))
        for x, a in graph.binary(left, "multiply"):
            for y, b in graph.binary(right, "multiply"):
                new = self._factor(graph, name, value, (x, a), (y, b))
                if new is None:
                    continue
                if not graph.single(left, right):
                    self.declined(var, "1: a product has other users")
                    return None
                self.applied(var, "a common factor")
                return new
        return None

    @staticmethod
    def _factor(
        graph: Graph, name: str, value: Expr, first: tuple[Expr, Expr], second: tuple[Expr, Expr]
    ) -> Expr | None:
        (x, a), (y, b) = first, second
        one, two = graph.array(a), graph.array(b)
        if one is None or two is None or graph.is_const(x) or graph.is_const(y):
            return None
        if x.same_as(y):
            wide = one.astype(np.float64) + (1 if name == "add" else -1) * two.astype(np.float64)
            small = np.size(wide) <= max(one.size, two.size) and all(map(moderate, (wide, one, two)))
            return relax.op.multiply(x, const(wide, like=value)) if small else None
        if shape(x) == shape(y) == shape(value) and one.shape == two.shape and (one == two).all() and moderate(one):
            combine = relax.op.add if name == "add" else relax.op.subtract
            return relax.op.multiply(combine(x, y), a)
        return None
