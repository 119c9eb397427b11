"""One artifact with other numbers of threads than it was compiled for: the same results, in which time.

    python benchmarks/thread_counts.py                            # SqueezeNet, MobileNetV2, ResNet-50, BERT
    python benchmarks/thread_counts.py mobilenet_v2 --rounds 60

Each model is compiled for 1, 2, 8 and 64 threads. That for 2 runs with 1, 2, 8 and 64, and its outputs must be equal,
bit by bit. With 1 thread it is timed beside the artifact for 1, with 2 beside another load of itself, which shows what
the method cannot tell apart; those for 8 and 64 run with 1 beside the artifact for 1, that for 64 also with 2
beside that for 2. Each runs in a process of its own, in
turn; a ratio is the median of the rounds with its 95 % interval (`tvmopt.bench.stats`). The results go into
``benchmarks/results/MACHINE/thread-counts.json``, where those of other models stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import models
import numpy as np

import tvmopt
from tvmopt.analysis.samples import sample_inputs
from tvmopt.bench.machine import slug
from tvmopt.bench.stats import compare_rounds
from tvmopt.files import write_text

DEFAULT = ("squeezenet", "mobilenet_v2", "resnet50", "bert_base")
CALLS, SECONDS = 5, 0.2
LAUNCHES = 3


def serve(path: str, threads: int, pipe: Connection) -> None:
    """The process of one artifact: a "run" is answered with the outputs, a "time" with the median of some calls."""
    with tvmopt.load(path, threads=threads) as model:
        feeds = sample_inputs(model.inputs, bounds=model.manifest.options["bounds"])
        for asked in iter(pipe.recv, None):
            if asked == "run":
                pipe.send({name: np.asarray(value) for name, value in model.run(feeds).items()})
                continue
            taken: list[float] = []
            while len(taken) < CALLS or sum(taken) < SECONDS:
                start = time.perf_counter()
                model.run(feeds)
                taken.append(time.perf_counter() - start)
            pipe.send(median(taken))


class Process:
    """An artifact, loaded with a number of threads in a process of its own."""

    def __init__(self, path: Path, threads: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(str(path), threads, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, what: str) -> Any:
        self._pipe.send(what)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def outputs(path: Path, threads: int) -> dict[str, np.ndarray]:
    """What an artifact computes with a number of threads."""
    process = Process(path, threads)
    found: dict[str, np.ndarray] = process.ask("run")
    process.close()
    return found


def ratio(first: tuple[Path, int], second: tuple[Path, int], rounds: int) -> dict[str, Any]:
    """The time of one artifact with a number of threads over that of another."""
    series: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(LAUNCHES):
        pair = Process(*first), Process(*second)
        for one in pair:
            one.ask("time")  # warm
        turns = [[one.ask("time") for one in pair] for _ in range(rounds // LAUNCHES)]
        for kept, times in zip(series, zip(*turns, strict=True), strict=True):
            kept.append(list(times))
        for one in pair:
            one.close()
    found = compare_rounds(*series)
    return {"ratio": found.value, "low": found.low, "high": found.high, "verdict": found.verdict}


def measured(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """One model."""
    files = {}
    for threads in (1, 2, 8, 64):
        files[threads] = folder / f"{name}-{threads}.tvmopt"
        tvmopt.compile(models.write(name), output=files[threads], threads=threads, records=False, verify=False)
    results = [outputs(files[2], threads) for threads in files]
    same = all(np.array_equal(one[n], results[0][n], equal_nan=True) for one in results for n in results[0])
    return {
        "model": name,
        "equal": same,
        "for 2, with 1, over for 1": ratio((files[2], 1), (files[1], 1), rounds),
        "for 2, with 2, over itself": ratio((files[2], 2), (files[2], 2), rounds),
        "for 8, with 1, over for 1": ratio((files[8], 1), (files[1], 1), rounds),
        "for 64, with 1, over for 1": ratio((files[64], 1), (files[1], 1), rounds),
        "for 64, with 2, over for 2": ratio((files[64], 2), (files[2], 2), rounds),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"which (default: {' '.join(DEFAULT)})")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args(arguments)
    result = models.FOLDER.parent / "results" / slug() / "thread-counts.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    known = {one["model"]: one for one in json.loads(result.read_text("utf-8"))} if result.exists() else {}
    equal = True
    with tempfile.TemporaryDirectory() as folder:
        for name in args.names or DEFAULT:
            found = known[name] = measured(name, args.rounds, Path(folder))
            equal &= found["equal"]
            ratios = {k: v for k, v in found.items() if isinstance(v, dict)}
            told = (f"{k} {v['ratio']:.3f} ({v['low']:.3f} to {v['high']:.3f})" for k, v in ratios.items())
            print(f"{name}: results {'equal' if found['equal'] else 'DIFFER'}; {'; '.join(told)}", flush=True)
            write_text(result, json.dumps(list(known.values()), indent=1) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
