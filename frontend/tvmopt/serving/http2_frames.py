"""Frames and headers of HTTP/2 (RFC 9113, RFC 7541): their numbers, and how they are written - for `http2`."""

from __future__ import annotations

import struct

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 1, 1, 4, 8, 32

NO_ERROR, PROTOCOL, FLOW, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION, CALM = 0, 1, 3, 5, 6, 7, 8, 9, 11
"""Codes of errors."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

FRAME = 1 << 20
"""Bytes of a frame that we take: a picture comes in one."""
STREAM_WINDOW = 4 << 20
"""Bytes of a stream that a client may send before we have taken some."""
CONNECTION_WINDOW = 1 << 30
STREAMS = 256
"""Streams of a connection at a time."""
HEADER_BYTES = 32 << 10
"""Of a request's headers at most."""
WRITES = 4 << 20
"""Bytes that wait for a client to read them, from which on nothing more of it is read."""


class Broken(Exception):
    """A client that breaks the protocol.

    Args:
        code: HTTP/2's.
    """

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    """A frame.

    >>> frame(PING, ACK, 0, bytes(8)).hex()
    '0000080601000000000000000000000000'
    """
    return struct.pack(">HBBBI", len(data) >> 8, len(data) & 255, kind, flags, stream) + data


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table has; names and values below 127 bytes, values below 16 k.

    >>> literal(b"a", b"bc")
    b'\\x00\\x01a\\x02bc'
    """
    size = len(value)
    if size < 127:
        return b"\0" + bytes([len(name)]) + name + bytes([size]) + value
    size -= 127
    more = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return b"\0" + bytes([len(name)]) + name + b"\x7f" + more + value


def unpadded(data: bytes) -> bytes:
    """What a frame has without the bytes that only make it longer."""
    if not data or data[0] >= len(data):
        raise Broken(PROTOCOL, "more padding than there is")
    return data[1 : len(data) - data[0]]
