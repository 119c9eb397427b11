"""How two boxes overlap, and those that are left, in loops written by hand - for `select_boxes.py` and
`suppress_boxes.py`.

A box is two opposite corners, in any order. One without area, or with NaN, overlaps none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

VALUES = 5
"""Numbers that :func:`corners` gives."""


def corners(boxes: Any, picture: Any, box: Any) -> tuple[Any, ...]:
    """The least and the largest place along each axis, and the area."""
    ends = [boxes[picture, box, i] for i in range(4)]
    low = [tirx.min(ends[i], ends[i + 2]) for i in range(2)]
    high = [tirx.max(ends[i], ends[i + 2]) for i in range(2)]
    return *low, *high, tirx.abs(ends[2] - ends[0]) * tirx.abs(ends[3] - ends[1])


def overlaps(one: Any, other: Any, share: float) -> Any:
    """Whether the intersection of two boxes, as :func:`corners` gives them, is more than that share of their union."""
    zero = T.float32(0)
    wide = tirx.min(one[2], other[2]) - tirx.max(one[0], other[0])
    high = tirx.min(one[3], other[3]) - tirx.max(one[1], other[1])
    both = wide * high
    some = tirx.all(wide > zero, high > zero, one[4] > zero, other[4] > zero)
    return tirx.all(some, both / (other[4] + one[4] - both) > T.float32(share))


def memory(dtype: str, size: Any = 1, scope: str = "local") -> Any:
    """Numbers for the loops around it."""
    return T.buffer_proxy(T.alloc_buffer((size,), dtype, scope=scope))


class Candidates:
    """The numbers of what is left, with their scores, and which of them is the best: the first of equal ones.

    Attributes:
        many: how many are left, [1]. best: the place of the best one, [1].
    """

    def __init__(self, room: Any) -> None:
        self.numbers, self.worth = memory("int32", room, "global"), memory("float32", room, "global")
        self.many, self.best, self._kept, self._gone = (memory("int32") for _ in range(4))

    def clear(self) -> None:
        """Nothing is left."""
        self.many[0], self.best[0] = T.int32(0), T.int32(0)

    def add(self, number: Any, score: Any) -> None:
        """One more, behind all others."""
        self._put(self.many, number, score)

    def drop(self, taken: Any, over: Callable[[Any], Any]) -> None:
        """All go that `taken` overlaps, as `over` says of a number, and `taken` itself."""
        self._kept[0], self.best[0] = T.int32(0), T.int32(0)
        with T.serial(0, self.many[0]) as j:
            # Not(a > b) would become a <= b, also of NaN
            self._gone[0] = tirx.Select(over(self.numbers[j]), T.int32(1), T.int32(0))
            with T.If(tirx.all(self.numbers[j] != taken, self._gone[0] == 0)), T.Then():
                self._put(self._kept, self.numbers[j], self.worth[j])
        self.many[0] = self._kept[0]

    def _put(self, end: Any, number: Any, score: Any) -> None:
        self.numbers[end[0]] = number
        self.worth[end[0]] = score
        with T.If(self.worth[end[0]] > self.worth[self.best[0]]), T.Then():
            self.best[0] = end[0]
        end[0] = end[0] + 1
