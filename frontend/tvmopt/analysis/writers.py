"""Which call of a run wrote what stands in memory, so that it is known which calls' results a kernel read - for
`observe`.

Memory is planned: one block holds many results in turn, some of them only in a part of it. So whatever a call may have
written is forgotten unless it is certain that the call wrote all of one tensor and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tvmopt.runtime.library import ffi

Place = tuple[int, int]
"""Where a tensor stands: its first address, and the one behind its last byte."""

GIVEN, UNKNOWN = -1, -2
"""In place of the number of a call: an input or a weight of the model; something that is not known."""
ALLOCATES = "vm.builtin.alloc_tensor"
READS = {
    f"vm.builtin.{name}"
    for name in (
        *("check_tensor_info", "copy", "make_tuple", "match_shape", "read_if_cond", "reshape", "shape_of"),
        *("tensor_to_shape", "tuple_getitem"),
    )
}
"""Functions of TVM's virtual machine that write no tensor, and whose results are tensors they were given, or views of
them."""


class Writers:
    """What stands in memory during a run.

    Args:
        given: places of the model's inputs and weights, which no call writes.
        unknown: places of other arguments, which a call may write.

    >>> writers = Writers([(100, 108)])
    >>> writers.wrote((200, 216), 0)
    >>> writers.read_by([(100, 108), (208, 216)]), writers.read_by([(200, 220)])
    ((0,), None)
    """

    def __init__(self, given: Iterable[Place], unknown: Iterable[Place] = ()) -> None:
        self._starts: list[int] = []  # of places that do not overlap, in order
        self._held: list[tuple[int, int]] = []  # where each of them ends, and who wrote it
        for place in given:
            self._set(place, GIVEN)
        self.forget(unknown)

    def wrote(self, place: Place, number: int) -> None:
        """A call wrote all of this."""
        self._set(place, number)

    def forget(self, places: Iterable[Place]) -> None:
        """What stands here may have been written by whatever call, unless it was given."""
        for start, end in places:
            inside = self._overlapping(start, end)
            held = self._held[inside.start] if inside else (start, UNKNOWN)
            if held[1] != GIVEN or self._starts[inside.start] > start or held[0] < end:
                self._set((start, end), UNKNOWN)

    def read_by(self, places: Iterable[Place]) -> tuple[int, ...] | None:
        """The calls that wrote what a call reads here, besides inputs, weights and constants; None where that is not
        known of one of them."""
        found: dict[int, None] = {}
        for start, end in places:
            inside = self._overlapping(start, end)
            if not inside:  # no argument, and no call made it: it is a constant of the code
                continue
            first, (last, number) = self._starts[inside.start], self._held[inside.start]
            if number == UNKNOWN or start < first or end > last:
                return None
            if number != GIVEN:
                found[number] = None
        return tuple(found)

    def _overlapping(self, start: int, end: int) -> range:
        """Indices of the places that have a byte of this one."""
        if start >= end:
            return range(0)
        low = bisect_right(self._starts, start)
        if low and self._held[low - 1][0] > start:
            low -= 1
        high = low
        while high < len(self._starts) and self._starts[high] < end:
            high += 1
        return range(low, high)

    def _set(self, place: Place, number: int) -> None:
        """This is written by a call; of what overlaps it, the rest is not known any more."""
        start, end = place
        if start >= end:
            return
        inside = self._overlapping(start, end)
        pieces = [(start, end, number)]
        if inside:
            first, (last, _) = self._starts[inside.start], self._held[inside.stop - 1]
            pieces = [(first, start, UNKNOWN), *pieces] if first < start else pieces
            pieces = [*pieces, (end, last, UNKNOWN)] if last > end else pieces
        at = inside.start if inside else bisect_right(self._starts, start)
        self._starts[at : at + len(inside)] = [piece[0] for piece in pieces]
        self._held[at : at + len(inside)] = [piece[1:] for piece in pieces]


def whole_writers(flow: Mapping[str, Any]) -> set[str]:
    """The kernels whose every call writes all of one tensor: not those that write several, or a part of what another
    one has begun.

    Args:
        flow: of a report (:class:`tvmopt.report.Flow` as a dictionary).
    """
    found, others, written = set[str](), set[str](), set[int]()
    for step in flow.get("steps", ()):
        whole = len(step["outputs"]) == 1 and written.isdisjoint(step["outputs"])
        (found if whole else others).add(step["kernel"])
        written.update(step["outputs"])
    return found - others


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors among a call's arguments or in its result, those in tuples too."""
    for value in values:
        if hasattr(value, "data_ptr"):
            yield value
        elif isinstance(value, ffi().Array):
            yield from tensors_in(value)


def place_of(tensor: Any) -> Place:
    """Where a tensor stands."""
    start, kind = int(tensor.data_ptr()), tensor.dtype
    return start, start + -(-tensor.numel() * kind.bits * kind.lanes // 8)


def changed(symbol: str, arguments: Sequence[Any], result: Any) -> Collection[Place]:
    """Where a call of anything but a known kernel may have written."""
    if symbol in READS:
        return ()
    made = [place_of(tensor) for tensor in tensors_in([result])]
    return made if symbol == ALLOCATES else [*(place_of(tensor) for tensor in tensors_in(arguments)), *made]
