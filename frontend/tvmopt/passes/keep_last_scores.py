"""Compute the scores of as many tokens as the caller asks for, not of the whole prompt."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmopt.importer.relax import SCORES, UPPER_BOUNDS
from tvmopt.importer.sizes import LEAST_SIZES, NAMED_SIZES
from tvmopt.operators.caches import last_rows
from tvmopt.operators.packed_product import OP as PACKED
from tvmopt.operators.packed_product import ROUNDED
from tvmopt.passes.graph import Expr, Graph, Var, name_of, op_name, sizes, with_attrs
from tvmopt.passes.keep_caches import COUNT, IN_PLACE, LENGTHS
from tvmopt.report import DecisionLog

PRODUCTS = (PACKED, ROUNDED, "matmul")
ROW_BY_ROW = ("add", "subtract", "multiply", "divide", "tanh", "astype")
"""What models do to scores: a bias, a factor, a soft cap, a type. Other operands than the scores are constants."""
TOKENS = 1
"""The axis of the tokens in [batch, tokens, vocabulary]."""


@relax.transform.function_pass(opt_level=0, name="tvmopt.KeepLastScores")
class KeepLastScores:
    """Multiply by the head of a decoder the last tokens alone.

        Before                                          After
        def main(x, ..., lengths: Shape([p, scores])):  def main(x, ..., lengths: Shape([p, scores])):
          y = R.matmul(h, head)       # [B, new, V]       t = tvmopt.last_rows(h, shape[scores])
          return (y, ...)                                 y = R.matmul(t, head)    # [B, scores, V]

    `scores` is new where all scores are asked for, as a call of the model by itself does.

    Applies when   the scores of a decoder that keeps its caches are the product of [B, new, K] and a constant matrix,
                   whatever is done row by row to it.
    Declines when  1. they are none   2. something else reads them on the way   3. the number of tokens is known
    Gain           a prompt of n tokens: (n - 1) / n of the head's work, and its scores: 4 * n * V bytes.
    Order          after KeepCaches, which makes the parameter.
    """

    def __init__(self, log: DecisionLog | None = None) -> None:
        self.log = log if log is not None else DecisionLog()

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        """TVM's entry point for a function pass."""
        if (
            not isinstance(func, relax.Function)
            or not func.attrs
            or any(k not in func.attrs for k in (IN_PLACE, SCORES))
        ):
            return func
        graph = Graph(func)
        chain = _chain(graph, graph.value(func.body.body).fields[int(func.attrs[SCORES])])
        if isinstance(chain, str):
            self.log.declined("tvmopt.KeepLastScores", "main", chain)
            return func
        self.log.applied(
            "tvmopt.KeepLastScores", name_of(chain[0]), "the head multiplies as many rows as are asked for"
        )
        return _rewritten(graph, chain)


def _chain(graph: Graph, scores: Expr) -> list[Var] | str:
    """The variables from the head's product to the scores, or why there are none."""
    chain: list[Var] = []
    tokens = (sizes(scores) or ())[TOKENS : TOKENS + 1]
    if not tokens or isinstance(tokens[0], int):  # Decline 3
        return "3: the number of tokens is known"
    if not tokens[0].is_symbol:
        return f"3: the number of tokens is {tokens[0]}"
    while True:
        value = graph.value(scores)
        shape = sizes(scores) or ()
        if len(shape) != 3 or shape[TOKENS : TOKENS + 1] != tokens or op_name(value) not in (*PRODUCTS, *ROW_BY_ROW):
            return f"1: the scores are made by {op_name(value) or 'no product'}"  # Decline 1
        if graph.uses(scores) != 1:
            return "2: the scores are read on their way"  # Decline 2
        chain.append(scores)
        varying = [a for a in value.args if not graph.is_const(a)]
        product = op_name(value) in PRODUCTS
        if len(varying) != 1 or not (product or all(map(_row_free, filter(graph.is_const, value.args)))):
            return "1: the scores are made of two tensors"
        scores = varying[0]
        if product:
            own = sizes(scores) or ()
            if not value.args[0].same_as(scores) or len(own) != 3 or own[TOKENS] != tokens[0]:
                return "1: the head's operand is no [batch, tokens, numbers]"
            return chain[::-1]


def _row_free(constant: Expr) -> bool:
    """Whether a constant is the same for every token."""
    shape = sizes(constant)
    return shape is not None and (len(shape) < 2 or shape[-2] == 1)


def _rewritten(graph: Graph, chain: list[Var]) -> Any:
    """The function whose chain is of as many rows as are asked for."""
    func, builder, result = graph.func, relax.BlockBuilder(), graph.func.body.body
    (lengths,) = (p for p in func.params if name_of(p) == LENGTHS)
    alias: dict[Var, Var] = {}

    def bind(out: list[Any], kind: Any, name: str, value: Expr) -> Var:
        value = builder.normalize(value)
        out.append(relax.VarBinding(kind(name, value.ty), value))
        return out[-1].var

    blocks = []
    for block in func.body.blocks:
        inside = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        out: list[Any] = []
        for binding in block.bindings:
            var, value = binding.var, binding.value
            if var.same_as(chain[0]):
                head = bind(out, inside, f"{name_of(var)}_rows", last_rows(value.args[0], lengths.ty.values[1]))
                alias[var] = bind(out, type(var), name_of(var), with_attrs(value, [head, *value.args[1:]]))
            elif any(var.same_as(one) for one in chain):
                args = [alias.get(a, a) if isinstance(a, relax.Var) else a for a in value.args]
                alias[var] = bind(out, type(var), name_of(var), with_attrs(value, args))
            elif var.same_as(result):
                alias[var] = bind(out, type(var), name_of(var), relax.Tuple([alias.get(f, f) for f in value.fields]))
            else:
                out.append(binding)
        blocks.append((relax.DataflowBlock if inside is relax.DataflowVar else relax.BindingBlock)(out))
    body = builder.normalize(relax.SeqExpr(blocks, alias[result]))
    made = relax.Function(func.params, body, None, bool(func.is_pure), func.attrs)
    return made.with_attrs(_sizes(func.attrs, str(list(chain[-1].ty.shape)[TOKENS].name)))


def _sizes(attrs: Any, tokens: str) -> dict[str, Any]:
    """What is known of the open sizes, that of :data:`COUNT` with them: no more than there are tokens, and mostly 1."""
    most = dict(attrs[UPPER_BOUNDS])
    known: dict[str, Any] = {UPPER_BOUNDS: {**most, COUNT: most[tokens]}}
    return known | {name: {**dict(attrs[name]), COUNT: 1} for name in (NAMED_SIZES, LEAST_SIZES)}
