"""Rows of numbers rounded to 8 bits in groups with a step each - for products of rounded rows, and for what a decoder
stores.

Nothing here needs TVM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LARGEST = 127
"""The largest size of a number that is rounded to 8 bits, in steps."""
LEAST = np.float32(LARGEST * 2.0**-126)
"""The largest number of a group is taken to be at least this: steps are no denormal numbers, whose inverse is none."""


def round_groups(x: Array, group: int) -> tuple[Array, Array]:
    """Rows of float32 [..., K] in steps of 8 bits: (whole numbers [..., G, group], steps [..., G, 1]), float32.

    A group has the step max |x| / 127, and each number is round(x * (127 / max |x|)), halves to even; a last group that
    is shorter ends with zeros. Where one of its numbers is infinite or NaN, its step is NaN. The arithmetic is that of
    float32, operation by operation: every engine that rounds so has the same steps.
    """
    *rows, k = x.shape
    groups = -(-k // group)
    wide = np.zeros((*rows, groups * group), np.float32)
    wide[..., :k] = x
    wide = wide.reshape(*rows, groups, group)
    with np.errstate(all="ignore"):
        top = np.maximum(np.abs(wide).max(-1, keepdims=True), LEAST)
        codes = np.rint(wide * (np.float32(LARGEST) / top))
        steps = np.where(np.isfinite(top), top / np.float32(LARGEST), np.float32(np.nan))
    return np.where(np.isfinite(codes), codes, np.float32(0)), steps
