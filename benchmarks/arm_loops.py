"""The inner loops that AArch64 kernels are: instructions counted in their assembly, since no Arm clock is here.

    python benchmarks/arm_loops.py                                    # SqueezeNet and MobileNetV2 in fp32 and bf16
    python benchmarks/arm_loops.py squeezenet --target cortex-a76 --precision fp32
    python benchmarks/arm_loops.py models/int8/squeezenet-onnxruntime.onnx --precision fp32     # a quantised file

Of each kernel of a product or convolution the innermost loop with the most products is counted: products (`fmla`,
`bfdot`, `usdot`, ...), loads, what goes to or comes from the stack (spills), the rest. The cost model's prediction for
a product of rows is a tile of mr rows and nv vectors: mr * nv products beside mr + nv loads a step. The results go into
``benchmarks/results/predictions/arm-loops.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models

import tvmopt
from tvmopt.files import write_text

FAMILIES = ("gemm", "conv2d", "depthwise", "winograd", "batch_gemm")
PRODUCTS = re.compile(r"fmla|fmul|fmls|fmadd|usdot|sudot|sdot|bfdot|usmmla|bfmmla|smmla")
LOADS, STACK = re.compile(r"ld"), re.compile(r"\[sp")
LABEL, BRANCH = re.compile(r"(\.L\w+):"), re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z)\s+.*?(\.L\w+)$")


def innermost(assembly: str) -> list[list[str]]:
    """The instructions of each loop that has no other in it: from a label to the last jump back to it.

    >>> innermost(".La:\\n mov x1, x2\\n.Lb:\\n fmla v0, v1, v2\\n b.ne .Lb\\n cbnz x3, .La\\n ret")
    [['fmla v0, v1, v2', 'b.ne .Lb']]
    """
    lines = [line.split("//")[0].strip() for line in assembly.splitlines()]
    lines = [line for line in lines if line and (LABEL.match(line) or not line.startswith("."))]
    places = {found[1]: at for at, line in enumerate(lines) if (found := LABEL.match(line))}
    ends: dict[int, int] = {}
    for at, line in enumerate(lines):
        found = BRANCH.match(line)
        if found and places.get(found[1], at) < at:
            ends[places[found[1]]] = at
    loops = [(a, b) for a, b in ends.items() if not any(a < c and d <= b for c, d in ends.items())]
    return [[line for line in lines[a : b + 1] if not LABEL.match(line)] for a, b in loops]


def counted(loop: Sequence[str]) -> dict[str, int]:
    """How many instructions of a loop are what."""
    products = sum(bool(PRODUCTS.match(line)) for line in loop)
    spills = sum(bool(STACK.search(line)) for line in loop)
    loads = sum(bool(LOADS.match(line)) and not STACK.search(line) for line in loop)
    return {"instructions": len(loop), "products": products, "loads": loads, "spills": spills}


def kernels(source: Path, target: str, precision: str) -> list[dict[str, Any]]:
    """The inner loop of each kernel of a model."""
    options: dict[str, Any] = {"target": target, "precision": precision, "verify": False, "records": False}
    report = tvmopt.compile(source, **options).report
    found = []
    with tempfile.TemporaryDirectory() as folder:
        wanted = {kernel.name: kernel for kernel in report.kernels if kernel.family in FAMILIES}
        tvmopt.compile(source, **options, dump_code=dict.fromkeys(wanted, folder))
        for name, kernel in wanted.items():
            loops = [counted(loop) for loop in innermost((Path(folder) / f"{name}.s").read_text())]
            best = max(loops, key=lambda one: one["products"], default=None)
            if best is not None and best["products"]:
                share = kernel.flops * kernel.calls / report.flops
                found.append({"kernel": name, "family": kernel.family, "share": share, "knobs": kernel.knobs, **best})
    return found


def predicted(one: dict[str, Any]) -> float:
    """The share of products by the model, of a product of rows with the loop's own tile; 0 for others."""
    mr = int(one["knobs"].get("mr", 0)) if one["family"] == "gemm" else 0
    nv = round(one["products"] / mr) if mr else 0
    return mr * nv / (mr * nv + mr + nv) if nv else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", default=["squeezenet", "mobilenet_v2"])
    parser.add_argument("--target", default="neoverse-v1")
    parser.add_argument("--precision", default="fp32,bf16")
    args = parser.parse_args(arguments)
    result, kept = models.FOLDER.parent / "results" / "predictions" / "arm-loops.json", []
    print("| model | precision | family | kernels | products | by the model | loads a product | loops with spills |")
    print("|---|---|---|---:|---:|---:|---:|---|")
    for name in args.names:
        source = Path(name) if name.endswith(".onnx") else models.write(name)
        for precision in args.precision.split(","):
            found = kernels(source, args.target, precision)
            kept.append({"model": source.stem, "target": args.target, "precision": precision, "kernels": found})
            for family in FAMILIES:
                mine = [one for one in found if one["family"] == family]
                if not mine:
                    continue
                work = sum(one["share"] for one in mine)
                share = sum(one["share"] * one["products"] / one["instructions"] for one in mine) / work
                loads = sum(one["share"] * one["loads"] / one["products"] for one in mine) / work
                by_model = sum(one["share"] * predicted(one) for one in mine) / work
                spilt = [f"{one['spills']} of {one['instructions']}" for one in mine if one["spills"]]
                cells = [source.stem, precision, family, len(mine), f"{share:.2f}"]
                cells += [f"{by_model:.2f}" if by_model else "", f"{loads:.2f}"]
                print("|", " | ".join(map(str, cells)), "|", ": ".join([str(len(spilt)), *spilt[:3]]), "|", flush=True)
    result.parent.mkdir(parents=True, exist_ok=True)
    write_text(result, json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
