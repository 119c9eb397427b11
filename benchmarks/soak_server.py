"""A server's life in short: requests of every kind, right and wrong, from many clients, while models are exchanged.

    python benchmarks/soak_server.py --count 100000
    python benchmarks/soak_server.py --count 5000 --clients 8 --decoder llama.tvmopt

The clients are threads of this process, and the server is a process of its own on this machine. Each request is drawn
from `KINDS`: right ones by HTTP (binary tensors, JSON) and gRPC, whose answers are compared with the model's own, texts
of `--decoder`, and wrong ones, each with the answers that it may get: wrong types, shapes, names and lengths, bodies
that are cut off, too large or never come, connections that are half closed, and bytes that are no HTTP and no gRPC at
all. Every second the file of one model is exchanged for another of other weights. At every tenth of the way the
server's memory, threads and open files are printed; they must stay flat. What fails while the machine stood still is
counted as that. In the end it gets SIGTERM in the middle of
requests, answers those that it took, and ends with 0. Exits 1 if anything of this was not so.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.serving.messages import SERVICE, messages

LIMIT = 1 << 20
"""Bytes of a body (`--max-body 1`)."""
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
WIDE = np.random.default_rng(1).standard_normal((13, 2048)).astype(np.float32)
PATH = "/v2/models/rows/infer"
CLOSED = "closed"
"""What a connection answers that the server closes."""


def rows_model(scale: float) -> Any:
    """y = x @ w for any number of rows up to 16."""
    value = helper.make_tensor_value_info
    weights = scale * np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    x, y = value("x", TensorProto.FLOAT, ["n", 8]), value("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "rows", [x], [y], [numpy_helper.from_array(weights, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def wide_model() -> Any:
    """y = the first four columns of x, of 2048: a request of some 106 KB."""
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, [13, 2048]), value("y", TensorProto.FLOAT, [13, 4])
    places = [numpy_helper.from_array(np.array([at]), name) for name, at in (("start", 0), ("end", 4), ("axis", 1))]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"])], "wide", [x], [y], places
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Client:
    """One client: what it asks, and what it got of each kind."""

    def __init__(self, addresses: dict[str, str], expected: list[bytes], seed: int) -> None:
        import grpc

        self.host, port = addresses["http"].removeprefix("http://").split(":")
        self.port, self.grpc_port = int(port), int(addresses["grpc"].rpartition(":")[2])
        self.expected, self.random = expected, random.Random(seed)
        self.found: collections.Counter[tuple[str, str]] = collections.Counter()
        self.kept: http.client.HTTPConnection | None = None
        self.types = messages()
        self.channel = grpc.insecure_channel(addresses["grpc"])
        self.infer = self.channel.unary_unary(
            f"/{SERVICE}/ModelInfer", self.types.ModelInferRequest.SerializeToString,
            self.types.ModelInferResponse.FromString,
        )  # fmt: skip
        self.garbage = self.channel.unary_unary(f"/{SERVICE}/ModelInfer", bytes, bytes)

    # -- ways to ask -------------------------------------------------------------------------------------------------

    def http(self, body: Any, path: str = PATH, **headers: str) -> tuple[str, bytes]:
        """Over a connection that stays; one that the server closed is made anew."""
        for attempt in (0, 1):
            if self.kept is None:
                self.kept = http.client.HTTPConnection(self.host, self.port, timeout=60)
            try:
                self.kept.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
                answer = self.kept.getresponse()
                found = str(answer.status), answer.read()
                if answer.will_close:
                    self.kept = None
                return found
            except (ConnectionError, http.client.HTTPException):
                self.kept = None
                if attempt:
                    raise
        raise AssertionError

    def raw(self, data: bytes, *, port: int = 0, half: bool = False, wait: float = 60.0) -> str:
        """Bytes on a connection of their own: the status, or that it was closed."""
        try:
            with socket.create_connection((self.host, port or self.port), timeout=wait) as made:
                made.sendall(data)
                if half:
                    made.shutdown(socket.SHUT_WR)
                got = made.recv(1 << 16)
                return got.split(b" ", 2)[1].decode() if got.startswith(b"HTTP/1.1 ") else CLOSED
        except ConnectionError:
            return CLOSED

    def binary(self, **changes: Any) -> tuple[str, bytes]:
        """A request with a binary tensor."""
        one = {"name": "x", "datatype": "FP32", "shape": [3, 8], "parameters": {"binary_data_size": X.nbytes}} | changes
        head = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
        return self.http(head + X.tobytes(), Inference_Header_Content_Length=str(len(head)))

    def json(self, path: str = PATH, **changes: Any) -> tuple[str, bytes]:
        """A request in JSON."""
        one = {"name": "x", "datatype": "FP32", "shape": [3, 8], "data": X.ravel().tolist()} | changes
        return self.http(json.dumps({"inputs": [one]}), path)

    def rpc(self, call: Callable[[], Any]) -> str:
        """A gRPC status by its name."""
        import grpc

        try:
            call()
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def head(self, length: int, **more: str) -> bytes:
        lines = [f"POST {PATH} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
        return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in more.items()), "", ""]).encode()

    # -- kinds of requests ---------------------------------------------------------------------------------------------

    def right_binary(self) -> str:
        status, body = self.binary()
        return status if status != "200" or body[-48:] in self.expected else "wrong numbers"

    def right_json(self) -> str:
        status, body = self.json()
        if status != "200":
            return status
        data = np.array(json.loads(body)["outputs"][0]["data"], np.float32).tobytes()
        return status if data in self.expected else "wrong numbers"

    def right_grpc(self) -> str:
        one = {"name": "x", "datatype": "FP32", "shape": [3, 8]}
        given = self.types.ModelInferRequest(model_name="rows", inputs=[one], raw_input_contents=[X.tobytes()])
        found: list[Any] = []
        status = self.rpc(lambda: found.append(self.infer(given, timeout=60)))
        return status if status != "OK" or found[0].raw_output_contents[0] in self.expected else "wrong numbers"

    def wide_message(self, name: str = "wide") -> bytes:
        one = {"name": "x", "datatype": "FP32", "shape": WIDE.shape, "parameters": {"binary_data_size": WIDE.nbytes}}
        told = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
        body = told + b" " * self.random.randrange(8) + WIDE.tobytes()
        length = str(len(body) - WIDE.nbytes)
        head = self.head(len(body), **{"Inference-Header-Content-Length": length})
        return head.replace(PATH.encode(), f"/v2/models/{name}/infer".encode()) + body

    def right_wide(self) -> str:
        """A large body in two pieces."""
        whole = self.wide_message()
        cut = self.random.randrange(1, len(whole))
        with socket.create_connection((self.host, self.port), timeout=60) as made:
            made.sendall(whole[:cut])
            made.sendall(whole[cut:])
            answer = http.client.HTTPResponse(made, method="POST")
            answer.begin()
            status, body = str(answer.status), answer.read()
        return status if status != "200" or body.endswith(WIDE[:, :4].tobytes()) else "wrong numbers"

    def right_wide_grpc(self) -> str:
        one = {"name": "x", "datatype": "FP32", "shape": WIDE.shape}
        given = self.types.ModelInferRequest(model_name="wide", inputs=[one], raw_input_contents=[WIDE.tobytes()])
        found: list[Any] = []
        status = self.rpc(lambda: found.append(self.infer(given, timeout=60)))
        right = status != "OK" or found[0].raw_output_contents[0] == WIDE[:, :4].tobytes()
        return status if right else "wrong numbers"

    def cut_wide(self) -> str:
        whole = self.wide_message()
        return self.raw(whole[: self.random.randrange(1000, len(whole))], half=True)

    def refused_wide(self) -> str:
        return self.raw(self.wide_message("none"))

    def right_half_closed(self) -> str:
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0] * 8}]}).encode()
        return self.raw(self.head(len(body)) + body, half=True)

    def right_text(self) -> str:
        body = json.dumps({"tokens": [1, 2], "parameters": {"max_tokens": 20}})
        status, answer = self.http(body, "/v2/models/decoder/generate_stream")
        return status if status != "200" or b'"finish_reason": "length"' in answer else "cut off"

    def left_text(self) -> str:
        """Away from a text after its first token."""
        body = json.dumps({"tokens": [1, 2], "parameters": {"max_tokens": 1000}}).encode()
        return self.raw(self.head(len(body)).replace(PATH.encode(), b"/v2/models/decoder/generate_stream") + body)

    def wrong_type(self) -> str:
        return self.json(datatype=self.random.choice(["FP64", "BYTES", "", "INT8"]))[0]

    def wrong_shape(self) -> str:
        return self.json(shape=self.random.choice([[3, 9], [24], [-1, 8], [0, 8], [2**62, 8], [17, 8], "no"]))[0]

    def wrong_data(self) -> str:
        return self.json(data=self.random.choice([[1], "words", None, [[1], [2, 3]], {"a": 1}]))[0]

    def wrong_length(self) -> str:
        return self.binary(parameters={"binary_data_size": self.random.choice([95, 97, 0, -1, 10**12])})[0]

    def wrong_json(self) -> str:
        return self.http(self.random.choice([b"{", b"[]", b"\xff\xfe", b"[" * 5000, b""]))[0]

    def no_model(self) -> str:
        return self.json(self.random.choice(["/v2/models/none/infer", "/v2/models/rows/versions/9/infer"]))[0]

    def no_path(self) -> str:
        return self.http(b"", "/" + "x" * self.random.randrange(1, 50))[0]

    def huge_body(self) -> str:
        return self.raw(self.head(10**11))

    def huge_chunks(self) -> str:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        return self.raw(head + b"".join(b"40000\r\n" + bytes(0x40000) + b"\r\n" for _ in range(6)))

    def huge_head(self) -> str:
        return self.raw(self.head(2, Filler="x" * 200_000) + b"{}")

    def cut_body(self) -> str:
        return self.raw(self.head(1000) + b'{"inputs":', half=True)

    def gone(self) -> str:
        """Away in the middle of a request, or at once."""
        with socket.create_connection((self.host, self.port), timeout=60) as made:
            made.sendall(self.head(1000)[: self.random.randrange(100)])
        return CLOSED

    def reset(self) -> str:
        """Away with an answer on its way."""
        with socket.create_connection((self.host, self.port), timeout=60) as made:
            made.sendall(self.head(2) + b"{}")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return CLOSED

    def slow(self) -> str:
        return self.raw(self.head(1000) + b"{")

    def no_http(self) -> str:
        return self.raw(self.random.randbytes(200) + b"\r\n\r\n", half=True)

    def no_http2(self) -> str:
        data = self.random.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]) + self.random.randbytes(300)
        return self.raw(data, port=self.grpc_port, half=True)

    def no_message(self) -> str:
        return self.rpc(lambda: self.garbage(b"\xff" * self.random.randrange(1, 200), timeout=60))

    def wrong_message(self) -> str:
        one = {"name": "x", "datatype": "FP32", "shape": [3, 8]}
        raw = [X.tobytes()[: self.random.randrange(96)]]
        given = self.types.ModelInferRequest(model_name="rows", inputs=[one], raw_input_contents=raw)
        return self.rpc(lambda: self.infer(given, timeout=60))

    def huge_message(self) -> str:
        return self.rpc(lambda: self.garbage(bytes(LIMIT + 100), timeout=60))


KINDS: dict[str, tuple[float, set[str]]] = {
    "right_binary": (40, {"200"}), "right_json": (15, {"200"}), "right_grpc": (15, {"OK"}),
    "right_wide": (5, {"200"}), "right_wide_grpc": (5, {"OK"}), "cut_wide": (1, {"400", CLOSED}),
    "refused_wide": (1, {"404", CLOSED}),
    "right_text": (2, {"200"}), "left_text": (2, {"200"}), "right_half_closed": (1, {"200", CLOSED}),
    "wrong_type": (3, {"400"}), "wrong_shape": (3, {"400"}),
    "wrong_data": (3, {"400"}), "wrong_length": (3, {"400"}), "wrong_json": (3, {"400"}), "no_model": (2, {"404"}),
    "no_path": (1, {"404"}), "huge_body": (1, {"413"}), "huge_chunks": (0.5, {"413", CLOSED}),
    "huge_head": (0.5, {"400", "431", CLOSED}), "cut_body": (1, {"400", CLOSED}), "gone": (2, {CLOSED}),
    "reset": (2, {CLOSED}), "slow": (0.02, {"408"}), "no_http": (1, {"400", CLOSED}), "no_http2": (1, {CLOSED}),
    "no_message": (1, {"INVALID_ARGUMENT"}), "wrong_message": (2, {"INVALID_ARGUMENT"}),
    "huge_message": (0.5, {"RESOURCE_EXHAUSTED"}),
}  # fmt: skip
"""Of each kind its weight, and the answers that are right."""


def state(process: psutil.Process) -> tuple[float, int, int]:
    """Resident MB, threads and open files."""
    return process.memory_info().rss / 1e6, process.num_threads(), process.num_fds()


class Pulse(threading.Thread):
    """Sees when this machine stood still: then deadlines pass that nobody could keep."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.last = 0.0
        self.start()

    def run(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if now - before > 1.5:
                self.last = now
            before = now

    def stood_still(self, begin: float) -> bool:
        """Whether it did since then."""
        time.sleep(0.3)
        return self.last > begin


def work(client: Client, count: int, texts: bool, seen: list[int], problems: list[str], pulse: Pulse) -> None:
    """So many requests of one client."""
    names = [name for name in KINDS if texts or not name.endswith("_text")]
    weights = [KINDS[name][0] for name in names]
    for _ in range(count):
        name, begin = client.random.choices(names, weights)[0], time.monotonic()
        try:
            found = getattr(client, name)()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        right = found in KINDS[name][1]
        if not right and pulse.stood_still(begin):
            client.kept, found, right = None, "stood still", True
        client.found[name, found] += 1
        if not right and len(problems) < 20:
            problems.append(f"{name}: {found}")
        seen[0] += 1  # about right is enough


def exchange(folder: Path, files: list[Path], ends: threading.Event) -> int:
    """Exchange the model's file every second; how often."""
    count = 0
    while not ends.wait(1.0):
        count += 1
        shutil.copy(files[count % 2], folder / "part")
        (folder / "part").replace(folder / "models" / "rows.tvmopt")
    return count


def end(server: subprocess.Popen[str], clients: list[Client]) -> list[str]:
    """SIGTERM under load: every request is answered or refused by name, none is cut off; the process ends with 0."""
    counts: collections.Counter[str] = collections.Counter()

    def ask(client: Client) -> None:
        while True:
            try:
                with socket.create_connection((client.host, client.port), timeout=60) as made:
                    body = (
                        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0,0,0,0,0,0,0,0]}]}'
                    )
                    made.sendall(client.head(len(body)) + body)
                    got = made.recv(1 << 16)
            except ConnectionError:  # it does not listen any more
                counts["refused"] += 1
                return
            counts[got[9:12].decode() or "nothing"] += 1
            if got[9:12] != b"200":
                return

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    time.sleep(1)
    server.send_signal(signal.SIGTERM)
    code = server.wait(60)
    for thread in threads:
        thread.join()
    print("SIGTERM under load:", dict(counts), "exit", code)
    wrong = [f"after SIGTERM: {k}" for k in counts if k not in ("200", "503", "refused")]
    return wrong + ([f"the server ended with {code}"] if code else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoder", type=Path, help="a compiled decoder, to stream texts from, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvmopt-soak-") as name:
        folder = Path(name)
        files = [folder / "once.tvmopt", folder / "twice.tvmopt"]
        for file, scale in zip(files, (1.0, 2.0), strict=True):
            tvmopt.compile(rows_model(scale), threads=1, verify=False, output=file)
        expected = [tvmopt.load(file)(X).tobytes() for file in files]
        (folder / "models").mkdir()
        shutil.copy(files[0], folder / "models" / "rows.tvmopt")
        tvmopt.compile(wide_model(), threads=1, verify=False, output=folder / "models" / "wide.tvmopt")
        if args.decoder:
            shutil.copy(args.decoder, folder / "models" / "decoder.tvmopt")
        command = [sys.executable, "-m", "tvmopt", "serve", str(folder / "models"), "--json", "--port", "0"]
        command += ["--grpc-port", "0", "--max-body", "1", "--timeout", "3", "--reload", "0.2", "--instances", "2x1"]
        command += ["--max-texts", str(2 * args.clients)]  # some that were left may still end
        told = (folder / "stderr").open("w+")
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
        try:
            assert server.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                text += server.stdout.readline()
            clients = [Client(json.loads(text), expected, args.seed * 1000 + n) for n in range(args.clients)]
            problems = soak(psutil.Process(server.pid), clients, args.count, bool(args.decoder), folder, files)
            problems += end(server, clients)
        finally:
            if server.poll() is None:
                server.kill()
        told.seek(0)
        lines = [
            line for line in told.read().splitlines() if not line.startswith(("rows 1: ", "wide 1: ", "decoder 1: "))
        ]
        print("stderr without loads:", *(lines[:10] or ["nothing"]), sep="\n  ")
        problems += [f"stderr: {line}" for line in lines if "Traceback" in line]
    print("problems:", *(problems or ["none"]), sep="\n  ")
    return 1 if problems else 0


def soak(
    process: psutil.Process, clients: list[Client], count: int, texts: bool, folder: Path, files: list[Path]
) -> list[str]:
    """All requests; what was wrong."""
    seen, problems, ends, pulse = [0], [], threading.Event(), Pulse()
    exchanges: list[int] = []
    threads = [
        threading.Thread(target=work, args=(c, count // len(clients), texts, seen, problems, pulse), daemon=True)
        for c in clients
    ]
    other = threading.Thread(target=lambda: exchanges.append(exchange(folder, files, ends)), daemon=True)
    begin, states, step = time.perf_counter(), [], max(1, count // 10)
    for thread in (*threads, other):
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        if seen[0] >= step * (len(states) + 1) or not any(thread.is_alive() for thread in threads):
            states.append(state(process))
            rate = seen[0] / (time.perf_counter() - begin)
            print("{:>7}: {:.1f} MB, {} threads, {} files".format(seen[0], *states[-1]), f"{rate:.0f}/s", flush=True)
    ends.set()
    other.join()
    total = sum((client.found for client in clients), collections.Counter())
    for (name, found), times in sorted(total.items()):
        print(f"  {name:18} {found:20} {times}")
    print(f"the model was exchanged {exchanges[0]} times")
    early, late = states[len(states) // 4], states[-1]
    if late[0] > 1.1 * early[0] + 5:
        problems.append(f"memory grew from {early[0]:.1f} to {late[0]:.1f} MB")
    if late[1] > early[1] + 4:
        problems.append(f"threads grew from {early[1]} to {late[1]}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
