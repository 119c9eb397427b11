"""The demonstration: ResNet-50 compiled, run, and timed beside onnxruntime - called by `scripts/demo`.

The graph is the one that the onnx package ships; its weights are random with a fixed seed, drawn so that
every layer keeps its scale. Engines are measured in turn, each in a process of its own: engines that spin
while they wait would disturb each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5

TVMOPT = """
import json, sys, numpy as np, tvmopt
model = tvmopt.load(sys.argv[1], threads=int(sys.argv[2]))
x = np.random.default_rng(0).standard_normal(model.inputs[0].shape, dtype=np.float32)
timing = model.time({model.inputs[0].name: x}, iterations=20, warmup=10, duration=1.5)
print(json.dumps(timing.median_ms))
"""

ONNXRUNTIME = """
import json, sys, time, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
item = session.get_inputs()[0]
feeds = {item.name: np.random.default_rng(0).standard_normal(item.shape, dtype=np.float32)}
for _ in range(10):
    session.run(None, feeds)
times, begin = [], time.perf_counter()
while len(times) < 20 or time.perf_counter() - begin < 1.5:
    start = time.perf_counter()
    session.run(None, feeds)
    times.append(time.perf_counter() - start)
print(json.dumps(1e3 * sorted(times)[len(times) // 2]))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50_caffe2", help="a classic network of benchmarks/models.py")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()

    sys.path.insert(0, str(ROOT / "benchmarks"))
    import models

    print(f"== writing {args.model}: the onnx package's graph, seeded random weights", flush=True)
    model = models.write(args.model)
    artifact = model.with_suffix(".tvmopt")
    tvmopt = [str(Path(sys.executable).parent / "tvmopt")]
    steps = (
        ["compile", str(model), "-o", str(artifact), "--no-records"],
        ["run", str(artifact), "--print-time", "--iterations", "50"],
    )
    for step in steps:
        print(f"\n== tvmopt {' '.join(Path(word).name if '/' in word else word for word in step)}", flush=True)
        code = subprocess.run([*tvmopt, *step], check=False).returncode
        if code:
            return code

    from tvmopt.targets.detect import usable_cores

    threads = usable_cores()
    print(f"\n== latency, median of {args.rounds} interleaved rounds, {threads} threads each", flush=True)
    rounds: dict[str, list[float]] = {"tvmopt": [], "onnxruntime": []}
    for _ in range(args.rounds):
        rounds["tvmopt"].append(_measure(TVMOPT, artifact, threads))
        rounds["onnxruntime"].append(_measure(ONNXRUNTIME, model, threads))
    for engine, times in rounds.items():
        print(f"{engine:12} {statistics.median(times):8.2f} ms   (rounds: {' '.join(f'{t:.2f}' for t in times)})")
    ratio = statistics.median(rounds["tvmopt"]) / statistics.median(rounds["onnxruntime"])
    print(f"tvmopt takes {ratio:.2f} times as long as onnxruntime, without tuning records")
    print(f"\nwhat was done and why not: .venv/bin/tvmopt explain {artifact.relative_to(ROOT)}")
    return 0


def _measure(code: str, file: Path, threads: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code, str(file), str(threads)], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
