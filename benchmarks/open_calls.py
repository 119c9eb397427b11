"""Artifacts with open sizes under random calls: memory that grows, allocations, reads and writes outside, wrong shapes.

    python benchmarks/open_calls.py model.tvmopt other.tvmopt               # 1,000 calls each
    python benchmarks/open_calls.py model.tvmopt --model model.onnx         # every tenth beside onnxruntime
    python benchmarks/open_calls.py model.tvmopt --guard behind             # inaccessible pages behind each buffer

Two calls at the largest sizes come first. Of the others two thirds have random sizes of the ranges, and one third is
wrong: a size of 0, one beyond its range, inputs that disagree, an axis too few, sizes of nearly 64 bits together.
Each artifact runs in a process of its own and is a line of JSON: how many calls were right and were refused, resident
memory after them and how far it grew, how often an aligned buffer (a tensor of TVM) was allocated after them. A
thread that joins in later allocates its scratch then, some pages: TVM_NUM_THREADS=1 shows that nothing else is.
--model takes onnxruntime's results for right, whose sigmoids of -15 are not, and counts its memory.
With --guard `fuzz/guard.c` gives every such buffer and every input between inaccessible pages, filled with NaN, so that
an access outside ends the process; memory and allocations are those of the guards then.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fuzz import guard  # noqa: E402

SIDES = {"none": guard.NOWHERE, "behind": guard.BEHIND, "before": guard.BEFORE}

HUGE = 1 << 39, 1 << 20
"""Sizes whose product, in bytes, is just what NumPy takes, of an array that repeats one element."""

ELEMENTS = 1 << 21
"""Of all inputs of a random call, at the most, where the named sizes have fewer: a thousand calls take minutes then."""


def sizes_of(model: Any, rng: np.random.Generator) -> dict[str, int]:
    """Random sizes, small ones as often as large ones, for which the model's conditions hold."""
    from tvmopt.dims import near

    most = max(ELEMENTS, _elements(model.inputs_at()))
    while True:
        drawn = {n: round(np.exp(rng.uniform(np.log(r.min), np.log(r.max)))) for n, r in model.symbols.items()}
        drawn = {n: min(max(size, model.symbols[n].min), model.symbols[n].max) for n, size in drawn.items()}
        found = near(drawn, model.symbols, model.manifest.conditions)
        if found and _elements(model.inputs_at(found)) <= most:
            return dict(found)


def wrong(feeds: dict[str, Any], model: Any, rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """A call that must be refused, made of one that is right, and what is wrong with it."""
    open_axes = [(i, axis, str(d)) for i in model.inputs for axis, d in enumerate(i.shape) if not isinstance(d, int)]
    info, axis, symbol = open_axes[int(rng.integers(len(open_axes)))]
    array = feeds[info.name]
    kind = ("empty", "too large", "too few axes", "overflow", "disagree")[int(rng.integers(5))]
    shape = list(array.shape)
    if kind == "empty":
        shape[axis] = 0
    elif kind == "too few axes":
        shape = shape[1:]
    elif kind == "overflow":
        shape = [HUGE[a != axis] if a in (axis, (axis + 1) % len(shape)) else 1 for a in range(len(shape))]
    elif kind == "disagree" and sum(symbol == other for _, _, other in open_axes) > 1:
        shape[axis] += 1 if array.shape[axis] < model.symbols[symbol].max else -1
    elif symbol in model.symbols:
        kind, shape[axis] = "too large", model.symbols[symbol].max + 1
    else:
        kind, shape[axis] = "empty", 0
    return kind, feeds | {info.name: np.broadcast_to(np.zeros((), array.dtype), shape)}


def tried(artifact: str, original: str | None, count: int, seed: int, side: int) -> dict[str, Any]:
    """The child's part: the calls of one artifact, guarded."""
    import psutil

    import tvmopt
    from tvmopt.analysis.samples import sample_inputs

    assert guard.available(), "the guard's library is not preloaded"
    process, rng = psutil.Process(), np.random.default_rng(seed)
    model = tvmopt.load(artifact)
    bounds = model.manifest.options.get("bounds")
    session = session_of(original) if original else None
    largest = {name: known.max for name, known in model.symbols.items()}
    right = refused = compared = allocations = 0
    kinds: dict[str, int] = {}
    resident: list[float] = []
    worst = 0.0

    def call(feeds: dict[str, Any]) -> dict[str, Any]:
        nonlocal allocations
        with guard.armed(side):
            before = guard.tensors()
            try:
                return dict(model.run(feeds))
            finally:
                allocations += guard.tensors() - before

    def guarded(infos: Any, number: int) -> dict[str, Any]:
        drawn = sample_inputs(infos, seed=number, bounds=bounds)
        return {name: guard.guarded(array, side) for name, array in drawn.items()} if side else drawn

    for _ in range(2):  # the results of a call stay until the next one has its own
        call(guarded(model.inputs_at(largest), seed))
    first, allocations = allocations, 0
    for number in range(count):
        feeds = guarded(model.inputs_at(sizes_of(model, rng)), number)
        if number % 3 == 2:
            kind, feeds = wrong(feeds, model, rng)
            try:
                call(feeds)
                return {
                    "artifact": artifact,
                    "verdict": "accepted",
                    "call": f"{number}: {kind}",
                    "shapes": _shapes(feeds),
                }
            except tvmopt.errors.InputError:
                refused += 1
                kinds[kind] = kinds.get(kind, 0) + 1
        else:
            found = call(feeds)
            right += 1
            if session and right % 10 == 1:
                worst = max(worst, difference(found, dict(zip(found, session.run(list(found), feeds), strict=True))))
                compared += 1
            del found
        if number % max(1, count // 50) == 0:
            resident.append(process.memory_info().rss / 1e6)
    steady = resident[len(resident) // 10 :]
    return {
        "artifact": artifact, "verdict": "ends", "right": right, "refused": refused, "wrong calls": kinds,
        "allocations of two largest calls": first, "allocations after them": allocations,
        "written outside": guard.violations(), "resident MB": round(steady[0], 1),
        "grew by": round(max(steady) / steady[0] - 1, 4), "compared": compared, "largest error": worst,
    }  # fmt: skip


def session_of(path: str) -> Any:
    """onnxruntime without an arena, which would grow with the sizes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena, options.intra_op_num_threads, options.log_severity_level = False, 1, 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest error over the largest value, infinite where a shape or a NaN differs."""
    worst = 0.0
    for name, mine in found.items():
        right = expected[name]
        if mine.shape != right.shape or not np.array_equal(np.isnan(mine), np.isnan(right)):
            return float("inf")
        if mine.size:
            scale = float(np.nanmax(np.abs(right.astype(np.float64)))) or 1.0
            worst = max(worst, float(np.nanmax(np.abs(mine.astype(np.float64) - right))) / scale)
    return worst


def _elements(infos: Sequence[Any]) -> int:
    return sum(math.prod(info.shape) for info in infos)


def _shapes(feeds: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {np.shape(value)}" for name, value in feeds.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="+", metavar="ARTIFACT")
    parser.add_argument("--model", help="the ONNX file of the one artifact: every tenth call is compared")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--guard", choices=SIDES, default="none", help="where the pages touch buffers")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model and len(args.artifacts) > 1:
        parser.error("--model is for one artifact")
    if args.child:
        from tvmopt.targets.detect import usable_cores

        how = {"guard": args.guard, "threads": int(os.environ.get("TVM_NUM_THREADS", usable_cores()))}
        print(json.dumps(how | tried(args.artifacts[0], args.model, args.calls, args.seed, SIDES[args.guard])))
        return 0
    failed = 0
    environment = os.environ | {"LD_PRELOAD": str(guard.library())}
    for artifact in args.artifacts:
        command = [sys.executable, __file__, artifact, "--child", "--calls", str(args.calls), "--seed", str(args.seed)]
        command += ["--guard", args.guard, *(["--model", args.model] if args.model else [])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            failed += 1
            message = done.stderr.strip().splitlines()[-1:] or [""]
            print(json.dumps({"artifact": artifact, "verdict": "died", "exit": done.returncode, "message": message[0]}))
            continue
        failed += json.loads(done.stdout)["verdict"] != "ends"
        print(done.stdout.strip(), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
