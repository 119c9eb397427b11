"""Reduce in two steps where one has no good loops, or rounds more often."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, dtype, ints, is_float, name_of, op_name, rewrite_pass
from tvmopt.report import DecisionLog

REDUCTIONS = ("sum", "mean", "max", "min")


@rewrite_pass("tvmopt.SplitReductions")
class SplitReductions(Rewrite):
    """Take a reduction over several axes in two steps, the last of the axes first.

        Before                                        After
        y = R.mean(x, axis=[1, 2])  # [n, h, w, c]    r = R.mean(x, axis=[2], keepdims=True)
                                                      y = R.mean(r, axis=[1, 2])
        y = R.mean(x, axis=[0, 2])  # [40, 50, 60]    r = R.mean(x, axis=[2], keepdims=True)
                                                      y = R.mean(r, axis=[0, 2])

    Applies when   two or more of the axes are longer than one, and
                   1. it is a sum or mean of floats over an axis of open size, and its axes are not the last ones of a
                      float32 tensor where kernels add these in the lanes of vectors (`lanes`), or
                   2. the sizes are known, x's last axis is one of them, and one that stays lies between: a sum or mean
                      of float32, or a maximum or minimum.
    Gain           1. a rounding for each row and for each number of a row, in place of one for each number: 224 x 224
                   equal numbers were 2e-4 off, and are 1e-6. A kernel of static size adds in the lanes of vectors.
                   2. each step has a family: the rows, then what has a contiguous axis that stays.
    Order          after PropagateTransposes: the last axis is the one whose rows lie together; after FuseGlobalPool,
                   which does the opposite for neighbouring axes of static sizes.
    """

    def __init__(self, log: DecisionLog | None = None, lanes: bool = False) -> None:
        super().__init__(log)
        self.lanes = lanes

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a reduction."""
        name = op_name(value)
        if name not in REDUCTIONS or not isinstance(value.args[0].ty.shape, relax.ShapeExpr):
            return None
        dims = list(value.args[0].ty.shape.values)
        axes = range(len(dims)) if value.attrs.axis is None else ints(value.attrs.axis)
        reduced = sorted(a % len(dims) for a in axes)
        long = [a for a in range(len(dims)) if not isinstance(dims[a], tirx.IntImm) or int(dims[a]) != 1]
        in_lanes = self.lanes and dtype(value) == "float32" and _are_rows(reduced, long, len(dims))
        rows = [] if in_lanes else _open_rows(name, value, dims, reduced, long)
        rows = rows or _apart(name, value, dims, reduced, long)
        if not rows:
            return None
        self.applied(var, f"{name} over {[a for a in reduced if a in long]}")
        reduce = getattr(relax.op, name)
        first = graph.emit(reduce(value.args[0], rows, keepdims=True), name_of(var))
        return reduce(first, reduced, keepdims=bool(value.attrs.keepdims))


def _are_rows(reduced: list[int], long: list[int], rank: int) -> bool:
    """Whether the axes are the last ones, with rows before them: all of a tensor is one row of too many numbers."""
    first = rank - len(reduced)
    return reduced == list(range(first, rank)) and any(a < first for a in long)


def _open_rows(name: str, value: Expr, dims: list[Any], reduced: list[int], long: list[int]) -> list[int]:
    """The last axis of a sum over several, one of which is open; empty for others."""
    mine = [a for a in reduced if a in long]
    is_open = any(not isinstance(dims[a], tirx.IntImm) for a in reduced)
    return mine[-1:] if name in ("sum", "mean") and is_float(value) and is_open and len(mine) > 1 else []


def _apart(name: str, value: Expr, dims: list[Any], reduced: list[int], long: list[int]) -> list[int]:
    """The axes at the end, where an axis that stays lies between them and another one; empty where none does."""
    if not all(isinstance(d, tirx.IntImm) for d in dims) or (name in ("sum", "mean") and dtype(value) != "float32"):
        return []
    end: list[int] = []
    for axis in reversed(long):
        if axis not in reduced:
            break
        end.insert(0, axis)
    return end if end and any(a in long and a not in end for a in reduced) else []
