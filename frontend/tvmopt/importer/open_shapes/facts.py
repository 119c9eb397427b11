"""The words that rules about sizes are written in: see :mod:`tvmopt.importer.open_shapes.agreements`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmopt.dims import Size
from tvmopt.importer.open_shapes.node import Node, Shape

Facts = Iterator[tuple[str, Size, str, Size] | str]
"""What is compared, and ``a == b`` or ``a <= b``; or what is wrong, in words."""


def at(n: Node, index: int) -> Shape | None:
    """The shape of an input; None where it is left out or not known."""
    return n.shapes[index] if index < len(n.shapes) else None


def alike(what: str, a: Sequence[Size], b: Sequence[Size]) -> Facts:
    """Two lists of as many sizes are equal."""
    for one, other in zip(a, b, strict=True):
        yield what, one, "==", other


def spread(what: str, small: Shape, large: Shape) -> Facts:
    """`small` broadcasts to `large`, along the axes that both have."""
    for one, other in zip(reversed(small), reversed(large), strict=False):
        if one != 1:
            yield what, one, "==", other
