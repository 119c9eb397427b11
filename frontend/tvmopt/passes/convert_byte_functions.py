"""What becomes of one byte between two quantizations is a function of 256 values: bounds, or a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvmopt.operators.lookup import ENTRIES, lookup
from tvmopt.passes.graph import (
    Array,
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    name_of,
    op_name,
    rewrite_pass,
    sizes,
)
from tvmopt.passes.quantized import RANGES, params
from tvmopt.report import DecisionLog

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


CHEAP: dict[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "negative": np.negative, "abs": np.abs, "nn.relu": lambda x: np.maximum(x, 0.0), "clip": np.clip,
}  # fmt: skip
"""Functions of one instruction, in float64."""
DEAR: dict[str, Callable[..., Array]] = {
    "divide": np.divide, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "power": np.power, "tanh": np.tanh, "erf": _erf, "sigmoid": _sigmoid, "nn.silu": lambda x: x * _sigmoid(x),
    "nn.gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "nn.gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}  # fmt: skip
"""Functions of some ten instructions or more."""
TABLE_COST = 8
"""Instructions from which on a table takes less time: permutations, and loads of the table where registers are full."""


@dataclass(frozen=True)
class Function:
    """A function of the bytes of one tensor.

    Attributes:
        source: uint8; None for a constant.
        values: for 0 to 255 in float64, or one number.
        cost: instructions a vector, about.
    """

    source: Expr | None
    values: Array
    cost: int = 0


@rewrite_pass("tvmopt.ConvertByteFunctions")
class ConvertByteFunctions(Rewrite):
    """Compute what each of the 256 values of a byte becomes when the model is compiled.

        Before                                          After
        x = R.dequantize(q, s, z)                       y = q                                  # r is q for all bytes
        r = R.quantize(R.nn.relu(x), s, z)              y = R.maximum(q, z)                    # r is q between bounds
        r = R.quantize(R.nn.silu(x), t, y)              y = tvmopt.lookup(q, table)            # anything else

    The functions are evaluated in float64 and rounded, half to even, at each quantization on the way. So the result is
    the nearest integer to the exact value; the model's own float32 can differ where that lies between two integers.

    Applies when   what is quantized per tensor is computed from the bytes of one tensor and from numbers, element by
                   element, further quantizations in between included.
    Declines when  1. it has another shape than the bytes   2. it is NaN for some byte
                   3. the machine cannot permute bytes by bytes (AVX512-VBMI)   4. a table would take longer
    Gain           a sigmoid has some 30 instructions a vector, a table 5; equal bytes have none.
    Order          after FoldConstant, which makes numbers of quantised constants; before FoldRequantization, which
                   takes scales from products that end in a quantization.
    """

    rounds = 1

    def __init__(self, log: DecisionLog | None = None, tables: bool = False) -> None:
        super().__init__(log)
        self.tables = tables

    def begin(self, graph: Graph) -> None:
        """Forget the functions of another graph."""
        self._known: dict[tuple[Var, bool], Function | None] = {}

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a quantization: as bounds of the bytes right before it, or as a table of the first bytes."""
        if op_name(value) != "quantize" or dtype(value) not in RANGES:
            return None
        why = ""
        for far in (False, True):
            found = self._quantized(graph, value, far)
            if found is None or found.source is None:
                continue
            why = self._refused(value, found, table=far)
            if not why:
                self.applied(var, "a table of bytes" if far else "bounds of a byte")
                values = found.values.astype(dtype(value))
                if far:
                    return lookup(found.source, relax.const(values, dtype(value)))
                return self._between(graph, found.source, values, name_of(var))
        if why:
            self.declined(var, why)
        return None

    def _refused(self, value: Call, found: Function, table: bool) -> str:
        """Why a quantization does not become bounds, or a table."""
        assert found.source is not None
        if sizes(found.source) is None or sizes(found.source) != sizes(value):
            return "1: it has another shape than the bytes it is computed from"  # Decline 1
        if np.isnan(found.values).any():
            return "2: it is NaN for some byte"  # Decline 2
        if not table:
            steps = found.values
            between = np.clip(np.arange(ENTRIES), steps.min(), steps.max())
            return "" if dtype(value) == "uint8" and (steps == between).all() else "it is no bound"
        if not self.tables:
            return "3: the machine cannot permute bytes by bytes (AVX512-VBMI)"  # Decline 3
        return "4: a table would take longer" if found.cost < TABLE_COST else ""  # Decline 4

    def _between(self, graph: Graph, source: Expr, values: Array, name: str) -> Expr:
        low, high, bounded = values.min(), values.max(), source
        if low > 0:
            bounded = graph.emit(relax.op.maximum(bounded, const(low)), name)
        if high < ENTRIES - 1:
            bounded = graph.emit(relax.op.minimum(bounded, const(high)), name)
        return bounded

    def _function(self, graph: Graph, expr: Expr, far: bool) -> Function | None:
        """What `expr`, real numbers, is as a function of bytes, of the first ones if `far`; None where it is none."""
        number = graph.scalar(expr)
        if number is not None:
            return Function(None, np.array(number))
        if not isinstance(expr, relax.Var):
            return None
        if (expr, far) not in self._known:
            self._known[expr, far] = self._called(graph, graph.value(expr), far)
        return self._known[expr, far]

    def _called(self, graph: Graph, value: Expr, far: bool) -> Function | None:
        name = op_name(value)
        if name == "dequantize":
            return self._dequantized(graph, value, far)
        function = CHEAP.get(name) or DEAR.get(name)
        if function is None or dtype(value) != "float32":
            return None
        operands = [self._function(graph, a, far) for a in value.args[: 1 if name == "clip" else None]]
        if name == "clip":
            operands += [Function(None, np.array(float(a.value))) for a in value.args[1:]]
        known = [one for one in operands if one is not None]
        sources = [one.source for one in known if one.source is not None]
        if len(known) < len(operands) or any(not source.same_as(sources[0]) for source in sources):
            return None
        with np.errstate(all="ignore"):
            values = function(*(one.values for one in known))
        cost = sum(one.cost for one in known) + (1 if name in CHEAP else 10)
        return Function(sources[0] if sources else None, values, cost)

    def _dequantized(self, graph: Graph, call: Call, far: bool) -> Function | None:
        own, x = params(graph, call), call.args[0]
        if own is None or dtype(call) != "float32":
            return None
        inner = self._bytes(graph, x, far)
        return None if inner is None else Function(inner.source, (inner.values - own.zero) * own.scale, inner.cost + 2)

    def _bytes(self, graph: Graph, x: Expr, far: bool) -> Function | None:
        """Bytes as a function of the first ones if `far`, else of themselves."""
        value, inner = graph.value(x), None
        if far and op_name(value) == "quantize":
            inner = self._quantized(graph, value, far)
        elif far and op_name(value) in ("tvmopt.lookup", "maximum", "minimum") and dtype(value) in RANGES:
            inner = self._made(graph, value)
        if inner is not None and inner.source is not None:
            return inner
        own = dtype(x) == "uint8" and isinstance(x, relax.Var)
        return Function(x, np.arange(ENTRIES, dtype=np.float64)) if own else None

    def _made(self, graph: Graph, call: Call) -> Function | None:
        """What this pass has made of an earlier function."""
        inner, constant = self._bytes(graph, call.args[0], True), graph.array(call.args[1])
        if inner is None or constant is None:
            return None
        if op_name(call) == "tvmopt.lookup":
            return Function(
                inner.source, constant.astype(np.float64)[inner.values.astype(int)], inner.cost + TABLE_COST
            )
        return Function(
            inner.source, CHEAP[op_name(call)](inner.values, float(constant.reshape(-1)[0])), inner.cost + 1
        )

    def _quantized(self, graph: Graph, call: Call, far: bool) -> Function | None:
        own = params(graph, call)
        inner = self._function(graph, call.args[0], far) if own is not None else None
        if own is None or inner is None:
            return None
        low, high = RANGES[dtype(call)]
        with np.errstate(all="ignore"):
            steps = np.clip(np.rint(inner.values / own.scale) + own.zero, low, high)
        return Function(inner.source, steps, inner.cost + 4)
