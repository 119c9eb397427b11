"""What a server adds to a model: bare calls and requests by HTTP and gRPC in turn, on one artifact.

    tvmopt compile squeezenet.onnx -o squeezenet.tvmopt
    python benchmarks/serving.py squeezenet.tvmopt --rounds 5

The server is a process of its own, with one instance; the client is this process. Every round measures the bare call,
an HTTP request with binary tensors and a gRPC request; the medians of all rounds and their differences are printed, and
whether the outputs are the same bit for bit. Processor time (of the server; for the bare call of this process) counts
where the machine has other work. With `--clients N`: requests a second of N clients at once.
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
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil

import tvmopt
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


def stages(address: str) -> str:
    """The mean seconds of each stage that the server's metrics tell."""
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#"]
    told = dict(lines)
    sums = {name: float(value) for name, value in told.items() if "_seconds_sum" in name}
    counts = {name: float(told[name.replace("_sum", "_count")]) for name in sums}
    return ", ".join(f"{name} {1e3 * total / max(1, counts[name]):.3f} ms" for name, total in sums.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--options", default="", help="further ones of `tvmopt serve`")
    args = parser.parse_args()
    command = [sys.executable, "-m", "tvmopt", "serve", args.artifact, "--port", "0", "--grpc-port", "0", "--json"]
    command += ["--instances", f"1x{args.threads}", *args.options.split()]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        ending(server),
    ):
        assert server.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            text += server.stdout.readline()
        address = json.loads(text)
        model = tvmopt.load(args.artifact, threads=args.threads)
        rng = np.random.default_rng(0)
        feeds = {
            i.name: rng.random(i.shape, np.float32).astype(i.numpy_dtype) if i.numpy_dtype.kind == "f"
            else np.zeros(i.shape, i.numpy_dtype) for i in model.inputs_at()
        }  # fmt: skip
        types = {i.name: DATATYPES[i.dtype] for i in model.inputs}
        name = args.artifact.rsplit("/", 1)[-1].removesuffix(".tvmopt")
        ways = {
            "bare": lambda: b"".join(a.tobytes() for a in model.run(feeds).values()),
            "http": over_http(address["http"].removeprefix("http://"), name, feeds, types),
            "grpc": over_grpc(address["grpc"], name, feeds, types),
        }
        answers = {way: call() for way, call in ways.items()}
        print("bit for bit:", len({*answers.values()}) == 1)
        times: dict[str, list[float]] = {way: [] for way in ways}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        processes = {way: psutil.Process() if way == "bare" else psutil.Process(server.pid) for way in ways}
        for _ in range(args.rounds):
            for way, call in ways.items():
                before = processor(processes[way])
                times[way].append(median(call, args.calls))
                spent[way].append(1e3 * (processor(processes[way]) - before) / args.calls)
        print(f"of each request the server says: {stages(address['http'])}")
        bare = statistics.median(times["bare"])
        for way, found in times.items():
            extra = statistics.median(found) - bare
            used = statistics.median(spent[way])
            more = used - statistics.median(spent["bare"])
            print(
                f"{way}: {bare + extra:.3f} ms, {extra:+.3f} over the bare call; processor {used:.3f} ms, {more:+.3f}"
            )
        if args.clients:
            for way, make in (("http", over_http), ("grpc", over_grpc)):
                where = address[way].removeprefix("http://")
                rate = at_once(lambda make=make, where=where: make(where, name, feeds, types), args.clients, 5.0)
                print(f"{way}: {rate:.0f} requests a second of {args.clients} clients")
    return 0


if __name__ == "__main__":
    sys.exit(main())
