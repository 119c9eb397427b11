"""How two boxes overlap, in loops that are written by hand - for `select_boxes.py` and `suppress_boxes.py`.

A box is two opposite corners, in any order. One without area, or with NaN, overlaps none.
"""

from __future__ import annotations

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
