"""A neighbour that computes on one of the cores: what it costs a call that uses all of them, tvmopt and its peers.

    python benchmarks/neighbour.py                                 # SqueezeNet, MobileNetV2, ResNet-50
    python benchmarks/neighbour.py resnet50 --rounds 10 --folder /tmp/compiled

Each engine has a process of its own and as many threads as this process may use cores. In a round it is timed alone and
beside a loop that is bound to the first of these cores, one engine after the other. Means of calls are compared, not
medians: what a call waits for the neighbour's turns is the point. A neighbour takes half of its core, a quarter of two
cores. A call all of whose threads wait for each other cannot lose less than that core's half: a ratio of 2, whatever
the number of cores; what does not wait would take 1.33 on two. The results go into
``benchmarks/results/MACHINE/neighbour.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

import models
import numpy as np

import tvmopt
from tvmopt.analysis.samples import sample_inputs
from tvmopt.bench.engine import Engine
from tvmopt.bench.machine import slug
from tvmopt.bench.records import Job
from tvmopt.files import write_text

DEFAULT = ("squeezenet", "mobilenet_v2", "resnet50")
ENGINES = ("tvmopt", "onnxruntime", "openvino")
SECONDS = 0.5
"""Of a turn: some hundred of the system's time slices."""


class Neighbour:
    """A process that does nothing but compute, on one core; stopped until it is told to go on."""

    def __init__(self, core: int) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(self.process.pid, {core})
        self.stop()

    def go(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measured(name: str, rounds: int, threads: int, folder: Path) -> dict[str, Any]:
    """Of each engine: milliseconds of a call alone, and by how much more it takes beside the neighbour."""
    source, prepared, inputs = models.write(name), folder / f"{name}-{threads}.tvmopt", folder / f"{name}.npz"
    if not prepared.exists():
        tvmopt.compile(source, output=prepared, threads=threads, verify=False)
    np.savez(inputs, **sample_inputs(tvmopt.load(prepared).inputs))
    alone: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    beside: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    with ExitStack() as open_until_end:
        engines = {}
        for engine in ENGINES:
            job = Job(engine, str(source), prepared=str(prepared) if engine == "tvmopt" else "", threads=threads)
            engines[engine] = open_until_end.enter_context(Engine(job))
            engines[engine].ask("load", job)
            engines[engine].ask("bind", str(inputs))
            engines[engine].turn(SECONDS)
        neighbour = Neighbour(min(os.sched_getaffinity(0)))
        open_until_end.callback(neighbour.close)
        for _ in range(rounds):
            for engine, process in engines.items():
                process.settle(0.05)
                alone[engine].append(mean(process.turn(SECONDS).seconds))
                neighbour.go()
                beside[engine].append(mean(process.turn(SECONDS).seconds))
                neighbour.stop()
    found: dict[str, Any] = {"model": name, "threads": threads}
    for engine in ENGINES:
        ratios = sorted(b / a for a, b in zip(alone[engine], beside[engine], strict=True))
        found[engine] = {"alone_ms": 1e3 * median(alone[engine]), "ratio": median(ratios), "all": ratios}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"which (default: {' '.join(DEFAULT)})")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="keep compiled models there, and take those that are there")
    args = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.names or DEFAULT:
            threads = len(os.sched_getaffinity(0))
            found.append(measured(name, args.rounds, threads, args.folder or Path(temporary)))
            told = (f"{e} {found[-1][e]['alone_ms']:.2f} ms, beside {found[-1][e]['ratio']:.2f}" for e in ENGINES)
            print(f"{name}, {threads} threads: {'; '.join(told)}", flush=True)
    result = models.FOLDER.parent / "results" / slug() / "neighbour.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    write_text(result, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
