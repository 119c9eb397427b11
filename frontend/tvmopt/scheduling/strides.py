"""How the accesses of a block move along its axes: what is contiguous, what is transposed - for the families.

Index arithmetic is *sampled*, not proved (:func:`step`): it only steers the choice of a loop order, the schedule
primitives keep it right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from tvm import ir, tirx

from tvmopt.scheduling.facts import Access, BlockFacts, moving_blocks

Reader = Callable[[Sequence[int]], "int | None"]
"""The value of an expression at one point, which is a number for each variable."""


def evaluate(expr: Any, env: Mapping[Any, int]) -> int | None:
    """The value of an index expression at one point; None where it depends on data or an unknown variable."""
    return reader(expr, list(env))(list(env.values()))


def reader(expr: Any, variables: Sequence[Any]) -> Reader:
    """What :func:`evaluate` computes as a function of the variables' values: walking an expression of TVM takes some
    hundred times as long as calling it, and many points are looked at."""
    if isinstance(expr, int):
        return lambda _: expr
    if isinstance(expr, tirx.IntImm):
        value = int(expr.value)
        return lambda _: value
    if ir.is_prim_var(expr):
        place = next((i for i, variable in enumerate(variables) if expr.same_as(variable)), None)
        return _unknown if place is None else itemgetter(place)
    if isinstance(expr, tirx.Cast):
        return reader(expr.value, variables)
    if isinstance(expr, tirx.Select):
        return _choice(*(reader(e, variables) for e in (expr.condition, expr.true_value, expr.false_value)))
    if isinstance(expr, ir.Call) and getattr(expr.op, "name", "").endswith("if_then_else"):
        return _choice(*(reader(e, variables) for e in expr.args))
    operator = _OPERATORS.get(type(expr).__name__)
    if operator is None:
        return _unknown
    return _result(operator, reader(expr.a, variables), reader(expr.b, variables))


def _unknown(_: Sequence[int]) -> None:
    return None


def _choice(condition: Reader, yes: Reader, no: Reader) -> Reader:
    def choose(point: Sequence[int]) -> int | None:
        decided = condition(point)
        return None if decided is None else (yes if decided else no)(point)

    return choose


def _result(operator: Callable[[int, int], int], left: Reader, right: Reader) -> Reader:
    def compute(point: Sequence[int]) -> int | None:
        a, b = left(point), right(point)
        if a is None or b is None:
            return None
        try:
            return int(operator(a, b))
        except ZeroDivisionError:
            return None

    return compute


_OPERATORS: dict[str, Any] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b, "FloorMod": lambda a, b: a % b,
    "Div": lambda a, b: a // b, "Mod": lambda a, b: a % b,
    "Min": min, "Max": max, "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
    "And": lambda a, b: a and b, "Or": lambda a, b: a or b,
}  # fmt: skip


def step(access: Access, variables: Sequence[Any], extents: Sequence[int], first: int) -> int | None:
    """By how many elements an access moves when the fused axes `first:` advance by one; None where that varies.

    Sampled at some twenty points spread over the iteration space, and on both sides of every carry of the fused axes.
    """
    inner = math.prod(extents[first:])
    strides = _strides(access.buffer)
    if inner == 1 or 0 in extents:
        return 0
    steps = set()
    places_to_try = [(k * (inner - 1)) // 20 if inner > 20 else k % (inner - 1) for k in range(20)]
    for i in range(first + 1, len(extents)):  # the axis before i advances here
        carry = math.prod(extents[i:])
        places_to_try += [k * carry - 1 for k in (1, 2, 3) if 0 <= k * carry - 1 < inner - 1]
    readers = [(reader(index, variables), stride) for index, stride in zip(access.indices, strides, strict=True)]
    for sample, at in enumerate(places_to_try):
        point = [(sample * 7919 + 13 * i) % e for i, e in enumerate(extents)]
        places = []
        for rest in (at, at + 1):
            for i in range(len(extents) - 1, first - 1, -1):
                rest, point[i] = divmod(rest, extents[i])
            index = [(read(point), stride) for read, stride in readers]
            if any(i is None for i, _ in index):
                return None
            places.append(sum(i * stride for i, stride in index if i is not None))
        steps.add(places[1] - places[0])
        if len(steps) > 1:
            return None
    return steps.pop()


def _strides(buffer: Any) -> list[int]:
    shape = [int(d) for d in buffer.shape]
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def contiguous_suffix(block: BlockFacts) -> int:
    """The first of the trailing axes that can be fused into one loop in which every access is contiguous or constant.

    Equals ``len(extents)`` where even the last axis alone is not (a transpose, a gather along it).
    """
    accesses = [*block.loads, *([block.store] if block.store else [])]
    best = len(block.extents)
    for first in range(len(block.extents) - 1, -1, -1):
        if block.extents[first] != 1 or best == len(block.extents):
            if block.variables[first] in block.guarded and block.extents[first] != 1:
                break  # a condition that changes inside the loop would cut its vectors up
            steps = [step(a, block.variables, block.extents, first) for a in accesses]
            if not all(s in (0, 1) for s in steps):
                break
        best = first
    return best


def vector_axis(here: BlockFacts, spatial: list[int]) -> int | None:
    """The spatial axis along which the store is contiguous and every load contiguous or constant."""
    if here.store is None:
        return None
    for i in reversed(spatial):
        if here.extents[i] < 4:
            continue
        if along(here, here.store, i) == 1 and all(along(here, a, i) in (0, 1) for a in here.loads):
            return i
    return None


def last_axis_contiguous(block: BlockFacts) -> bool:
    """Every access is contiguous or constant along the block's last axis (no transpose, gather or stride there)."""
    last = next((v for v, e in zip(reversed(block.variables), reversed(block.extents), strict=True) if e > 1), None)
    if last is None:
        return True
    accesses = [*block.loads, *([block.store] if block.store else [])]
    return all(_plain(a, last) for a in accesses)


def one_pass_blocks(func: Any) -> tuple[BlockFacts, ...] | None:
    """The blocks of a function that one pass over memory computes: all spatial and unclaimed, without borders or seams,
    contiguous or constant along the last axis; None for any other."""
    blocks = moving_blocks(func)
    if blocks is None or any(b.guarded or not last_axis_contiguous(b) for b in blocks):
        return None
    return blocks


def _plain(access: Access, last: Any) -> bool:
    indices = list(access.indices)
    while indices and int(access.buffer.shape[len(indices) - 1]) == 1:
        indices.pop()
    return all(index.same_as(last) for index in indices[-1:] if _mentions(index, last)) and not any(
        _mentions(index, last) for index in indices[:-1]
    )


def _mentions(expr: Any, var: Any) -> bool:
    from tvm.tirx.analysis import undefined_vars

    return any(v.same_as(var) for v in undefined_vars(expr, []))


def transposed(here: BlockFacts) -> tuple[int, int] | None:
    """(the axis contiguous in the store, another axis contiguous in a load), or None where they are one."""
    if here.store is None:
        return None
    stored = _contiguous(here, here.store)
    if stored is None:
        return None
    for access in here.loads:
        loaded = _contiguous(here, access)
        if loaded is not None and loaded != stored and along(here, access, stored) not in (0, 1):
            return stored, loaded
    return None


def _contiguous(here: BlockFacts, access: Access) -> int | None:
    """The longest axis along which an access moves by one element."""
    found = [i for i, e in enumerate(here.extents) if e > 1 and along(here, access, i) == 1]
    return max(found, key=lambda i: here.extents[i], default=None)


def along(here: BlockFacts, access: Access, axis: int) -> int | None:
    """By how many elements an access moves along one axis alone: the step with that axis moved last."""
    order = [j for j in range(len(here.extents)) if j != axis] + [axis]
    return step(access, [here.variables[j] for j in order], [here.extents[j] for j in order], len(order) - 1)
