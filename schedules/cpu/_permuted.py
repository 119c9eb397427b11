"""Vectors that are permutations of the few vectors of a row that hold their numbers - for columns that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

PARTS = 4
"""Vectors of a row at most that hold the numbers of one vector."""
WRITTEN = 64
"""Vectors of a result's row at most: all of them are written out."""


def starts_of(count: int, width: int) -> list[int]:
    """Where the vectors of a row of `count` numbers begin, of `width` each; the last may overlap the one before.

    >>> starts_of(40, 16)
    [0, 16, 24]
    """
    return [min(v * width, count - width) for v in range(-(-count // width))]


def begins_of(columns: np.ndarray, count: int, width: int) -> list[int]:
    """Where the vectors of `width` numbers begin that hold these columns of a row of `count`.

    >>> begins_of(np.array([3, 9, 5]), 12, 4), begins_of(np.array([10, 11]), 12, 4)
    ([3, 7], [8])
    """
    low, high = int(columns.min()), int(columns.max())
    return [min(low + part * width, count - width) for part in range(-(-(high - low + 1) // width))]


def permuted(read: Callable[[int], Any], begins: list[int], width: int, columns: np.ndarray) -> Any:
    """The numbers of a row at `columns`; `read(begin)`: its vector of `width` numbers from there on."""
    enough = max(len(begins), len(columns) // width)  # a permutation has no more numbers than what it is of
    places = []
    for column in columns.tolist():
        part = next(k for k, begin in enumerate(begins) if begin <= column < begin + width)
        places.append(part * width + column - begins[part])
    return tirx.Shuffle([read((begins * enough)[k]) for k in range(enough)], places)
