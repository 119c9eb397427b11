"""The suite on a machine that has AVX2 and nothing later: tvmopt for x86-64-v3 beside onnxruntime and OpenVINO.

    python benchmarks/avx2.py                           # every model, 1 and 2 threads
    python benchmarks/avx2.py resnet50 --threads 2      # the arguments of suite.py
    python benchmarks/avx2.py --table

On a newer machine every engine's process is told that it is such a one: `mask_cpuid.c` answers the CPUID instruction in
the processor's place, by which onnxruntime (which has no switch), oneDNN, OpenVINO, NumPy and tvmopt choose their
kernels. `ONEDNN_MAX_CPU_ISA=AVX2` says it to oneDNN once more. Clock and caches stay the newer machine's. OpenVINO
computes in f32 (its INFERENCE_PRECISION_HINT, which the engine sets and reads back). The results are those of suite.py,
in a folder of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import suite

from tvmopt.bench.machine import slug
from tvmopt.errors import MissingDependency, TvmoptError
from tvmopt.toolchain.linking import find_cc

MASK = Path(__file__).with_name("mask_cpuid.c")
ENGINES = "tvmopt:target=x86-64-v3:records=off,onnxruntime,openvino"
HIDDEN = """
from tvmopt.targets import Machine, cpuid
print(Machine.load("cpu").name if "avx512f" in cpuid.absent() else "AVX-512")
"""


def mask(folder: Path) -> Path:
    """The library that hides what is later than AVX2, tried in a process.

    Raises:
        MissingDependency: this kernel or processor cannot do it, or the processor has no AVX2.
    """
    library = folder / "mask_cpuid.so"
    subprocess.run([*find_cc(), "-O2", "-shared", "-fPIC", str(MASK), "-o", str(library)], check=True)
    words = [sys.executable, "-c", HIDDEN]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | environment(library))
    if done.returncode or done.stdout.strip() != "x86-64-v3":
        raise MissingDependency(
            "this machine cannot pass for one of x86-64-v3.",
            where=(done.stderr.strip().splitlines() or [f"it is {done.stdout.strip()}"])[-1],
            fix="use a machine whose /proc/cpuinfo lists avx2 and cpuid_fault, or one that has AVX2 and nothing later",
        )
    return library


def environment(library: Path) -> dict[str, str]:
    """What an engine's process needs."""
    return {"LD_PRELOAD": str(library), "ONEDNN_MAX_CPU_ISA": "AVX2"}


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    folder = suite.HERE / "results" / f"{slug()}-avx2"
    with tempfile.TemporaryDirectory(prefix="tvmopt-avx2-") as place:
        try:
            os.environ |= environment(mask(Path(place)))  # of the engines, and of what measures this machine's peaks
        except TvmoptError as error:
            print(error.told(), file=sys.stderr)
            return error.exit_code
        return suite.main(["--engines", ENGINES, "--results", str(folder), *words])


if __name__ == "__main__":
    sys.exit(main())
