"""tvmopt against torch and onnxruntime on a GPU, data on the device, by CUDA events - for `scripts/gpu-bench`.

    python benchmarks/gpu_peers.py                           # GEMM, ResNet-50 at batch 1 and 32, BERT-base, ViT-B
    python benchmarks/gpu_peers.py gemm_4096 resnet50:32     # some; NAME:BATCH
    python benchmarks/gpu_peers.py --device cpu --quick      # the same code on tiny shapes, no GPU: a rehearsal

Engines, each in a process of its own, in fp16 on the GPU (fp32 in a rehearsal), all with the same seeded weights:

    tvmopt         the artifact that `tvmopt compile --target cuda --precision fp16` makes here
    eager          torch as it is: cuDNN and cuBLAS choose (`cudnn.benchmark`); channels-last for convolutions
    compile        `torch.compile(mode="max-autotune")`, which captures CUDA graphs; `--mode` gives another
    onnxruntime    the CUDA provider on a file converted to fp16, inputs and outputs bound on the device

Images go to torch as fp16; tvmopt and onnxruntime take them as fp32 and cast inside.

After a warm-up the engines take turns, the order turned round every round. A call is timed twice: by CUDA events around
it, and by the clock until the device is idle. A row's figure is the median over rounds of the turns' medians; a ratio
is the median over rounds of (peer / tvmopt). The L2 cache is not flushed. An engine that fails, or whose output differs
from tvmopt's by more than the tolerance, is a row that says so; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gpu_engine import onnx_file

HERE = Path(__file__).parent
CASES = ("gemm_4096", "resnet50:1", "resnet50:32", "bert_base:1", "vit_base:1")
QUICK = ("gemm_64", "tiny:1", "tiny:2")
ENGINES = ("tvmopt", "eager", "compile", "onnxruntime")
TOLERANCE = {"fp16": 5e-2, "fp32": 1e-3}  # of the largest output; two fp16 computations differ from each other
ASKED = 0.7  # of cuBLAS, for the GEMM


class Engine:
    """One engine process; `row` is what the table says of it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.row = job, {"engine": job["engine"]}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_engine.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout  # pipes
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.turns: list[dict[str, Any]] = []
        self.row |= self.ask(job)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one line; a death is an answer too."""
        line = ""
        with suppress(OSError):
            self.stdin.write(json.dumps(question) + "\n")
            line = self.stdout.readline()
        if not line:
            return {"error": f"the process ended with exit code {self.process.wait()}"}
        return dict(json.loads(line))

    def turn(self, seconds: float, least: int) -> bool:
        """One turn, kept; False where it failed."""
        answer = self.ask({"seconds": seconds, "least": least})
        if "error" in answer:
            self.row |= answer
            return False
        self.turns.append(answer)
        return True

    def close(self) -> None:
        self.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def rotate(engines: list[Engine], rounds: int, seconds: float, least: int) -> None:
    """A warm-up turn each, then `rounds` in turns; an engine that fails leaves the rotation."""
    for engine in engines:
        if "error" not in engine.row:
            engine.turn(seconds * 5, least)
            engine.turns.clear()
    for number in range(rounds):
        for engine in engines if number % 2 == 0 else engines[::-1]:
            if "error" not in engine.row:
                engine.turn(seconds, least)


def summarise(engines: list[Any], outputs: dict[str, np.ndarray], tolerance: float) -> list[dict[str, Any]]:
    """The rows: medians in ms, ratio to tvmopt (above 1: tvmopt is faster), difference of the outputs.

    Without a tvmopt that ran there are times, and no ratios.
    """
    subject = next((e for e in engines if e.job["engine"] == "tvmopt" and "error" not in e.row), None)
    for engine in engines:
        row, name = engine.row, engine.job["engine"]
        if "error" in row:
            continue
        for key in ("device", "wall"):
            times = [t[key] for t in engine.turns]
            row[f"{key}_ms"] = None if None in times else round(statistics.median(times) * 1e3, 5)
        if subject is not None and engine is not subject:
            key = "wall" if row["device_ms"] is None or subject.row["device_ms"] is None else "device"
            pairs = [a[key] / b[key] for a, b in zip(engine.turns, subject.turns, strict=True)]
            row["ratio"] = round(statistics.median(pairs), 4)
            a, b = outputs[name], outputs["tvmopt"]
            wrong = a.shape != b.shape or not np.isfinite(a).all()
            row["difference"] = None if wrong else float(np.abs(a - b).max() / np.abs(b).max())
            if wrong or not row["difference"] <= tolerance:
                row["error"] = f"the output differs from tvmopt's by {row['difference']} of the largest"
    return [engine.row for engine in engines]


def compiled(onnx: Path, options: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    """The artifact of an ONNX file, and what went wrong."""
    artifact = folder / f"{onnx.stem}-{options.precision}.tvmopt"
    if artifact.exists():
        return artifact, ""
    target = "cuda" if options.device == "cuda" else "cpu"
    words = ["compile", str(onnx), "--target", options.target or target, "--precision", options.precision]
    done = subprocess.run(
        [sys.executable, "-m", "tvmopt", *words, "-o", str(artifact)], capture_output=True, text=True, check=False
    )
    return artifact, "" if done.returncode == 0 else f"does not compile: {done.stderr.strip()[-400:]}"


def case(name: str, batch: int, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """One case measured: its rows."""
    onnx = onnx_file(name, batch, options.models, options.precision)
    artifact, problem = compiled(onnx, options, options.artifacts or scratch)
    engines: list[Engine] = []
    outputs: dict[str, np.ndarray] = {}
    rows: list[dict[str, Any]] = []
    try:
        for engine in options.engines.split(","):
            if engine == "tvmopt" and problem:
                rows.append({"engine": engine, "error": problem})
                continue
            job = {"engine": engine, "name": name, "batch": batch, "device": options.device, "onnx": str(onnx),
                   "artifact": str(artifact), "precision": options.precision, "mode": options.mode,
                   "output": str(scratch / f"{onnx.stem}-{engine}.npy")}  # fmt: skip
            engines.append(Engine(job))
            if "error" not in engines[-1].row:
                outputs[engine] = np.load(job["output"])
        rotate(engines, options.rounds, options.seconds, options.least)
        rows += summarise(engines, outputs, TOLERANCE[options.precision])
    finally:
        for one in engines:
            one.close()
    return {"case": name, "batch": batch, "clocks": clocks(), "rows": rows}


def clocks() -> str:
    """SM clock, temperature and power right after the rotation, as nvidia-smi gives them; empty without it."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu,power.draw", "--format=csv,noheader"]
    with suppress(OSError):
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def table(record: dict[str, Any]) -> str:
    """The record as Markdown, and what it says of the goals."""
    lines = [f"# tvmopt against its peers: {record['gpu'] or record['device']}, {record['precision']}", ""]
    if record["device"] == "cpu":
        lines += ["A rehearsal on a CPU: these are no results.", ""]
    lines += ["Times in ms of one call; *ratio* is peer / tvmopt: above 1, tvmopt is faster.", ""]
    lines += ["| case | engine | events | until idle | ratio | what ran |", "|---|---|---:|---:|---:|---|"]
    for one in record["cases"]:
        for row in one["rows"]:
            times = [row.get("device_ms"), row.get("wall_ms"), row.get("ratio")]
            cells = ["" if t is None else f"{t:.4g}" for t in times]
            says = row["error"].replace("|", "/") if "error" in row else row["runs"]
            lines.append(f"| {one['case']}:{one['batch']} | {row['engine']} | {' | '.join(cells)} | {says} |")
    return "\n".join([*lines, "", *verdicts(record), ""])


def verdicts(record: dict[str, Any]) -> list[str]:
    """A line for each comparison that counts; a rehearsal's do not."""
    found: list[str] = []
    if record["device"] != "cuda":
        return found
    for one in record["cases"]:
        for row in one["rows"]:
            if "ratio" not in row or "error" in row:
                continue
            gemm = one["case"].startswith("gemm_")
            least = ASKED if gemm and row["engine"] == "eager" else 1.0
            peer = "cuBLAS (torch.matmul)" if gemm and row["engine"] == "eager" else row["engine"]
            met = "met" if row["ratio"] >= least else "NOT met"
            found.append(f"- {one['case']}:{one['batch']}: {row['ratio']:.3f} of {peer}'s speed, {least} asked: {met}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"NAME or NAME:BATCH; default {' '.join(CASES)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--target", default="", help="of the artifacts; default cuda (cpu with --device cpu)")
    parser.add_argument("--precision", choices=("fp16", "fp32"), help="default fp16 on a GPU, fp32 on a CPU")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which, separated by commas")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder of the ONNX files")
    parser.add_argument(
        "--artifacts", type=Path, help="where compiled artifacts lie, MODEL-PRECISION.tvmopt; made if missing"
    )
    parser.add_argument("--mode", default="max-autotune", help="of torch.compile")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "nvidia-h200")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--least", type=int, default=10, help="calls of a turn, at the least")
    parser.add_argument("--quick", action="store_true", help="tiny cases, three short rounds")
    parser.add_argument("--gpu", default="", help="its name, for the record")
    options = parser.parse_args()
    options.precision = options.precision or ("fp16" if options.device == "cuda" else "fp32")
    if options.quick:
        options.rounds, options.seconds, options.least = 3, 0.01, 2
    keys = ("device", "precision", "gpu", "rounds", "seconds", "least")
    record: dict[str, Any] = {key: getattr(options, key) for key in keys} | {"cases": []}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for text in options.cases or (QUICK if options.quick else CASES):
            name, _, batch = text.partition(":")
            record["cases"].append(case(name, int(batch or 1), options, Path(scratch)))
            (options.out / "peers.json").write_text(json.dumps(record, indent=1) + "\n")
            (options.out / "peers.md").write_text(table(record))
    print(table(record))
    return int(any("error" in row for one in record["cases"] for row in one["rows"]))


if __name__ == "__main__":
    sys.exit(main())
