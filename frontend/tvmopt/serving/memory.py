"""Memory that a server asks for again and again stays its own - for `server`."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""The numbers of glibc's `mallopt`."""

LARGEST = 32 << 20
"""The largest piece that glibc can be asked to keep in its heaps."""

KEPT = 128 << 20
"""Bytes that are free at a heap's end before they go back to the system."""


def keep_memory() -> bool:
    """Have `malloc` keep large pieces that were freed; whether it will.

    By itself glibc gives them back to the system, which clears the pages again for each message and for each copy of
    it: 147 pages for a picture of 602 kB. So a heap keeps up to :data:`KEPT` bytes more than is in use. C libraries
    other than glibc have no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(*pair) for pair in ((MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, KEPT), (TOP_PAD, 1 << 20)))
