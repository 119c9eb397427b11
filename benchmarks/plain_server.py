"""The least a server can do: read a request, answer the same bytes - what a client and sockets cost, for `serving`.

    python benchmarks/plain_server.py http 4000 0.004   # prints its port; answers 4000 bytes to every POST after 4 ms
    python benchmarks/plain_server.py grpc 4000 0.004   # HTTP/2 with nothing but the frames that a gRPC client needs
    python benchmarks/plain_server.py library 4000 0.004  # gRPC's own asyncio server with our options

Nothing is checked, and a request is read to its end and forgotten: it shows what part of a request's time is the
client's own work and the sockets'. In between it computes for as long as a model would: a client that waits cools down.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from typing import Any

DATA, HEADERS, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
ROOM = 4 << 20
"""Bytes of the largest request."""


class Connection(asyncio.BufferedProtocol):
    """A client: :meth:`take` gets what has come, and says how much of it is done with."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds, self.room, self.count = size, seconds, memoryview(bytearray(ROOM)), 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.room[self.count :]

    def buffer_updated(self, nbytes: int) -> None:
        self.count += nbytes
        done = self.take(self.room[: self.count])
        self.room[: self.count - done] = self.room[done : self.count]
        self.count -= done

    def take(self, view: memoryview) -> int:
        raise NotImplementedError

    def compute(self) -> None:
        compute(self.seconds)


def compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Http(Connection):
    """HTTP/1.1: the head once a request, its body by its length."""

    wanted = 0

    def take(self, view: memoryview) -> int:
        if not self.wanted:
            head = bytes(view[: 4 << 10]).partition(b"\r\n\r\n")[0].lower()
            length = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
            self.wanted = len(head) + 4 + int(length)
        if len(view) < self.wanted:
            return 0
        done, self.wanted = self.wanted, 0
        self.compute()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {self.size}\r\nInference-Header-Content-Length: 0\r\n\r\n"
        self.transport.write(head.encode() + bytes(self.size))
        return done


class Grpc(Connection):
    """HTTP/2: data is counted and given back to the window, a stream's end is answered."""

    greeted, got = False, 0

    def take(self, view: memoryview) -> int:
        at, out = 0, []
        if not self.greeted:
            if len(view) < 24:
                return 0
            settings = struct.pack(">HIHI", 4, (1 << 31) - 1, 5, 1 << 20)  # windows and frames as large as may be
            out += [frame(SETTINGS, 0, 0, settings), frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30))]
            at, self.greeted = 24, True
        while len(view) - at >= 9:
            size, kind, flags = int.from_bytes(view[at : at + 3], "big"), view[at + 3], view[at + 4]
            stream = int.from_bytes(view[at + 5 : at + 9], "big")
            if len(view) - at - 9 < size:
                break
            if kind in (SETTINGS, PING) and not flags & 1:
                out.append(frame(kind, 1, 0, bytes(view[at + 9 : at + 9 + size]) if kind == PING else b""))
            elif kind == DATA:
                self.got += size
                if flags & 1:
                    self.compute()
                    out.append(self.answer(stream))
            at += 9 + size
        if out:
            self.transport.write(b"".join(out))
        return at

    def answer(self, stream: int) -> bytes:
        window, self.got = frame(WINDOW, 0, 0, struct.pack(">I", self.got)), 0
        head = b"\x88" + literal(b"content-type", b"application/grpc")
        raw = answer(self.size)
        body = b"\0" + struct.pack(">I", len(raw)) + raw
        end = frame(HEADERS, 5, stream, literal(b"grpc-status", b"0"))
        return window + frame(HEADERS, 4, stream, head) + frame(DATA, 0, stream, body) + end


def answer(size: int) -> bytes:
    """A ModelInferResponse with raw_output_contents alone."""
    return b"\x32" + varint(size) + bytes(size)


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table has."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def varint(number: int) -> bytes:
    """A number as protobuf writes it.

    >>> varint(300)
    b'\\xac\\x02'
    """
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


async def library(size: int, seconds: float) -> None:
    """What gRPC for Python costs by itself: no message is read, the answer is bytes."""
    import grpc

    from tvmopt.serving.memory import keep_memory
    from tvmopt.serving.messages import SERVICE
    from tvmopt.serving.rpc import WINDOWS

    keep_memory()

    async def infer(request: bytes, context: Any) -> bytes:
        compute(seconds)
        return answer(size)

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", ROOM), ("grpc.so_reuseport", 0), *WINDOWS])
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def main(kind: str, size: int, seconds: float) -> None:
    if kind == "library":
        return await library(size, seconds)
    made = {"http": Http, "grpc": Grpc}[kind]
    server = await asyncio.get_running_loop().create_server(lambda: made(size, seconds), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
