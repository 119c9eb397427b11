"""tvmopt and onnxruntime behind the same server: what a request costs over the bare call, and how many come through.

    python benchmarks/serving_engines.py benchmarks/models/squeezenet.onnx --rounds 5 --json build/serving.json
    python benchmarks/serving_engines.py bert.onnx --clients 8 --aiperf venv/bin/aiperf     # `pip install aiperf` there

Both engines stand behind `tvmopt.serving`: the same decoder of requests, queue and answers; only the call of the model
is another one. Every round and engine has a process that calls the model bare for `--seconds`, and a server with one
client that sends request after request, by HTTP with binary tensors and by gRPC, and then `--clients` at once, by HTTP;
with `--aiperf` NVIDIA's AIPerf sends as many more, as JSON. Engines take turns; medians of all rounds are told, and

    over       milliseconds of a request over those of the bare call; the aim is 1 at most
    saturated  requests a second of all clients over bare calls a second; the aim is 0.9 at least

Clients compute on the same cores as the server. Pictures as JSON are megabytes of digits, which cost both engines more
than the model: give AIPerf a model of small inputs. A round takes about 6 times `--seconds` an engine, and 20 s more
with AIPerf: `--rounds 5 --seconds 5` 5 minutes, with AIPerf 9; the compile comes first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from serving import at_once, ending, over_grpc, over_http

import tvmopt
from tvmopt.bench.machine import describe_machine
from tvmopt.serving.memory import keep_memory
from tvmopt.serving.protocol import DATATYPES

ENGINES = ("tvmopt", "onnxruntime")
NAME = "model"


class Behind:
    """A model whose inputs and outputs are the artifact's, and whose numbers are onnxruntime's."""

    def __init__(self, model: Any, session: Any) -> None:
        self._model, self._session = model, session
        self._names = [output.name for output in session.get_outputs()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, feeds: Any) -> dict[str, Any]:
        return dict(zip(self._names, self._session.run(None, dict(feeds)), strict=True))


def loaded(engine: str, folder: Path, threads: int) -> Any:
    """The model as an engine runs it."""
    model = tvmopt.load(folder / f"{NAME}.tvmopt", threads=threads)
    if engine == "tvmopt":
        return model
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return Behind(model, session)


def example(model: Any) -> dict[str, np.ndarray]:
    """Inputs: random numbers, and zeros where they are whole."""
    rng = np.random.default_rng(0)
    return {
        i.name: rng.random(i.shape, np.float32).astype(i.numpy_dtype)
        if i.numpy_dtype.kind == "f"
        else np.zeros(i.shape, i.numpy_dtype)
        for i in model.inputs_at()
    }


def times(call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Calls one after the other, the first ones apart: the median in milliseconds, and calls a second."""
    for _ in range(3):
        call()
    found: list[float] = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        call()
        found.append(time.perf_counter() - now)
    return {"ms": 1e3 * statistics.median(found), "rate": len(found) / sum(found)}


def bare(engine: str, folder: Path, threads: int, seconds: float) -> dict[str, float]:
    """:func:`times` of the model without a server, in this process."""
    model = loaded(engine, folder, threads)
    feeds = example(model)
    return times(lambda: model.run(feeds), seconds)


def serve(engine: str, folder: Path, threads: int) -> None:
    """The server, in this process, until SIGTERM."""
    from tvmopt.serving import repository
    from tvmopt.serving.batcher import Limits
    from tvmopt.serving.server import Settings, serve

    repository.load = lambda path, **_: loaded(engine, folder, threads)  # type: ignore[assignment]
    settings = Settings(port=0, grpc_port=0, limits=Limits(threads=threads), reload=0)
    serve([folder / f"{NAME}.tvmopt"], settings, started=lambda found: print(json.dumps(found), flush=True))


def command(what: str, engine: str, folder: Path, args: argparse.Namespace) -> list[str]:
    """This script as another process that does one thing."""
    given = ["--threads", str(args.threads), "--seconds", str(args.seconds)]
    return [sys.executable, __file__, str(folder), "--part", what, engine, *given]


@contextmanager
def served(engine: str, folder: Path, args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The addresses of a server of its own process."""
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command("serve", engine, folder, args), **quiet) as process, ending(process):  # type: ignore[call-overload]
        yield json.loads(process.stdout.readline())


def requests(engine: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One server's round; this process is the client, and keeps freed memory as the server does."""
    keep_memory()
    model = tvmopt.load(folder / f"{NAME}.tvmopt")
    feeds, types = example(model), {i.name: DATATYPES[i.dtype] for i in model.inputs}
    with served(engine, folder, args) as addresses:
        http, grpc = addresses["http"].removeprefix("http://"), addresses["grpc"]
        found: dict[str, Any] = {
            "http": times(over_http(http, NAME, feeds, types), args.seconds)["ms"],
            "grpc": times(over_grpc(grpc, NAME, feeds, types), args.seconds)["ms"],
            "rate": at_once(lambda: over_http(http, NAME, feeds, types), args.clients, args.seconds),
        }
        if args.aiperf:
            found |= aiperf(addresses["http"], folder, feeds, types, args)
    return found


def aiperf(address: str, folder: Path, feeds: Any, types: Any, args: argparse.Namespace) -> dict[str, float]:
    """What AIPerf says of the same requests in JSON: its median latency, and requests a second."""
    from tokenizers import Tokenizer, models

    inputs = [{"name": n, "datatype": types[n], "shape": a.shape, "data": a.ravel().tolist()} for n, a in feeds.items()]
    payload = folder / "payload.json"
    payload.write_text(json.dumps({"data": [{"session_id": "one", "payloads": [{"inputs": inputs}]}]}))
    words = folder / "words"  # AIPerf counts words of whatever it asks for
    words.mkdir(exist_ok=True)
    Tokenizer(models.WordLevel({"w": 0}, unk_token="w")).save(str(words / "tokenizer.json"))
    (words / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w"}')
    out = folder / "aiperf"
    given = [
        str(args.aiperf), "profile", "--model", NAME, "--url", address, "--endpoint-type", "raw", "--ui", "none",
        "--custom-endpoint", f"/v2/models/{NAME}/infer", "--input-file", str(payload), "--custom-dataset-type",
        "inputs-json", "--tokenizer", str(words), "--extra-inputs", "response_field:model_name", "--concurrency",
        str(args.clients), "--benchmark-duration", str(args.seconds), "--artifact-dir", str(out),
    ]  # fmt: skip
    environment = os.environ | {"HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(given, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"AIPerf failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    told = json.loads((out / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return {"aiperf_ms": told["request_latency"]["p50"], "aiperf_rate": told["request_throughput"]["avg"]}


def compiled(path: Path, folder: Path, threads: int) -> None:
    """The model and its artifact in the folder, unless an earlier run left them there."""
    if (folder / f"{NAME}.tvmopt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").symlink_to(path.resolve())
    tvmopt.compile(folder / "model.onnx", threads=threads, output=folder / f"{NAME}.tvmopt")


def told(engine: str, found: dict[str, float]) -> str:
    """A line about one engine."""
    over = ", ".join(f"{way} {found[way]:.3f} ms (over {found[way] - found['ms']:+.3f})" for way in ("http", "grpc"))
    perf = f"; AIPerf p50 {found['aiperf_ms']:.2f} ms, {found['aiperf_rate']:.0f}/s" if "aiperf_ms" in found else ""
    saturated = f"{found['rate']:.0f}/s, saturated {found['rate'] / found['bare_rate']:.2f}"
    return f"{engine:12} bare {found['ms']:.3f} ms, {found['bare_rate']:.0f}/s; {over}; clients {saturated}{perf}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an ONNX file whose data is in it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--aiperf", type=Path, help="the command, in an environment of its own")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where the artifact is kept for later runs")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        what, engine = args.part
        if what == "serve":
            serve(engine, args.model, args.threads)
        else:
            print(json.dumps(bare(engine, args.model, args.threads, args.seconds)))
        return 0
    rounds: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        compiled(args.model, folder, args.threads)
        for number in range(args.rounds):
            for engine in ENGINES:
                done = subprocess.run(command("bare", engine, folder, args), stdout=subprocess.PIPE, check=True)
                alone = json.loads(done.stdout)
                rounds[engine].append({"ms": alone["ms"], "bare_rate": alone["rate"]} | requests(engine, folder, args))
                print(f"{number + 1}/{args.rounds} {told(engine, rounds[engine][-1])}", flush=True)
    medians = {e: {k: statistics.median(one[k] for one in many) for k in many[0]} for e, many in rounds.items()}
    for engine, found in medians.items():
        print(told(engine, found))
    mine, other = (medians[engine] for engine in ENGINES)
    print(f"requests a second over onnxruntime's: {mine['rate'] / other['rate']:.2f}")
    if args.json:
        names = ("tvmopt", "onnxruntime", "starlette", "uvicorn", "hpack", "grpcio")
        args.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {"model": args.model.name, "threads": args.threads, "clients": args.clients, "seconds": args.seconds}
        facts |= {"machine": describe_machine(), "versions": {name: version(name) for name in names}}
        args.json.write_text(json.dumps(facts | {"rounds": rounds, "medians": medians}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
