"""Activations that are quantised to int8 become uint8 where they are made - the products take unsigned ones."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.passes.graph import RESULT, Expr, Graph, Rewrite, Var, dtype, name_of, op_name, rewrite_pass
from tvmopt.passes.quantized import Params, dequantize, params, quantize

OFFSET = 128
SUMS = ("add", "subtract")


@rewrite_pass("tvmopt.ConvertSignedQuantization")
class ConvertSignedQuantization(Rewrite):
    """Quantize to uint8 with a zero point 128 higher, wherever int8 is only dequantized again.

        Before                                      After
        q = R.quantize(x, s, z, "int8")             u = R.quantize(x, s, z + 128, "uint8")
        y = R.dequantize(q, s, z)                   y = R.dequantize(u, s, z + 128)

    `vpdpbusd` multiplies an unsigned by a signed byte. An int8 number q with zero point z is the uint8 number q + 128
    with zero point z + 128; a sum of products then has 128 times the weights' column sum too much, which the constant
    that is added anyway takes off.

    Applies when   q is quantized per tensor and every reader dequantizes it per tensor.
    Declines when  1. something else reads it, which needs int8   2. it is quantized per channel
                   3. the numbers are only added to others: no product would gain
    Gain           one instruction a word of every product that reads it.
    Order          before ConvertIntegerProducts.
    """

    rounds = 1

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a quantization, or a dequantization of one that has been rewritten."""
        name = op_name(value)
        if name == "quantize" and dtype(value) == "int8":
            return self._quantize(graph, var, value)
        source = _unsigned(graph, value.args[0]) if name == "dequantize" else None
        found = params(graph, value) if source is not None else None
        return None if source is None or found is None else dequantize(source, _moved(found))

    def _quantize(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        found = params(graph, value)
        if found is None:
            self.declined(var, "2: it is quantized per channel")
            return None
        for user in graph.users(var):
            reader = None if user is RESULT else graph.call(user, "dequantize")
            if reader is None or params(graph, reader) is None:
                self.declined(var, "1: something reads the int8 numbers as they are")
                return None
        if all(graph.op(reader) in SUMS for user in graph.users(var) for reader in graph.users(user)):
            self.declined(var, "3: the numbers are only added to others")
            return None
        self.applied(var)
        return signed(graph.emit(quantize(value.args[0], _moved(found), "uint8"), name_of(var)))


def _moved(p: Params) -> Params:
    return Params(p.scale, p.zero + OFFSET)


def signed(x: Expr) -> Expr:
    """The int8 numbers 128 below uint8 ones."""
    wide = relax.op.subtract(relax.op.astype(x, "int16"), relax.const(np.int16(OFFSET), "int16"))
    return relax.op.astype(wide, "int8")


def unsigned(x: Expr) -> Expr:
    """The uint8 numbers 128 above int8 ones."""
    wide = relax.op.add(relax.op.astype(x, "int16"), relax.const(np.int16(OFFSET), "int16"))
    return relax.op.astype(wide, "uint8")


def _unsigned(graph: Graph, expr: Expr) -> Expr | None:
    """The uint8 tensor that :func:`signed` was made of."""
    cast = graph.call(expr, "astype")
    wide = graph.call(cast.args[0], "subtract") if cast is not None and dtype(cast) == "int8" else None
    first = graph.call(wide.args[0], "astype") if wide is not None else None
    if wide is None or first is None or graph.scalar(wide.args[1]) != OFFSET or dtype(first.args[0]) != "uint8":
        return None
    return first.args[0]
