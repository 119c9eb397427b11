"""Add up an image of open size row by row: fewer roundings than number by number."""

from __future__ import annotations

from tvm import relax, tirx

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, ints, is_float, name_of, op_name, rewrite_pass


@rewrite_pass("tvmopt.SplitOpenSums")
class SplitOpenSums(Rewrite):
    """Take a sum or mean over several open axes in two steps.

        Before                                        After
        y = R.mean(x, axis=[1, 2])  # [n, h, w, c]    r = R.mean(x, axis=[2], keepdims=True)
                                                      y = R.mean(r, axis=[1, 2])

    Applies when   two or more of the axes are longer than one, one of them is open, and the numbers are floats.
    Gain           a rounding for each row and for each number of a row, in place of one for each number: 224 x 224
                   equal numbers were 2e-4 off, and are 1e-6. A kernel of static size adds in the lanes of vectors.
    Order          after PropagateTransposes: the last axis is the one whose rows lie together; after FuseGlobalPool,
                   which does the opposite for static sizes.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a reduction."""
        name = op_name(value)
        if name not in ("sum", "mean") or not is_float(value):
            return None
        ty = value.args[0].ty
        if not isinstance(ty.shape, relax.ShapeExpr):
            return None
        dims = list(ty.shape.values)
        axes = range(len(dims)) if value.attrs.axis is None else ints(value.attrs.axis)
        reduced = sorted(a % len(dims) for a in axes)
        open_axes = [a for a in reduced if not isinstance(dims[a], tirx.IntImm)]
        long = [a for a in reduced if a in open_axes or int(dims[a]) != 1]
        if len(long) < 2 or not open_axes:
            return None
        self.applied(var, f"{name} over {long}")
        reduce = getattr(relax.op, name)
        rows = graph.emit(reduce(value.args[0], long[-1], keepdims=True), name_of(var))
        return reduce(rows, reduced, keepdims=bool(value.attrs.keepdims))
