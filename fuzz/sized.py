"""A size that is not the same in each run of a model: the number that a graph is built with, and a second one."""

from __future__ import annotations

from collections.abc import Iterable


class Size(int):
    """A size that depends on an open one: the number it has at first, `other`, and how a file writes it ("": unknown).

    >>> Size(11, 14, "n") + 1, Size(11, 14, "n").text
    (12, 'n')
    """

    other: int
    text: str

    def __new__(cls, value: int, other: int, text: str = "") -> Size:
        made = super().__new__(cls, value)
        made.other, made.text = other, text
        return made


def other(shape: Iterable[int]) -> tuple[int, ...]:
    """A shape at the second set of sizes."""
    return tuple(d.other if isinstance(d, Size) else int(d) for d in shape)


def is_open(shape: Iterable[int]) -> bool:
    """Whether a size of a shape is open."""
    return any(isinstance(d, Size) for d in shape)
