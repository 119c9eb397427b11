"""Move the reshapes that only regroup leading axes down the graph, until they cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from tvmopt.lowering.common import same_size, same_sizes, sizes
from tvmopt.operators.lookup import OP as LOOKUP
from tvmopt.passes.graph import (
    Expr,
    Graph,
    Rewrite,
    Var,
    ints,
    op_name,
    rank,
    rewrite_pass,
    shape,
    with_attrs,
)
from tvmopt.passes.propagate_transposes import ELEMENTWISE
from tvmopt.passes.quantized import params
from tvmopt.report import DecisionLog

NORMS = ("nn.layer_norm", "nn.rms_norm")


@rewrite_pass("tvmopt.PropagateReshapes")
class PropagateReshapes(Rewrite):
    """Move a reshape [B, S, K] to [B * S, K] below GEMMs, elementwise operators and normalisations.

        Before                                        After
        a = R.reshape(x, (16, 768))                   m = R.add(R.matmul(x, W), bias)
        m = R.add(R.matmul(a, W), bias)               y = R.nn.gelu(m)
        y = R.nn.gelu(R.reshape(m, (1, 16, 3072)))

    torch's addmm flattens before each GEMM and restores afterwards; a reshape between a GEMM and its
    activation keeps the two apart. Where the chain above starts from a reshape that regroups the last axis
    too (the heads of attention), the one below moves up to it instead.

    A convolution along one axis, which ConvertConv1d writes as one of pictures a pixel high, is followed by a reshape
    that only removes an axis of 1: it moves below bias, activation and quantization, to the next such layer.

    Applies when   the reshape keeps the last axis, and every other operand is constant along the regrouped axes; or it
                   only adds or removes axes of 1, which operands that are broadcast get or lose as well.
    Declines when  1. another operand varies along the regrouped axes (nothing is recorded: the reshape is a view).
    Gain           fusion of epilogues: a read and a write of the GEMM's result.
    Order          before CancelReshapes, which removes the pairs that meet; once more, for axes of 1 alone, after
                   ConvertConv1d and before ConvertLayout, which takes pictures with their epilogue.
    """

    def __init__(self, log: DecisionLog | None = None, ones: bool = False) -> None:
        super().__init__(log)
        self.ones = ones

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite an operator whose first tensor operand is such a reshape."""
        name, out = op_name(value), shape(value)
        if self.ones:
            return self._ones(graph, var, value) if sizes(value) else None
        if name == "reshape":
            return self._raise(graph, var, value)
        if out is None or not out or (name not in ("matmul", *NORMS) and not _pointwise(graph, value)):
            return None
        if name == "matmul" or name in NORMS:
            z = self._source(graph, value.args[0])
            if z is None or rank(value.args[1]) != (2 if name == "matmul" else 1):
                return None
            if name in NORMS and [a % len(out) for a in ints(value.attrs.axes)] != [len(out) - 1]:
                return None
            changes = {"axes": [-1]} if name in NORMS else {}
            new = with_attrs(value, [z, *value.args[1:]], **changes)
        else:
            found = self._operands(graph, value, out)
            if found is None:
                return None
            new = _on(value, found)
        self.applied(var, name)
        return relax.op.reshape(new, out)

    def _ones(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Move a reshape that only adds or removes axes of 1 below an operator of single elements; cancel a pair."""
        out = sizes(value) or ()
        inner = graph.call(value.args[0], "reshape") if op_name(value) == "reshape" else None
        if inner is not None and _same(sizes(inner.args[0]), out) and _same(_long(sizes(inner)), _long(out)):
            self.applied(var, "identity")
            return inner.args[0]
        if not _pointwise(graph, value):
            return None
        calls = [graph.call(a, "reshape") if _same(sizes(a), out) else None for a in value.args]
        sources = [c.args[0] if c is not None and _same(_long(sizes(c.args[0])), _long(out)) else None for c in calls]
        base = next((sizes(s) for s in sources if s is not None), None)
        if base is None:
            return None
        new = []
        for number, (arg, source) in enumerate(zip(value.args, sources, strict=True)):
            dims = sizes(arg)
            if source is not None and _same(sizes(source), base):
                new.append(source)
            elif dims is None or not dims or (number and op_name(value) == LOOKUP):  # a table has no axes of the result
                new.append(arg)
            elif not _same(dims, out) or graph.is_const(arg):
                new.append(relax.op.reshape(arg, _against(dims, out, base)))
            else:
                return None
        self.applied(var, op_name(value))
        return relax.op.reshape(_on(value, new), out)

    def _raise(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Move a reshape that keeps the last axis up to the reshape that the chain above it starts from."""
        x, out, have = value.args[0], shape(value), shape(value.args[0])
        if not out or not have or out[-1] != have[-1] or graph.op(x) == "reshape":
            return None
        new = self._above(graph, x, out[:-1])
        if new is not None:
            self.applied(var, "moved up")
        return new

    def _above(self, graph: Graph, expr: Expr, lead: tuple[int, ...]) -> Expr | None:
        """The expression with its leading axes regrouped, if a reshape is all that this takes."""
        value, dims = graph.value(expr), shape(expr)
        name = op_name(value)
        if not dims or not graph.single(expr):
            return None
        if name == "reshape":
            return relax.op.reshape(value.args[0], (*lead, dims[-1]))
        if name == "matmul":
            inner = self._above(graph, value.args[0], lead) if rank(value.args[1]) == 2 else None
            return None if inner is None else with_attrs(value, [inner, value.args[1]])
        if not _pointwise(graph, value):
            return None
        args, moved = [], 0
        for arg in value.args:
            full = shape(arg) == dims
            if not full and (rank(arg) > 1 or not (rank(arg) <= 0 or graph.is_const(arg))):
                return None
            new = self._above(graph, arg, lead) if full else arg
            if new is None:
                return None
            moved += full
            args.append(new)
        return _on(value, args) if moved == 1 else None

    @staticmethod
    def _source(graph: Graph, expr: Expr) -> Expr | None:
        """What a reshape that keeps the last axis was made from."""
        call = graph.call(expr, "reshape")
        dims, have = shape(expr), shape(call.args[0]) if call is not None else None
        if call is None or not dims or not have or len(dims) < 2 or len(have) < 2 or dims[-1] != have[-1]:
            return None
        return call.args[0]

    def _operands(self, graph: Graph, value: Expr, out: tuple[int, ...]) -> list[Expr] | None:
        sources = [self._source(graph, a) if shape(a) == out else None for a in value.args]
        base = next((s for s in sources if s is not None), None)
        if base is None:
            return None
        new = []
        for arg, z in zip(value.args, sources, strict=True):
            dims = shape(arg)
            if z is not None and shape(z) == shape(base):
                new.append(z)
            elif dims is None or len(dims) <= 1 or all(n == 1 for n in dims):
                new.append(arg if dims is None or len(dims) <= 1 else relax.op.reshape(arg, ()))
            elif all(n == 1 for n in dims[:-1]):
                new.append(relax.op.reshape(arg, dims[-1:]))
            else:
                return None
        return new


def _same(a: Sequence[Any] | None, b: Sequence[Any] | None) -> bool:
    """Whether two shapes are known and the same, open sizes included."""
    return a is not None and b is not None and same_sizes(a, b)


def _long(dims: Sequence[Any] | None) -> list[Any]:
    return [n for n in dims or () if not same_size(n, 1)]


def _against(dims: tuple[Any, ...], out: tuple[Any, ...], base: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape against `base` of what has `dims` against `out`, which differs from it by axes of 1.

    >>> _against((12, 1), (2, 12, 37), (2, 12, 1, 37)), _against((1, 12, 1, 1), (1, 12, 1, 9), (1, 12, 9))
    ((1, 12, 1, 1), (1, 12, 1))
    """
    full = (1,) * (len(out) - len(dims)) + dims
    left = iter([own for own, n in zip(full, out, strict=True) if not same_size(n, 1)])
    return tuple(1 if same_size(n, 1) else next(left) for n in base)


def _on(value: Expr, args: list[Expr]) -> Expr:
    """A pointwise operator on operands of another rank; what quantizes per tensor names an axis for nothing."""
    return with_attrs(value, args, **({"axis": -1} if op_name(value) in ("quantize", "dequantize") else {}))


def _pointwise(graph: Graph, value: Expr) -> bool:
    """Whether an operator computes each element by itself: quantizing per tensor does, and so does a table of bytes."""
    name = op_name(value)
    return name in (*ELEMENTWISE, LOOKUP) or (name in ("quantize", "dequantize") and params(graph, value) is not None)
