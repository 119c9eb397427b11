"""The server as a whole: versions that are exchanged under load, the end on SIGTERM, and what it says of wrong use."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmopt
from tests.cli.command import tvmopt as command
from tests.serving.conftest import Running
from tests.serving.test_rest import INFER, X, ask, call, tensor
from tests.waiting import until
from tvmopt.errors import InputError, MissingDependency
from tvmopt.serving import server
from tvmopt.serving.batcher import Limits
from tvmopt.serving.metrics import Metrics
from tvmopt.serving.repository import Repository
from tvmopt.serving.server import Settings

REQUEST = {"inputs": [tensor("x", X, "FP32")]}


def test_versions_are_exchanged_under_load(serve: Callable[..., Running], artifacts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "rows/1").mkdir(parents=True)
    shutil.copy(artifacts / "rows.tvmopt", folder / "rows/1/model.tvmopt")
    running = serve(folder, "--reload", 0.05, "--instances", "2x1")
    expected = tvmopt.load(artifacts / "rows.tvmopt")(X)
    status: list[int] = []
    values: set[str] = set()
    ends = threading.Event()

    def load() -> None:
        while not ends.is_set():
            found, answer = ask(running, REQUEST)
            status.append(found)
            y = np.array(answer["outputs"][0]["data"], np.float32).reshape(3, 4) if found == 200 else None
            values.add(str(y is not None and [np.array_equal(y, k * expected) for k in (1, 2)]))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()

    def versions() -> Any:
        return json.loads(call(running, "GET", "/v2/models/rows")[2])["versions"]

    def serves(k: float) -> bool:
        answer = ask(running, REQUEST)[1]
        return np.array_equal(np.array(answer["outputs"][0]["data"], np.float32).reshape(3, 4), k * expected)

    for name, k in (("twice", 2.0), ("rows", 1.0), ("twice", 2.0)):
        part = tmp_path / "part"
        shutil.copy(artifacts / f"{name}.tvmopt", part)
        part.replace(folder / "rows/1/model.tvmopt")
        until(lambda k=k: serves(k), name)
    (folder / "rows/1/model.tvmopt").write_bytes(b"no artifact")  # the old one stays
    until(lambda: "cannot be loaded" in running.told.read_text(), "a refusal")
    assert serves(2.0)
    (folder / "rows/2").mkdir()
    shutil.copy(artifacts / "rows.tvmopt", tmp_path / "part")
    (tmp_path / "part").replace(folder / "rows/2/model.tvmopt")
    until(lambda: versions() == ["1", "2"] and serves(1.0), "version 2")
    shutil.rmtree(folder / "rows/2")
    until(lambda: versions() == ["1"], "version 1 alone")
    ends.set()
    for thread in threads:
        thread.join()
    assert {*status} == {200}, status
    assert values <= {"[True, False]", "[False, True]"}
    assert running.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_its_end_answers_what_was_taken(number: signal.Signals, serve: Callable[..., Running], artifacts: Path) -> None:
    if signal.getsignal(number) is signal.SIG_IGN and number == signal.SIGHUP:
        pytest.skip("these tests run behind nohup")
    running = serve(artifacts / "rows.tvmopt")
    host, port = running.http.split(":")
    body = json.dumps(REQUEST).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(head + body)
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert running.end(number) == 0
    assert running.told.read_text().splitlines()[-1] == "ended"


def test_a_request_that_is_half_sent_does_not_keep_it(serve: Callable[..., Running], artifacts: Path) -> None:
    """Its client hears why, and nothing of it is on stderr; also where the server makes room for a large body."""
    running = serve(artifacts / "rows.tvmopt")
    host, port = running.http.split(":")
    begun = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    with (
        socket.create_connection((host, int(port))) as small,
        socket.create_connection((host, int(port))) as large,
    ):
        large.sendall(f"{begun}100000\r\n\r\n{{".encode())
        small.sendall(f"{begun}100\r\nExpect: 100-continue\r\n\r\n".encode())
        assert small.recv(1 << 16).startswith(b"HTTP/1.1 100")  # the body is waited for
        small.sendall(b"{")
        assert call(running, "GET", "/v2/health/live")[0] == 200
        assert running.end() == 0
        for client in (small, large):
            with client.makefile("rb") as file:
                told = file.read()
            assert told.startswith(b"HTTP/1.1 503") and b"the server is ending" in told
    lines = running.told.read_text().splitlines()
    assert lines[-1] == "ended" and lines[-2].startswith("listening: ")


def test_what_takes_longer_than_the_grace_is_refused(serve: Callable[..., Running], artifacts: Path) -> None:
    """A request that waits for others to make a batch with."""
    running = serve(artifacts / "rows.tvmopt", "--max-batch", 16, "--max-delay", 3.6e6, "--grace", 0)
    found: list[tuple[int, Any]] = []
    client = threading.Thread(target=lambda: found.append(ask(running, REQUEST)))
    client.start()

    def waits() -> bool:
        return bool(json.loads(call(running, "GET", "/overview")[2])["models"][0]["running"])

    until(waits, "the request waits")
    assert running.end() == 0
    client.join()
    assert found == [(503, {"error": "the server is ending."})]
    told = running.told.read_text()
    assert "Traceback" not in told and "1 requests were not answered within 0 s" in told


SLOW = """
import atexit, signal, sys, time
import tvm_ffi
from tvmopt.__main__ import main
from tvmopt.runtime.model import Model

seconds, path = float(sys.argv.pop(1)), sys.argv.pop(1)
rest, run = tvm_ffi.convert(lambda: time.sleep(seconds)), Model.run

def slow(self, feeds):
    if any(array.any() for array in feeds.values()):  # zeros are the first call, before there are requests
        atexit.register(print, "cleared up", file=sys.stderr)
        open(path, "w").close()
        rest()  # Python in C++ in Python: where a thread is that comes back from compiled code
    return run(self, feeds)

class Last:
    def __del__(self, sleep=time.sleep, seconds=seconds):
        sleep(seconds)  # Python clears up meanwhile

Model.run = slow
sys.last = Last()  # in the dictionary that is cleared last
sys.exit(main())
"""
"""`tvmopt serve`, whose calls take so many seconds, and which then takes as long to end; before each call it makes a
file."""


@pytest.mark.parametrize(("seconds", "grace", "told"), [(20, 0, "ended in the middle of a call"), (0.3, 60, "ended")])
def test_a_call_that_is_at_work_when_python_ends(
    serve: Callable[..., Running], artifacts: Path, tmp_path: Path, seconds: float, grace: int, told: str
) -> None:
    """The process is not aborted when the call returns; what is printed and what is registered for the end is done."""
    (tmp_path / "slow.py").write_text(SLOW)
    program = (tmp_path / "slow.py", seconds, tmp_path / "called")
    running = serve(artifacts / "rows.tvmopt", "--grace", grace, program=program)
    found: list[int] = []
    client = threading.Thread(target=lambda: found.append(ask(running, REQUEST)[0]))
    client.start()
    until((tmp_path / "called").exists, "the call")
    assert running.end() == 0, running.told.read_text()
    client.join()
    lines = running.told.read_text().splitlines()
    assert lines[-2:] == [told, "cleared up"] and found in ([200], [503])


def test_who_embeds_it_is_told_of_a_call_that_goes_on(artifacts: Path) -> None:
    """Nobody but the command line ends the process."""
    for name in server.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'tvmopt[serve]'")
    repository = Repository([artifacts / "rows.tvmopt"], Limits(), Metrics().observer, lambda text: None)
    repository.refresh()
    _, batcher = repository.find("rows")
    goes_on, called = threading.Event(), threading.Event()

    def slow(feeds: Any) -> Any:
        called.set()
        goes_on.wait()
        return {}

    batcher.model.run = slow
    loop = asyncio.new_event_loop()
    asking = threading.Thread(target=lambda: loop.run_until_complete(batcher.run({"x": X})))
    asking.start()
    assert called.wait(60) and not repository.close(0.05)
    goes_on.set()
    asking.join()
    loop.close()
    assert repository.close(60)


@pytest.mark.parametrize(
    ("paths", "settings", "told"),
    [
        (["none.tvmopt"], {}, "no such file"), (["bad.tvmopt"], {}, "no model could be loaded"),
        (["m.onnx"], {}, r"an ONNX file, not compiled yet \(tvmopt compile m\.onnx\)"),
        (["bad.tvmopt", "other/bad.tvmopt"], {}, "two files are called"),
        (["bad.tvmopt"], {"limits": Limits(max_queue=0)}, "--max-queue is 0"),
        (["bad.tvmopt"], {"limits": Limits(cores={"": "0", "zz": "0"})}, "there is no model 'zz'.*name one of bad"),
        (["bad.tvmopt"], {"limits": Limits(cores={"bed": "0"})}, "did you mean 'bad'"),
        (["."], {"port": "taken"}, "cannot listen"), (["."], {"port": 0, "grpc_port": "taken"}, "gRPC cannot listen"),
        (["."], {"host": "no.such.host.invalid", "port": 0}, "cannot listen"),
        (["."], {"host": "", "port": 0}, "--host is empty"),
        (["."], {"host": " ", "port": 0, "grpc_port": None}, "--host is empty"),
    ],
)  # fmt: skip
def test_wrong_use_is_told(tmp_path: Path, paths: Any, settings: Any, told: str, monkeypatch: Any) -> None:
    for name in server.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'tvmopt[serve]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name in ("bad.tvmopt", "other/bad.tvmopt", "m.onnx"):
        (tmp_path / name).write_bytes(b"no artifact")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {k: taken.getsockname()[1] if v == "taken" else v for k, v in settings.items()}
        with pytest.raises(InputError) as raised:
            server.serve(paths, Settings(**known), tell=lambda text: None)
        assert re.search(told, raised.value.told().replace("\n", " "))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replicas", "5..1"], "at least 5 are more than at most 1"), (["--replicas", "x"], "--replicas is 'x'"),
        (["--replicas", "2"], "--replicas is for a Ray cluster"), (["--ray", ""], "--ray is empty"),
        (["--host", ""], "--host is empty"), (["--cores", "zz=0"], "there is no model 'zz'"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(artifacts: Path, words: list[str], told: str) -> None:
    """Also those that would mean nothing."""
    for name in server.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'tvmopt[serve]'")
    done = command("serve", artifacts, "--port", 0, "--grpc-port", 0, *words)
    assert done.returncode == 2 and told in done.stderr, done
    assert "zz" not in told or "name one of kinds, rows, twice, wide" in done.stderr


def test_an_empty_folder_says_what_it_waits_for(serve: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    running = serve(tmp_path)
    assert (
        f"files that `tvmopt compile` writes are served as soon as they are in {tmp_path}" in running.told.read_text()
    )
    assert running.end() == 0


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """A socket without its protocol's number keeps Nagle's algorithm in asyncio: 40 ms for each answer."""
    with server.listening("127.0.0.1", 0) as ours, socket.create_connection(ours.getsockname()):
        until(lambda: select.select([ours], [], [], 0)[0], "a connection")
        with ours.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingDependency, match="uvicorn"):
        server.serve([os.devnull])
