"""Compute several GEMMs of one input as one GEMM: the query, key and value projections of attention."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvmopt.operators import masked
from tvmopt.passes.graph import (
    Array,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    shape,
)

FEW_ROWS = 32
"""Below this many rows a GEMM streams its weights; at it and above it computes. CombineParallelMatmul and
SplitMatmul are each other's inverse on the two sides of it."""


@dataclass(frozen=True)
class Branch:
    """One GEMM of the group: the variable it ends in (after its bias), its weight [K, N] and its bias [N]."""

    end: Var
    weight: Array
    bias: Array | None


@rewrite_pass("tvmopt.CombineParallelMatmul")
class CombineParallelMatmul(Rewrite):
    """Join GEMMs with constant weights on one input into one, and split its result.

        Before                             After
        q = R.add(R.matmul(x, Wq), bq)     y = R.add(R.matmul(x, [Wq | Wk | Wv]), [bq | bk | bv])
        k = R.add(R.matmul(x, Wk), bk)     q, k, v = R.split(y, [N, 2 N], axis=-1)
        v = R.add(R.matmul(x, Wv), bv)

    TVM's CombineParallelMatmul does it where every branch has the same shape of bias and the weights are
    parameters; it leaves a concat to FoldConstant, and misses branches without a bias (Whisper's keys).

    Applies when   two or more GEMMs [.., K] x [K, N] have the same input and only layout operators (reshape,
                   transpose, split) or attention read their results.
    Declines when  1. an elementwise operator reads a result: the split would stand between it and the GEMM,
                      whose epilogue it is otherwise (the gate and up projections of SwiGLU)
                   2. there are FEW_ROWS rows or more: x stays in the cache between the GEMMs anyway, and the
                      split is a copy (BERT-base, 128 rows: 27.2 + 0.5 ms together, 22.8 ms apart).
    Gain           x is read once; a GEMM with few rows fills the machine; one kernel launch for three.
    Order          after FuseAttention, so that its readers are known; before legalization packs the weights.
    """

    readers = ("reshape", "permute_dims", "split", "nn.attention", "nn.attention_bias", masked.OP, "strided_slice")

    def begin(self, graph: Graph) -> None:
        """Find the groups of this sweep."""
        self.parts: dict[Var, Expr] = {}
        self.groups: dict[Var, list[Branch]] = {}
        by_input: dict[Var, list[Branch]] = defaultdict(list)
        readers: Counter[Var] = Counter()
        gemms = [(v, c) for v, c in graph.defs.items() if op_name(c) == "matmul" and graph.is_const(c.args[1])]
        readers.update(call.args[0] for _, call in gemms if isinstance(call.args[0], relax.Var))
        for var, value in gemms:
            if readers[value.args[0]] > 1:
                branch = self._branch(graph, var, value)
                if branch is not None:
                    by_input[value.args[0]].append(branch)
        for x, branches in by_input.items():
            if len(branches) < 2 or len({b.weight.shape[0] for b in branches}) != 1:
                continue
            rows = math.prod((shape(x) or (FEW_ROWS, 1))[:-1])
            if rows >= FEW_ROWS:
                self.declined(branches[0].end, f"2: {len(branches)} GEMMs of {rows} rows")
            else:
                self.groups[branches[0].end] = branches

    def _branch(self, graph: Graph, var: Var, value: Expr) -> Branch | None:
        weight = graph.array(value.args[1])
        if weight is None or weight.ndim != 2 or shape(value) is None or rank(value) < 2:
            return None
        end, bias = var, None
        users = graph.users(var)
        if len(users) == 1 and graph.op(users[0]) == "add":
            for data, other in graph.binary(users[0], "add"):
                array = graph.array(other)
                if array is None or not array.ndim or not data.same_as(var):
                    continue
                if array.size == array.shape[-1] == weight.shape[1]:
                    end, bias = users[0], array.reshape(-1)
        readers = [graph.op(u) for u in graph.users(end) if not isinstance(u, str)]
        if not readers or any(r not in self.readers for r in readers):
            self.declined(var, f"1: read by {', '.join(sorted(set(readers))) or 'the output'}")
            return None
        return Branch(end, weight, bias)

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Emit the joint GEMM at the first branch's end; every branch becomes its part."""
        if var in self.groups:
            self._join(graph, var, self.groups[var])
        return self.parts.get(var)

    def _join(self, graph: Graph, var: Var, branches: list[Branch]) -> None:
        node = graph.defs[var]
        while op_name(node) != "matmul":
            node = graph.value(next(a for a in node.args if not graph.is_const(a)))
        x, name = node.args[0], name_of(var)
        weight = const(np.concatenate([b.weight for b in branches], axis=1), like=node.args[1])
        y = graph.emit(relax.op.matmul(x, weight, out_dtype=node.attrs.out_dtype), name)
        if any(b.bias is not None for b in branches):
            bias = [np.zeros(b.weight.shape[1]) if b.bias is None else b.bias for b in branches]
            kind = np.concatenate([b.astype(np.float64) for b in bias])
            y = graph.emit(relax.op.add(y, const(kind, like=y)), name)
        cuts = [int(c) for c in np.cumsum([b.weight.shape[1] for b in branches])[:-1]]
        split = graph.emit(relax.op.split(y, cuts, axis=rank(node) - 1), name)
        for i, branch in enumerate(branches):
            self.parts[branch.end] = relax.TupleGetItem(split, i)
        widths = " + ".join(str(b.weight.shape[1]) for b in branches)
        self.applied(var, f"{len(branches)} GEMMs, {widths} columns, {dtype(node)}")
