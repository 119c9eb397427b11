"""The least a server can do: read a request, compute it, answer - what a client and sockets cost, for `serving`.

    python benchmarks/plain_server.py http model.tvmopt     # prints its port; answers every POST with the outputs
    python benchmarks/plain_server.py grpc model.tvmopt     # HTTP/2: only the frames that a gRPC client needs
    python benchmarks/plain_server.py library model.tvmopt  # gRPC's own asyncio server

Nothing is checked: the last bytes of a request are the model's input, if it has one; else it is called on zeros. It is
called in the thread that has read them, so that the caches are as a server's. What a request takes here is the
client's own work, the sockets' and the model's.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import Any

import numpy as np

import tvmopt
from tvmopt.serving.memory import keep_memory

DATA, HEADERS, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
ROOM = 4 << 20
"""Bytes of the largest request."""
WINDOWS = (("grpc.http2.max_frame_size", 1 << 20), ("grpc.http2.lookahead_bytes", 4 << 20), ("grpc.http2.bdp_probe", 0))
"""A picture comes in one frame, and its sender waits for no window: 0.1 ms of 602 kB for gRPC's own server."""


class Work:
    """A model, called on what a request ends with."""

    def __init__(self, artifact: str, threads: int) -> None:
        self._model = tvmopt.load(artifact, threads=threads)
        infos = self._model.inputs_at()
        self._feeds = {i.name: np.zeros(i.shape, i.numpy_dtype) for i in infos}
        self._one = infos[0] if len(infos) == 1 else None
        self._bytes = sum(a.nbytes for a in self._feeds.values())
        self(memoryview(b""))

    def __call__(self, request: memoryview) -> bytes:
        feeds = self._feeds
        if self._one is not None and len(request) >= self._bytes:
            found = np.frombuffer(request[-self._bytes :], np.uint8).view(self._one.numpy_dtype)
            feeds = {self._one.name: found.reshape(self._one.shape)}
        return b"".join(a.tobytes() for a in self._model.run(feeds).values())


class Connection(asyncio.BufferedProtocol):
    """A client: :meth:`take` gets what has come, and says how much of it is done with."""

    def __init__(self, work: Work) -> None:
        self.work, self.room, self.count = work, memoryview(bytearray(ROOM)), 0

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
        found = self.work(view[:done])
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(found)}\r\nInference-Header-Content-Length: 0\r\n\r\n"
        self.transport.write(head.encode() + found)
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
                    out.append(self.answer(stream, self.work(view[at + 9 : at + 9 + size])))
            at += 9 + size
        if out:
            self.transport.write(b"".join(out))
        return at

    def answer(self, stream: int, found: bytes) -> bytes:
        window, self.got = frame(WINDOW, 0, 0, struct.pack(">I", self.got)), 0
        head = b"\x88" + literal(b"content-type", b"application/grpc")
        raw = answer(found)
        body = b"\0" + struct.pack(">I", len(raw)) + raw
        end = frame(HEADERS, 5, stream, literal(b"grpc-status", b"0"))
        return window + frame(HEADERS, 4, stream, head) + frame(DATA, 0, stream, body) + end


def answer(found: bytes) -> bytes:
    """A ModelInferResponse with raw_output_contents alone."""
    return b"\x32" + varint(len(found)) + found


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


async def library(work: Work) -> None:
    """What gRPC for Python costs by itself: no message is read, the answer is bytes."""
    import grpc

    from tvmopt.serving.messages import SERVICE

    async def infer(request: bytes, context: Any) -> bytes:
        return answer(work(memoryview(request)))

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", ROOM), ("grpc.so_reuseport", 0), *WINDOWS])
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def main(kind: str, artifact: str, threads: int) -> None:
    keep_memory()
    work = Work(artifact, threads)
    if kind == "library":
        return await library(work)
    made = {"http": Http, "grpc": Grpc}[kind]
    server = await asyncio.get_running_loop().create_server(lambda: made(work), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1))
