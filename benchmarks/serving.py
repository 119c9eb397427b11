"""What a server adds to a model: bare calls and requests by HTTP and gRPC in turn, on one artifact.

    tvmopt compile squeezenet.onnx -o squeezenet.tvmopt
    python benchmarks/serving.py squeezenet.tvmopt --rounds 5

The server is a process of its own, with one instance; the client is this process, which keeps freed memory as the
server does. Every round measures the bare call, an HTTP request with binary tensors, a gRPC request, and the same two
requests to servers that only read, call the model and answer (`plain_server.py`), by gRPC also one that is gRPC's own
for Python. Printed are the medians of all rounds in milliseconds, and whether the outputs are the same bit for bit:

    ms         of a call or a request; of "tritonclient", where it is installed, by its own client
    over       of a request over the bare call
    server     of a request over one to the plain server: what the server itself costs
    processor  time that the server computed; for the bare call this process
    saturated  with `--clients N`: requests a second of N clients at once, over bare calls a second
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import tvmopt
from tvmopt.bench.machine import describe_machine
from tvmopt.serving.memory import keep_memory
from tvmopt.serving.messages import SERVICE, messages
from tvmopt.serving.protocol import DATATYPES


def over_http(address: str, name: str, feeds: dict[str, np.ndarray], types: dict[str, str]) -> Callable[[], bytes]:
    """A function that makes one request on a connection that stays."""
    connection = http.client.HTTPConnection(address)
    data = b"".join(a.tobytes() for a in feeds.values())
    inputs = [
        {"name": n, "datatype": types[n], "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, a in feeds.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}

    def call() -> bytes:
        connection.request("POST", f"/v2/models/{name}/infer", head + data, headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(body.decode())
        return body[int(answer.headers["Inference-Header-Content-Length"]) :]

    return call


def over_grpc(address: str, name: str, feeds: dict[str, np.ndarray], types: dict[str, str]) -> Callable[[], bytes]:
    """The same by gRPC."""
    import grpc

    known, channel = messages(), grpc.insecure_channel(address)
    method = channel.unary_unary(
        f"/{SERVICE}/ModelInfer", known.ModelInferRequest.SerializeToString, known.ModelInferResponse.FromString
    )
    inputs = [{"name": n, "datatype": types[n], "shape": a.shape} for n, a in feeds.items()]

    def call() -> bytes:
        raw = [a.tobytes() for a in feeds.values()]
        return b"".join(
            method(known.ModelInferRequest(model_name=name, inputs=inputs, raw_input_contents=raw)).raw_output_contents
        )

    return call


def by_triton(
    way: str, address: str, name: str, feeds: dict[str, np.ndarray], types: dict[str, str]
) -> Callable[[], None]:
    """The same by tritonclient, as its users write it."""
    triton = import_module(f"tritonclient.{way}")
    client = triton.InferenceServerClient(address)
    outputs = [one["name"] for one in _metadata(client, way, name)]

    def call() -> None:
        inputs = []
        for key, array in feeds.items():
            one = triton.InferInput(key, array.shape, types[key])
            one.set_data_from_numpy(array)
            inputs.append(one)
        found = client.infer(name, inputs)
        for key in outputs:
            found.as_numpy(key)

    return call


def _metadata(client: Any, way: str, name: str) -> list[dict[str, Any]]:
    told = client.get_model_metadata(name) if way == "http" else client.get_model_metadata(name, as_json=True)
    return list(told["outputs"])


def median(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


@contextmanager
def ending(server: subprocess.Popen[str]) -> Iterator[None]:
    """End the server, whatever happens."""
    try:
        yield
    finally:
        server.terminate()


def processor(process: psutil.Process) -> float:
    """Seconds that a process has computed."""
    found = process.cpu_times()
    return float(found.user + found.system)


def at_once(make: Callable[[], Callable[[], Any]], clients: int, seconds: float) -> float:
    """Requests a second of so many clients."""
    done: list[int] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        call, count = make(), 0
        while time.perf_counter() < end:
            call()
            count += 1
        done.append(count)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


@contextmanager
def plain(way: str, args: argparse.Namespace) -> Iterator[str]:
    """The address of a server that only reads, computes and answers."""
    command = [sys.executable, str(Path(__file__).with_name("plain_server.py")), way, args.artifact, str(args.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ending(server):
        assert server.stdout is not None
        yield f"127.0.0.1:{int(server.stdout.readline())}"


@contextmanager
def served(args: argparse.Namespace) -> Iterator[tuple[dict[str, str], psutil.Process]]:
    """The addresses of `tvmopt serve`, and its process."""
    command = [sys.executable, "-m", "tvmopt", "serve", args.artifact, "--port", "0", "--grpc-port", "0", "--json"]
    command += ["--instances", f"1x{args.threads}", *args.options.split()]
    quiet: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **quiet) as server, ending(server):
        text = ""
        while not text.endswith("}\n"):
            text += server.stdout.readline()
        yield json.loads(text), psutil.Process(server.pid)


def example(model: Any) -> dict[str, np.ndarray]:
    """Inputs: random numbers, and zeros where they are whole."""
    rng = np.random.default_rng(0)
    return {
        i.name: rng.random(i.shape, np.float32).astype(i.numpy_dtype) if i.numpy_dtype.kind == "f"
        else np.zeros(i.shape, i.numpy_dtype) for i in model.inputs_at()
    }  # fmt: skip


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every way in turn, so many rounds: medians of their medians."""
    keep_memory()
    model = tvmopt.load(args.artifact, threads=args.threads)
    feeds, types = example(model), {i.name: DATATYPES[i.dtype] for i in model.inputs}
    size = sum(a.nbytes for a in model.run(feeds).values())
    name = Path(args.artifact).name.removesuffix(".tvmopt")
    with ExitStack() as stack:
        addresses, server = stack.enter_context(served(args))
        makers = {"http": over_http, "grpc": over_grpc}
        ways: dict[str, Callable[[], Any]] = {"bare": lambda: b"".join(a.tobytes() for a in model.run(feeds).values())}
        for way, make in makers.items():
            ways[way] = make(addresses[way].removeprefix("http://"), name, feeds, types)
            ways[f"plain {way}"] = make(stack.enter_context(plain(way, args)), name, feeds, types)
        ways["library grpc"] = over_grpc(stack.enter_context(plain("library", args)), name, feeds, types)
        if find_spec("tritonclient") is not None:
            for way in makers:
                ways[f"tritonclient {way}"] = by_triton(way, addresses[way].removeprefix("http://"), name, feeds, types)
        same = len({ways[way]() for way in ("bare", "http", "grpc")}) == 1
        rows: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in ways}
        for _ in range(args.rounds):
            for way, call in ways.items():
                process = psutil.Process() if way == "bare" else server
                spent = processor(process)
                rows[way]["ms"].append(median(call, args.calls))
                rows[way]["processor"].append(1e3 * (processor(process) - spent) / args.calls)
        found = {way: {k: statistics.median(v) for k, v in row.items()} for way, row in rows.items()}
        for way in found:
            if way != "bare":
                found[way]["over"] = found[way]["ms"] - found["bare"]["ms"]
        for way in makers:
            found[way]["server"] = found[way]["ms"] - found[f"plain {way}"]["ms"]
        if args.clients:
            for way, make in makers.items():
                where = addresses[way].removeprefix("http://")
                rate = at_once(lambda make=make, where=where: make(where, name, feeds, types), args.clients, 5.0)
                found[way]["saturated"] = rate * found["bare"]["ms"] / 1e3
    sent = sum(a.nbytes for a in feeds.values())
    return {
        "artifact": name,
        "threads": args.threads,
        "bytes": [sent, size],
        "clients": args.clients,
        "same": same,
        "ways": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--options", default="", help="further ones of `tvmopt serve`")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure(args)
    print("bit for bit:", found["same"])
    for way, row in found["ways"].items():
        print(f"{way:10}", ", ".join(f"{key} {value:.3f}" for key, value in row.items()))
    if args.json:
        names = ("tvmopt", "starlette", "uvicorn", "hpack", "grpcio", "protobuf")
        found |= {"machine": describe_machine(), "versions": {name: version(name) for name in names}}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(not found["same"])


if __name__ == "__main__":
    sys.exit(main())
