"""Put GELU (erf and tanh), SiLU and the sigmoid together again from their pieces."""

from __future__ import annotations

import math

from tvm import relax

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, is_float, op_name, rewrite_pass, shape

Polynomial = dict[int, float]
ERF = {1: 1 / math.sqrt(2)}  # Hendrycks and Gimpel 2016: x * Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2
TANH = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}


@rewrite_pass("tvmopt.FuseActivations")
class FuseActivations(Rewrite):
    """Recognise GELU, SiLU and the sigmoid, however their factors are ordered.

        Before                                                       After
        x * 0.5 * (1 + R.erf(x / sqrt(2)))                           R.nn.gelu(x)
        0.5 * x * (1 + R.tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))   R.nn.gelu_tanh(x)
        x * R.sigmoid(x)                                             R.nn.silu(x)
        1 / (1 + R.exp(-x))                                          R.sigmoid(x)
        x / (1 + R.exp(-x))                                          R.nn.silu(x)

    The product is flattened into its factors, and the argument of erf or tanh expanded into a polynomial in
    x, so that every association and distribution of one formula is found. HardSwish and HardSigmoid are
    elementwise with the operators they have (fused by FuseOps); there is nothing to put together.

    Applies when   the constants agree with the formula to 1e-3, relative.
    Declines when  1. the factors are those of GELU and the constants are not.
    Gain           one polynomial in registers in place of 5 to 8 operators, where these would not have been fused.
    Order          after EliminateIdentities: powers are products then, and constant divisions multiplications.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the outermost product or quotient."""
        name = op_name(value)
        if name == "divide" and is_float(value):
            return self._sigmoid(graph, var, value)
        if name != "multiply" or not is_float(value):
            return None
        for x, gate in graph.binary(value, "multiply"):
            sigmoid = graph.call(gate, "sigmoid")
            if sigmoid is not None and sigmoid.args[0].same_as(x):
                self.applied(var, "silu")
                return relax.op.nn.silu(x)
        return self._gelu(graph, var, value)

    def _sigmoid(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        numerator, denominator = value.args
        for exponential, one in graph.binary(denominator, "add"):
            exp = graph.call(exponential, "exp")
            negative = graph.call(exp.args[0], "negative") if exp is not None else None
            if negative is None or graph.scalar(one) != 1.0:
                continue
            x = negative.args[0]
            if graph.scalar(numerator) == 1.0 and shape(x) == shape(value):
                self.applied(var, "sigmoid")
                return relax.op.sigmoid(x)
            if numerator.same_as(x):
                self.applied(var, "silu")
                return relax.op.nn.silu(x)
        return None

    def _gelu(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        scale, rest = factors(graph, value)
        if len(rest) != 2:
            return None
        for x, gate in (rest, rest[::-1]):
            half = _one_plus(graph, gate)
            if half is None:
                continue
            kind, inner, weight = half
            found = polynomial(graph, inner, x)
            wanted = ERF if kind == "erf" else TANH
            if found is None or set(found) != set(wanted):
                continue
            near = all(abs(found[k] / wanted[k] - 1) < 1e-3 for k in wanted)
            if not near or abs(scale * weight - 0.5) > 1e-6:
                self.declined(var, f"1: the constants are not those of GELU ({found}, {scale * weight})")
                continue
            self.applied(var, "gelu" if kind == "erf" else "gelu_tanh")
            return relax.op.nn.gelu(x) if kind == "erf" else relax.op.nn.gelu_tanh(x)
        return None


def factors(graph: Graph, expr: Expr, top: bool = True) -> tuple[float, list[Expr]]:
    """A product as its number and its other factors, through nested multiplications."""
    number = graph.scalar(expr)
    if number is not None:
        return number, []
    call = graph.call(expr, "multiply")
    if call is None or (not top and not graph.single(expr)):
        return 1.0, [expr]
    (a, left), (b, right) = (factors(graph, arg, False) for arg in call.args)
    return a * b, left + right


def _one_plus(graph: Graph, expr: Expr) -> tuple[str, Expr, float] | None:
    """``(kind, z, w)`` if the expression is w * (1 + erf(z)) or w * (1 + tanh(z)), distributed or not."""
    for a, b in graph.binary(expr, "add"):
        one = graph.scalar(b)
        number, rest = factors(graph, a)
        call = graph.call(rest[0], "erf", "tanh") if len(rest) == 1 else None
        if call is not None and one is not None and one != 0 and abs(number / one - 1) < 1e-6:
            return op_name(call), call.args[0], one
    return None


def polynomial(graph: Graph, expr: Expr, x: Expr, depth: int = 12) -> Polynomial | None:
    """The expression as a polynomial in x ({power: coefficient}), or None if it is none.

    Built from add, subtract, multiply, negative and constants; powers above 8 are given up.
    """
    if expr.same_as(x) or graph.value(expr).same_as(graph.value(x)):
        return {1: 1.0}
    number = graph.scalar(expr)
    if number is not None:
        return {0: number}
    call = graph.call(expr, "add", "subtract", "multiply", "negative")
    if call is None or depth == 0:
        return None
    parts = [polynomial(graph, a, x, depth - 1) for a in call.args]
    if any(p is None for p in parts):
        return None
    first: Polynomial = parts[0] or {}
    if op_name(call) == "negative":
        return {k: -v for k, v in first.items()}
    second: Polynomial = parts[1] or {}
    out: Polynomial = {}
    if op_name(call) == "multiply":
        for i, a in first.items():
            for j, b in second.items():
                out[i + j] = out.get(i + j, 0.0) + a * b
        return out if max(out, default=0) <= 8 else None
    sign = -1.0 if op_name(call) == "subtract" else 1.0
    for k in first.keys() | second.keys():
        out[k] = first.get(k, 0.0) + sign * second.get(k, 0.0)
    return out
