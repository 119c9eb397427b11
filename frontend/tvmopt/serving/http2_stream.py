"""A request and its answer on an HTTP/2 connection, and the window in which the answer is sent - for `http2`."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Protocol

from tvmopt.serving.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    HEADERS,
    NO_ERROR,
    RST_STREAM,
    WINDOW_UPDATE,
    Broken,
    frame,
)  # fmt: skip


class Connection(Protocol):
    """What a stream asks of `http2.Connection`."""

    window: int
    their_window: int
    their_frame: int
    full: bool
    streams: dict[int, Any]

    def write(self, data: bytes) -> None: ...


class Stream:
    """One request and its answer; :class:`Connection` calls what is to be overridden.

    Attributes:
        waits: bytes that came and are not given back to the client's window, which :meth:`take` does; by itself where
            nothing `holds` them.
    """

    holds = False

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection, self.number = connection, number
        self.closed = self.half_closed = False
        self.waits = 0
        self._window = connection.their_window
        self._out: list[memoryview] = []
        self._end = b""
        self._sent: asyncio.Future[None] | None = None

    # -- what comes: to be overridden --

    def headers(self, found: dict[bytes, bytes]) -> None: ...

    def room(self, most: int) -> memoryview | None:
        """Memory for up to so many bytes of what comes next, which are then told with :meth:`filled`."""
        return None

    def filled(self, count: int) -> None: ...

    def data(self, view: memoryview) -> None:
        """What came otherwise."""

    def ended(self) -> None: ...

    def reset(self) -> None: ...

    # -- what goes --

    def take(self) -> None:
        """Let the client send as much again as came."""
        if self.waits and not self.half_closed and not self.closed:
            self.connection.write(frame(WINDOW_UPDATE, 0, self.number, struct.pack(">I", self.waits)))
        self.waits = 0

    def send(self, head: bytes, pieces: list[bytes], end: bytes = b"") -> None:
        """Send frames, then data, then, if it is given, a last block of headers.

        Args:
            head: whole frames.
        """
        if self.closed:
            return
        size = sum(map(len, pieces))
        known = self.connection
        if not self._out and size <= min(self._window, known.window, known.their_frame):
            self._window -= size
            known.window -= size
            data = struct.pack(">HBBBI", size >> 8, size & 255, DATA, 0, self.number) if pieces else b""
            known.write(b"".join([head, data, *pieces, frame(HEADERS, END_HEADERS | END_STREAM, self.number, end)
                                  if end else b""]))  # fmt: skip
            if end:
                self.close()
            return
        known.write(head)
        self._out += [memoryview(piece) for piece in pieces if piece]
        self._end = end
        self.flush()

    async def sent(self) -> None:
        """Wait until the client has taken what was to be sent."""
        while (self._out or self.connection.full) and not self.closed:
            self._sent = self._sent or asyncio.get_running_loop().create_future()
            await self._sent

    def flush(self) -> None:
        """Send what the windows allow."""
        known = self.connection
        while self._out and not known.full:
            piece = self._out[0]
            size = min(len(piece), self._window, known.window, known.their_frame)
            if size <= 0:
                return
            self._window -= size
            known.window -= size
            known.write(frame(DATA, 0, self.number, bytes(piece[:size])))
            self._out[:1] = [piece[size:]] if size < len(piece) else []
        if self._out or known.full:
            return
        if self._sent is not None:
            waits, self._sent = self._sent, None
            if not waits.done():
                waits.set_result(None)
        if self._end:
            known.write(frame(HEADERS, END_HEADERS | END_STREAM, self.number, self._end))
            self.close()

    def grow(self, count: int) -> None:
        self._window += count
        if self._window >= 1 << 31:
            raise Broken(FLOW, "a stream's window is too large")

    def close(self, code: int = NO_ERROR) -> None:
        """Nothing more in either direction; the client is told to stop if it still sends, or `code` is an error."""
        if self.closed:
            return
        if code or not self.half_closed:
            self.connection.write(frame(RST_STREAM, 0, self.number, struct.pack(">I", code)))
        self.gone()

    def gone(self) -> None:
        """Both sides have done with it."""
        self.closed = True
        self._out = []
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)
        self.connection.streams.pop(self.number, None)
