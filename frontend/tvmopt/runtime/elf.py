"""Whether a shared library's headers fit its bytes - before the system maps it, which trusts them.

A library that is cut short maps, and the first access to what is missing ends the process (SIGBUS).
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
"""Of a 64-bit little-endian ELF file."""
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SHARED, _LOAD, _CURRENT = 3, 1, 1


def problem(data: bytes | memoryview) -> str:
    """What is wrong with a 64-bit little-endian ELF library; empty if nothing is.

    >>> problem(b"hello")
    'it is not a shared library'
    """
    if len(data) < HEADER.size or bytes(data[:4]) != b"\x7fELF":
        return "it is not a shared library"
    ident, kind, _, version, _, table, sections, _, _, entry, count, section, number, _ = HEADER.unpack_from(data)
    if ident[4:7] != bytes([2, 1, _CURRENT]) or kind != _SHARED or version != _CURRENT or entry != _SEGMENT.size:
        return "its header is not that of a shared library for this kind of machine"
    if table + count * entry > len(data) or sections + number * section > len(data):
        return "it is cut short"
    loads = [s for s in _SEGMENT.iter_unpack(data[table : table + count * entry]) if s[0] == _LOAD]
    if not loads:
        return "nothing of it would be loaded"
    if any(offset + size > len(data) or size > memory for _, _, offset, _, _, size, memory, _ in loads):
        return "it is cut short"
    return ""
