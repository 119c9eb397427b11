"""Where tensors lie in one piece of memory; those that are never needed at once share bytes - for `program.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvmopt.runtime.tensors import ALIGNMENT


@dataclass(frozen=True)
class Span:
    """A tensor's bytes, and the first and last call that needs them."""

    bytes: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.first <= other.last and other.first <= self.last


def places(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The offset of each tensor, a multiple of 64, and how many bytes are needed in all.

    The largest is placed first, each at the lowest offset where it is in nobody's way ("greedy by size" of Pisarchyk
    and Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020).

    >>> places([Span(100, 0, 1), Span(300, 1, 2), Span(200, 2, 3)])
    ([320, 0, 320], 576)
    """
    offsets = [0] * len(spans)
    done: list[int] = []
    for index in sorted(range(len(spans)), key=lambda i: (-spans[i].bytes, i)):
        size = _rounded(spans[index].bytes)
        taken = sorted((offsets[k], _rounded(spans[k].bytes)) for k in done if spans[k].meets(spans[index]))
        offset = 0
        for begin, length in taken:
            if offset + size <= begin:
                break
            offset = max(offset, begin + length)
        offsets[index] = offset
        done.append(index)
    return offsets, max((offsets[i] + _rounded(span.bytes) for i, span in enumerate(spans)), default=0)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
