"""gRPC over HTTP/2: the messages of a stream, deadlines, compression, statuses - between `http2` and `rpc`.

A message of a stream has a byte that tells whether it is compressed and four for its length in front. An answer is
headers, messages, and trailers with the status; one without messages is trailers alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from tvmopt.runtime.tensors import aligned_empty
from tvmopt.serving.compressed import plain
from tvmopt.serving.http2 import Connection
from tvmopt.serving.http2_frames import END_HEADERS, END_STREAM, HEADERS, frame, literal
from tvmopt.serving.http2_stream import Stream
from tvmopt.serving.refusals import Refused

STATUSES = {
    "OK": 0, "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5,
    "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14,
}  # fmt: skip

UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
"""Of a deadline."""

QUEUED = 1 << 20
"""Bytes of messages of a stream that wait for the answers to those before; the client then waits, too."""

TEXT = 2000
"""Bytes of a status' text: clients refuse long headers."""

KIND = b"\x88" + literal(b"content-type", b"application/grpc")
"""Headers in front of everything: status 200."""
OK = KIND + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
"""And those in front of messages."""

Pieces = list[bytes]
"""A message, in parts."""


@dataclass(frozen=True)
class Method:
    """What is done for a path.

    Attributes:
        read: a request of a message's bytes, None where it is none. one: answers a request. many: answers a stream of
            them instead. at_once: `one` may end without waiting, and waits for nothing before `asyncio.sleep(0)`.
    """

    read: Callable[[memoryview], Any]
    one: Callable[[Any], Coroutine[Any, Any, Pieces]] | None = None
    many: Callable[[AsyncIterator[Any]], Any] | None = None
    at_once: bool = False


@dataclass(frozen=True)
class Methods:
    """All that is served.

    Attributes:
        code: the name of a refusal's status. most: bytes of a message. seconds: in which a request has to come.
    """

    by_path: Mapping[bytes, Method]
    code: Callable[[Refused], str]
    most: int
    seconds: float


def trailers(status: str, text: str = "") -> bytes:
    """A block of headers that ends a call.

    >>> trailers("NOT_FOUND", "no 50%")[-22:]
    b'\\x0cgrpc-message\\x08no 50%25'
    """
    block = literal(b"grpc-status", str(STATUSES[status]).encode())
    if not text:
        return block
    told = quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")[:TEXT]
    if "%" in told[-2:]:  # cut in the middle of one
        told = told[: told.rindex("%")]
    return block + literal(b"grpc-message", told.encode())


DONE = trailers("OK")


def seconds(value: bytes) -> float | None:
    """How long a client waits, as `grpc-timeout` says it; None where it does not.

    >>> seconds(b"100m"), seconds(b"5S"), seconds(b"soon")
    (0.1, 5.0, None)
    """
    number, unit = value[:-1], UNITS.get(value[-1:])
    return int(number) * unit if unit is not None and number.isdigit() and len(number) <= 8 else None


class Call(Stream):
    """A call: its messages become requests, and what they are answered leaves again."""

    def __init__(self, connection: Connection, number: int, methods: Methods) -> None:
        super().__init__(connection, number)
        self._methods = methods
        self._method: Method | None = None
        self._encoding = b"identity"
        self._prefix = b""
        self._message: memoryview | None = None
        self._count = 0
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._queued = self._came = 0
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._begun = False

    # -- what comes ---------------------------------------------------------------------------------------------------

    def headers(self, found: dict[bytes, bytes]) -> None:
        loop = asyncio.get_running_loop()
        if found.get(b":method") != b"POST" or not found.get(b"content-type", b"").startswith(b"application/grpc"):
            status = b"405" if found.get(b":method") != b"POST" else b"415"
            self.connection.write(frame(HEADERS, END_HEADERS | END_STREAM, self.number, literal(b":status", status)))
            self.close()
            return
        path = found.get(b":path", b"")
        self._method = self._methods.by_path.get(path)
        if self._method is None:
            told = path.decode(errors="replace")[:100]
            self.refuse("UNIMPLEMENTED", f"there is no method {told}; docs/how-to/serve.md tells what is served.")
            return
        self._encoding = found.get(b"grpc-encoding", b"identity")
        asked = seconds(found.get(b"grpc-timeout", b""))
        if asked is not None:
            self._timers.append(loop.call_later(asked, self._late, "the client's deadline has passed."))
        if self._method.one is not None:
            told = f"the request did not come within {self._methods.seconds:g} s."
            self._timers.append(loop.call_later(self._methods.seconds, self._late, told))

    def _late(self, text: str) -> None:
        self.refuse("DEADLINE_EXCEEDED", text)
        self.reset()

    def room(self, most: int) -> memoryview | None:
        if self._message is None or self._count == len(self._message):
            return None
        return self._message[self._count : self._count + most]

    def filled(self, count: int) -> None:
        self._count += count
        self._check()

    def data(self, view: memoryview) -> None:
        while len(view) and not self.closed:
            if self._message is None:
                count = 5 - len(self._prefix)
                self._prefix += bytes(view[:count])
                view = view[count:]
                if len(self._prefix) < 5:
                    return
                size = int.from_bytes(self._prefix[1:], "big")
                if size > self._methods.most or self._prefix[0] > 1:
                    self._refuse_size(size)
                    return
                self._message = memoryview(aligned_empty((size,), np.dtype(np.uint8)))  # type: ignore[arg-type]
            count = min(len(view), len(self._message) - self._count)
            self._message[self._count : self._count + count] = view[:count]
            self._count += count
            view = view[count:]
            self._check()

    def _refuse_size(self, size: int) -> None:
        if self._prefix[0] > 1:
            self.refuse("INTERNAL", "a message begins with neither 0 nor 1.")
        else:
            self.refuse("RESOURCE_EXHAUSTED", f"a message has {size} bytes; the limit is {self._methods.most}.")
        self.reset()

    def _check(self) -> None:
        """A message may be whole."""
        message = self._message
        if message is None or self._count < len(message):
            return
        compressed, self._prefix, self._message, self._count = self._prefix[0], b"", None, 0
        try:
            if compressed:
                encoding = self._encoding.decode(errors="replace")
                message = memoryview(plain(message, encoding, self._methods.most))
        except Refused as refused:
            self.refuse(self._methods.code(refused), refused.text)
            self.reset()
            return
        assert self._method is not None
        self._came += 1
        self._queued += len(message)
        self.holds = self._method.many is not None and self._queued > QUEUED
        self._requests.put_nowait(message)
        if self._method.many is not None and self._task is None:
            self._begin(self._stream())

    def ended(self) -> None:
        if self._method is None or self.closed:
            return
        if self._prefix or self._message is not None:
            self.refuse("INVALID_ARGUMENT", "the stream ends in the middle of a message.")
            self.reset()
        elif self._method.many is not None:
            self._requests.put_nowait(None)
            if self._task is None:
                self._begin(self._stream())
        elif self._came != 1:
            self.refuse("INVALID_ARGUMENT", f"the request has {self._came} messages, not one.")
        else:
            self._timers.pop().cancel()  # it has come
            work = self._answer(self._method.one, self._method.read(self._requests.get_nowait()))
            if not self._method.at_once or self._waits(work):
                self._begin(work)

    def reset(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._stop()

    def gone(self) -> None:
        super().gone()
        self._stop()

    def _stop(self) -> None:
        while self._timers:
            self._timers.pop().cancel()

    # -- what goes ----------------------------------------------------------------------------------------------------

    def _waits(self, work: Coroutine[Any, Any, None]) -> bool:
        """Work, as far as it goes without a task: that would be one more turn of the loop."""
        try:
            work.send(None)
        except StopIteration:
            return False
        except Exception as error:
            told = {"message": "a call of gRPC failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            return False
        return True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    async def _answer(self, work: Any, request: Any) -> None:
        try:
            pieces = await work(request)
        except Refused as refused:
            self.refuse(self._methods.code(refused), refused.text)
        except Exception as error:
            self.refuse("INTERNAL", f"{type(error).__name__}: {error}")
            raise
        else:
            head = frame(HEADERS, END_HEADERS, self.number, OK)
            self.send(head, _framed(pieces), DONE)

    async def _stream(self) -> None:
        assert self._method is not None and self._method.many is not None
        try:
            async with aclosing(self._method.many(self._asked())) as answers:
                async for pieces in answers:
                    self.send(self._head(), _framed(pieces))
                    await self.sent()
        except Refused as refused:
            self._finish(trailers(self._methods.code(refused), refused.text))
        except Exception as error:
            self._finish(trailers("INTERNAL", f"{type(error).__name__}: {error}"))
            raise
        else:
            self._finish(DONE)

    async def _asked(self) -> AsyncIterator[Any]:
        """The requests of a stream, until its end."""
        assert self._method is not None
        while (message := await self._requests.get()) is not None:
            self._queued -= len(message)
            if self.holds and self._queued <= QUEUED // 2:
                self.holds = False
                self.take()
            yield self._method.read(message)

    def _head(self) -> bytes:
        begun, self._begun = self._begun, True
        return b"" if begun else frame(HEADERS, END_HEADERS, self.number, OK)

    def _finish(self, block: bytes) -> None:
        self.send(self._head(), [], block)

    def refuse(self, status: str, text: str) -> None:
        """An answer that is a status alone, or ends one that has begun."""
        if self._begun:
            self._finish(trailers(status, text))
        elif not self.closed:
            block = KIND + trailers(status, text)
            self.connection.write(frame(HEADERS, END_HEADERS | END_STREAM, self.number, block))
            self.close()


def _framed(pieces: Pieces) -> Pieces:
    return [b"\0" + sum(map(len, pieces)).to_bytes(4, "big"), *pieces]
