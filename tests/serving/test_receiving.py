"""Large bodies over HTTP: in pieces of any size, behind each other, cut off, and those that nobody waits for."""

from __future__ import annotations

import itertools
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.serving.conftest import Running
from tvmopt.serving.receiving import LEAST, Joined

WIDE = np.random.default_rng(0).standard_normal((13, 2048)).astype(np.float32)


def message(name: str = "wide", more: bytes = b"", space: int = 0, **headers: str) -> bytes:
    """A request with a binary tensor; blanks in its JSON decide where the tensor begins."""
    one = {"name": "x", "datatype": "FP32", "shape": WIDE.shape, "parameters": {"binary_data_size": WIDE.nbytes}}
    told = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode() + b" " * space
    body = told + WIDE.tobytes()
    lines = [f"POST /v2/models/{name}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"Inference-Header-Content-Length: {len(told)}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body + more


def answers(server: Running, pieces: list[bytes], count: int = 1) -> list[tuple[int, bytes]]:
    """So many answers on one connection to bytes that are sent piece by piece."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            made.sendall(piece)
        with made.makefile("rb") as file:
            return [answer(file) for _ in range(count)]


def answer(file: Any) -> tuple[int, bytes]:
    """The next answer: its status and body."""
    status = int(file.readline().split()[1])
    headers = dict(line.lower().rstrip().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
    return status, file.read(int(headers[b"content-length"]))


@pytest.fixture(scope="module")
def expected(artifacts: Path) -> bytes:
    return bytes(tvmopt.load(artifacts / "wide.tvmopt")(WIDE).tobytes())


@pytest.mark.parametrize("space", range(4))
def test_a_tensor_may_begin_anywhere(running: Running, expected: bytes, space: int) -> None:
    ((status, body),) = answers(running, [message(space=space)])
    assert status == 200 and body.endswith(expected)


@pytest.mark.parametrize(
    "cuts", [(1,), (50, 200), (300,), (-1,), (-WIDE.nbytes, -1), (700, 32768, 65536), (2 * LEAST,)]
)
def test_pieces_of_any_size(running: Running, expected: bytes, cuts: tuple[int, ...]) -> None:
    whole = message()
    places = [0, *(c % len(whole) for c in cuts), len(whole)]
    ((status, body),) = answers(running, [whole[a:b] for a, b in itertools.pairwise(places)])
    assert status == 200 and body.endswith(expected)


def test_requests_behind_each_other_on_one_connection(running: Running, expected: bytes) -> None:
    small = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = answers(running, [message(more=small) + message() + message(name="none") + small], 5)
    assert [status for status, _ in found] == [200, 200, 200, 404, 200]
    assert found[0][1].endswith(expected) and found[2][1].endswith(expected)


def test_a_body_that_nobody_waits_for_is_read_and_forgotten(running: Running, expected: bytes) -> None:
    refused = message(name="none")
    found = answers(running, [refused[:1000], refused[1000:], message()], 2)
    assert [status for status, _ in found] == [404, 200] and found[1][1].endswith(expected)


def test_other_ways_of_bodies(running: Running, expected: bytes) -> None:
    whole = message(Expect="100-continue")
    ((status, _), (after, body)) = _continued(running, whole)
    assert (status, after) == (100, 200) and body.endswith(expected)
    head, _, data = message().partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(data[n : n + 9999]), data[n : n + 9999]) for n in range(0, len(data), 9999)
    )
    chunked = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""]) + chunks + b"0\r\n\r\n"
    ((status, body),) = answers(running, [chunked])
    assert status == 200 and body.endswith(expected)


def _continued(server: Running, whole: bytes) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """A client that asks before it sends the body."""
    host, port = server.http.split(":")
    head, _, body = whole.partition(b"\r\n\r\n")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        made.sendall(head + b"\r\n\r\n")
        first = made.recv(100)
        made.sendall(body)
        with made.makefile("rb") as file:
            return (int(first.split()[1]), b""), answer(file)


def test_a_body_that_is_cut_off_or_wrong_leaves_the_server_well(running: Running, expected: bytes) -> None:
    host, port = running.http.split(":")
    whole = message()
    for cut in (len(whole) - 1, len(whole) - WIDE.nbytes, len(whole) // 2):
        for half in (False, True):
            with socket.create_connection((host, int(port)), timeout=60) as made:
                made.sendall(whole[:cut])
                if half:
                    made.shutdown(socket.SHUT_WR)
                    assert made.recv(4096)[:12] in (b"", b"HTTP/1.1 400")
    wrong = whole.replace(b"FP32", b"FP64")
    assert [status for status, _ in answers(running, [wrong, whole], 2)] == [400, 200]


def test_a_body_that_never_comes_is_given_up(hasty: Running) -> None:
    ((status, body),) = answers(hasty, [message()[:2000]])
    assert status == 408, body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None), (b"GET /v2", 408), (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nA: ", 408), (b"\r\n", 408),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v", 408), (message(name="none")[:2000], None),
    ],
    ids=["nothing", "line", "header", "blanks", "second", "forgotten"],
)  # fmt: skip
def test_headers_that_never_come_are_given_up(hasty: Running, sent: bytes, status: int | None) -> None:
    """So is the rest of a body that was refused before it came."""
    host, port = hasty.http.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        made.sendall(sent)
        with made.makefile("rb") as file:
            if sent.startswith((b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")):
                answer(file)
            if sent.startswith(b"POST"):
                made.sendall(b" ")
            if status is not None:
                assert answer(file)[0] == status
            assert file.read() == b""
    assert hasty.told.read_text().splitlines()[-1].startswith("listening: "), "nothing else is told"


@pytest.mark.parametrize(("size", "status"), [(48 << 10, 200), (512 << 10, 431)])
@pytest.mark.parametrize("line", [b"A: %b\r\n", b"%b: a\r\n", b"A: b\r\n"])
def test_headers_have_a_limit(running: Running, size: int, status: int, line: bytes) -> None:
    """One that is long, or many."""
    headers = line % (b"b" * size) if b"%b" in line else line * (size // len(line))
    whole = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
    host, port = running.http.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made, made.makefile("rb") as file:
        with suppress(ConnectionError):  # it reads no more of them
            made.sendall(whole)
        with suppress(ConnectionResetError):
            found, body = answer(file)
            assert found == status and (status == 200 or b"headers have more than" in body)
            return
    assert status == 431


def test_a_head_leaves_with_what_follows_it() -> None:
    class Transport(list[bytes]):
        write = list.append
        closed = False

        def close(self) -> None:
            self.closed = True

    made = Transport()
    joined = Joined(made)
    for data in (b"HTTP/1.1 200 OK\r\n\r\n", b"one", b"two", b"HTTP/1.1 204 No Content\r\n\r\n", b""):
        joined.write(data)
    assert made == [b"HTTP/1.1 200 OK\r\n\r\none", b"two", b"HTTP/1.1 204 No Content\r\n\r\n"]
    joined.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert len(made) == 3 and joined.closed is False
    joined.close()
    assert made[3:] == [b"HTTP/1.1 400 Bad Request\r\n\r\n"] and made.closed
    going = Joined(Transport())
    going.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert going.copy() == [b"HTTP/1.1 100 Continue\r\n\r\n"]
