"""How far ahead the rows of a copy are fetched while those of another channel are multiplied - for the families that
compute NCHW pictures as they lie.

A tile reads a few vectors of a row of each plane of its task's copy: too short a run for the processor to fetch the
next one by itself, so that products wait for L2, and longer for L3, where a copy is larger than L2.
"""

from __future__ import annotations

from tvmopt.lowering.prefetch import LINE

HIDDEN = 60
"""Cycles between a fetch and its use. A pointwise layer of 96 to 24 channels, whose copy is a quarter of L2, takes 0.91
of its time with 60, 1.09 with 120 and 1.24 with 250; layers of more taps the same with each."""
SHORT, NEAR = 4, 16
"""Vectors of a tile up to which rows are fetched, where the copy is more than so small a part of L2: the processor goes
along longer runs by itself (tiles of 2 by 8: 1.15 of the time), and products wait for nothing where L1 is near."""


def lines(span: int) -> list[int]:
    """Of `span` numbers in a row, wherever in a line they begin, one in each line.

    >>> lines(32), lines(34)
    ([0, 16, 31], [0, 16, 32, 33])
    """
    return sorted({*range(0, span, LINE // 4), span - 1})


def channels_ahead(channels: int, cycles: float, vectors: int, copied: int, l2: int) -> int:
    """How many channels ahead a tile fetches its rows; 0: none.

    Args:
        channels: of a sum. cycles: of a channel's products. vectors: of a tile, along its pixels.
        copied: bytes of a task's copy. l2: bytes of a core's L2.

    >>> channels_ahead(512, 108, 3, 1 << 20, 1 << 20), channels_ahead(96, 12, 2, 1 << 19, 1 << 20)
    (1, 5)
    >>> channels_ahead(5, 12, 2, 1 << 19, 1 << 20)  # there is no such channel
    0
    """
    wanted = max(1, round(HIDDEN / cycles))
    return wanted if vectors <= SHORT and copied > l2 // NEAR and wanted < channels else 0
