"""The fields of a protobuf file, found without reading it whole, and whether a model's file has a word outside of its
weights - for whatever looks at a file before it is parsed.

A message is a sequence of fields; that of a model::

    ModelProto   [ .. | 7: graph .. ]
    GraphProto   [ .. | 5: initializer | 5: initializer | .. ]
    TensorProto  [ dims, type, name .. | 9: raw_data ]
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tvmopt.files import open_plain

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Numbers of fields, of ModelProto, GraphProto and TensorProto."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Kinds of fields: how a value is written."""

FLAG = "use_cache_branch"
"""The input that decides, in a file with both forms of a decoder, which of them it computes."""

LARGE = 1 << 16
"""Bytes of a weight from which on it is not looked into."""

Field = tuple[int, int, int, int]
"""A field's number, where it begins, where its value begins and where it ends."""


class Unusual(Exception):
    """The file is not written as expected."""


def fields(file: BinaryIO | mmap.mmap, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message that lies between two places of a file.

    Raises:
        Unusual: it ends in the middle of one, or has one of a kind that nobody writes.
    """
    at = begin
    while at < end:
        file.seek(at)
        key = _varint(file)
        kind, first = key & 7, file.tell()
        if kind == LENGTH:
            size = _varint(file)
            first = file.tell()
            last = first + size
        elif kind == VARINT:
            _varint(file)
            last = file.tell()
        elif kind in (FIXED64, FIXED32):
            last = first + (8 if kind == FIXED64 else 4)
        else:
            raise Unusual
        if last > end:
            raise Unusual
        yield key >> 3, at, first, last
        at = last


def mentions(path: str | Path, word: bytes) -> bool:
    """Whether a model's file has a word outside of its large weights; anywhere, where it is not written as expected.

    Raises:
        OSError, ValueError: it cannot be read, or is no plain file.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            done = 0
            try:
                for first, last in [*_weights(content, size)]:
                    if content.find(word, done, first) >= 0:
                        return True
                    done = last
            except Unusual:
                done = 0
            return content.find(word, done) >= 0


def has_flag(source: Any) -> bool:
    """Whether a model, a path or bytes, has the word :data:`FLAG`; not of one that cannot be read."""
    if isinstance(source, bytes):
        return FLAG.encode() in source
    try:
        return Path(source).is_file() and mentions(source, FLAG.encode())
    except (OSError, ValueError, TypeError):
        return False  # the importer says what is wrong with it


def _weights(file: mmap.mmap, end: int) -> Iterator[tuple[int, int]]:
    """Where the bytes of the large weights lie."""
    for graph, _, begin, stop in fields(file, 0, end):
        for number, _, first, last in fields(file, begin, stop) if graph == GRAPH else ():
            if number == INITIALIZER and last - first >= LARGE:
                raw = [(f[2], f[3]) for f in fields(file, first, last) if f[0] == RAW_DATA]
                yield from (place for place in raw if place[1] - place[0] >= LARGE)


def _varint(file: BinaryIO | mmap.mmap) -> int:
    """A whole number: seven bits a byte, the lowest first, the eighth says that more follow."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise Unusual
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise Unusual
