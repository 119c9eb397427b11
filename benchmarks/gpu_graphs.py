"""Random graphs and ONNX's node tests on an NVIDIA GPU, against the oracle in float64 and onnxruntime.

    python benchmarks/gpu_graphs.py [KIND[:PRECISION[:FLOAT]] ...] [--seed S] [--count N] [--minutes M] [--jobs J]
                                    [--launches] [--target nvidia-h100]

The models, inputs, reference and judge are those of `scripts/fuzz`. KIND is one of its kinds (graphs, cases, indices,
...), PRECISION fp32, fp16 or bf16, FLOAT the type of all floating-point tensors of the model. Each worker is a process
of its own that ends with its first error of CUDA's, because nothing runs on a GPU in that process afterwards.

``--launches`` gives each tensor memory of its own and launches kernels one by one, for compute-sanitizer, which does
not see into a pool:

    compute-sanitizer --tool memcheck --target-processes all python benchmarks/gpu_graphs.py graphs --launches --jobs 8

Prints one line a finding and a summary a kind; findings are kept as ONNX files in ``--out``. The exit code is 1 where
there is a finding. Without a GPU models are compiled, which needs nvcc, and not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HANGS = 180.0
"""Seconds after which a worker that says nothing is ended."""


class Engine:
    """A model on the GPU, as `fuzz.evaluate` runs one."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, feeds: Any) -> dict[str, Any]:
        """Outputs by name, in memory of their own."""
        import numpy as np

        return {name: np.array(value) for name, value in self.model.run(dict(feeds)).items()}


def work(args: argparse.Namespace) -> None:
    """In a worker: every `jobs`-th model from `start`, one line of JSON before and one behind each."""
    sys.path[:0] = [str(ROOT), str(ROOT / "frontend")]
    os.environ["TVMOPT_CACHE"] = "off"
    from fuzz import evaluate as checks
    from fuzz.sources import model_bytes
    from tvmopt.compiler.driver import compile_model
    from tvmopt.compiler.request import Request
    from tvmopt.runtime import library, model
    from tvmopt.targets import Machine

    class Unpooled(library.Session):
        """A virtual machine that asks the driver for the memory of each tensor, and replays no CUDA graphs."""

        def __init__(self, loaded: Any, *, cuda: bool = False, graphs: bool = True) -> None:
            super().__init__(loaded, cuda=cuda, graphs=False)
            self.module["vm_initialization"](*([2, 0, 1] if cuda else []), 1, 0, 1)
            self.main = self.module["main"]

    if args.launches:
        model.Session = Unpooled  # type: ignore[misc]
    kind, precision, real = [*args.kinds[0].split(":"), "", ""][:3]
    precision = precision or "fp32"
    machine = Machine.load(args.target)
    here = machine.kind != "cuda" or library.cuda_available()

    def compiled(data: bytes, target: str, precision: str, *_: Any, **__: Any) -> Engine:
        artifact, _report = compile_model(Request(data, machine, precision, records=False), lambda stage: None)
        if not here:
            raise Compiled
        return Engine(model.Model(artifact))

    checks.compiled = compiled  # type: ignore[assignment]
    end = time.monotonic() + 60 * args.minutes
    for index in range(args.start, args.count, args.jobs):
        if time.monotonic() > end:
            break
        data = model_bytes(kind, args.seed, index, real=real)
        print(json.dumps({"begin": index}), flush=True)
        options = checks.Options(args.target, precision, seed=index)
        try:
            outcome = checks.evaluate(data, options, lambda stage: None).as_dict()
        except Compiled:
            outcome = {"status": "compiled", "why": "", "findings": [], "runs": 0}
        print(json.dumps({"index": index, **outcome}), flush=True)
        if any("CUDA" in f["text"] for f in outcome["findings"]):
            break
    print(json.dumps({"done": True}), flush=True)
    os._exit(0)


class Compiled(BaseException):
    """There is no GPU here: the model was compiled and cannot be run."""


def drive(args: argparse.Namespace, kind: str, first: int, found: list[dict[str, Any]], end: float) -> None:
    """One worker after another for the models `first`, `first + jobs`, ...; what they say goes to `found`."""
    start = first
    while start < args.count and time.monotonic() < end:
        words = [kind, "--worker", "--start", str(start), "--seed", str(args.seed), "--count", str(args.count)]
        words += ["--minutes", str(max(0.0, end - time.monotonic()) / 60), "--jobs", str(args.jobs)]
        words += ["--target", args.target, *(["--launches"] if args.launches else [])]
        process = subprocess.Popen(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        begun, done = start, False
        errors: list[str] = []
        reader = threading.Thread(target=lambda p=process, e=errors: e.extend(p.stderr), daemon=True)
        reader.start()
        timer = threading.Timer(HANGS, process.kill)
        timer.start()
        for line in process.stdout or ():
            timer.cancel()
            timer = threading.Timer(HANGS, process.kill)
            timer.start()
            try:
                row = json.loads(line)
            except ValueError:
                continue
            begun = row.get("begin", begun)
            if "index" in row:
                found.append({"kind": kind, **row})
                begun = row["index"] + args.jobs
            done = row.get("done", False)
        timer.cancel()
        code = process.wait()
        reader.join(5)
        if not done:
            tail = "".join(errors)[-1500:]
            finding = {"kind": "death", "text": f"the worker ended with code {code}\n{tail}", "inputs": ""}
            found.append({"kind": kind, "index": begun, "status": "found", "findings": [finding], "runs": 0})
            begun += args.jobs
        start = begun


def check(args: argparse.Namespace, kind: str) -> int:
    """All models of one kind; how many have findings."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + 60 * args.minutes
    begun = time.monotonic()
    threads = [threading.Thread(target=drive, args=(args, kind, n, found, end)) for n in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.path[:0] = [str(ROOT), str(ROOT / "frontend")]
    from fuzz.sources import model_bytes

    name, _, rest = kind.partition(":")
    bad = [row for row in found if row["findings"]]
    args.out.mkdir(parents=True, exist_ok=True)
    for row in sorted(bad, key=lambda row: row["index"]):
        stem = f"{kind.replace(':', '-')}-{row['index']}"
        data = model_bytes(name, args.seed, row["index"], real=rest.partition(":")[2])
        (args.out / f"{stem}.onnx").write_bytes(data)
        for finding in row["findings"]:
            text = finding["text"].replace("\n", " | ")
            print(f"{kind} {args.seed}:{row['index']} {finding['kind']} {finding['inputs']}: {text[:700]}", flush=True)
    states = Counter(row["status"] for row in found)
    reasons = Counter(row.get("why", "") for row in found if row["status"] in ("refused", "skipped"))
    seconds, runs = time.monotonic() - begun, sum(row["runs"] for row in found)
    print(f"{kind} seed {args.seed}: {len(found)} models, {dict(states)}, {runs} runs, {seconds:.0f} s", flush=True)
    for why, number in reasons.most_common(8):
        print(f"  {number} refused or skipped: {why}", flush=True)
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["graphs"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=5.0, help="for each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", default="nvidia-h100")
    parser.add_argument("--launches", action="store_true", help="for compute-sanitizer: no pool, no CUDA graphs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-graphs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
    return 1 if sum([check(args, kind) for kind in args.kinds]) else 0


if __name__ == "__main__":
    sys.exit(main())
