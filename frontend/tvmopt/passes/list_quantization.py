"""Which quantizations and dequantizations are left, and why - for `tvmopt explain`."""

from __future__ import annotations

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, dtype, name_of, op_name, rewrite_pass
from tvmopt.passes.quantized import RANGES
from tvmopt.report import DecisionLog

PRODUCTS = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "matmul")
PLAIN = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "nn.relu", "astype")
"""Operators that are computed where bytes are loaded or stored, in the kernel before or behind them."""
CHOICES = ("tvmopt.ConvertIntegerProducts", "tvmopt.ConvertByteFunctions")
"""Passes that say why something is not computed in bytes."""


@rewrite_pass("tvmopt.ListQuantization")
class ListQuantization(Rewrite):
    """Record each step to floats and each step back to bytes that is left, with what is computed between them.

    Nothing is rewritten. Where a pass has said why a product or a function is not computed in bytes, that is repeated.

    Applies when   a dequantization has readers that compute in floats; a quantization is of such an operator's result.
    Declines when  1. bytes become floats   2. floats become bytes. The reasons are what is recorded.
    Order          after FoldRequantization, behind which the quantization of a product of bytes has a scale of 1.
    """

    rounds = 1

    def __init__(self, log: DecisionLog | None = None, unwanted: str = "") -> None:
        super().__init__(log)
        self.unwanted = unwanted

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Look at one step."""
        name = op_name(value)
        if name == "dequantize" and dtype(value.args[0]) in RANGES and not graph.is_const(value.args[0]):
            readers = [self._reader(graph, user) for user in graph.users(var)]
            if told := ", ".join(dict.fromkeys(one for one in readers if one)):
                self.declined(var, f"1: bytes become floats for {told}")
        elif name == "quantize" and dtype(value) in RANGES and (told := self._source(graph, value.args[0])):
            self.declined(var, f"2: floats become bytes behind {told}")
        return None

    def _reader(self, graph: Graph, user: Var) -> str:
        """What reads dequantized numbers; nothing where the kernel of another operator loads the bytes itself."""
        if isinstance(user, str):
            return "the model's output"
        name = graph.op(user)
        if not name or name in PLAIN:  # a tuple, or an operator that the next kernel takes in
            found = [self._reader(graph, other) for other in graph.users(user)]
            return next((one for one in found if one), "")
        return "" if name == "quantize" else self._told(name, user)

    def _source(self, graph: Graph, expr: Expr) -> str:
        """The operator in floats whose result is quantized; nothing where it is one of integers."""
        call = graph.value(expr)
        name = op_name(call)
        if not name:
            return "the model's input"
        if name == "tvmopt.scaled_sum" or (name == "astype" and "int" in dtype(call.args[0])) or name == "dequantize":
            return ""
        if name in PLAIN:
            tensors = [a for a in call.args if not graph.is_const(a)]
            found = [self._source(graph, a) for a in tensors[:2]]
            return "" if "" in found else found[0] if found else ""
        return self._told(name, expr)

    def _told(self, name: str, var: Expr) -> str:
        """An operator, and why it is not computed in bytes, if a pass has said so."""
        if name not in PRODUCTS:
            return name
        node = name_of(var)
        why = [d.reason for d in self.log if d.stage in CHOICES and d.node == node and d.verdict == "declined"]
        reason = self.unwanted or (why[-1].partition(": ")[2] if why else "")
        return f"{name} ({reason})" if reason else name
