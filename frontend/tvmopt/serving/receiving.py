"""Large bodies of HTTP requests, received where the model reads them - for `server` and `rest`.

uvicorn hands a body on in pieces of some 64 KB, joins them, and copies the whole. Here the memory of a body is made as
soon as its length is known, so that the tensors behind the JSON begin at a multiple of 64 bytes; the socket writes into
it, and a model reads it there. A request of 602 kB to a server that does nothing else takes 0.2 ms instead of 1.0.

    headers -> parser -> on_headers_complete: memory for the body, its future in the scope's extensions
    body    -> that memory, past the parser                        -> the future's result, a new parser

A body that is small, chunked, too large or waited for by `Expect: 100-continue` takes uvicorn's own way.

uvicorn's fast parser has no limits of headers, so they are here: of their bytes, and of the time in which they come.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import numpy as np

from tvmopt.runtime.tensors import ALIGNMENT, aligned_empty
from tvmopt.serving.alone import Alone

EXTENSION = "tvmopt.body"
"""Of an ASGI scope: the future of the body, a `memoryview`; None when the client went away."""

LEAST = 16 << 10
"""Bytes from which a body is received so."""

HEAD = b"inference-header-content-length"

HEADER_BYTES = 64 << 10
"""Of a request line and its headers at most; what is read at once (:data:`LEAST` twice) is less."""


class _Body:
    """A body on its way."""

    def __init__(self, size: int, head: int, future: asyncio.Future[memoryview | None]) -> None:
        before = -head % ALIGNMENT
        self.room = memoryview(aligned_empty((before + size,), np.dtype(np.uint8)))[before:]  # type: ignore[arg-type]
        self.future = future
        self.count = 0

    @property
    def rest(self) -> memoryview:
        return self.room[self.count :]

    def end(self, found: memoryview | None) -> None:
        if not self.future.done():  # who waited for it may have gone
            self.future.set_result(found)


class Joined:
    """A connection on which the head of an answer waits for what follows it, so that both leave in one piece: one call
    of the system less, and the client wakes once. A head of 100 to 199 has nothing behind it."""

    START, ALONE = b"HTTP/1.1 ", b"HTTP/1.1 1"

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, but for a head, behind which there always comes a body, if only an empty one."""
        if not self._head and data.startswith(self.START) and not data.startswith(self.ALONE):
            self._head = data
        elif self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what waits, and close."""
        if self._head:
            self._transport.write(self._head)
        self._transport.close()


def refusal(status: int, text: str) -> bytes:
    """The answer to what never became a request, behind which the connection is closed."""
    body = json.dumps({"error": text}).encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def protocol(max_body: int, alone: Alone, seconds: float) -> Any:
    """The class that uvicorn makes for each connection.

    Args:
        max_body: bytes of the largest body that is received so. alone: is told of each connection.
        seconds: how long a client may take to send the headers of a request, from its connection or their first byte.
    """
    from httptools import HttpRequestParser
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    heads = memoryview(bytearray(2 * LEAST))  # for all connections: it is read before the next one writes into it

    class Receiver(HttpToolsProtocol, asyncio.BufferedProtocol):  # type: ignore[misc]
        _body: _Body | None = None
        _part = "end"  # of a request, that was read last: some of its "head", its "body", or its "end"
        _head = 0  # bytes of headers that go on
        _late: asyncio.TimerHandle | None = None  # ends the wait for headers

        def connection_made(self, transport: Any) -> None:
            alone.add(transport)
            joined: Any = Joined(transport)
            super().connection_made(joined)
            self._wait_for_headers()

        def _wait_for_headers(self) -> None:
            if self._late is None:
                self._late = self.loop.call_later(seconds, self._too_late)

        def _have_headers(self) -> None:
            self._head = 0
            if self._late is not None:
                self._late.cancel()
                self._late = None

        @property
        def _answers(self) -> bool:
            """Whether an answer is on its way, which waits for a body as long as it likes."""
            return self.cycle is not None and not self.cycle.response_complete

        def _too_late(self) -> None:
            self._late = None
            if self._answers:
                self._wait_for_headers()
            elif self._head:
                self._refuse(408, f"the headers did not come within {seconds:g} s.")
            else:
                self.transport.close()  # it never said a word, or nobody wants the body that it sends

        def _refuse(self, status: int, text: str) -> None:
            self._have_headers()
            self.transport.write(refusal(status, text))
            self.transport.close()

        def get_buffer(self, sizehint: int) -> memoryview:
            return heads if self._body is None else self._body.rest

        def buffer_updated(self, nbytes: int) -> None:
            if self._body is None:
                self._part = "head" if self._part == "end" else self._part
                self.data_received(bytes(heads[:nbytes]))
                self._check_headers(nbytes)
                return
            self._unset_keepalive_if_required()
            self._body.count += nbytes
            if not self._body.rest:
                self.parser: Any = HttpRequestParser(self)  # the old one still waits for this body
                if hasattr(self.parser, "set_dangerous_leniencies"):
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self.on_message_complete()
            self._check_headers(0)

        def _check_headers(self, count: int) -> None:
            """So many bytes were read: those that end in headers are not too many, and do not take too long."""
            if self.transport.is_closing():
                return
            if self._part == "head":
                self._head += count
            if self._head > HEADER_BYTES and self._answers:
                self.transport.close()  # a refusal would be taken for a part of the answer
            elif self._head > HEADER_BYTES:
                self._refuse(431, f"the headers have more than {HEADER_BYTES} bytes.")
            elif self._part == "head" or not self._answers:
                self._wait_for_headers()

        def on_message_begin(self) -> None:
            self._part = "head"
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._part = "body"
            self._have_headers()
            head, size = self._lengths()
            if LEAST <= size <= max_body and not self.expect_100_continue:
                self._body = _Body(size, head, self.loop.create_future())
                self.scope["extensions"] = {EXTENSION: self._body.future}
            super().on_headers_complete()

        def _lengths(self) -> tuple[int, int]:
            """Of the JSON in front of tensors, and of the whole body; zeros where nobody says."""
            head = size = 0
            for name, value in self.headers:
                if name == b"transfer-encoding":
                    return 0, 0
                if name in (HEAD, b"content-length") and value.isdigit() and len(value) < 16:
                    head, size = (int(value), size) if name == HEAD else (head, int(value))
            return head, size

        def on_body(self, body: bytes) -> None:
            if self._body is None:
                super().on_body(body)
            else:
                self._body.rest[: len(body)] = body
                self._body.count += len(body)

        def on_message_complete(self) -> None:
            self._part = "end"
            if self._body is not None:
                self._body.end(self._body.room)
                self._body = None
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            alone.remove(self.transport)
            self._have_headers()
            if self._body is not None:
                self._body.end(None)
                self._body = None
            super().connection_lost(exc)

    return Receiver
