"""Codes of 2, 4 or 8 bits in bytes, in groups with a scale each - for whoever packs them or multiplies by them.

Nothing here needs TVM: the importer and `tvmopt quantize` use it before TVM is loaded.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def is_group(size: int) -> bool:
    """Whether so many codes may share a scale: a power of two from 16 on, as MatMulNBits has it."""
    return size >= 16 and not size & (size - 1)


def pack(codes: Array, bits: int) -> Array:
    """Rows of codes (uint8) as bytes, the lowest bits of a byte first: the opposite of :func:`unpack`."""
    per = 8 // bits
    more = [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per)]
    even = np.pad(codes, more)
    return np.asarray(reduce(np.bitwise_or, (even[..., i::per] << (i * bits) for i in range(per))))


def unpack(data: Array, bits: int, count: int) -> Array:
    """The first `count` codes of each row of bytes, the lowest bits of a byte first: [..., B] gives [..., count]."""
    parts = [(data >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*data.shape[:-1], -1)[..., :count]


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
