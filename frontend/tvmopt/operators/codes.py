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
