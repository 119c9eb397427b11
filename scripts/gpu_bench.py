"""What needs an NVIDIA GPU, in one command: numbers, races, memory, and speed against its peers.

    scripts/gpu-bench --dry-run                 # what this machine has, what is missing, what would run
    scripts/gpu-bench                           # everything, into benchmarks/results/<gpu>/
    scripts/gpu-bench --only numbers,races      # some steps
    scripts/gpu-bench resnet50 bert_base        # some models

Steps, in order; a step whose needs are missing is reported and left out, and a failure of numbers or races stops the
rest:

    numbers   the tests of the CUDA kernels: where there is a GPU they run on it, five times each with the same bits
    races     compute-sanitizer --tool racecheck, then memcheck, over the same tests
    peers     benchmarks/gpu_peers.py: ResNet-50 (batch 1 and 32), BERT-base, ViT-B and a GEMM of 4096x4096x4096 in fp16
              against eager torch (cuDNN, cuBLAS), torch.compile (max-autotune, CUDA graphs) and onnxruntime's CUDA
              provider, data on the device, timed by CUDA events: peers.json and peers.md
    bench     each model compiled in fp16, then `tvmopt bench` against TensorRT

`tvmopt bench` gives tvmopt NumPy arrays: its time includes the transfers, TensorRT's does not. onnxruntime's CUDA
provider computes in the model's own dtypes, so its fp16 row is among the peers, on a converted file.

The exit status is 0 where all asked steps ran and passed, 1 where one failed, 3 where one could not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("resnet50", "bert_base", "vit_base")
STEPS = ("numbers", "races", "peers", "bench")
BATCHES = {"resnet50": (1, 32)}
KERNEL_TESTS = ("tests/schedules/cuda", "tests/runtime/test_cuda.py")


@dataclass(frozen=True)
class Need:
    """Something a step needs: whether it is here, and what to do if not."""

    name: str
    here: str
    fix: str
    steps: tuple[str, ...]
    required: bool = True


def gpu_name() -> str:
    """The first GPU as nvidia-smi names it, or an empty string."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""


def needs() -> list[Need]:
    """Everything the steps use, looked up on this machine."""
    return [
        Need("a GPU and its driver", gpu_name(), "run on a machine with an NVIDIA GPU", STEPS),
        Need(
            "CUDA compiler",
            _program("nvcc") or _module("cuda.bindings"),
            "install NVIDIA's CUDA 13 toolkit",
            STEPS,
        ),
        Need("tvm", _module("tvm"), "pip install -e .", STEPS),
        Need("pytest", _module("pytest"), "pip install -e '.[dev]'", ("numbers", "races")),
        Need("compute-sanitizer", _program("compute-sanitizer"), "part of NVIDIA's CUDA toolkit", ("races",)),
        Need("torch with CUDA", _torch(), "pip install torch (a CUDA build)", ("peers",), False),
        Need("torch (the models)", _module("torch"), "pip install -e '.[models]'", ("peers", "bench")),
        Need("transformers", _module("transformers"), "pip install -e '.[models]'", ("peers", "bench")),
        Need("triton", _module("triton"), "pip install triton (for torch.compile)", ("peers",), False),
        Need("onnxruntime-gpu", _provider(), "pip install onnxruntime-gpu", ("peers",), False),
        Need("tensorrt", _module("tensorrt"), "pip install tensorrt (NVIDIA's index)", ("bench",)),
    ]


def _program(name: str) -> str:
    return shutil.which(name) or next((str(p) for p in Path("/usr/local").glob(f"cuda*/bin/{name}")), "")


def _module(name: str) -> str:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    return (found.origin or name) if found else ""


def _provider() -> str:
    """onnxruntime's CUDA provider; the package falls back to the CPU without a word where it is missing."""
    if not _module("onnxruntime"):
        return ""
    code = "import onnxruntime as o; print('CUDAExecutionProvider' in o.get_available_providers(), o.__version__)"
    return _answer(code)


def _torch() -> str:
    """torch's version where it sees a GPU."""
    return _answer("import torch; print(torch.cuda.is_available(), torch.__version__)") if _module("torch") else ""


def _answer(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    yes, _, version = done.stdout.strip().partition(" ")
    return version if yes == "True" else ""


def commands(step: str, models: Sequence[str], folder: Path, sources: Path) -> list[list[str]]:
    """What a step runs."""
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not models", *KERNEL_TESTS]
    if step == "numbers":
        return [tests]
    if step == "races":
        sanitizer = _program("compute-sanitizer") or "compute-sanitizer"
        return [
            [sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "1", *tests]
            for tool in ("racecheck", "memcheck")
        ]
    cases = [(model, batch) for model in models for batch in BATCHES.get(model, (1,))]
    if step == "peers":
        named = ["gemm_4096", *(f"{model}:{batch}" for model, batch in cases)]
        script = [sys.executable, str(ROOT / "benchmarks" / "gpu_peers.py")]
        return [[*script, *named, "--models", str(sources), "--out", str(folder), "--gpu", gpu_name() or "none"]]
    tvmopt = [sys.executable, "-m", "tvmopt"]
    write = [sys.executable, str(ROOT / "benchmarks" / "models.py")]
    found = []
    for model, batch in cases:
        stem = model if batch == 1 else f"{model}_b{batch}"
        onnx, result = str(sources / f"{stem}.onnx"), folder / f"{stem}-fp16"
        artifact = f"{result}.tvmopt"
        report = ["--markdown", f"{result}.md", "--html", f"{result}.html"]
        found.append([*write, model, "--batch", str(batch), "--folder", str(sources)])
        found.append([*tvmopt, "compile", onnx, "--target", "cuda", "--precision", "fp16", "--output", artifact])
        against = ["--precision", "fp16", "--against", "tensorrt"]
        found.append([*tvmopt, "bench", artifact, "--model", onnx, *against, *report])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--only", default=",".join(STEPS), help=f"of {', '.join(STEPS)}")
    sources = ROOT / "benchmarks" / "models"
    parser.add_argument("--models-dir", type=Path, default=sources, help="where MODEL.onnx lie; written if missing")
    parser.add_argument("--dry-run", action="store_true", help="say what is missing and what would run")
    options = parser.parse_args()
    steps = options.only.split(",")
    if unknown := sorted(set(steps) - set(STEPS)):
        parser.error(f"no step {unknown[0]!r}; there are {', '.join(STEPS)}")
    found = needs()
    name = (found[0].here.split(",")[0] or "nvidia-gpu").lower().replace(" ", "-")
    folder = ROOT / "benchmarks" / "results" / name
    for need in found:
        state = need.here or f"missing{'' if need.required else ' (compared without it)'}: {need.fix}"
        print(f"{need.name:22} {state}")
    left_out = failed = False
    record: dict[str, Any] = {"gpu": found[0].here, "needs": [asdict(n) for n in found], "steps": {}}
    for step in steps:
        missing = [n.name for n in found if n.required and step in n.steps and not n.here]
        for command in commands(step, options.models, folder, options.models_dir):
            print(f"\n{step}: {' '.join(command)}")
            if missing:
                print(f"  cannot run: {', '.join(missing)} missing")
                left_out = True
            elif not options.dry_run:
                folder.mkdir(parents=True, exist_ok=True)
                start = time.monotonic()
                status = subprocess.run(command, cwd=ROOT, check=False).returncode
                record["steps"][" ".join(command)] = [status, round(time.monotonic() - start, 1)]
                (folder / "run.json").write_text(json.dumps(record, indent=1) + "\n")
                failed |= status != 0
                if status and step in ("numbers", "races"):  # the speed of wrong results is of no interest
                    return 1
    if failed:
        return 1
    return 3 if left_out and not options.dry_run else 0


if __name__ == "__main__":
    sys.exit(main())
