"""Let the tokens of a call be those of several texts: each is told its text and its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.tirx.analysis import undefined_vars

from tvmopt.importer.relax import UPPER_BOUNDS
from tvmopt.importer.sizes import LEAST_SIZES, NAMED_SIZES
from tvmopt.operators.caches import APPEND, ATTEND, ROWS, Scores, append_placed, placed_attention, scores_of
from tvmopt.passes.graph import Array, Expr, Graph, Var, inputs_of, name_of, op_name, sizes, substitute, variables
from tvmopt.passes.keep_caches import IN_PLACE, LENGTHS
from tvmopt.passes.trial import Trial
from tvmopt.report import DecisionLog

PLACED = "tvmopt.tokens_have_places"
"""Our attribute of `main`: behind the numbers of rows comes a tensor of places."""

PLACES, APART, TEXTS = "places", "apart", "texts"
"""Names of the tensor [2, tokens] of texts and positions, of the number that is 1 where the tokens of a call are not
consecutive ones of one text, and of the number of texts in the caches."""

MASK, POSITIONS = "attention_mask", "position_ids"
"""The inputs whose values are known for a text: a full mask, and the places of the new tokens."""

TRIED = ((0, 4), (5, 3), (1, 6), (9, 1))
"""Lengths of past and new tokens that masks and positions are computed for; the longest past comes besides."""

MOST_TEXTS = 1 << 16
"""Rows of the caches at most."""

HIDES = -1e9
"""What hides a key when it is added to its score: scores are far smaller."""


@relax.transform.function_pass(opt_level=0, name="tvmopt.PlaceTokens")
class PlaceTokens:
    """Give each token of a decoder its text and its position there.

        Before                                            After
        def main(x, mask, K: [1, ..],                     def main(x, mask, K: [texts, ..],
                 lengths: Shape([p, scores])):                     lengths: Shape([p, scores, apart]),
                                                                   places: [2, S]):
          at = p + R.arange(S)                              at = R.take(places, 1)
          K1 = append_rows(K, new, shape[p])                K1 = append_rows(K, new, places)
          bias = R.where(.., mask, ..)                      y = cached_attention(q, K1, V1, shape[p + S, apart], places)
          y = cached_attention(q, K1, V1, shape[p + S], bias)

    All else in a decoder is computed token by token, so the tokens of a call may be of several texts: they share the
    read of the weights. What a mask hides and which numbers are positions is tried, at several lengths: exporters
    write both in many ways.

    Applies when   a decoder of one text keeps its caches, its attention is causal under a mask of ones, and nothing
                   else depends on the length of the past but positions, and tests of whether a token sees a key.
    Declines when  1. a mask is another one (a window, ALiBi), or cannot be computed without the tokens
                   2. something else depends on the past
                   3. the number of tokens or of texts is bound, or a cache is read otherwise
    Gain           a step of 8 texts reads the weights once, not 8 times; and no mask is computed or read.
    Order          last of the passes that change the parameters.
    """

    def __init__(self, log: DecisionLog | None = None) -> None:
        self.log = log if log is not None else DecisionLog()

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        """TVM's entry point for a function pass."""
        if not isinstance(func, relax.Function) or not func.attrs or IN_PLACE not in func.attrs:
            return func
        decoder = _Decoder(Graph(func), mod)
        why = decoder.why_not()
        if why:
            self.log.declined("tvmopt.PlaceTokens", "main", why)
            return func
        self.log.applied("tvmopt.PlaceTokens", "main", "tokens of several texts may be computed together")
        return _Writer(decoder).function()


class _Decoder:
    """Looks whether the pass applies.

    Attributes:
        past, tokens: the symbols of the two lengths.
        caches: the parameters that are buffers.
        replaced: the variables that are positions, to be read off the places.
        true: flags that say of each token that a mask leaves it a key. Every token sees itself.
    """

    def __init__(self, graph: Graph, module: Any) -> None:
        self.graph, self.func, self.module = graph, graph.func, module
        self.inputs = inputs_of(self.func)
        (self.lengths,) = (p for p in self.func.params if name_of(p) == LENGTHS)
        self.past = self.lengths.ty.values[0]
        self.tokens: Any = None
        self.bindings = [b for block in self.func.body.blocks for b in block.bindings]
        self.attend = [b.value for b in self.bindings if op_name(b.value) == ATTEND]
        self.caches = {b.value.args[0] for b in self.bindings if op_name(b.value) == APPEND}
        self.replaced: set[Var] = set()
        self.true: set[Var] = set()

    def why_not(self) -> str:
        """The reason to decline, "" where there is none."""
        if any(self.graph.op(v) == ROWS for v in self.needed()):
            return "3: a cache is read otherwise than by attention"
        if not self.attend:
            return "3: no attention reads the caches"
        batch, tokens, _, depth = list(self.attend[0].args[0].ty.shape)
        if not isinstance(tokens, tirx.Var) or not isinstance(batch, tirx.IntImm) or int(batch) != 1:
            return "3: the number of tokens or of texts is bound"
        if int(depth) % 4:  # the loops of one query take vectors of the depth
            return f"3: heads have {int(depth)} numbers"
        self.tokens = tokens
        positions = self._positions()
        return positions if isinstance(positions, str) else self._dependence(positions)

    def needed(self) -> list[Var]:
        """What the results are made of, masks aside, once positions are given."""
        seen: set[Var] = set()
        stack, order = [self.func.body.body], []
        while stack:
            var = stack.pop()
            if var not in seen:
                seen.add(var)
                order.append(var)
                if var in self.graph.defs and var not in self.replaced:
                    stack.extend(_variables(self.read_of(self.graph.defs[var])))
        return order

    def is_shown(self, value: Expr) -> bool:
        """Whether a choice by flags that are true is its first side."""
        chosen = op_name(value) == "where" and value.args[0] in self.true
        return chosen and sizes(value.args[1]) == sizes(value)

    def read_of(self, value: Expr) -> Expr:
        """What is read beside masks: of attention, queries and caches; of a choice by flags that are true, one side."""
        if self.is_shown(value):
            return relax.Tuple([value.args[1]])
        return relax.Tuple(list(value.args[:3])) if op_name(value) == ATTEND else value

    def _positions(self) -> set[Var] | str:
        """Look at masks, and find what may be positions; or why the masks do not fit."""
        if any(len(call.args) == 4 and not scores_of(call).causal for call in self.attend):
            return "1: a query sees the tokens behind it"
        masks = {call.args[4]: scores_of(call) for call in self.attend if len(call.args) > 4}
        free = [p for p in self.inputs if name_of(p) in (MASK, POSITIONS)]
        trial = Trial(self.graph, self.module, free, (self.past, self.tokens))
        found = {v for v in trial.computable if self._may_be_positions(v)}
        if not all(self.graph.is_const(m) or m in trial.computable for m in masks):
            return "1: what a mask hides depends on the tokens"
        self.true = {v for v in trial.computable if self._may_be_flags(v)}
        trial.want([*(m for m in masks if not self.graph.is_const(m)), *found, *self.true])
        most = int(dict(self.func.attrs[UPPER_BOUNDS])[str(self.past.name)])
        for past, new in (*TRIED, (most, 1)):
            if past + new > most + 1:
                continue
            values = {MASK: np.ones((1, past + new)), POSITIONS: np.arange(past, past + new)[None]}
            arrays = trial.at((past, new), [values[name_of(p)] for p in free])
            for mask, scores in masks.items():
                array = self.graph.array(mask) if self.graph.is_const(mask) else arrays[mask]
                if array is None or not is_causal(array, past, new, scores):
                    return "1: a mask hides other keys than those behind the query"
            found = {v for v in found if np.array_equal(arrays[v].ravel(), np.arange(past, past + new))}
            self.true = {v for v in self.true if arrays[v].all()}
        return found

    def _may_be_flags(self, var: Var) -> bool:
        shape = [d for d in sizes(var) or () if d != 1]
        return str(var.ty.dtype) == "bool" and len(shape) == 1 and str(shape[0]) == str(self.tokens.name)

    def _may_be_positions(self, var: Var) -> bool:
        shape = [d for d in sizes(var) or () if d != 1]
        return len(shape) == 1 and str(shape[0]) == str(self.tokens.name) and str(var.ty.dtype) != "bool"

    def _dependence(self, positions: set[Var]) -> str:
        """Replace the first positions on the way from the past; whether anything else depends on it."""
        dirty = {p for p in self.inputs if self._of_past(p.ty) and p not in self.caches}
        for binding in self.bindings:
            value = self.read_of(binding.value)
            if op_name(binding.value) == APPEND:
                value = relax.Tuple(list(value.args[:2]))
            if self._of_past(binding.var.ty) or self._of_past(value) or any(v in dirty for v in _variables(value)):
                (self.replaced if binding.var in positions else dirty).add(binding.var)
        bad = next((v for v in self.needed() if v in dirty), None)
        return "" if bad is None else f"2: {name_of(bad)} depends on the length of the past"

    def _of_past(self, expr: Any) -> bool:
        """Whether the length of the past is among the sizes of a type, or the arguments of a call."""
        if isinstance(expr, relax.TensorType):
            return isinstance(expr.shape, relax.ShapeExpr) and self._of_past(expr.shape)
        if isinstance(expr, relax.ShapeExpr):
            return any(map(self._has_past, expr.values))
        if isinstance(expr, relax.Call):
            return any(map(self._of_past, expr.args))
        if isinstance(expr, relax.Tuple):
            return any(map(self._of_past, expr.fields))
        return isinstance(getattr(expr, "ty", None), tvm.ir.PrimType) and self._has_past(expr)

    def _has_past(self, size: Any) -> bool:
        return any(v.same_as(self.past) for v in undefined_vars(size, []))


class _Writer:
    """Writes the function whose tokens have places."""

    def __init__(self, decoder: _Decoder) -> None:
        self.decoder, self.func, self.builder = decoder, decoder.func, relax.BlockBuilder()
        texts, self.apart = (tirx.Var(n, "int64") for n in (TEXTS, APART))
        self.places = relax.Var(PLACES, relax.TensorType([2, decoder.tokens], "int64"))
        self.alias: dict[Var, Expr] = {}
        for p in decoder.caches:
            self.alias[p] = relax.Var(name_of(p), relax.TensorType([texts, *list(p.ty.shape)[1:]], p.ty.dtype))
        self.flow = True
        self.out: list[Any] = []

    def function(self) -> Any:
        """The function."""
        func, needed, blocks = self.func, set(self.decoder.needed()), []
        for block in func.body.blocks:
            self.flow, self.out = isinstance(block, relax.DataflowBlock), []
            for binding in block.bindings:
                if binding.var in needed:
                    self._binding(binding)
            blocks.append((relax.DataflowBlock if self.flow else relax.BindingBlock)(self.out))
        params: list[Any] = []
        for p in func.params:
            if p.same_as(self.decoder.lengths):
                params += [relax.Var(LENGTHS, relax.ShapeType([*p.ty.values, self.apart])), self.places]
            else:
                params.append(self.alias.get(p, p))
        result = func.body.body
        body = self.builder.normalize(relax.SeqExpr(blocks, self.alias.get(result, result)))
        made = relax.Function(params, body, None, bool(func.is_pure), func.attrs)
        return made.with_attrs({"num_input": int(func.attrs["num_input"]) + 1, PLACED: 1, **_sizes(func.attrs)})

    def _bind(self, value: Expr, like: Var) -> Var:
        value = self.builder.normalize(value)
        kind = relax.DataflowVar if isinstance(like, relax.DataflowVar) else relax.Var
        self.out.append(relax.VarBinding(kind(name_of(like), value.ty), value))
        return self.out[-1].var

    def _binding(self, binding: Any) -> None:
        var, value = binding.var, substitute(self.decoder.read_of(binding.value), self.alias)
        if self.decoder.is_shown(binding.value):
            self.alias[var] = value.fields[0]
        elif var in self.decoder.replaced:
            inner = relax.DataflowVar(name_of(var), var.ty) if self.flow else var
            row = self._bind(relax.op.take(self.places, relax.const(1, "int64"), 0), inner)
            shaped = self._bind(relax.op.reshape(row, list(var.ty.shape)), inner)
            self.alias[var] = self._bind(relax.op.astype(shaped, str(var.ty.dtype)), var)
        elif op_name(binding.value) == APPEND:
            self.alias[var] = self._bind(append_placed(value.args[0], value.args[1], self.places), var)
        elif op_name(binding.value) == ATTEND:
            q, k, v = value.fields
            keys, scores = binding.value.args[3].values[0], Scores(scores_of(binding.value).scale, causal=True)
            self.alias[var] = self._bind(placed_attention(q, k, v, keys, self.apart, self.places, scores), var)
        elif isinstance(binding, relax.MatchCast):
            self.out.append(relax.MatchCast(var, value, binding.ty))
        elif any(v in self.alias for v in _variables(binding.value)):
            self.alias[var] = self._bind(value, var)
        else:
            self.out.append(binding)


def is_causal(bias: Array, past: int, new: int, scores: Scores) -> bool:
    """Whether a mask hides the keys behind each query and no others, and adds nothing to those that are seen."""
    if bias.ndim != 4 or any(a not in (1, b) for a, b in zip(bias.shape[2:], (new, past + new), strict=True)):
        return False
    whole = np.broadcast_to(bias, (*bias.shape[:2], new, past + new))
    seen = np.arange(past + new) <= past + np.arange(new)[:, None]
    hides = whole <= HIDES
    if scores.fill is not None and scores.fill <= HIDES:
        hides = hides | (whole == np.inf)
    if scores.causal:
        hides = hides | ~seen
    return bool((hides == ~seen).all() and (whole[..., seen] == 0).all())


def _variables(value: Expr) -> list[Var]:
    """The variables of a bound value, but for sizes."""
    return [v for v in variables(value) if not isinstance(v.ty, tvm.ir.PrimType)]


def _sizes(attrs: Any) -> Mapping[str, Any]:
    """What is known of the new numbers."""
    known = {
        UPPER_BOUNDS: {APART: 1, TEXTS: MOST_TEXTS}, NAMED_SIZES: {APART: 0, TEXTS: 1},
        LEAST_SIZES: {APART: 0, TEXTS: 1},
    }  # fmt: skip
    return {name: {**dict(attrs[name]), **more} for name, more in known.items()}
