"""Is a right compile ever refused? Hundreds of them, verified as `tvmopt compile` does it and seed by seed in full.

    python benchmarks/right_compiles.py --count 300 --output right.jsonl [--list COMPILES.txt] [--models FOLDER]

    files      the lines of --list: arguments of `tvmopt compile` (trained models with their shapes and values)
    suite      the models of --models, in fp32 and bf16, with different numbers of threads, with and without --exact
    quantised  the same models as onnxruntime quantises them: Q/DQ and QOperator, per tensor and per channel
    exports    small transformers configs with random weights, through torch's exporter
    graphs     random graphs of `fuzz`

Each compile is a line of JSON: what it was, "accepted", "refused" or "not compiled" with the message, and the largest
excess (error over what is allowed without a question) of each seed. What stands in --output already is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as verification has it, before NumPy is imported

import numpy as np
import onnx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


@dataclass(frozen=True)
class Case:
    """One compile: where the model comes from, and how it is compiled."""

    group: str
    model: str
    precision: str = "fp32"
    threads: int = 1
    exact: bool = False
    shapes: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        words = [self.group, self.model, self.precision, f"threads={self.threads}", "exact" if self.exact else ""]
        return " ".join(filter(None, words))


def listed(path: Path) -> Iterator[Case]:
    """The compiles of a list, each in fp32 and bf16."""
    from tvmopt.cli.common import parse_shapes, parse_values

    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--value", action="append", default=[])
    for number, line in enumerate(filter(None, map(str.strip, path.read_text().splitlines()))):
        args = parser.parse_args(shlex.split(line))
        shapes = {n: list(s) for n, s in parse_shapes(args.shape).items()}
        for precision in ("fp32", "bf16"):
            yield Case("files", args.model, precision, 1 + number % 2, False, shapes, parse_values(args.value))


def suite(folder: Path) -> Iterator[Case]:
    """The models of a folder."""
    for number, path in enumerate(sorted(folder.glob("*.onnx"))):
        yield Case("suite", str(path), "fp32", 2)
        yield Case("suite", str(path), "bf16", 1 + number % 2)
        yield Case("suite", str(path), "fp32", 1, exact=True)


def quantised(folder: Path) -> Iterator[Case]:
    """Models of a folder in the ways that onnxruntime quantises them."""
    from quantised import WAYS

    for name in ("mobilenet_v2", "squeezenet", "resnet50"):
        for number, way in enumerate(WAYS):
            yield Case("quantised", f"{folder / name}.onnx:{way}", "fp32", 1 + number % 2)


def exports() -> Iterator[Case]:
    """Small configs of transformers."""
    from exports import CONFIGS

    for number, name in enumerate(CONFIGS):
        for precision in ("fp32", "bf16"):
            yield Case("exports", name, precision, 1 + number % 2)


def graphs(seed: int, count: int) -> Iterator[Case]:
    """Random graphs."""
    for index in range(count):
        yield Case("graphs", f"{seed}:{index}", "bf16" if index % 5 == 4 else "fp32", (1, 2, 4)[index % 3])


def materialised(case: Case, folder: Path) -> Path:
    """The model's file."""
    path = folder / "model.onnx"
    if case.group == "graphs":
        from fuzz.sources import graph

        seed, index = map(int, case.model.split(":"))
        onnx.save(graph(seed, index), path)
    elif case.group == "exports":
        from exports import export

        export(case.model, path)
    elif case.group == "quantised":
        from quantised import quantise

        source, _, way = case.model.rpartition(":")
        quantise(Path(source), path, way)
    else:
        return Path(case.model)
    return path


def judged(case: Case) -> dict[str, Any]:
    """Compile, verify, and examine each seed in full."""
    import tvmopt
    from tvmopt.errors import AccuracyError, TvmoptError

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"key": case.key, **asdict(case)}
        try:
            path = materialised(case, Path(folder))
        except Exception as error:  # exporters and quantisers raise anything
            return found | {"status": "not made", "text": f"{type(error).__name__}: {error}"[:300]}
        try:
            done = tvmopt.compile(
                path, precision=case.precision, threads=case.threads, exact=case.exact, shape=case.shapes,
                values=case.values, verify=False, cache=False,
            )  # fmt: skip
        except TvmoptError as error:
            return found | {"status": "not compiled", "text": f"{type(error).__name__}: {error}"[:600]}
        compiled = time.perf_counter()
        try:
            from tvmopt.analysis.verify import verify

            verdict = verify(done.artifact, path)
        except AccuracyError as error:
            return found | {"status": "refused", "text": str(error)[:3000]}
        verified = time.perf_counter()
        found |= {"status": "accepted" if verdict.trials else "not verified", "text": verdict.reason}
        found |= {"compile": compiled - start, "verify": verified - compiled}
        if verdict.trials and not done.artifact.manifest.symbols:  # at open sizes `verify` has looked at several
            found |= in_full(done.artifact, path, case)
    return found


def in_full(artifact: Any, path: Path, case: Case) -> dict[str, Any]:
    """Every seed as `tvmopt compare --seed` judges it: what `compile` accepts, `compare` must accept."""
    from tvmopt.analysis.bounds import integer_bounds
    from tvmopt.analysis.oracle.values import Unsupported
    from tvmopt.analysis.samples import trial_inputs, trials
    from tvmopt.analysis.verify import Reference, examined
    from tvmopt.errors import TvmoptError
    from tvmopt.importer import load, prepare
    from tvmopt.importer.shapes import bound_arrays

    original = load(str(path))
    values = bound_arrays(original.graph, case.values)
    inputs = artifact.manifest.inputs
    prepared = prepare(original, {i.name: list(i.shape) for i in inputs}, case.values)
    bounds, excess = integer_bounds(prepared), {}
    for seed in trials(inputs):
        feeds = trial_inputs(inputs, seed, bounds)
        try:
            peer = Reference(path).run({**feeds, **values})
        except TvmoptError:
            peer = None
        try:
            found = examined(artifact, prepared, feeds, peer).comparison
        except (Unsupported, TvmoptError):
            continue
        excess[seed] = max((o.excess for o in found.outputs if np.isfinite(o.excess)), default=0.0)
        if not found.ok:
            return {"status": "refused in full", "text": f"seed {seed}: {found}"[:3000], "excess": excess}
    return {"excess": excess}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile and verify right models; count those that are refused.")
    parser.add_argument("--count", type=int, default=300, help="compiles in all; random graphs fill up (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="of the random graphs")
    parser.add_argument("--list", type=Path, help="a file of lines, each the arguments of a compile")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="the suite's folder")
    parser.add_argument("--groups", default="files,graphs,exports,quantised,suite", help="in this order")
    parser.add_argument("--output", type=Path, required=True, help="lines of JSON")
    args = parser.parse_args(arguments)
    groups = {
        "files": lambda: listed(args.list) if args.list else iter(()),
        "suite": lambda: suite(args.models),
        "quantised": lambda: quantised(args.models),
        "exports": exports,
        "graphs": lambda: graphs(args.seed, args.count),
    }
    cases = [case for name in args.groups.split(",") for case in groups[name]()]
    spare = max(0, args.count - sum(c.group != "graphs" for c in cases))
    cases = [c for c in cases if c.group != "graphs"] + [c for c in cases if c.group == "graphs"][:spare]
    done = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    known = {one["key"] for one in done}
    from tvmopt.debug.forks import forked, warm
    from tvmopt.errors import ModelError

    warm()
    for case in cases:
        if case.key in known:
            continue
        try:
            one = forked(lambda case=case: judged(case), "case")
        except ModelError as error:
            one = {"key": case.key, **asdict(case), "status": "crashed", "text": str(error)}
        done.append(one)
        print(f"{one['status']:13} {case.key} {one.get('text', '')[:200]}", flush=True)
        with args.output.open("a") as file:
            file.write(json.dumps(one) + "\n")
    print(", ".join(f"{n} {status}" for status, n in Counter(one["status"] for one in done).items()))
    return 1 if any(one["status"].startswith(("refused", "crashed")) for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
