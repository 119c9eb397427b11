"""Compute equal expressions once."""

from __future__ import annotations

from collections.abc import Hashable

from tvm import relax
from tvm_ffi import StructuralKey

from tvmopt.operators import checks
from tvmopt.passes.graph import Constant, Expr, Graph, Rewrite, Var, dtype, op_name, rewrite_pass, shape

EFFECTS = ("call_", "random", "builtin", "vm.", "memory.")  # operators not looked at
SMALL = 64  # elements up to which two constants are compared by value


@rewrite_pass("tvmopt.CancelDuplicates")
class CancelDuplicates(Rewrite):
    """Replace a call by an earlier one of the same operator, operands and attributes.

        Before                          After
        a = R.mean(x, axis=[-1])        a = R.mean(x, axis=[-1])
        b = R.mean(x, axis=[-1])        c = R.subtract(a, a)
        c = R.subtract(a, b)

    TVM's EliminateCommonSubexpr does this too, and hashes every weight on the way: 1 s for BERT-base.

    Applies when   the operators are pure, the results have one type (0 .. n - 1 has no operand but its size), and the
                   operands are the same variables, or constants that are the same object or up to 64 equal numbers.
                   Two checks of one value are equal where they allow the same.
    Declines when  1. it is a call of a function other than a PrimFunc by R.call_tir, or of an operator with effects
                      (nothing is recorded).
    Gain           the whole expression.
    Order          before the fusions, which compare operands by identity; after FuseAttention, which writes a
                   mask a layer; after legalization, which turns that mask a layer.
    """

    rounds = 1  # in order, so that trees of equal expressions meet in one sweep

    def begin(self, graph: Graph) -> None:
        """Forget the last sweep's expressions."""
        self.seen: dict[Hashable, Var] = {}

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """The variable that already holds this value."""
        if not isinstance(var, relax.DataflowVar):
            return None
        if isinstance(value, relax.TupleGetItem):
            key: Hashable = ("item", value.tuple_value, int(value.index))
        elif op_name(value) == "call_tir" or (op_name(value) and not op_name(value).startswith(EFFECTS)):
            key = call_key(graph, value)
        else:
            return None
        if key not in self.seen:
            self.seen[key] = var
            return None
        self.applied(var)
        return self.seen[key]


def call_key(graph: Graph, call: Expr) -> Hashable:
    """What decides the result of a pure call; its type names open sizes."""
    operands = (_operand(graph, a) for a in call.args)
    return (op_name(call), _attributes(call), StructuralKey(call.ty), *operands)


def _operand(graph: Graph, arg: Expr) -> Hashable:
    if isinstance(arg, relax.Tuple):
        return tuple(_operand(graph, f) for f in arg.fields)
    value = graph.value(arg)
    if isinstance(value, Constant):
        dims = shape(value)
        data = graph.array(value) if dims is not None and _size(dims) <= SMALL else None
        return value if data is None else (dtype(value), dims, data.tobytes())
    return arg if isinstance(arg, relax.Var) else str(arg)


def _attributes(call: Expr) -> Hashable:
    """What an operator does besides its operands; where a check is from is no part of it: the first one speaks."""
    if op_name(call) != checks.OP:
        return str(call.attrs)
    check = checks.check_of(call)
    return check.lowest, check.highest, check.wrap


def _size(dims: tuple[int, ...]) -> int:
    size = 1
    for n in dims:
        size *= n
    return size
