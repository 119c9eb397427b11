"""HTTP/2 as a server of gRPC needs it (RFC 9113): frames, headers, windows - for `rpc`.

gRPC's own server for Python reads in one thread, wakes the loop from another and copies a message several times: with
nothing to do it takes 0.3 ms more than this for a picture of 602 kB. Here the loop reads a frame's data from the socket
straight into the message's memory, and an answer that fits the client's windows leaves in one piece.

    socket -> Connection: frames -> Stream.data, ended, reset        (`rpc_calls.Call`)
                          windows <- Stream.send

A client that breaks the protocol is told why by GOAWAY and loses its connection; what is wrong with one stream ends
that stream. Left out is what gRPC has no use for: pushes and priorities.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from tvmopt.serving.alone import Alone
from tvmopt.serving.http2_frames import (
    ACK,
    CALM,
    CLOSED,
    COMPRESSION,
    CONNECTION_WINDOW,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW,
    FRAME,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PROTOCOL,
    PUSH,
    REFUSED,
    RST_STREAM,
    SETTINGS,
    SIZE,
    STREAM_WINDOW,
    STREAMS,
    WINDOW_UPDATE,
    WRITES,
    Broken,
    frame,
    unpadded,
)
from tvmopt.serving.http2_stream import Stream

ROOM = 256 << 10

LEAST = 16 << 10
"""Bytes that are read where it is not known whose they are, and moved then: most of a picture goes where it is read."""

_room = memoryview(bytearray(ROOM))  # for all connections: it is read before the next one writes into it


class Connection(asyncio.BufferedProtocol):
    """A client.

    Args:
        made: a stream of this connection and number.
        alone: is told of the connection. known: all connections of the server.
        seconds: how long a client may take for its greeting, for the headers of a request, and for any other frame
            that is no data.

    Attributes:
        window: bytes that may be sent on all streams. their_window: those of a new stream. their_frame: and of a frame.
        full: whether the socket takes no more for the time being.
    """

    def __init__(
        self, made: Callable[[Connection, int], Stream], alone: Alone, known: set[Connection], seconds: float = 60.0
    ) -> None:
        from hpack import Decoder

        self._made, self._alone, self._known, self._seconds = made, alone, known, seconds
        self.streams: dict[int, Stream] = {}
        self.window = self.their_window = 65535
        self.their_frame = 16384
        self.full = self.ends = False
        self._decoder = Decoder(max_header_list_size=HEADER_BYTES)
        self._blocks: dict[bytes, dict[bytes, bytes]] = {}  # those that leave the decoder's table as it is
        self._rest = b""
        self._late: asyncio.TimerHandle | None = None  # ends the wait for what is half sent
        self._greeted = self._set = False
        self._last = 0
        self._got = 0
        self._open: tuple[Stream | None, int] | None = None  # a frame of data on its way: its stream, what is to come
        self._flags = 0
        self._direct = False
        self._waited = self._kept = False
        self._block: tuple[int, int, bytes] | None = None  # headers that go on: their stream, flags, what there is

    # -- asyncio's ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(WRITES)
        self._known.add(self)
        self._alone.add(transport, self._waits)
        self._wait_for_rest()
        told = ((3, STREAMS), (4, STREAM_WINDOW), (5, FRAME), (6, HEADER_BYTES))
        self.write(frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in told)))
        self.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", CONNECTION_WINDOW - 65535)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._alone.remove(self.transport)
        self._known.discard(self)
        self._have_all()
        for stream in list(self.streams.values()):
            stream.gone()
            stream.reset()

    def _waits(self) -> None:
        """Something came while the loop computed: perhaps a request, perhaps a client's ping or window."""
        self._waited = True

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.full = True  # who does not read is not read either: answers to pings would fill the memory
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.full = False
        self.transport.resume_reading()
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._direct = False
        if self._open is None:
            return _room[:LEAST]
        stream, left = self._open
        if stream is None or stream.closed:
            return _room[:left]
        room = stream.room(left)
        self._direct = room is not None
        return room if room is not None else _room[: min(left, LEAST)]

    def buffer_updated(self, nbytes: int) -> None:
        self._kept, self._waited = self._waited, False
        before = self._rest
        try:
            if self._direct and self._open is not None and self._open[0] is not None:
                self._open[0].filled(nbytes)
                self._came(nbytes)
            elif self._open is not None:
                self._read(_room[:nbytes])
            else:
                self._read(memoryview(self._rest + bytes(_room[:nbytes])))
        except Broken as broken:
            self.end(broken.code, str(broken))
            return
        if self._late is not None and self._block is None and not (before and self._rest.startswith(before)):
            self._have_all()  # what was half sent is whole; what is half sent now has just begun
        if self._late is None and (self._rest or self._block is not None or not self._greeted):
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        self._late = asyncio.get_running_loop().call_later(self._seconds, self._too_late)

    def _have_all(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        self.end(CALM, f"the rest did not come within {self._seconds:g} s")

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _read(self, view: memoryview) -> None:
        at, size = 0, len(view)
        self._rest = b""
        if not self._greeted:
            if bytes(view[: len(PREFACE)]) != PREFACE[:size]:
                raise Broken(PROTOCOL, "this is no HTTP/2")
            if size < len(PREFACE):
                self._rest = bytes(view)
                return
            at, self._greeted = len(PREFACE), True
        while not self.ends:
            if self._open is not None:
                stream, left = self._open
                count = min(left, size - at)
                if stream is not None and not stream.closed:
                    stream.data(view[at : at + count])
                at += count
                self._came(count)
                if self._open is not None:
                    return
                continue
            if size - at < 9:
                break
            high, low, kind, flags, number = struct.unpack_from(">HBBBI", view, at)
            length, number = high << 8 | low, number & (1 << 31) - 1
            if length > FRAME or (kind != DATA and length > HEADER_BYTES):
                raise Broken(SIZE, "a frame is too large")
            if not self._set and kind != SETTINGS:
                raise Broken(PROTOCOL, "the first frame is no SETTINGS")
            if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
                raise Broken(PROTOCOL, "headers are interrupted")
            if kind == DATA and not flags & PADDED:
                at += 9
                self._data(number, flags, length)
            elif size - at - 9 < length:
                break
            else:
                self._frame(kind, flags, number, bytes(view[at + 9 : at + 9 + length]))
                at += 9 + length
        self._rest = bytes(view[at:])

    def _data(self, number: int, flags: int, length: int) -> None:
        """A frame of data begins."""
        if self._kept:
            self._alone.pause()
        stream = self.streams.get(number)
        if stream is None and (not number or number > self._last or not number & 1):
            raise Broken(PROTOCOL, "data of a stream that was not opened")
        if stream is not None and stream.half_closed:
            stream.close(CLOSED)
            stream.reset()
            stream = None
        if stream is not None and stream.waits + length > STREAM_WINDOW:
            raise Broken(FLOW, "more data than the window allows")
        self._open, self._flags = (stream, length), flags
        if not length:
            self._came(0)

    def _came(self, count: int) -> None:
        """Some of the open frame's data was taken; it may be its end."""
        assert self._open is not None
        stream, left = self._open
        self._got += count
        if self._got >= CONNECTION_WINDOW // 2:  # a stream's is its own affair
            self.write(b"")
        if stream is not None:
            stream.waits += count
            if stream.waits >= STREAM_WINDOW // 2 and not stream.holds:
                stream.take()
        self._open = (stream, left - count) if left > count else None
        if self._open is None and stream is not None and not stream.closed and self._flags & END_STREAM:
            stream.half_closed = True
            stream.ended()

    def _frame(self, kind: int, flags: int, number: int, data: bytes) -> None:
        """A whole frame."""
        if kind == DATA:
            given = unpadded(data)
            self._data(number, flags, len(data))
            stream = self._open[0] if self._open is not None else None
            if stream is not None:
                stream.data(memoryview(given))
            self._came(len(data))
        elif kind == HEADERS:
            self._headers(number, flags, data)
        elif kind == CONTINUATION:
            if self._block is None:
                raise Broken(PROTOCOL, "a continuation of nothing")
            number, before, known = self._block
            if len(known) + len(data) > HEADER_BYTES:
                raise Broken(CALM, "too many headers")
            self._block = None
            self._headed(number, before | flags & END_HEADERS, known + data)
        elif kind == SETTINGS:
            self._settings(number, flags, data)
        elif kind == PING:
            if len(data) != 8 or number:
                raise Broken(SIZE if not number else PROTOCOL, "no ping")
            if not flags & ACK:
                self.write(frame(PING, ACK, 0, data))
        elif kind == WINDOW_UPDATE:
            self._grows(number, data)
        elif kind == RST_STREAM:
            if len(data) != 4 or not number or number > self._last:
                raise Broken(SIZE if number and len(data) != 4 else PROTOCOL, "a reset of nothing")
            if (stream := self.streams.get(number)) is not None:
                stream.gone()
                stream.reset()
        elif kind == PRIORITY and (len(data) != 5 or not number):
            raise Broken(SIZE if number else PROTOCOL, "no priority")
        elif kind == GOAWAY and number:
            raise Broken(PROTOCOL, "the end of a stream, not of the connection")
        elif kind == PUSH:
            raise Broken(PROTOCOL, "a client pushes nothing")

    def _headers(self, number: int, flags: int, data: bytes) -> None:
        if flags & PADDED:
            data = unpadded(data)
        if flags & PRIORITISED:
            if len(data) < 5:
                raise Broken(SIZE, "headers without their priority")
            data = data[5:]
        self._headed(number, flags, data)

    def _headed(self, number: int, flags: int, block: bytes) -> None:
        """Headers, as far as they came."""
        if not flags & END_HEADERS:
            self._block = (number, flags, block)
            return
        found = self._decoded(block)
        stream = self.streams.get(number)
        if stream is not None:  # trailers, of which gRPC's clients have none to tell
            if not flags & END_STREAM or stream.half_closed:
                raise Broken(PROTOCOL, "headers in the middle of a stream")
            stream.half_closed = True
            stream.ended()
            return
        if not number & 1 or number <= self._last:
            raise Broken(PROTOCOL if not number & 1 else CLOSED, "a stream's number does not rise")
        self._last = number
        if len(self.streams) >= STREAMS:
            self.write(frame(RST_STREAM, 0, number, struct.pack(">I", REFUSED)))
            return
        self.streams[number] = made = self._made(self, number)
        made.half_closed = bool(flags & END_STREAM)
        made.headers(found)
        if made.half_closed and not made.closed:
            made.ended()

    def _decoded(self, block: bytes) -> dict[bytes, bytes]:
        """Headers by name. What has only numbers of the table, as a client's second request has, is decoded once."""
        known = self._blocks.get(block)
        if known is not None:
            return known
        from hpack import HPACKError

        try:
            found = {bytes(name): bytes(value) for name, value in self._decoder.decode(block, raw=True)}
        except HPACKError as error:
            raise Broken(COMPRESSION, f"headers: {error}") from None
        if block and min(block) < 128:
            self._blocks.clear()  # the table may be another one
        elif len(self._blocks) < 64 and 255 not in block:
            self._blocks[block] = found
        return found

    def _settings(self, number: int, flags: int, data: bytes) -> None:
        if number or len(data) % 6 or (flags & ACK and data):
            raise Broken(PROTOCOL if number else SIZE, "no settings")
        self._set = True
        if flags & ACK:
            return
        for key, value in struct.iter_unpack(">HI", data):
            if key == 4:
                if value >= 1 << 31:
                    raise Broken(FLOW, "a window is too large")
                for stream in self.streams.values():
                    stream.grow(value - self.their_window)
                self.their_window = value
            elif key == 5:
                if not 1 << 14 <= value < 1 << 24:
                    raise Broken(PROTOCOL, "a size of frames that there is not")
                self.their_frame = min(value, FRAME)
        self.write(frame(SETTINGS, ACK, 0))
        self._flush()

    def _grows(self, number: int, data: bytes) -> None:
        if len(data) != 4:
            raise Broken(SIZE, "no window")
        count = int.from_bytes(data, "big") & (1 << 31) - 1
        if not count or number > self._last:
            raise Broken(PROTOCOL, "a window that does not grow")
        if not number:
            self.window += count
            if self.window >= 1 << 31:
                raise Broken(FLOW, "the window is too large")
            self._flush()
        elif (stream := self.streams.get(number)) is not None:
            stream.grow(count)
            stream.flush()

    # -- what goes ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self.ends:
            return
        if self._got >= FRAME:  # the window that was used is given back with what goes anyway
            data = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._got)) + data
            self._got = 0
        if data:
            self.transport.write(data)

    def _flush(self) -> None:
        for stream in list(self.streams.values()):
            stream.flush()

    def last_call(self) -> None:
        """Ask the client to open no more streams here."""
        self.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last, NO_ERROR)))

    def end(self, code: int = NO_ERROR, text: str = "") -> None:
        """Say why, and close."""
        self._have_all()
        self.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last, code) + text.encode()))
        self.ends = True
        self.transport.close()


async def closed(known: set[Connection], grace: float) -> None:
    """Let streams end, at most so long; then close all connections."""
    for connection in known:
        connection.last_call()
    end = asyncio.get_running_loop().time() + grace
    while any(connection.streams for connection in known) and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.01)
    for connection in list(known):
        connection.end()
