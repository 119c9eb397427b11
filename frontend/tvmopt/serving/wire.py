"""Large tensors in a gRPC message, read where they lie - for `rpc`.

protobuf copies the bytes of a field when it reads a message, and once more when they are asked for: 0.13 ms for 602 kB.
A message is a row of fields, each behind its number and length, so the raw contents are found without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RAW = 7
"""The number of the field `raw_input_contents`."""

BYTES = 2
"""The wire type of what has its length in front."""

MOST, LONGEST = 256, 4 << 10
"""Messages that are kept, and the bytes of one: a client sends the same before its raw contents again and again."""

_known: dict[bytes, Any] = {}


@dataclass
class Apart:
    """A request whose raw contents are not in its message, which was read from `head`."""

    head: bytes
    message: Any
    raw_input_contents: Sequence[memoryview]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


def read(kind: Any, data: memoryview) -> Any:
    """A `ModelInferRequest`.

    Raises:
        google.protobuf.message.DecodeError: it is none.
    """
    found = apart(data, RAW)
    if found is None or not found[1]:
        return kind.FromString(bytes(data))
    head, raw = found
    message = _known.get(head)
    if message is None:
        message = kind.FromString(head)
        if len(head) <= LONGEST:
            if len(_known) >= MOST:
                _known.clear()
            _known[head] = message
    return Apart(head, message, raw)


def apart(data: bytes | memoryview, field: int) -> tuple[bytes, list[memoryview]] | None:
    """A message without one of its fields, and what the field has; None where protobuf itself should look at it.

    >>> rest, found = apart(bytes([8, 1, 58, 2, 97, 98, 16, 2]), RAW) or (b"", [])
    >>> rest, [bytes(data) for data in found]
    (b'\\x08\\x01\\x10\\x02', [b'ab'])
    """
    view, at, begin = memoryview(data), 0, 0
    kept: list[memoryview] = []
    found: list[memoryview] = []
    while at < len(data):
        start = at
        tag, at = _number(data, at)
        if tag & 7 == 0:
            _, at = _number(data, at)
        elif tag & 7 == BYTES:
            size, at = _number(data, at)
            if size < 0 or at + size > len(data):
                return None
            if tag >> 3 == field:
                found.append(view[at : at + size])
                kept.append(view[begin:start])
                begin = at + size
            at += size
        else:
            return None
        if at < 0:
            return None
    return b"".join([*kept, view[begin:]]), found


def _number(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number of variable length at a place, and the place behind it; -1 twice where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    return -1, -1


def head(field: int, size: int) -> bytes:
    """What stands in front of so many bytes of a field.

    >>> head(6, 300).hex()
    '32ac02'
    """
    found = [field << 3 | BYTES]
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size])
