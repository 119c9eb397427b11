"""Large tensors in a gRPC message, read where they lie - for `rpc`.

protobuf copies the bytes of a field when it reads a message, and once more when they are asked for: 0.13 ms for 602 kB.
A message is a row of fields, each behind its number and length, so the raw contents are found without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST = 16 << 10
"""Bytes of a message from which on its raw contents are read where they lie."""

RAW = 7
"""The number of the field `raw_input_contents`."""

BYTES = 2
"""The wire type of what has its length in front."""


@dataclass
class Apart:
    """A request whose raw contents are not in its message."""

    message: Any
    raw_input_contents: Sequence[memoryview]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


def read(kind: Any, data: bytes) -> Any:
    """A `ModelInferRequest`.

    Raises:
        google.protobuf.message.DecodeError: it is none.
    """
    if len(data) < LEAST:
        return kind.FromString(data)
    found = apart(data, RAW)
    return kind.FromString(data) if found is None else Apart(kind.FromString(found[0]), found[1])


def apart(data: bytes, field: int) -> tuple[bytes, list[memoryview]] | None:
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


def _number(data: bytes, at: int) -> tuple[int, int]:
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
