"""Loops that count, as TensorFlow's exporters write them - for `control.py`: their trip count is said at once.

    i = 0; while i < n: ...; i = i + 1        Loop("", Less(i, n), ..)  ->  Loop(n, "", ..)

What they collect has a known length then, and bodies need no condition. Of other loops, too, is known what their
counters are in each trip, and how many trips there are at the most (:func:`counters`, for `places.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.dims import Dim, Size, equal, interval
from tvmopt.importer.bodies import first_condition
from tvmopt.importer.branches import VIEWS
from tvmopt.importer.protos import node_name, node_reads, subgraphs
from tvmopt.importer.walk import Walk

WIDE = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE)
"""Types of numbers that a count is written in: in a narrower one it would wrap. A float32 counts exactly to 2^24, which
is longer than any axis here."""

ENDLESS = np.iinfo(np.int32).max
"""From here on a limit is none."""

LESS = {"Less": 0, "LessOrEqual": 1, "Greater": 0, "GreaterOrEqual": 1}
"""Comparisons, and what makes them ``a < b``: one more on the right where equal numbers fulfil them."""


@dataclass(frozen=True)
class _Number:
    """A number in the body: its value in the first trip, by how much it grows from trip to trip, and the tensor outside
    that it is `more` larger than, if there is one."""

    first: Size
    step: int = 0
    name: str = ""
    more: int = 0

    def __add__(self, more: int) -> _Number:
        return _Number(self.first + more, self.step, self.name, self.more + more)


def counted(walk: Walk, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The same loop with its trip count in place of conditions; None where it does not count.

    A loop goes on behind trip k as long as ``a + k step < b``, which holds for k = 0 .. ceil((b - a) / step) - 1; it
    has one trip more than that, and no more than it says itself.
    """
    body = next(a.g for a in node.attribute if a.name == "body")
    given = walk.sizes(node.input[0]) if node.input[0] else np.array(np.iinfo(np.int64).max)
    if given is None or given.size != 1 or not body.output:
        return None
    most = given.reshape(-1)[0]
    counters = _Body(walk, node, body)
    comparison = counters.comparison(body.output[0].name)
    if comparison is None or not _begins(walk, node, counters.outside):
        return None
    a, b, more = comparison
    if a.step < 1 or b.step or isinstance(a.first, Dim) or (isinstance(b.first, Dim) and a.step > 1):
        return None
    left = b.first + more - a.first
    if isinstance(left, Dim):
        known = walk.symbols.known()
        if interval(left, known)[0] < 0:
            return None
        if isinstance(most, Dim) and equal(most, left + 1, known):
            limit = node.input[0]
        elif not isinstance(most, Dim) and most >= ENDLESS and b.name:
            limit = _sum(walk, node, b.name, b.more + more - a.first + 1)
        else:
            return None
    elif isinstance(most, Dim):
        return None
    else:
        most = int(most)
        limit = walk.fresh(f"{node_name(node)}/trips")
        walk.set_constant(limit, np.array(min(1 + max(0, -(-left // a.step)), max(most, 0)), np.int64))
    return _rewritten(walk, node, limit)


def counters(walk: Walk, node: onnx.NodeProto) -> tuple[dict[int, tuple[Size, int]], Size | None]:
    """What a loop counts: of each input of its body that is a counter, its value in the first trip and by how much it
    grows; and the most trips that there can be, if there is a limit."""
    body = next(a.g for a in node.attribute if a.name == "body")
    known = _Body(walk, node, body)
    found: dict[int, tuple[Size, int]] = {0: (0, 1)}
    for index, formal in enumerate(body.input[2:], start=2):
        number = known.number(formal.name)
        if number is not None and number.step:
            found[index] = (number.first, number.step)
    most = known.most_trips(body.output[0].name) if body.output else []
    limit = walk.sizes(node.input[0]) if node.input[0] and not _endless(walk, node.input[0]) else None
    if limit is not None:
        most += list(limit.ravel())
    return found, reduce(walk.symbols.least, most) if most else None


def _endless(walk: Walk, name: str) -> bool:
    limit = walk.array(name)
    return limit is not None and int(limit.reshape(-1)[0]) >= ENDLESS


def _keeps(maker: onnx.NodeProto) -> bool:
    """Whether a number behind this operator is the one before it."""
    if maker.op_type == "Cast":
        return next(a.i for a in maker.attribute if a.name == "to") in WIDE
    return maker.op_type in VIEWS


def _begins(walk: Walk, node: onnx.NodeProto, made: dict[str, onnx.NodeProto]) -> bool:
    """Whether the first trip is always made: nothing asks before it, or what asks is true for all sizes."""
    known = first_condition(walk, node)
    return _always(walk, made, node.input[1]) if known is None else known


def _always(walk: Walk, made: dict[str, onnx.NodeProto], name: str) -> bool:
    """Whether a comparison of sizes, or several, are true for all of them."""
    name = walk.alias.get(name, name)
    while name in made and made[name].op_type in VIEWS:
        name = walk.alias.get(made[name].input[0], made[name].input[0])
    maker = made.get(name)
    if maker is not None and maker.op_type == "And":
        return all(_always(walk, made, side) for side in maker.input)
    if maker is None or maker.op_type not in LESS:
        return False
    sides = [_outside(walk, made, i) for i in maker.input]
    if None in sides:
        return False
    a, b = sides if maker.op_type.startswith("Less") else sides[::-1]
    low = interval(b + LESS[maker.op_type] - a, walk.symbols.known())[0]  # type: ignore[operator]  # neither is None
    return bool(low >= 1)


def _outside(walk: Walk, made: dict[str, onnx.NodeProto], name: str) -> Size | None:
    """A single number that is known, or known as a size."""
    name = walk.alias.get(name, name)
    while walk.sizes(name) is None and name in made and _keeps(made[name]):
        name = walk.alias.get(made[name].input[0], made[name].input[0])
    found = walk.sizes(name)
    if found is None or found.size != 1:
        return None
    value = found.reshape(-1)[0]
    if isinstance(value, Dim):
        return value
    return int(value) if np.isfinite(float(value)) and float(value).is_integer() else None


class _Body:
    """What the nodes of a body compute of counters."""

    def __init__(self, walk: Walk, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        self.walk, self.body = walk, body
        self.made = {output: maker for maker in body.node for output in maker.output}
        self.outside = {output: maker for maker in walk.nodes for output in maker.output}
        self.constants = {t.name: onnx.numpy_helper.to_array(t) for t in body.initializer}
        self.states = {
            formal.name: (given, result.name)
            for formal, given, result in zip(body.input[2:], node.input[2:], body.output[1:], strict=False)
        }

    def comparison(self, name: str) -> tuple[_Number, _Number, int] | None:
        """``a < b + more``, where a condition says that."""
        maker = self.made.get(name)
        if maker is None:
            return None
        if maker.op_type in VIEWS:
            return self.comparison(maker.input[0])
        if (added := self._added(maker)) is not None and added[1] == 0:  # of a truth value as a number
            return self.comparison(added[0])
        if maker.op_type == "And":  # a limit that no loop reaches stands beside it
            sides = [self.comparison(i) for i in maker.input]
            left = [s for s in sides if s is None or not self._never(s)]
            return _earliest(left)  # two counters of one loop may say the same, or one ends it before the other
        if maker.op_type not in LESS:
            return None
        numbers = [self.number(i) for i in maker.input]
        if numbers[0] is None or numbers[1] is None:
            return None
        a, b = numbers if maker.op_type.startswith("Less") else numbers[::-1]
        return a, b, LESS[maker.op_type]  # type: ignore[return-value]  # neither is None

    def most_trips(self, name: str) -> list[Size]:
        """How many trips a condition lets pass: one more than while it holds."""
        maker = self.made.get(name)
        if maker is not None and (maker.op_type in VIEWS or maker.op_type == "And"):
            return [most for i in maker.input for most in self.most_trips(i)]
        if maker is not None and (added := self._added(maker)) is not None and added[1] == 0:
            return self.most_trips(added[0])  # of a truth value as a number
        comparison = self.comparison(name)
        if comparison is None or self._never(comparison):
            return []
        a, b, more = comparison
        if a.step < 1 or b.step or isinstance(a.first, Dim) or (isinstance(b.first, Dim) and a.step > 1):
            return []
        return [1 + self.walk.symbols.most_of(-(-(b.first + more - a.first) // a.step), 0)]

    @staticmethod
    def _never(comparison: tuple[_Number, _Number, int]) -> bool:
        """Whether it holds for as many trips as anyone makes."""
        b = comparison[1]
        return not b.step and not isinstance(b.first, Dim) and b.first >= ENDLESS

    def number(self, name: str, depth: int = 0) -> _Number | None:
        """A counter, or a number that is the same in each trip."""
        if depth > len(self.body.node) + len(self.states):
            return None
        if name == self.body.input[0].name:
            return _Number(0, 1)
        if name in self.states:
            given, result = self.states[name]
            step = self._step(result, name)
            first = _outside(self.walk, self.outside, given) if step is not None else None
            return None if first is None or step is None else _Number(first, step, "" if step else given)
        maker = self.made.get(name)
        if maker is None:
            found = self._constant(name)
            if found is None:
                found = _outside(self.walk, self.outside, name)
            return None if found is None else _Number(found, name="" if name in self.constants else name)
        if _keeps(maker):
            return self.number(maker.input[0], depth + 1)
        if (added := self._added(maker)) is not None:
            base = self.number(added[0], depth + 1)
            return None if base is None else base + added[1]
        found = self._constant(name)
        return None if found is None else _Number(found)

    def _added(self, maker: onnx.NodeProto) -> tuple[str, int] | None:
        """Of a sum with a number: what the number is added to, and the number."""
        if maker.op_type not in ("Add", "Sub"):
            return None
        left, right = maker.input
        if (more := self._constant(right)) is not None:
            return left, more if maker.op_type == "Add" else -more
        more = self._constant(left) if maker.op_type == "Add" else None
        return None if more is None else (right, more)

    def _step(self, result: str, formal: str) -> int | None:
        """By how much a state grows; 0 where it is handed on."""
        total = 0
        while result != formal:
            maker = self.made.get(result)
            if maker is None:
                return None
            if _keeps(maker):
                result = maker.input[0]
            elif (added := self._added(maker)) is not None:
                result, total = added[0], total + added[1]
            else:
                return None
        return total

    def _constant(self, name: str) -> int | None:
        """A number that is written in the body, or known outside."""
        array = self.constants.get(name)
        maker = self.made.get(name)
        if array is None and maker is not None and maker.op_type == "Constant":
            array = next((onnx.numpy_helper.to_array(a.t) for a in maker.attribute if a.name == "value"), None)
        if array is None and maker is None and name not in self.states:
            array = self.walk.array(name)
        if array is None or array.size != 1 or array.dtype.kind not in "iuf":
            return None
        value = float(array.reshape(-1)[0])
        return int(value) if value.is_integer() else None


def _earliest(comparisons: list[tuple[_Number, _Number, int] | None]) -> tuple[_Number, _Number, int] | None:
    """The comparison that no longer holds first, of some whose counters grow alike to one bound."""
    if not comparisons or any(c is None or isinstance(c[0].first, Dim) for c in comparisons):
        return None
    known = [c for c in comparisons if c is not None]
    if len({(a.step, str(b.first), b.step, more) for a, b, more in known}) > 1:
        return None
    return max(known, key=lambda comparison: comparison[0].first)


def _sum(walk: Walk, node: onnx.NodeProto, name: str, more: int) -> str:
    """The name of a size and a number together, as int64."""
    prefix = node_name(node)
    wide, shape, flat, number, trips = (walk.fresh(f"{prefix}/{n}") for n in ("wide", "shape", "flat", "more", "trips"))
    walk.set_constant(shape, np.zeros(0, np.int64))
    walk.set_constant(number, np.array(more, np.int64))
    walk.process(
        [
            helper.make_node("Cast", [name], [wide], name=wide, to=TensorProto.INT64),
            helper.make_node("Reshape", [wide, shape], [flat], name=flat),
            helper.make_node("Add", [flat, number], [trips], name=trips),
        ]
    )
    return walk.alias.get(trips, trips)


def _rewritten(walk: Walk, node: onnx.NodeProto, limit: str) -> onnx.NodeProto:
    """The loop with that trip count, and a body that always goes on; what its condition was computed of is gone."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0], made.input[1] = limit, ""
    body = next(a.g for a in made.attribute if a.name == "body")
    always = walk.fresh(f"{node_name(node)}/always")
    walk.set_constant(always, np.array(True))
    body.output[0].name = always
    used = {value.name for value in body.output}
    kept = []
    for one in reversed(body.node):
        if any(subgraphs(one)) or used.intersection(one.output):
            kept.append(one)
            used |= node_reads(one)
    nodes = [onnx.NodeProto.FromString(one.SerializeToString()) for one in reversed(kept)]
    del body.node[:]
    body.node.extend(nodes)
    return made
