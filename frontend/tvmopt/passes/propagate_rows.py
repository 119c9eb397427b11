"""Move the reshape behind a convolution of one row below what follows it, which is then fused into the convolution."""

from __future__ import annotations

from tvm import relax

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, const, op_name, rewrite_pass, shape, with_attrs
from tvmopt.passes.propagate_transposes import ELEMENTWISE


@rewrite_pass("tvmopt.PropagateRows")
class PropagateRows(Rewrite):
    """Write the elementwise operators behind a 1-d convolution in two dimensions.

        Before                                        After
        b = R.nn.conv2d(a, W)      # [N, O, 1, L]     b = R.nn.conv2d(a, W)
        c = R.reshape(b, (N, O, L))                   d = R.add(b, bias')        # [1, O, 1, 1]
        y = R.add(c, bias)         # [1, O, 1]        y = R.reshape(d, (N, O, L))

    Applies when   the convolution has stayed in NCHW (ConvertLayout), and every other operand is a constant.
    Gain           the epilogue in the convolution's kernel: a read and a write of the result.
    Order          after ConvertLayout; PropagateTransposes does the same for those that are NHWC by then.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite an elementwise operator whose operand is such a reshape."""
        out = shape(value)
        if op_name(value) not in ELEMENTWISE or out is None or len(out) != 3:
            return None
        operands, rows = [], 0
        for operand in value.args:
            row, array = self._row(graph, operand), graph.array(operand)
            rows += row is not None
            if row is not None:
                operands.append(row)
            elif array is not None:
                full = (1,) * (3 - array.ndim) + array.shape
                operands.append(const(array.reshape(*full[:2], 1, full[2])) if array.ndim else operand)
            else:
                return None
        if not rows:
            return None
        self.applied(var, op_name(value))
        return relax.op.reshape(with_attrs(value, operands), out)

    @staticmethod
    def _row(graph: Graph, expr: Expr) -> Expr | None:
        """The picture of one row that an expression is the reshape of, if a convolution in NCHW made it."""
        reshape, dims = graph.call(expr, "reshape", "squeeze"), shape(expr)
        picture = shape(reshape.args[0]) if reshape is not None else None
        if reshape is None or dims is None or picture is None or picture != (*dims[:2], 1, *dims[2:]):
            return None
        value = graph.value(reshape.args[0])
        while op_name(value) in ELEMENTWISE:
            value = graph.value(value.args[0])
        made = op_name(value) == "nn.conv2d" and str(value.attrs.data_layout) == "NCHW"
        return reshape.args[0] if made and graph.single(expr) else None
