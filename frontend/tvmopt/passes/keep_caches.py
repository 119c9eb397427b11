"""Keep a decoder's keys and values in buffers of the largest length, where a step writes its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvmopt.dims import Dim, Size, at, symbols_of
from tvmopt.importer.relax import CACHES
from tvmopt.operators import masked
from tvmopt.operators.caches import EXTEND, Scores, append_rows, cached_attention, cached_rows
from tvmopt.operators.stored import BYTES, CARRIERS, FLOAT, HALF, WORD, elements
from tvmopt.passes.fuse_attention import HEADS
from tvmopt.passes.graph import Expr, Graph, Var, inputs_of, ints, name_of, op_name, sizes, substitute
from tvmopt.report import DecisionLog

IN_PLACE = "tvmopt.caches_in_place"
"""Our attribute of `main`: the caches are buffers, and the parameter behind the inputs is the length of the past."""

STORED = "tvmopt.caches_stored"
"""Our attribute of `main`: how the numbers of its buffers are stored (:mod:`tvmopt.operators.stored`)."""

ONE_TOKEN = "tvmopt.one_token"
"""Our attribute of `main`: no mask tells the new tokens' order, so that the model is right for one at a time."""

MOVES = ("permute_dims", "reshape", "broadcast_to", "expand_dims", "squeeze")
"""Operators whose result has the elements of their first operand at other places."""

CAPACITY, LENGTHS, COUNT = "cache_capacity", "lengths", "scores"
"""Names of the rows of a buffer, of the parameter that tells how many of them are filled and of how many tokens the
scores are asked for, and of this number."""


@dataclass
class _Cache:
    """One cache: its parameter, its rows with the new ones behind, what it is called with them in it."""

    param: Var
    longer: Var
    new: Expr
    buffer: Var
    written: Var | None = None


@dataclass(frozen=True)
class _Rows:
    """What attention reads: the tensor [B, H, T, D] of the graph, where it lies now, how many of its rows count."""

    tensor: Var
    place: Expr
    count: Any


@relax.transform.function_pass(opt_level=0, name="tvmopt.KeepCaches")
class KeepCaches:
    """Let caches be buffers that a step writes its rows into.

        Before                                              After
        def main(x, past: [B, H, p, D]):                    def main(x, K: [B, H, capacity, D],
                                                                     lengths: Shape([p, scores])):
          c = tvmopt.extend_cache(past, new)                  K1 = tvmopt.append_rows(K, new, shape[p])
          k = R.permute_dims(c, [0, 2, 1, 3])                 y = tvmopt.cached_attention(q, K1, V1, shape[p + n])
          y = R.nn.attention(q, k, v)                         return (y, K1)
          return (y, c)

    Other readers of a cache get a copy of its rows. Keys that are repeated for the heads of a group are read where they
    are: the repetition goes. So are keys and values that are inputs and stay the same, those of an encoder's output.

    Rows may be stored in bfloat16, or as bytes with a step a row: the new ones are rounded as they are written, and all
    that reads a cache reads rounded ones.

    Applies when   every cache of the model is an input of float32 that is made longer once and leaves as an output.
    Declines when  1. a cache is used otherwise, or has another type, or rows that cannot be stored as is asked
                   2. the machine is a GPU
    Gain           a step writes one row; before it copied the whole cache, and once more to transpose it.
    Order          after FuseAttention and all passes of layouts; before dead code goes.
    """

    def __init__(self, kind: str, log: DecisionLog | None = None, stored: str = FLOAT) -> None:
        self.kind, self.log, self.stored = kind, log if log is not None else DecisionLog(), stored

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        """TVM's entry point for a function pass."""
        pairs = func.attrs.get(CACHES, ()) if isinstance(func, relax.Function) and func.attrs else ()
        if not pairs or self.kind != "llvm":  # Decline 2
            return func
        graph = Graph(func)
        caches = _caches(graph, [(int(a), int(b)) for a, b in pairs], self.stored)
        if isinstance(caches, str):
            self.log.declined("tvmopt.KeepCaches", "main", f"1: {caches}")
            return func
        told = f"{len(caches)} caches stay where they are{_TOLD[self.stored]}"
        self.log.applied("tvmopt.KeepCaches", "main", told)
        return _Rewritten(graph, caches).function().with_attrs({STORED: self.stored})


_TOLD = {FLOAT: "", HALF: ", their rows in bfloat16", BYTES: ", their rows as bytes with a step each"}


def _caches(graph: Graph, pairs: list[tuple[int, int]], stored: str) -> list[_Cache] | str:
    """The caches by their places among inputs and outputs, or why they cannot stay where they are."""
    func, capacity = graph.func, tirx.Var(CAPACITY, "int64")
    result = graph.value(func.body.body)
    outputs = list(result.fields) if isinstance(result, relax.Tuple) else []
    found, lengths = [], set()
    for start, end in pairs:
        param = inputs_of(func)[start]
        name = name_of(param)
        users = graph.users(param)
        shape = sizes(param)
        if (
            shape is None
            or str(param.ty.dtype) != "float32"
            or not all(isinstance(d, int) for d in (shape[1], shape[3]))
        ):
            return f"the cache {name} is {param.ty}"
        if len(users) != 1 or not isinstance(users[0], relax.Var) or graph.op(users[0]) != EXTEND:
            return f"the cache {name} is read otherwise than to be made longer"
        if end >= len(outputs) or not outputs[end].same_as(users[0]):
            return f"the cache {name} does not leave as an output"
        if not (isinstance(shape[2], Dim) and shape[2].is_symbol):
            return f"the length of the cache {name} is no size of its own"
        depth = shape[3]
        if stored == BYTES and isinstance(depth, int) and depth % WORD:
            return f"the rows of the cache {name} have {depth} numbers, no multiple of {WORD}"
        lengths.add(str(shape[2]))
        full = list(param.ty.shape)
        of_row = [*full[:2], capacity, elements(depth, stored)]
        buffer = relax.Var(name, relax.TensorType(of_row, CARRIERS[stored]))
        found.append(_Cache(param, users[0], graph.defs[users[0]].args[1], buffer))
    return found if len(lengths) == 1 else "its caches have several lengths"


class _Rewritten:
    """Writes the function with buffers."""

    def __init__(self, graph: Graph, caches: list[_Cache]) -> None:
        self.graph, self.by_longer = graph, {c.longer: c for c in caches}
        self.by_param = {c.param: c for c in caches}
        self.inputs = {p for p in inputs_of(graph.func) if p not in self.by_param}
        self.past = list(caches[0].param.ty.shape)[2]
        self.total = list(caches[0].longer.ty.shape)[2]
        self.result = graph.func.body.body
        self.alias: dict[Var, Expr] = {}
        self.builder = relax.BlockBuilder()
        self.out: list[Any] = []
        self.flow = True
        self.one_token = False

    def function(self) -> Any:
        """The new function."""
        func, blocks = self.graph.func, []
        for block in func.body.blocks:
            self.flow, self.out = isinstance(block, relax.DataflowBlock), []
            for binding in block.bindings:
                self._binding(binding)
            blocks.append((relax.DataflowBlock if self.flow else relax.BindingBlock)(self.out))
        inputs = inputs_of(func)
        params = [self.by_param[p].buffer if p in self.by_param else p for p in inputs]
        lengths = relax.Var(LENGTHS, relax.ShapeType([self.past, tirx.Var(COUNT, "int64")]))
        body = self.builder.normalize(relax.SeqExpr(blocks, self.alias.get(self.result, self.result)))
        made = relax.Function(
            [*params, lengths, *list(func.params)[len(inputs) :]], body, None, bool(func.is_pure), func.attrs
        )
        flags = {ONE_TOKEN: 1} if self.one_token else {}
        return made.with_attrs({"num_input": len(params) + 1, IN_PLACE: 1, **flags})

    def _bind(self, value: Expr, name: str, like: Any = None) -> Var:
        value = self.builder.normalize(value)
        var = (
            (relax.DataflowVar if self.flow else relax.Var)(name, value.ty)
            if like is None
            else relax.Var(name, value.ty)
        )
        self.out.append(relax.VarBinding(var, value))
        return var

    def _binding(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        cache = self.by_longer.get(var)
        if cache is not None:
            name = name_of(var)
            new = self._by_position(cache.new, name)
            cache.written = self._bind(append_rows(cache.buffer, new, self.past), name)
            self.alias[var] = self._bind(cached_rows(cache.written, self.total), name)
            return
        if isinstance(binding, relax.MatchCast):
            self.out.append(relax.MatchCast(var, self._value(value), binding.ty))
            return
        if isinstance(value, relax.Tuple) and var.same_as(self.result):
            fields = [self._written(f) for f in value.fields]
            self.alias[var] = self._bind(relax.Tuple(fields), name_of(var), like=var)
            return
        attention = self._attention(value)
        value = self._value(value) if attention is None else attention
        self.out.append(relax.VarBinding(var, self.builder.normalize(value)))

    def _value(self, value: Expr) -> Expr:
        return substitute(value, self.alias)

    def _by_position(self, new: Expr, name: str) -> Expr:
        """New rows [B, H, S, D] as [B, S, H, D], which is how a projection leaves them."""
        turned = self.graph.call(new, "permute_dims")
        if turned is not None and ints(turned.attrs.axes) == list(HEADS):
            return self.alias.get(turned.args[0], turned.args[0])
        return self._bind(relax.op.permute_dims(self._value(new), HEADS), name)

    def _written(self, field: Expr) -> Expr:
        cache = self.by_longer.get(field)
        return cache.written if cache is not None else self.alias.get(field, field)

    def _attention(self, value: Expr) -> Expr | None:
        """Attention that reads two caches, as it reads the buffers; None for anything else."""
        name = op_name(value)
        if name not in ("nn.attention", "nn.attention_bias", masked.OP):
            return None
        q, k, v, *bias = value.args
        keys, values = (self._source(x) for x in (k, v))
        if keys is None or values is None or (sizes(keys.tensor) or ())[2] != (sizes(values.tensor) or ())[2]:
            return None
        depth = list(q.ty.shape)[3]
        if name == masked.OP:
            scale, fill = masked.scale_and_fill(value)
            scores = Scores(scale, fill=fill)
        else:
            attrs = value.attrs
            causal = str(attrs.causal_mask) if attrs.causal_mask is not None else ""
            if causal == "TopLeft" or getattr(attrs, "window_size", None) is not None:
                return None
            scores = Scores(int(depth) ** -0.5 if attrs.scale is None else float(attrs.scale.value), causal != "")
        grows = keys.tensor in self.by_longer
        ordered = scores.causal or (bool(bias) and (sizes(bias[0]) or ())[2] != 1)
        self.one_token |= grows and not ordered and (sizes(q) or ())[1] != 1
        mask = self._value(bias[0]) if bias else None
        return cached_attention(self.alias.get(q, q), keys.place, values.place, keys.count, mask, scores)

    def _source(self, expr: Expr) -> _Rows | None:
        """What an operand [B, S, N, D] is rows of, its heads repeated in place or not, however that is written."""
        steps = []
        while (rows := self._rows(expr)) is None:
            step = self.graph.call(expr, *MOVES)
            if step is None:
                return None
            steps.append(step)
            expr = step.args[0]
        return rows if all(_is_rows(rows.tensor, steps[::-1], first) for first in (2, 5)) else None

    def _rows(self, expr: Expr) -> _Rows | None:
        """A cache that is written already, or an input of four dimensions that attention reads as it is."""
        cache = self.by_longer.get(expr)
        if cache is not None:
            return None if cache.written is None else _Rows(cache.longer, cache.written, self.total)
        if expr in self.inputs and len(shape := sizes(expr) or ()) == 4 and str(expr.ty.dtype) == "float32":
            known = isinstance(shape[1], int) and isinstance(shape[3], int)
            return _Rows(expr, expr, list(expr.ty.shape)[2]) if known else None
        return None


def _is_rows(tensor: Var, steps: list[Expr], first: int) -> bool:
    """Whether these moves make rows [B, S, N, D] of a tensor [B, H, S, D]: tried with numbered elements, the symbols
    being first, first + 1, ..."""
    own: tuple[Size, ...] = sizes(tensor) or ()
    symbols = sorted(symbols_of(d for step in (tensor, *steps) for d in sizes(step) or ()))
    env = {name: first + i for i, name in enumerate(symbols)}
    start = np.arange(math.prod(at(own, env))).reshape(at(own, env))
    array: Any = start
    for step in steps:
        shape = at(sizes(step) or (), env)
        if op_name(step) == "permute_dims":
            array = array.transpose(None if step.attrs.axes is None else ints(step.attrs.axes))
        elif op_name(step) == "broadcast_to":
            array = np.broadcast_to(array, shape)
        else:
            array = array.reshape(shape)
    heads, wide = int(at(own, env)[1]), np.shape(array)
    if len(wide) != 4 or int(wide[2]) % heads:
        return False
    return np.array_equal(array, np.repeat(start, int(wide[2]) // heads, axis=1).transpose(HEADS))
