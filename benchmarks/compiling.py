"""How long compiling takes: the first time, with an empty cache, and again - by stage, and beside another checkout.

    python benchmarks/compiling.py benchmarks/models/resnet50.onnx
    python benchmarks/compiling.py benchmarks/models/*.onnx --rounds 5 --results FILE.json
    python benchmarks/compiling.py det.onnx --shape x:1x3x640x640 --beside ../before   # in turns with that checkout

Each time is that of a whole process: `tvmopt compile`, from the start of Python to the file, verification included. The
stages are those that the report tells; what is left of the time is starting, and verification where nothing else runs
beside it. Every compile has a cache of its own, that of the second one is the first one's. Medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tvmopt.bench.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent


def compiled(model: Path, shapes: Sequence[str], tree: Path, cache: str) -> dict[str, Any]:
    """One compile by a checkout: seconds of the process and of all processors, and of each stage.

    Raises:
        SystemExit: it failed; what it said.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables |= {"TVMOPT_CACHE": cache, "PYTHONPATH": f"{tree / 'frontend'}{os.pathsep}{tree}"}
    command = [sys.executable, "-P", "-m", "tvmopt", "compile", str(model.resolve()), "-o", f"{cache}/out.tvmopt"]
    command += ["--json", *(word for shape in shapes for word in ("--shape", shape))]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{model}, {tree}: {done.stderr.strip()}")
    report = json.loads(done.stdout)["report"]
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": seconds,
        "processors": processors,
        "stages": report["seconds"],
        "kernels": len(report["kernels"]),
    }


def rounds(
    model: Path, shapes: Sequence[str], trees: Sequence[Path], count: int
) -> dict[str, list[list[dict[str, Any]]]]:
    """For each checkout a pair of compiles a round, the first and the second, the checkouts in turns."""
    found: dict[str, list[list[dict[str, Any]]]] = {str(tree): [] for tree in trees}
    for _ in range(count):
        for tree in trees:
            with tempfile.TemporaryDirectory(prefix="tvmopt-compiling-") as cache:
                found[str(tree)].append([compiled(model, shapes, tree, cache) for _ in range(2)])
    return found


def summed_up(pairs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, in seconds."""
    first = [pair[0] for pair in pairs]
    stages = {name: round(median(one["stages"].get(name, 0.0) for one in first), 2) for name in first[0]["stages"]}
    return {
        "first": round(median(one["seconds"] for one in first), 2),
        "processors": round(median(one["processors"] for one in first), 2),
        "stages": stages,
        "again": round(median(pair[1]["seconds"] for pair in pairs), 2),
        "kernels": first[0]["kernels"],
    }


def line(name: str, which: str, told: dict[str, Any]) -> str:
    """A line of the table."""
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in told["stages"].items())
    return f"{name:<24} {which:<7} first {told['first']:5.2f} s  again {told['again']:5.2f} s  ({stages})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time whole compiles, by stage.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME:SHAPE", help="as for `tvmopt compile`")
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="another checkout, compiled with in turns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the medians as JSON, with those it has")
    args = parser.parse_args(arguments)
    trees = {"before": args.beside.resolve()} if args.beside else {}
    trees["now"] = ROOT
    kept = json.loads(args.results.read_text()) if args.results and args.results.exists() else {}
    for model in args.models:
        pairs = rounds(model, args.shape, list(trees.values()), args.rounds)
        told = {which: summed_up(pairs[str(tree)]) for which, tree in trees.items()}
        for which, one in told.items():
            print(line(model.stem, which, one), flush=True)
        kept[model.stem] = {"shapes": args.shape, "rounds": args.rounds, **told}
        if args.results:
            kept["machine"] = describe_machine()
            args.results.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
