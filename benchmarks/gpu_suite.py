"""The suite compiled for a GPU, no GPU needed: kernels, registers, spills, what fell back - kept as a table.

    python benchmarks/gpu_suite.py [MODEL ...] [--target nvidia-h100] [--precision fp16] [--models DIR]

One JSON file a target and precision in ``benchmarks/results/TARGET-compiled/``, and its table in README.md there. The
exit code is 1 if a model does not compile, a GEMM, convolution or attention kernel spills, a kernel is above the
machine's limits (`compile` refuses that), or work is left in fp32 that no line of the report names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import models

HERE = Path(__file__).parent
HEAVY = ("gemm", "batch_gemm", "conv2d", "attention")


def compiled(model: Path, target: str, precision: str) -> dict[str, Any]:
    """One model compiled by the command line, in a process of its own: what the report says of it."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        words = ["compile", str(model), "--target", target, "--precision", precision, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "tvmopt", *words, "-o", str(Path(folder) / "m.tvmopt")],
            capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
    row: dict[str, Any] = {"model": model.stem, "seconds": round(time.perf_counter() - start, 1)}
    if done.returncode:
        return row | {"error": done.stderr.strip()[-500:]}
    report = json.loads(done.stdout)["report"]
    return row | summary(report)


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """The figures of one report: kernels by family, registers, spills, what a fallback computes."""
    kernels = report["kernels"]
    total = sum(k["flops"] for k in kernels) or 1.0
    launches = [(k, launch) for k in kernels for launch in k["launches"]]
    spilled = [f"{k['name']}: {launch['spilled']} bytes" for k, launch in launches if launch["spilled"]]
    heavy = [f"{k['name']}: {launch['spilled']} bytes" for k, launch in launches if launch["spilled"] and _heavy(k)]
    fallback = [k for k in kernels if k["family"] == "dlight" or k["source"] == "generic"]
    stayed = [d for d in report["decisions"] if d["stage"].endswith("ConvertPrecision") and d["verdict"] == "declined"]
    return {
        "kernels": len(kernels), "launches": len(launches),
        "families": dict(Counter(k["family"] for k in kernels)),
        "registers": max((launch["registers"] or 0 for _, launch in launches), default=0),
        "shared": max((launch["shared"] or 0 for _, launch in launches), default=0),
        "spilled": spilled, "spilled_heavy": heavy,
        "dlight": sum(k["family"] == "dlight" for k in kernels),
        "fallback_share": sum(k["flops"] for k in fallback) / total,
        "left_in_fp32": Counter(d["reason"] for d in stayed),
        "compile_seconds": round(sum(report["seconds"].values()), 1),
    }  # fmt: skip


def _heavy(kernel: dict[str, Any]) -> bool:
    return kernel["family"] in HEAVY


def table(found: dict[str, Any]) -> str:
    """A Markdown table of one target and precision."""
    lines = [
        f"## {found['target']}, {found['precision']}", "",
        "| model | seconds | kernels | of fallback schedules | their FLOPs | most registers | spills | left in fp32 |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]  # fmt: skip
    for row in found["models"]:
        if "error" in row:
            words = row["error"].splitlines()[0][:80]
            lines.append(f"| {row['model']} | {row['seconds']} | failed: {words} | | | | | |")
            continue
        fallback = sum(n for f, n in row["families"].items() if f in ("dlight", "generic"))
        left = f"{sum(row['left_in_fp32'].values())} operators" if row["left_in_fp32"] else "none"
        lines.append(
            f"| {row['model']} | {row['seconds']} | {row['kernels']} | {fallback} | {row['fallback_share']:.1%} | "
            f"{row['registers']} | {', '.join(row['spilled']) or 'none'} | {left} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the suite for a GPU, without one.")
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--target", default="nvidia-h100")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--models", type=Path, default=models.FOLDER)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    folder = args.results or HERE / "results" / f"{args.target}-compiled"
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"target": args.target, "precision": args.precision, "models": []}
    for name in args.names or list(models.BY_NAME):
        row = compiled(models.write(name, args.models, batch=1), args.target, args.precision)
        found["models"].append(row)
        print(json.dumps(row), flush=True)
        (folder / f"{args.precision}.json").write_text(json.dumps(found, indent=1) + "\n")
    parts = [table(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    (folder / "README.md").write_text(
        "# The suite compiled without a GPU\n\nWhat nvcc and ptxas say; nothing here was run. "
        "`python benchmarks/gpu_suite.py` makes this table.\n\n" + "\n".join(parts)
    )
    return 1 if any("error" in row or row["spilled_heavy"] for row in found["models"]) else 0


if __name__ == "__main__":
    sys.exit(main())
