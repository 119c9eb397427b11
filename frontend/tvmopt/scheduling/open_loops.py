"""Statements moved along tensors, and arithmetic on sizes that a call decides - for kernels with open sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Call, Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock
from tvm.tirx.stmt import BufferRegion
from tvm_ffi import structural_equal, structural_map, structural_mutate

STEP = "tvmopt.prefetch_step"
"""Annotates the loops that count the steps in which the next panel of weights is fetched (lowering/prefetch.py)."""

Target = tuple[Any, Mapping[int, Any]]
"""A buffer, and what is added to its indices: axis -> expression."""


def of_task(body: Any, loop: Any, task: Any) -> Any:
    """The body of a loop over tasks for one of them, as a number of the loop's own type."""
    own = task.astype(str(loop.loop_var.ty.dtype))
    return structural_map(body, (tirx.Var, lambda v: own if v.same_as(loop.loop_var) else v))


def moved(statement: Any, targets: Mapping[Any, Target]) -> Any:
    """A statement with other buffers in place of its own, and its accesses of them moved along.

    A number that an access splits, `[row // 7, row % 7]`, is whole again, `[0, row]`, which is the same place where
    both buffers have 7 there: what is added has another type, so that TVM would divide for each access.
    """

    def at(buffer: Any, indices: Sequence[Any]) -> list[Any]:
        added = targets[buffer][1]
        return [i + added[k] if k in added else i for k, i in enumerate(indices)]

    def access(buffer: Any, indices: Sequence[Any]) -> list[Any]:
        return at(buffer, whole(indices, fixed(buffer.shape, targets[buffer][0].shape)) or indices)

    def fixed(shape: Sequence[Any], there: Sequence[Any]) -> list[Any]:
        """The sizes that both buffers have; what is split by an axis that is longer there stays split."""
        pairs = zip(shape, there, strict=True)
        same = (all(isinstance(d, tirx.IntImm) for d in pair) and int(pair[0]) == int(pair[1]) for pair in pairs)
        return [size if alike else None for size, alike in zip(shape, same, strict=True)]

    def load(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.source not in targets:
            return node
        return tirx.BufferLoad(targets[node.source][0], access(node.source, node.indices))

    def store(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.buffer not in targets:
            return node
        return tirx.BufferStore(targets[node.buffer][0], node.value, access(node.buffer, node.indices))

    def region(node: Any) -> Any:
        if node.source not in targets:
            return node
        starts = at(node.source, [r.min for r in node.region])
        ranges = [Range.from_min_extent(s, r.extent) for s, r in zip(starts, node.region, strict=True)]
        return BufferRegion(targets[node.source][0], ranges)

    def block(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return SBlock(
            node.iter_vars, [region(r) for r in node.reads], [region(r) for r in node.writes], node.name_hint,
            node.body, node.init, node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    return structural_mutate(statement, ((TensorLoad, load), (tirx.BufferStore, store), (SBlock, block)))


def whole(indices: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    """Indices of the same place, in a tensor whose rows lie one behind the other, without a number's quotient in one
    axis and its remainder in the next; None where there are none.

    >>> i = tirx.Var("i", "int32")
    >>> whole([i // 7 + 2, i % 7], [tirx.const(5), tirx.const(7)])
    [2, i]
    >>> whole([i // 35, i % 35 // 7, i % 7], [tirx.const(2), tirx.const(5), tirx.const(7)])
    [0, 0, i]
    """
    found, split = list(indices), False
    for k in range(1, len(found)):
        parts = _parts(found[k], shape[k])
        high = without(found[k - 1], parts[0]) if parts is not None else None
        if parts is not None and high is not None:
            found[k - 1 : k + 1], split = [high, parts[1]], True
    return found if split else None


def _parts(low: Any, size: Any) -> tuple[Any, Any] | None:
    """The quotient that belongs in the axis before the one that has the remainder `low`, and the number of which both
    are made; None where it is no remainder by the axis's size: `a % 7`, or `a % 35 // 7` of an axis of 5."""
    if not isinstance(size, tirx.IntImm):
        return None
    if isinstance(low, tirx.FloorMod) and structural_equal(low.b, size):
        return tirx.FloorDiv(low.a, low.b), low.a
    if isinstance(low, tirx.FloorDiv) and isinstance(low.a, tirx.FloorMod):
        by, period = low.b, low.a.b
        if isinstance(by, tirx.IntImm) and isinstance(period, tirx.IntImm) and int(period) == int(by) * int(size) > 0:
            return tirx.FloorDiv(low.a.a, period), tirx.FloorDiv(low.a.a, by)
    return None


def without(total: Any, term: Any) -> Any | None:
    """A sum without one of its terms; None: it has no such term."""
    if structural_equal(total, term):
        return tirx.const(0, str(total.ty.dtype))
    if isinstance(total, tirx.Add):
        for one, other in ((total.a, total.b), (total.b, total.a)):
            left = without(one, term)
            if left is not None:
                return left + other
    if isinstance(total, tirx.Sub):
        left = without(total.a, term)
        return None if left is None else left - total.b
    return None


WORTH = "tvmopt_worth_threads"
"""The function of the pool of threads (`pool.c`) that hears whether the next parallel loop is worth threads."""


def shared_where(condition: Any, statement: Any) -> Any:
    """A statement whose parallel loops threads share where a condition holds; else the caller does them alone.

    The pool hears it in front of each loop. The loops once more, without threads, would be as much code again: of a
    detector of open height and width a quarter of the time that code generation takes.
    """

    def told(loop: Any, mutator: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return mutator.default_mutate(loop)
        return tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("void", WORTH, condition.astype("int32"))), loop])

    return structural_mutate(statement, ((tirx.For, told),))


def without_pool(func: Any) -> Any:
    """A kernel that tells the pool nothing: code that is not linked with `pool.c` must not call it."""

    def told(statement: Any) -> Any:
        call = statement.value
        known = isinstance(call, Call) and call.args and getattr(call.args[0], "value", None) == WORTH
        return tirx.Evaluate(0) if known else statement

    body = structural_map(func.body, (tirx.Evaluate, told))
    return func if body.same_as(func.body) else func.with_body(body)


class Names:
    """Values that are computed once, in front of the statements that use them.

    Args:
        buffers: gets a place in memory for each value, which hides it from TVM's analyzer: that looks through a name to
            its value, and through the names in that, again at each use (50 s for a kernel whose values are of three
            levels; four fifths of the passes' time where they are of one). LLVM makes registers of them.
    """

    def __init__(self, buffers: list[Any]) -> None:
        self.statements: list[Any] = []
        self.buffers = buffers

    def of(self, name: str, value: Any) -> Any:
        var = tirx.Var(name, str(value.ty.dtype))
        place, zero = tirx.decl_buffer([1], str(value.ty.dtype), name, layout=None), [tirx.const(0, "int32")]
        self.buffers.append(place)
        self.statements += [tirx.BufferStore(place, value, zero), tirx.Bind(var, tirx.BufferLoad(place, zero))]
        return var


def number(value: Any) -> Any:
    """A size as an expression."""
    return tirx.const(value, "int64") if isinstance(value, int) else value


def quotient(a: Any, b: Any) -> Any:
    """Sizes and numbers of tasks are not negative: no code for rounding."""
    return tirx.truncdiv(number(a), number(b))


def remainder(a: Any, b: Any) -> Any:
    """What :func:`quotient` leaves."""
    return tirx.truncmod(number(a), number(b))
