"""How far one compiled file serves other numbers of cores: a simulation, since no machine with many is here.

    python benchmarks/many_cores.py                                  # SqueezeNet, MobileNetV2, ResNet-50, BERT, ViT
    python benchmarks/many_cores.py resnet50 --target znver5

Each model is compiled for 2, 8 and 64 cores. A kernel's time on one core is the larger one of its operations at the
core's peak and its bytes at the target's bandwidth a core; on n cores it is the share of the core that has the most of
its tasks, which the pool hands out in runs of equally many. The share of n cores that computes is then

    work / (n * sum over kernels of  time on one core * tasks of the busiest core / tasks)

What it leaves out: memory that all cores share, what a launch costs, and that tiles for more cores take longer
themselves (`thread_counts.py` measures that on one core and two). What bounds it is told by family. The results go
into ``benchmarks/results/predictions/many-cores.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import models

import tvmopt
from tvmopt.files import write_text
from tvmopt.report import Kernel
from tvmopt.targets import Machine

DEFAULT = ("squeezenet", "mobilenet_v2", "resnet50", "bert_base", "vit_base")
PLANS, CORES = (2, 8, 64), (1, 2, 4, 8, 16, 32, 64, 128)


def on_one_core(kernel: Kernel, machine: Machine) -> float:
    """Seconds."""
    one = machine.with_cores(1)
    return kernel.calls * max(kernel.flops / one.peak_flops, kernel.bytes / (machine.bandwidth / machine.cores))


def busiest(tasks: int, cores: int) -> float:
    """The share of a kernel that the core with the most of its tasks computes."""
    return -(-tasks // cores) / tasks


def simulated(kernels: Sequence[Kernel], machine: Machine) -> dict[str, Any]:
    """The share of the cores that computes, by their number; what keeps the rest of 64 waiting, by family."""
    known = [(kernel, on_one_core(kernel, machine)) for kernel in kernels if kernel.tasks]
    work = sum(seconds for _, seconds in known)
    shares = {n: work / (n * sum(s * busiest(k.tasks, n) for k, s in known)) for n in CORES}
    waits: dict[str, float] = defaultdict(float)
    for kernel, seconds in known:
        waits[kernel.family] += seconds * (64 * busiest(kernel.tasks, 64) - 1)
    total = sum(waits.values()) or 1.0
    return {"shares": shares, "waits at 64": {f: w / total for f, w in sorted(waits.items(), key=lambda i: -i[1])}}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"which (default: {' '.join(DEFAULT)})")
    parser.add_argument("--target", default="x86-64-v4")
    args = parser.parse_args(arguments)
    machine, found = Machine.load(args.target), []
    print(f"| {args.target} | compiled for |" + "".join(f" {n} |" for n in CORES) + " waits at 64 |")
    print("|---|---:|" + "---:|" * len(CORES) + "---|")
    for name in args.names or DEFAULT:
        for cores in PLANS:
            report = tvmopt.compile(models.write(name), target=machine.with_cores(cores), verify=False, records=False)
            one = simulated(report.report.kernels, machine)
            found.append({"model": name, "target": args.target, "compiled for": cores, **one})
            shares = " | ".join(f"{share:.2f}" for share in one["shares"].values())
            waits = ", ".join(f"{family} {share:.0%}" for family, share in one["waits at 64"].items() if share > 0.1)
            print(f"| {name} | {cores} | {shares} | {waits} |", flush=True)
    result = models.FOLDER.parent / "results" / "predictions" / "many-cores.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    write_text(result, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
