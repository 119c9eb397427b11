"""How steady a call of 100 us is: its median and 90th percentile in many processes.

    python benchmarks/steady_calls.py                           # 20 processes that compiled, 20 that loaded
    python benchmarks/steady_calls.py --kind loaded --processes 5
    python benchmarks/steady_calls.py --prepare                 # compile only, so that the rest is timing

A process calls one product of matrices with one model loaded and with 100, from one Python thread and from four that
take turns, each call by another one. What is told of each of these is the median of a call, and of all processes'
90th percentiles over their own medians the middle one, the worst, and how many are above 1.1. The results go into
``benchmarks/results/MACHINE/steady-calls.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

import tvmopt
from tvmopt.bench.machine import describe_machine, slug

KINDS, PEER = ("compiled", "loaded"), "onnxruntime"
MODELS, THREADS = (1, 100), (1, 4)
CALLS, WARM = 1000, 200
ROWS, INNER, COLUMNS = 128, 512, 256
"""Of the product: 34 MFLOP, some 100 us on two cores."""
BOUND = 1.1


def model() -> Any:
    """A product of rows and a constant matrix."""
    weight = np.random.default_rng(0).standard_normal((INNER, COLUMNS), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", 1, [ROWS, INNER])],
        [helper.make_tensor_value_info("y", 1, [ROWS, COLUMNS])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def calls(run: Callable[[], Any], threads: int) -> list[float]:
    """Seconds of each of :data:`CALLS` calls, which Python threads make in turn."""
    seconds: list[float] = []

    def one() -> None:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)

    if threads == 1:
        for _ in range(WARM + CALLS):
            one()
        return seconds[WARM:]
    turns = [threading.Semaphore(0) for _ in range(threads)]

    def caller(index: int) -> None:
        for _ in range((WARM + CALLS) // threads):
            turns[index].acquire()
            one()
            turns[(index + 1) % threads].release()

    workers = [threading.Thread(target=caller, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    turns[0].release()
    for worker in workers:
        worker.join()
    return seconds[WARM:]


def spread(seconds: list[float]) -> list[float]:
    """Median and 90th percentile."""
    return [median(seconds), float(np.percentile(seconds, 90))]


def peer(threads: int) -> Callable[[dict[str, Any]], Any]:
    """The same call of onnxruntime: what the machine itself adds is in both."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def child(kind: str, artifact: str, threads: int) -> None:
    """One process: a line of JSON with the median and the 90th percentile of each setting."""
    x = np.random.default_rng(1).standard_normal((ROWS, INNER), np.float32)
    if kind == PEER:
        run = peer(threads)
        print(json.dumps({f"1 models, {n} callers": spread(calls(lambda: run({"x": x}), n)) for n in THREADS}))
        return
    if kind == "compiled":
        loaded = [tvmopt.compile(model(), verify=False, records=False, threads=threads).model]
    else:
        loaded = [tvmopt.load(artifact, threads=threads)]
    found = {}
    for count in MODELS:
        while len(loaded) < count:
            loaded.append(tvmopt.load(artifact, threads=threads))
            loaded[-1].run({"x": x})
        for callers in THREADS:
            found[f"{count} models, {callers} callers"] = spread(calls(lambda: loaded[0].run({"x": x}), callers))
    print(json.dumps(found))


def told(kind: str, runs: list[dict[str, list[float]]]) -> list[str]:
    """A line a setting."""
    lines = []
    for setting in runs[0]:
        ratios = sorted(run[setting][1] / run[setting][0] for run in runs)
        middle = median(run[setting][0] for run in runs)
        above = sum(ratio > BOUND for ratio in ratios)
        lines.append(
            f"{kind}, {setting}: median {1e6 * middle:.0f} us, p90 over median {median(ratios):.3f}, worst "
            f"{ratios[-1]:.3f}, above {BOUND}: {above} of {len(ratios)}"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--child"]:
        child(given[1], given[2], int(given[3]))
        return 0
    parser = argparse.ArgumentParser(description="How steady a call of 100 us is.")
    parser.add_argument("--kind", choices=(*KINDS, PEER), action="append", help="repeatable; default: our two")
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2, help="of a call")
    parser.add_argument("--artifact", type=Path, help="use this one, made by --prepare")
    parser.add_argument("--prepare", action="store_true", help="write --artifact, time nothing")
    parser.add_argument("--results", type=Path, help="default: benchmarks/results/MACHINE/steady-calls.json")
    args = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        artifact = args.artifact or Path(folder) / "product.tvmopt"
        if not artifact.exists():
            tvmopt.compile(model(), verify=False, records=False, threads=args.threads, output=artifact)
        if args.prepare:
            return 0
        results: dict[str, Any] = {"machine": describe_machine(), "arguments": given, "runs": {}}
        for kind in args.kind or KINDS:
            command = [sys.executable, __file__, "--child", kind, str(artifact), str(args.threads)]
            runs = [
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for _ in range(args.processes)
            ]
            results["runs"][kind] = runs
            print("\n".join(told(kind, runs)), flush=True)
    path = args.results or Path(__file__).parent / "results" / slug() / "steady-calls.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
