"""The suite on Arm without an Arm processor: every model in every precision, run by QEMU, judged as `compile` does it.

    scripts/emulator aarch64 /some/folder && export TVMOPT_AARCH64=/some/folder
    python benchmarks/arm.py                                   # every model, in fp32, bf16, fp16 and int8
    python benchmarks/arm.py squeezenet --precision bf16,int8  # some
    python benchmarks/arm.py --table                           # only the table, from the results there are

Networks take pictures of 96x96 or smaller and texts of 4 tokens (`models.write`, `small`): an emulator executes some 40
MFLOP a second. int8 is onnxruntime's Q/DQ file of the same network. Outputs for two random inputs are
compared with the float64 oracle's. One JSON file a case, in ``benchmarks/results/arm-emulated/``; a case that is there
is not run again (``--again``). Times are the emulator's and are not kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import int8
import models

import tvmopt
from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.samples import sample_inputs
from tvmopt.analysis.verify import Reference
from tvmopt.errors import TvmoptError
from tvmopt.files import write_text
from tvmopt.toolchain.emulation import EmulatedModel, opened

RESULTS = Path(__file__).parent / "results" / "arm-emulated"
TARGET = "neoverse-v1"
PRECISIONS = ("fp32", "bf16", "fp16", "int8")
SEEDS = (0, 1)


def source(name: str, precision: str) -> Path:
    """The ONNX file of a case, written if it is not there."""
    if precision != "int8":
        return models.write(name, small=True)
    return int8.quantised(int8.Subject(name, small=True), "onnxruntime")


def examine(name: str, precision: str) -> dict[str, Any]:
    """Compile one case, run it in the emulator, and judge it.

    Raises:
        TvmoptError: it does not compile or run.
    """
    path, arithmetic = source(name, precision), "fp32" if precision == "int8" else precision
    made = tvmopt.compile(path, target=TARGET, precision=arithmetic, threads=1, verify=False)
    judge, reference, found = Judge(path, arithmetic), Reference(path), []
    with opened(made.artifact) as model:
        bounds = integer_bounds(judge.model)
        for seed in SEEDS:
            feeds = sample_inputs(made.manifest.inputs, seed=seed, bounds=bounds)
            found.append(judge.judged(feeds, model.run(feeds), reference.run(feeds)))
        emulator = model.emulator.told if isinstance(model, EmulatedModel) else ""
    outputs = [o for comparison in found for o in comparison.outputs]
    return {
        "model": name,
        "precision": precision,
        "target": TARGET,
        "inputs": {i.name: list(i.shape) for i in made.manifest.inputs},
        "right": all(comparison.ok for comparison in found),
        "error": max(o.max_error / (o.scale or 1.0) for o in outputs),
        "onnxruntime": max(o.peer_error / (o.scale or 1.0) for o in outputs),
        "families": sorted({kernel.family for kernel in made.report.kernels if kernel.family}),
        "emulator": emulator,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "# The suite on Arm, emulated", "",
        f"By `python benchmarks/arm.py`, compiled for {TARGET}: the largest error of two random inputs, relative to an",
        "output's largest value, against the float64 oracle. onnxruntime's is beside it where it computes the same: in",
        "fp32, and for int8 the same Q/DQ file, not optimised.", "",
        "| model | inputs | fp32 | onnxruntime | bf16 | fp16 | int8 | onnxruntime |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    known = {(row["model"], row["precision"]): row for row in rows}
    for entry in models.SUITE:
        mine = {p: known.get((entry.name, p)) for p in PRECISIONS}
        if not any(mine.values()):
            continue
        shapes = next(row["inputs"] for row in mine.values() if row)
        cells = [entry.name, ", ".join("x".join(map(str, shape)) for shape in shapes.values())]
        for precision, row in mine.items():
            cells.append("" if row is None else f"{row['error']:.1e}" + ("" if row["right"] else " **wrong**"))
            if precision in ("fp32", "int8"):
                cells.append("" if row is None else f"{row['onnxruntime']:.1e}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the suite's models for Arm in an emulator.")
    parser.add_argument("names", nargs="*", metavar="MODEL", help="which (default: all)")
    parser.add_argument("--precision", default=",".join(PRECISIONS), help="which, with commas between")
    parser.add_argument("--again", action="store_true", help="run a case that is there again")
    parser.add_argument("--table", action="store_true", help="only the table")
    args = parser.parse_args(arguments)
    if unknown := sorted({*args.names} - {*models.BY_NAME}):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(models.BY_NAME)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = 0
    for precision in () if args.table else args.precision.split(","):
        for name in args.names or models.BY_NAME:
            result = RESULTS / f"{name}-{precision}.json"
            if result.exists() and not args.again:
                continue
            try:
                row = examine(name, precision)
            except TvmoptError as error:
                failed += 1
                print(f"{name} {precision}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            failed += not row["right"]
            write_text(result, json.dumps(row, indent=1) + "\n")
            print(f"{name:18}{precision:6}{row['error']:.1e} {'right' if row['right'] else 'WRONG'}", flush=True)
    rows = [json.loads(file.read_text("utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    write_text(RESULTS / "README.md", table(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
