"""What a server does for a client that is alone: it stays awake, and answers without a turn of the loop."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from typing import Any

import pytest

from tests.serving.test_batcher import Socket, Where, asked, model  # noqa: F401 - a fixture
from tests.serving.test_http2 import HELLO, connected, fed, frames, headers, status
from tvmopt.serving import http2
from tvmopt.serving.alone import AWAKE, Alone, Polling
from tvmopt.serving.batcher import Batcher, Limits
from tvmopt.serving.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, STREAM_WINDOW, WINDOW_UPDATE, frame
from tvmopt.serving.refusals import Refused
from tvmopt.serving.rpc_calls import Method


def call(number: int, data: bytes = b"x") -> bytes:
    sent = b"\0" + len(data).to_bytes(4, "big") + data
    parts = [frame(DATA, 0, number, sent[at : at + (1 << 19)]) for at in range(0, len(sent), 1 << 19)]
    return frame(HEADERS, END_HEADERS, number, headers()) + b"".join(parts) + frame(DATA, END_STREAM, number)


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that the loop stayed awake."""
    found: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: found.append(1))
    return found


def test_a_loop_stays_awake_as_long_as_it_is_told(yields: list[int]) -> None:
    alone = Alone()
    with Polling(alone) as polling:
        begin = time.perf_counter()
        assert polling.select(0.02) == [] and time.perf_counter() - begin >= 0.019 and not yields
        alone.awake = time.perf_counter() + 60
        assert polling.select(0) == polling.select(-1) == [] and not yields
        begin = time.perf_counter()
        assert polling.select(0.02) == [] and time.perf_counter() - begin >= 0.02 and yields
        ours, theirs = socket.socketpair()
        polling.register(ours, 1, "here")
        for seconds in (None, 60.0):
            yields.clear()
            timer = threading.Timer(0.02, theirs.send, [b"x"])
            timer.start()
            assert [key.data for key, _ in polling.select(seconds)] == ["here"] and yields
            timer.join()
            ours.recv(1)
        alone.awake, yields[:] = time.perf_counter() + 0.01, []
        timer = threading.Timer(0.05, theirs.send, [b"x"])
        timer.start()
        assert [key.data for key, _ in polling.select(None)] == ["here"], "it sleeps, and wakes"
        timer.join()
        ours.close()
        theirs.close()


def test_the_only_core_is_not_kept_from_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, awake in (({0}, 0.0), ({0, 1}, AWAKE)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: cores)
        alone, before = Alone(), time.perf_counter()
        alone.look()
        assert before + awake <= alone.awake <= time.perf_counter() + awake


def test_a_model_is_not_closed_while_the_loop_computes(model: Any) -> None:  # noqa: F811
    alone, ended = Alone(), threading.Event()
    where = Where(model)
    batcher = Batcher(where, Limits(), alone=alone)  # type: ignore[arg-type]

    def close() -> None:
        batcher.close()
        ended.set()

    def during() -> None:
        threading.Thread(target=close).start()
        for thread in batcher._threads:
            thread.join(60)
        assert not ended.wait(0.05), "the model is still in use"

    async def work() -> None:
        kept = Socket(alone)
        await asked(batcher, alone)
        where.during = during
        await asked(batcher, alone)
        assert where.threads == [False, True] and kept

    asyncio.run(work())
    assert ended.wait(60)


def test_what_need_not_wait_is_answered_at_once() -> None:
    async def work() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

        async def one(request: bytes) -> list[bytes]:
            if request == b"wrong":
                raise Refused(400, "no")
            if request == b"broken":
                raise ZeroDivisionError
            if request == b"later":
                await asyncio.sleep(0)
                assert asyncio.current_task() is not None
                async with asyncio.timeout(60):
                    await asyncio.sleep(0.001)
            return [request]

        connection, transport = connected(Method(bytes, one, at_once=True))
        fed(connection, HELLO + call(1) + call(3, b"wrong") + call(5, b"broken"))
        ends = [f[2] for f in frames(transport.written) if f[1] & END_STREAM and f[0] == HEADERS]
        assert ends == [1, 3, 5] and not connection.streams and status(transport) == "13"
        assert [type(error) for error in told] == [ZeroDivisionError]
        fed(connection, call(7, b"later") + call(9))
        assert list(connection.streams) == [7], "who need not wait does not wait for others"
        while connection.streams:
            await asyncio.sleep(0.001)
        assert [f[2] for f in frames(transport.written) if f[0] == DATA] == [1, 9, 7] and status(transport) == "0"

    asyncio.run(work())


def test_large_messages_are_received_where_they_are_read() -> None:
    async def work() -> None:
        async def one(request: bytes) -> list[bytes]:
            return [request[-3:]]

        connection, transport = connected(Method(bytes, one))
        message = bytes(range(256)) * 2047
        data, rooms = HELLO + call(1, message), []
        while data:
            room = connection.get_buffer(-1)
            rooms.append(len(room))
            fed(connection, data[: len(room)])
            data = data[len(room) :]
        assert rooms[0] <= 16 << 10 and len(rooms) == 3, "all but the beginning goes to its place"
        await asyncio.sleep(0.001)
        assert [f[3][5:] for f in frames(transport.written) if f[0] == DATA] == [message[-3:]]

    asyncio.run(work())


def test_the_connections_window_is_given_back_with_what_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async def one(request: bytes) -> list[bytes]:
            return [b"x"]

        connection, transport = connected(Method(bytes, one))
        fed(connection, HELLO)
        transport.written = b""
        fed(connection, call(1, bytes(3 << 19)))
        assert transport.written == b""
        await asyncio.sleep(0.001)
        found = frames(transport.written)
        assert [kind for kind, *_ in found] == [WINDOW_UPDATE, HEADERS, DATA, HEADERS]
        assert found[0][2:] == (0, struct.pack(">I", (3 << 19) + 5))
        monkeypatch.setattr(http2, "CONNECTION_WINDOW", STREAM_WINDOW)
        transport.written = b""
        fed(connection, call(3, bytes(STREAM_WINDOW // 2 - 5)))
        given = [f for f in frames(transport.written) if f[0] == WINDOW_UPDATE and not f[2]]
        assert given == [(WINDOW_UPDATE, 0, 0, struct.pack(">I", STREAM_WINDOW // 2))], "before a client has to wait"

    asyncio.run(work())
