"""HTTP/2 by hand: frames in any pieces, windows, clients that break the protocol, and bytes at random."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.serving.conftest import Running
from tvmopt.serving.alone import Alone
from tvmopt.serving.messages import SERVICE, messages

hpack = pytest.importorskip("hpack", reason="hpack is not installed: pip install 'tvmopt[serve]'")
from tvmopt.serving import http2  # noqa: E402
from tvmopt.serving.http2_frames import (  # noqa: E402
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH,
    RST_STREAM,
    SETTINGS,
    STREAM_WINDOW,
    WINDOW_UPDATE,
    frame,
)  # fmt: skip
from tvmopt.serving.refusals import Refused  # noqa: E402
from tvmopt.serving.rpc_calls import Call, Method, Methods  # noqa: E402

X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
WIDE = np.random.default_rng(0).standard_normal((16, 2048)).astype(np.float32)
HELLO = PREFACE + frame(SETTINGS, 0, 0)
INFER = f"/{SERVICE}/ModelInfer"


def headers(path: str = INFER, **changes: str) -> bytes:
    """A block that changes no table of the receiver."""
    given = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers",
             "content-type": "application/grpc"} | {k.replace("_", "-"): v for k, v in changes.items()}  # fmt: skip
    return bytes(hpack.Encoder().encode([(k, v, True) for k, v in given.items()]))


def body(x: np.ndarray = X, name: str = "rows", compressed: bool = False) -> bytes:
    one = {"name": "x", "datatype": "FP32", "shape": x.shape}
    made = messages().ModelInferRequest(model_name=name, inputs=[one], raw_input_contents=[x.tobytes()])
    data = made.SerializeToString()
    data = gzip.compress(data) if compressed else data
    return bytes([compressed]) + len(data).to_bytes(4, "big") + data


def request(number: int = 1, **changes: Any) -> bytes:
    data = body(**changes)
    parts = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    frames = [frame(DATA, END_STREAM * (part is parts[-1]), number, part) for part in parts]
    return frame(HEADERS, END_HEADERS, number, headers()) + b"".join(frames)


class Client:
    """A connection whose frames are read one by one."""

    def __init__(self, running: Running) -> None:
        host, port = running.grpc.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        self.decoder = hpack.Decoder()

    def send(self, data: bytes, size: int = 1 << 30) -> None:
        for at in range(0, len(data), size):
            self.socket.sendall(data[at : at + size])

    def frame(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and data of the next one; kind -1 at the end."""
        head = self.file.read(9)
        if len(head) < 9:
            return -1, 0, 0, b""
        high, low, kind, flags, number = struct.unpack(">HBBBI", head)
        return kind, flags, number, self.file.read(high << 8 | low)

    def answer(self, number: int = 1) -> tuple[dict[str, str], bytes]:
        """All headers of a stream, and its data."""
        found: dict[str, str] = {}
        data = b""
        while True:
            kind, flags, at, more = self.frame()
            assert kind not in (-1, GOAWAY), more
            if at == number and kind in (HEADERS, RST_STREAM):
                found |= dict(self.decoder.decode(more)) if kind == HEADERS else {"reset": str(more[-1])}
            if at == number and kind == DATA:
                data += more
            if at == number and (flags & END_STREAM or kind == RST_STREAM):
                return found, data

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    made = Client(running)
    yield made
    made.close()


def outputs(data: bytes) -> list[float]:
    assert data[0] == 0 and int.from_bytes(data[1:5], "big") == len(data) - 5
    found = messages().ModelInferResponse.FromString(data[5:])
    return np.frombuffer(found.raw_output_contents[0], np.float32).tolist()


@pytest.fixture(scope="module")
def expected(artifacts: Path) -> dict[str, list[float]]:
    given = {"rows": X, "wide": WIDE}
    return {n: tvmopt.load(artifacts / f"{n}.tvmopt")(x).ravel().tolist() for n, x in given.items()}


def test_frames_come_in_pieces(client: Client, expected: Any) -> None:
    block, data = headers(), body()
    pieces = [
        frame(HEADERS, PADDED | PRIORITISED, 1, bytes([3]) + bytes(5) + block[:4] + bytes(3)),
        frame(CONTINUATION, 0, 1, block[4:9]), frame(CONTINUATION, END_HEADERS, 1, block[9:]),
        frame(PRIORITY, 0, 1, bytes(5)), frame(99, 0, 1, b"what nobody knows"), frame(DATA, 0, 1),
        frame(DATA, 0, 1, data[:3]), frame(DATA, PADDED, 1, bytes([2]) + data[3:40] + bytes(2)),
        frame(DATA, 0, 1, data[40:]), frame(DATA, END_STREAM, 1),
    ]  # fmt: skip
    client.send(HELLO + b"".join(pieces), 1)
    found, answer = client.answer()
    assert found[":status"] == "200" and found["grpc-status"] == "0"
    assert outputs(answer) == expected["rows"]


@pytest.mark.parametrize("size", [7000, 16384 + 9, 1 << 30])
def test_large_messages_and_streams_side_by_side(client: Client, expected: Any, size: int) -> None:
    first, second = request(1, x=WIDE, name="wide"), request(3)
    cut = len(headers()) + 9 + 3 * (16384 + 9)
    client.send(HELLO + first[:cut] + second + first[cut:], size)
    assert outputs(client.answer(3)[1]) == expected["rows"]
    assert outputs(client.answer(1)[1]) == expected["wide"]
    for number in (5, 7):  # the same headers again
        client.send(request(number, x=WIDE, name="wide"), size)
        assert outputs(client.answer(number)[1]) == expected["wide"]


def test_an_answer_waits_for_the_windows(client: Client, expected: Any) -> None:
    window = struct.pack(">HI", 4, 10)
    client.send(PREFACE + frame(SETTINGS, 0, 0, window) + request())
    data = b""
    while len(data) < 10:
        kind, _, _, more = client.frame()
        data += more if kind == DATA else b""
    assert len(data) == 10
    client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 13)))  # every stream gets three more
    while len(data) < 13:
        kind, _, _, more = client.frame()
        data += more if kind == DATA else b""
    assert len(data) == 13
    client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1000)))
    found, more = client.answer()
    assert found["grpc-status"] == "0" and outputs(data + more) == expected["rows"]


def test_compressed_messages(client: Client, expected: Any) -> None:
    data = body(compressed=True)
    opened = frame(HEADERS, END_HEADERS, 1, headers(grpc_encoding="gzip"))
    client.send(HELLO + opened + frame(DATA, END_STREAM, 1, data))
    assert outputs(client.answer()[1]) == expected["rows"]
    bomb = gzip.compress(bytes(2 << 20))
    wrong = [
        (bomb, "8", "gzip"), (gzip.compress(b"x" * 99)[:-9], "3", "gzip"), (b"no gzip", "3", "gzip"),
        (gzip.compress(b"x"), "3", "zstd"),
    ]  # fmt: skip
    for number, (given, status, encoding) in enumerate(wrong, 1):
        at = 2 * number + 1
        opened = frame(HEADERS, END_HEADERS, at, headers(grpc_encoding=encoding))
        client.send(opened + frame(DATA, END_STREAM, at, b"\1" + len(given).to_bytes(4, "big") + given))
        assert client.answer(at)[0]["grpc-status"] == status


@pytest.mark.parametrize(
    ("block", "data", "wanted"),
    [
        (headers(f"/{SERVICE}/Nothing"), body(), {"grpc-status": "12"}), (headers(), b"", {"grpc-status": "3"}),
        (headers(), body()[:-1], {"grpc-status": "3"}), (headers(), 2 * body(), {"grpc-status": "3"}),
        (headers(), b"\7" + body()[1:], {"grpc-status": "13"}),
        (headers(), b"\0\x7f\xff\xff\xff", {"grpc-status": "8"}),
        (headers(**{":method": "GET"}), b"", {":status": "405"}),
        (headers(**{"content-type": "text/html"}), body(), {":status": "415"}),
        (headers(grpc_timeout="0n"), b"\0\0\0", {"grpc-status": "4"}),
    ],
)  # fmt: skip
def test_wrong_calls_have_their_status(
    client: Client, expected: Any, block: bytes, data: bytes, wanted: dict[str, str]
) -> None:
    ends = END_STREAM * (wanted != {"grpc-status": "4"})
    client.send(HELLO + frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, ends, 1, data))
    found = client.answer()[0]
    assert found | wanted == found
    client.send(request(3))  # the connection goes on
    assert outputs(client.answer(3)[1]) == expected["rows"]


def test_a_reset_stream_is_forgotten(client: Client, expected: Any) -> None:
    def left(number: int) -> bytes:
        opened = frame(HEADERS, END_HEADERS, number, headers()) + frame(DATA, 0, number, body()[:40])
        return opened + frame(RST_STREAM, 0, number, bytes(4))

    client.send(HELLO + b"".join(left(n) for n in range(1, 2000, 2)) + request(2001))
    assert outputs(client.answer(2001)[1]) == expected["rows"]


BROKEN = {
    "no preface": (b"GET / HTTP/1.1\r\n\r\n", 1),
    "no settings": (PREFACE + frame(PING, 0, 0, bytes(8)), 1),
    "settings of a stream": (PREFACE + frame(SETTINGS, 0, 1), 1),
    "odd settings": (PREFACE + frame(SETTINGS, 0, 0, bytes(5)), 6),
    "a window beyond 2^31": (PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), 3),
    "frames too small": (PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)), 1),
    "data of no stream": (HELLO + frame(DATA, 0, 0, b"x"), 1),
    "data of an idle stream": (HELLO + frame(DATA, 0, 1, b"x"), 1),
    "an even stream": (HELLO + frame(HEADERS, END_HEADERS, 2, headers()), 1),
    "a stream again": (HELLO + request(3) + frame(HEADERS, END_HEADERS, 1, headers()), 5),
    "headers interrupted": (HELLO + frame(HEADERS, 0, 1, headers()[:3]) + frame(PING, 0, 0, bytes(8)), 1),
    "no headers to continue": (HELLO + frame(CONTINUATION, END_HEADERS, 1, headers()), 1),
    "headers without end": (HELLO + frame(HEADERS, 0, 1, bytes(30000)) + frame(CONTINUATION, 0, 1, bytes(9000)), 11),
    "headers that are none": (HELLO + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), 9),
    "headers in the middle": (HELLO + 2 * frame(HEADERS, END_HEADERS, 1, headers()), 1),
    "only padding": (HELLO + frame(HEADERS, END_HEADERS, 1, headers()) + frame(DATA, PADDED, 1, bytes([9, 0])), 1),
    "a short ping": (HELLO + frame(PING, 0, 0, bytes(7)), 6),
    "a push": (HELLO + frame(PUSH, 0, 1, bytes(4)), 1),
    "a reset of nothing": (HELLO + frame(RST_STREAM, 0, 1, bytes(4)), 1),
    "a window that stays": (HELLO + frame(WINDOW_UPDATE, 0, 0, bytes(4)), 1),
    "a window too large": (HELLO + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1)), 3),
    "a frame too large": (HELLO + struct.pack(">HBBBI", 0xFFFF, 255, DATA, 0, 1), 6),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_who_breaks_the_protocol_is_told_and_leaves(running: Running, name: str) -> None:
    data, code = BROKEN[name]
    client = Client(running)
    client.send(data)
    while (found := client.frame())[0] != GOAWAY:
        assert found[0] != -1, "the connection ended without a word"
    assert int.from_bytes(found[3][4:8], "big") == code
    assert client.frame()[0] == -1
    client.close()


HALF = {
    "nothing": b"", "preface": PREFACE[:9], "frame": HELLO + frame(PING, 0, 0, bytes(8))[:12],
    "headers": HELLO + frame(HEADERS, 0, 1, headers()[:3]),
}  # fmt: skip


@pytest.mark.parametrize("name", HALF)
def test_what_is_half_sent_is_given_up(hasty: Running, name: str) -> None:
    client = Client(hasty)
    client.send(HALF[name])
    while (found := client.frame())[0] != GOAWAY:
        assert found[0] != -1, "the connection ended without a word"
    assert int.from_bytes(found[3][4:8], "big") == 11 and b"did not come within 0.3 s" in found[3]
    assert client.frame()[0] == -1
    client.close()


def test_pings_and_settings_are_answered(client: Client) -> None:
    client.send(HELLO + frame(PING, 0, 0, b"whatever") + frame(PING, ACK, 0, b"whatever"))
    found = [client.frame() for _ in range(4)]
    assert [kind for kind, *_ in found] == [SETTINGS, WINDOW_UPDATE, SETTINGS, PING]
    assert found[2][1:] == (ACK, 0, b"") and found[3][1:] == (ACK, 0, b"whatever")


# -- without a server: a transport that keeps what is written ----------------------------------------------------------


class Transport:
    def __init__(self) -> None:
        self.written, self.closed, self.reads = b"", False, True

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> Any:
        raise OSError

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def fed(connection: Any, data: bytes) -> None:
    """Bytes come, as asyncio hands them on."""
    while data and not connection.transport.closed:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def connected(method: Method, seconds: float = 60.0) -> tuple[Any, Transport]:
    methods = Methods({INFER.encode(): method}, lambda refused: "INTERNAL", 8 << 20, seconds)
    transport = Transport()
    made = http2.Connection(lambda known, number: Call(known, number, methods), Alone(), set())
    made.connection_made(transport)
    return made, transport


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    while data:
        high, low, kind, flags, number = struct.unpack(">HBBBI", data[:9])
        size = high << 8 | low
        found.append((kind, flags, number, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def test_a_connection_that_is_whole_stays() -> None:
    """A client of gRPC keeps its connection, and says nothing between two calls; the wait ends with each frame."""

    async def stay() -> None:
        transport, ping = Transport(), frame(PING, 0, 0, bytes(8))
        made: Any = http2.Connection(lambda known, number: None, Alone(), set(), 0.02)  # type: ignore
        made.connection_made(transport)
        for piece in (HELLO[:5], HELLO[5:30], HELLO[30:], ping[:9], ping[9:] + ping[:3], ping[3:]):
            fed(made, piece)
        await asyncio.sleep(0.1)
        assert not transport.closed
        fed(made, ping[:9])
        await asyncio.sleep(0.1)
        assert transport.closed

    asyncio.run(stay())


def test_a_stream_that_is_not_taken_gets_no_more_window() -> None:
    """Messages of a stream wait for the answers to those before; its sender waits, too, until one is taken."""

    async def work() -> None:
        gate = asyncio.Semaphore(0)

        async def many(requests: Any) -> Any:
            async for request in requests:
                await gate.acquire()
                yield [bytes(request[:1])]

        connection, transport = connected(Method(lambda data: bytes(data), many=many))
        fed(connection, HELLO + frame(HEADERS, END_HEADERS, 1, headers()))
        message = b"\0" + (1 << 20).to_bytes(4, "big") + bytes(1 << 20)
        parts = [frame(DATA, 0, 1, message[at : at + (1 << 19)]) for at in range(0, len(message), 1 << 19)]

        def allowed() -> int:
            given = [f[3] for f in frames(transport.written) if f[0] == WINDOW_UPDATE and f[2] == 1]
            return STREAM_WINDOW + sum(int.from_bytes(count, "big") for count in given) - sent

        sent = 0
        while allowed() >= len(message):
            assert sent < 3 * STREAM_WINDOW, "nobody takes the messages, and their sender gets more window"
            fed(connection, b"".join(parts))
            sent += len(message)
            await asyncio.sleep(0)
        assert sent >= STREAM_WINDOW - len(message)
        for _ in range(sent // len(message)):
            gate.release()
        for _ in range(50):
            await asyncio.sleep(0)
        assert allowed() > STREAM_WINDOW // 2, "what was taken may be sent again"
        fed(connection, frame(DATA, END_STREAM, 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not connection.streams and frames(transport.written)[-1][1] == END_HEADERS | END_STREAM

    asyncio.run(work())


def test_a_client_that_does_not_read_is_not_read() -> None:
    async def work() -> None:
        async def one(request: Any) -> list[bytes]:
            return [bytes(100)]

        connection, transport = connected(Method(bytes, one))
        connection.pause_writing()
        assert not transport.reads
        connection.resume_writing()
        assert transport.reads
        fed(connection, HELLO + frame(HEADERS, END_HEADERS, 1, headers()) + frame(DATA, END_STREAM, 1, b"\0\0\0\0\1x"))
        connection.pause_writing()
        connection.window = 50
        await asyncio.sleep(0.01)
        assert [f[0] for f in frames(transport.written)][-1] == HEADERS, "no data while the socket is full"
        connection.resume_writing()
        assert [len(f[3]) for f in frames(transport.written) if f[0] == DATA] == [5, 45], "the prefix, what fits"
        fed(connection, frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1000)))
        assert [len(f[3]) for f in frames(transport.written) if f[0] == DATA] == [5, 45, 55]
        assert not connection.streams

    asyncio.run(work())


def status(transport: Transport) -> str:
    """Of the last call."""
    kind, flags, _, block = frames(transport.written)[-1]
    if kind == RST_STREAM:  # the client still sends
        kind, flags, _, block = frames(transport.written)[-2]
    assert kind == HEADERS and flags & END_STREAM
    return str(dict(hpack.Decoder().decode(block))["grpc-status"])


def test_a_request_that_does_not_come_is_too_late() -> None:
    async def work() -> None:
        async def one(request: Any) -> list[bytes]:
            await asyncio.sleep(0.1)  # an answer may take longer than its request
            return [b"x"]

        for data in (b"", b"\0\0\0\0\2x"):
            connection, transport = connected(Method(bytes, one), seconds=0.02)
            fed(connection, HELLO + frame(HEADERS, END_HEADERS, 1, headers()) + frame(DATA, 0, 1, data))
            while connection.streams:
                await asyncio.sleep(0.005)
            assert status(transport) == "4"
        fed(connection, frame(HEADERS, END_HEADERS, 3, headers()) + frame(DATA, END_STREAM, 3, b"\0\0\0\0\1x"))
        while connection.streams:
            await asyncio.sleep(0.005)
        assert status(transport) == "0"

    asyncio.run(work())


@pytest.mark.parametrize("way", ["reset", "lost", "late"])
def test_nothing_more_is_done_for_who_has_gone(way: str) -> None:
    async def work() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def one(request: Any) -> list[bytes]:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            return []

        connection, transport = connected(Method(bytes, one))
        block = headers(grpc_timeout="100m") if way == "late" else headers()
        fed(connection, HELLO + frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, b"\0\0\0\0\1x"))
        await begun.wait()
        if way == "reset":
            fed(connection, frame(RST_STREAM, 0, 1, bytes(4)))
        elif way == "lost":
            connection.connection_lost(None)
        await ended.wait()
        assert not connection.streams and (way != "late" or status(transport) == "4")

    asyncio.run(work())


def test_the_end_waits_for_streams() -> None:
    async def work() -> None:
        gate = asyncio.Event()

        async def one(request: Any) -> list[bytes]:
            await gate.wait()
            return [b"x"]

        connection, transport = connected(Method(bytes, one))
        fed(connection, HELLO + request())
        ends = asyncio.create_task(http2.closed({connection}, 60.0))
        await asyncio.sleep(0.02)
        assert frames(transport.written)[-1][0] == GOAWAY and not transport.closed
        gate.set()
        await ends
        kinds = [kind for kind, *_ in frames(transport.written)]
        assert kinds[-5:] == [GOAWAY, HEADERS, DATA, HEADERS, GOAWAY] and transport.closed

    asyncio.run(work())


def test_bytes_at_random_break_nothing() -> None:
    """Right requests that were damaged: an answer, a status or a GOAWAY, and never another exception."""
    rng = random.Random(0)

    async def work() -> int:
        answered = 0

        async def one(request: Any) -> list[bytes]:
            if len(request) % 2:
                raise Refused(400, "odd")
            if len(request) % 3:
                await asyncio.sleep(0)
            return [bytes(request)]

        async def many(requests: Any) -> Any:
            async for request in requests:
                yield [request]

        for number in range(400):
            method = Method(bytes, one, at_once=number % 4 == 1) if number % 2 else Method(bytes, many=many)
            connection, transport = connected(method)
            block = headers(grpc_encoding="gzip", grpc_timeout="9S")
            message = body(compressed=number % 3 == 0)
            parts = [frame(HEADERS, END_HEADERS, 1, block), frame(DATA, 0, 1, message[:50])]
            parts += [frame(DATA, END_STREAM, 1, message[50:]), frame(PING, 0, 0, bytes(8)), request(3)]
            data = bytearray(b"".join(parts))
            for _ in range(rng.choice((0, 1, 1, 2, 5))):
                at = rng.randrange(len(data))
                if rng.random() < 0.3:
                    del data[at : at + rng.randrange(1, 40)]
                else:
                    data[at] = rng.choice((0, 1, 255, data[at] ^ 1 << rng.randrange(8)))
            at = rng.randrange(len(data))
            fed(connection, HELLO + bytes(data[:at]))
            await asyncio.sleep(0)
            fed(connection, bytes(data[at:]))
            for _ in range(10):
                await asyncio.sleep(0)
            kinds = [kind for kind, *_ in frames(transport.written)]
            answered += HEADERS in kinds
            assert transport.closed == (GOAWAY in kinds)
            connection.connection_lost(None)
            await asyncio.sleep(0)
            assert not connection.streams
        return answered

    errors: list[Any] = []

    async def watched() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        return await work()

    assert asyncio.run(watched()) > 200 and not errors
