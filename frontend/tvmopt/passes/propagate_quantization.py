"""Bring dequantizations down to what computes and quantizations up to it: what only moves numbers then moves bytes."""

from __future__ import annotations

from tvm import relax

from tvmopt.passes.graph import Call, Expr, Graph, Rewrite, Var, dtype, name_of, op_name, rewrite_pass, with_attrs
from tvmopt.passes.quantized import Params, dequantize, dequantized, params, quantize

MOVES = (
    "reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten", "permute_dims", "strided_slice", "broadcast_to",
    "tile", "repeat", "flip", "take", "gather_elements", "gather_nd",
    "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d",
)  # fmt: skip
"""Operators that move or choose numbers of their first operand. A maximum is one: a scale is positive. Of a
quantised table of embeddings the rows asked for are dequantized, not all."""
UPWARDS = ("reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten", "permute_dims")


@rewrite_pass("tvmopt.PropagateQuantization")
class PropagateQuantization(Rewrite):
    """Move numbers in eight bits, and cancel a quantization of what was just dequantized with the same scale.

        Before                                         After
        x = R.dequantize(q, s, z)                      m = R.nn.max_pool2d(q)
        m = R.nn.max_pool2d(x)                         ...                             # reads m
        p = R.quantize(m, s, z)

        a = R.dequantize(q, s, z)                      c = R.concat([q, R.quantize(b, s, z)])
        c = R.quantize(R.concat([a, b]), s, z)

    Applies when   scale and zero point are one number for the tensor; the operator is one of MOVES, a concatenation
                   whose parts are dequantized with one scale, or a concatenation that is quantized right away.
    Declines when  1. the parts of a concatenation have different scales and nothing quantizes it again.
    Gain           three of four bytes read and written by what only moves, and the kernel of the pair.
    Order          after ConvertSignedQuantization, whose readers are dequantizations; before ConvertIntegerProducts,
                   which looks for a dequantization right before a product.
    """

    rounds = 8

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a move of dequantized numbers, or a quantization."""
        name = op_name(value)
        if name == "quantize":
            return self._quantize(graph, var, value)
        if name == "concat":
            return self._concat(graph, var, value)
        found = dequantized(graph, value.args[0]) if name in MOVES else None
        if found is None or dtype(value) != "float32":
            return None
        self.applied(var, name)
        moved = graph.emit(with_attrs(value, [found[0], *value.args[1:]]), name_of(var))
        return dequantize(moved, found[1])

    def _quantize(self, graph: Graph, var: Var, value: Call) -> Expr | None:
        own = params(graph, value)
        if own is None:
            return None
        x, kind = value.args[0], dtype(value)
        found = dequantized(graph, x)
        if found is not None:
            same = found[1] == own and dtype(found[0]) == kind
            if same:
                self.applied(var, "quantized again as it was")
            return found[0] if same else None
        move = graph.call(x, *UPWARDS)
        if move is not None and graph.single(x):
            self.applied(var, f"before {op_name(move)}")
            inner = graph.emit(quantize(move.args[0], own, kind), name_of(var))
            return with_attrs(move, [inner, *move.args[1:]])
        concat = graph.call(x, "concat")
        if concat is None or not graph.single(x) or not _parts(graph, concat):
            return None
        self.applied(var, "before concat")
        parts = [graph.emit(quantize(part, own, kind), name_of(var)) for part in _parts(graph, concat)]
        return with_attrs(concat, [relax.Tuple(parts)])

    def _concat(self, graph: Graph, var: Var, value: Call) -> Expr | None:
        sources: list[Expr] = []
        scales: list[Params] = []
        for part in _parts(graph, value):
            found = dequantized(graph, part)
            if found is None:
                return None
            sources.append(found[0])
            scales.append(found[1])
        if not sources or any(s != scales[0] for s in scales) or len({dtype(s) for s in sources}) > 1:
            if sources and not any(graph.op(user) == "quantize" for user in graph.users(var)):
                self.declined(var, "1: its parts have different scales")
            return None
        self.applied(var, "concat")
        joined = graph.emit(with_attrs(value, [relax.Tuple(sources)]), name_of(var))
        return dequantize(joined, scales[0])


def _parts(graph: Graph, concat: Call) -> list[Expr]:
    tensors = graph.value(concat.args[0])
    return list(tensors.fields) if isinstance(tensors, relax.Tuple) else []
