"""What TVM's LoopPartition may cut a loop at - the step between scheduling and code generation that keeps it in bounds.

    for i in range(16):                                   for i in range(16):
      for j in range(16):  # pragma_loop_partition_hint     for j in range(16):  # pragma_loop_partition_hint
        o[i, j] = select(j + 3 <= i, x[i, j], 0)              o[i, j] = select(ignore(j + 3 <= i), x[i, j], 0)

LoopPartition cuts a hinted loop where a comparison changes its value, and clamps the cut to one end of the loop only.
A cut at a number is checked against both ends at compile time; a cut that depends on what is known at run time only
(`i - 2` above, or a length that is loaded) is not, and the loop behind it starts at -2. So a comparison that mentions a
hinted loop is hidden from the pass unless all its other variables are loops inside that one, of constant bounds.

A block's predicate stays visible, because TVM reads regions off it: beyond both ends it is false, and nothing runs.
That needs the loop to have no other cut, and every block in it that predicate; a loop where it is otherwise loses its
hint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import Op
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm_ffi import structural_equal, structural_mutate, structural_walk

from tvmopt.lowering.loops import with_body
from tvmopt.scheduling.blocks import asks

HINT = "pragma_loop_partition_hint"
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def bound_partitions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with comparisons hidden, or hints taken away, where LoopPartition would leave a loop's bounds."""
    if not asks(func, HINT):
        return func
    scope = _Scope()
    body = structural_mutate(
        func.body, ((tirx.For, scope.loop), (SBlockRealize, scope.realize), (_COMPARISONS, scope.comparison))
    )
    return func if body.same_as(func.body) else with_body(func, body)


@dataclass
class _Hint:
    """A hinted loop while its body is looked at: the loop's variable, how many loops are around it, the comparisons of
    predicates that mention it, and whether each block's predicate has the one that is not bounded."""

    var: Any
    depth: int
    bounded: list[Any] = field(default_factory=list)
    unbounded: list[Any] = field(default_factory=list)
    blocks: int = 0


class _Scope:
    """Where a walk is: the loops around it, and which of them each variable of a block depends on."""

    def __init__(self) -> None:
        self.loops: list[Any] = []
        self.constant: list[bool] = []
        self.depends: dict[Any, frozenset[Any]] = {}
        self.hints: list[_Hint] = []

    def loop(self, node: Any, mutator: Any) -> Any:
        own = _Hint(node.loop_var, len(self.loops)) if HINT in node.annotations else None
        self.loops.append(node.loop_var)
        self.constant.append(isinstance(node.min, tirx.IntImm) and isinstance(node.extent, tirx.IntImm))
        if own:
            self.hints.append(own)
        done = mutator.default_mutate(node)
        if own:
            self.hints.pop()
        self.loops.pop()
        self.constant.pop()
        if own is None or not own.unbounded or _only_guard(own):
            return done
        kept = {key: value for key, value in done.annotations.items() if key != HINT}
        return tirx.For(done.loop_var, done.min, done.extent, done.kind, done.body, done.thread_binding, kept)

    def realize(self, node: Any, mutator: Any) -> Any:
        for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            self.depends[axis.var] = self._variables(value)
        structural_walk(node.predicate, ((_COMPARISONS, self._predicate),))
        old = node.block
        body, init = mutator.mutate(old.body), old.init if old.init is None else mutator.mutate(old.init)
        if not _has_blocks(body):
            for hint in self.hints:
                hint.blocks += 1
        if body.same_as(old.body) and (init is None or init.same_as(old.init)):
            return node
        block = SBlock(
            old.iter_vars, old.reads, old.writes, old.name_hint, body, init, old.alloc_buffers, old.match_buffers,
            old.annotations,
        )  # fmt: skip
        return SBlockRealize(node.iter_values, node.predicate, block)

    def comparison(self, node: Any, mutator: Any) -> Any:
        seen = self._variables(node)
        if all(hint.var not in seen or self._bounded(seen, node, hint) for hint in self.hints):
            return node
        return Call(Op.get("tirx.ignore_loop_partition"), [node], ret_ty=node.ty)

    def _predicate(self, node: Any) -> None:
        seen = self._variables(node)
        for hint in self.hints:
            if hint.var in seen:
                (hint.bounded if self._bounded(seen, node, hint) else hint.unbounded).append(node)

    def _bounded(self, seen: frozenset[Any], node: Any, hint: _Hint) -> bool:
        """Whether what a comparison says of the hinted loop depends on loops of constant bounds inside it only."""
        inside = {v for v, c in zip(self.loops[hint.depth + 1 :], self.constant[hint.depth + 1 :], strict=True) if c}
        return seen <= inside | {hint.var} and not _reads(node)

    def _variables(self, expr: Any) -> frozenset[Any]:
        """The loops, and other variables, that a value depends on."""
        found: set[Any] = set()
        structural_walk(expr, ((tirx.Var, lambda var: found.update(self.depends.get(var, {var}))),))
        return frozenset(found)


def _only_guard(hint: _Hint) -> bool:
    """Whether the one cut of a loop is one bound that is the predicate of every block in it."""
    first, *others = hint.unbounded
    one_sided = not isinstance(first, tirx.EQ | tirx.NE)
    return (
        one_sided
        and not hint.bounded
        and len(hint.unbounded) == hint.blocks
        and all(structural_equal(first, other) for other in others)
    )


def _has_blocks(body: Any) -> bool:
    found: list[Any] = []
    structural_walk(body, ((SBlockRealize, found.append),))
    return bool(found)


def _reads(node: Any) -> bool:
    """Whether a value is loaded, or computed by a call."""
    found: list[Any] = []
    structural_walk(node, (((TensorLoad, Call), found.append),))
    return bool(found)
