"""Trained models from the wild as their files are, compiled without any option, beside onnxruntime at random sizes.

    python benchmarks/open_trained.py                        # every model of real_models.py with open dimensions
    python benchmarks/open_trained.py attacut mtcnn --sizes 20
    python benchmarks/open_trained.py --output open.jsonl    # what stands there already is not done again

Each is a line of JSON: seconds of the compile with its verification, the ranges that were chosen, "agrees", "differs"
or "refused" with the message, and the largest difference from onnxruntime over the largest value of an output, over all
sizes. Where that is above a ten-thousandth, the judge of `compile` decides, in float64 and with what rounding does to
the model at these very inputs; "judged" counts these sizes, and the largest errors in float64, ours and onnxruntime's,
stand beside it. (Its LSTMs of bytes round their state at each step; a norm of inputs that are all 0 and 1 computes the
difference of two equal numbers.)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import real_models
from open_calls import difference, session_of, sizes_of

import tvmopt
from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.samples import sample_inputs
from tvmopt.errors import TvmoptError
from tvmopt.importer import load, prepare

LIMIT = 1e-4
"""Of the largest value: what differs from onnxruntime by more is judged."""


def is_open(path: Path) -> bool:
    """Whether an input has a dimension that is no number."""
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {w.name for w in graph.initializer}
    dims = [d for v in graph.input if v.name not in weights for d in v.type.tensor_type.shape.dim]
    return any(not d.HasField("dim_value") or d.dim_value < 1 for d in dims)


def tried(path: Path, count: int, seed: int) -> dict[str, Any]:
    """Compile one file without options, and compare it at `count` random sizes."""
    with tempfile.TemporaryDirectory() as folder:
        artifact, start = Path(folder) / "model.tvmopt", time.perf_counter()
        try:
            tvmopt.compile(path, output=artifact, cache=False)
        except TvmoptError as error:
            return {"verdict": "refused", "seconds": round(time.perf_counter() - start, 1), "message": str(error)}
        record: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 1)}
        model, session, rng = tvmopt.load(artifact), session_of(str(path)), np.random.default_rng(seed)
        record["ranges"] = {name: str(known) for name, known in model.symbols.items()}
        original, worst, at = load(path), 0.0, {}
        judged: list[tuple[float, float]] = []
        for number in range(count):
            sizes = sizes_of(model, rng)
            infos = model.inputs_at(sizes)
            prepared = prepare(original, {info.name: list(info.shape) for info in infos})
            feeds = sample_inputs(infos, seed=seed + number, bounds=integer_bounds(prepared))
            found = model.run(feeds)
            try:
                expected = dict(zip(found, session.run(list(found), feeds), strict=True))
            except Exception as error:  # onnxruntime raises a class of its own for each status code
                return record | {"verdict": "onnxruntime refuses", "at": sizes, "message": str(error)[:300]}
            error = difference(found, expected)
            if not error <= worst:
                worst, at = error, sizes
            if not error <= LIMIT:
                examined = Examiner(model, str(path), prepared).fully(feeds, expected)
                outputs = examined.comparison.outputs
                if not examined.ok:
                    told = "; ".join(str(o) for o in outputs if not o.ok)
                    return record | {"verdict": "differs", "at": sizes, "seed": seed + number, "message": told}
                sides = [(o.max_error / (o.scale or 1.0), o.peer_error / (o.scale or 1.0)) for o in outputs]
                judged.append((max(ours for ours, _ in sides), max(theirs for _, theirs in sides)))
    beside = {"judged": len(judged), "in float64": [max(side) for side in zip(*judged, strict=True)]} if judged else {}
    return record | {"verdict": "agrees", "sizes": count, "worst": worst, "at": at} | beside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL", help="beginnings of names (default: all)")
    parser.add_argument("--sizes", type=int, default=20, help="random sizes of each model (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a file to which the lines are added")
    args = parser.parse_args()
    chosen = [m for m in real_models.MODELS if not args.names or m.name.startswith(tuple(args.names))]
    if not chosen:
        parser.error(f"no model begins so; there are {', '.join(m.name for m in real_models.MODELS)}")
    lines = args.output.read_text().splitlines() if args.output and args.output.exists() else []
    done = {json.loads(line)["model"] for line in lines}
    bad = 0
    for name, path in real_models.fetch([m for m in chosen if m.name not in done]).items():
        if not is_open(path):
            continue
        record = {"model": name} | tried(path, args.sizes, args.seed)
        bad += record["verdict"] != "agrees"
        print(json.dumps(record), flush=True)
        if args.output:
            with args.output.open("a") as file:
                file.write(json.dumps(record) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
