"""Can the verdicts of `tvmopt bench` be believed? The same comparison again and again, the answers counted.

    python benchmarks/verdicts.py [--models DIR] [--output FILE.json]

    identical   an engine against itself, 20 times: right is "no difference measured"
    repeated    ResNet-50 and BERT-base against onnxruntime, 5 times each: right is one answer
    disturbed   the same with a busy loop on one core for a third of the run: right is that answer, or "unstable"

Answers are kept one by one as they come, so a run that was stopped shows what it had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmopt.bench.machine import describe_machine, slug
from tvmopt.bench.measure import Plan
from tvmopt.bench.run import Settings, bench

HERE = Path(__file__).parent
SPIN = "import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"


def verdict(model: Path, engines: Sequence[str], threads: int, plan: Plan, folder: Path) -> dict[str, Any]:
    """One comparison: its ratio, interval, verdict and seconds."""
    start = time.perf_counter()
    settings = Settings(engines=tuple(engines), threads=(threads,), save=str(folder), reuse=True, floor=False)
    (case,) = bench([model], settings, plan=plan).cases
    (ratio,) = case.ratios.values()
    return {
        "model": model.stem, "engines": list(engines), "threads": threads, "verdict": ratio.verdict,
        "ratio": ratio.value, "low": ratio.low, "high": ratio.high, "reason": ratio.reason,
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


class Busy:
    """A loop that holds a core, from `after` seconds on and for `seconds`."""

    def __init__(self, after: float, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(after, self._spin)
        self._child: subprocess.Popen[bytes] | None = None

    def _spin(self) -> None:
        self._child = subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=self._seconds)])

    def __enter__(self) -> Busy:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        if self._child:
            self._child.kill()
            self._child.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, default=HERE / "models")
    parser.add_argument("--output", type=Path, default=HERE / "results" / slug() / "verdicts.json")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", default="identical,repeated,disturbed")
    parser.add_argument("--again", type=int, default=0, help="times of each comparison, instead of 20 and 5")
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--patience", type=float, default=4.0)
    args = parser.parse_args()
    found: dict[str, Any] = {"machine": describe_machine(), "answers": []}
    if args.output.exists():
        found["answers"] = [a for a in json.loads(args.output.read_text())["answers"] if a["part"] not in args.parts]
    plan, folder = Plan(rounds=args.rounds, patience=args.patience), args.output.parent / ".engines"

    def keep(part: str, answer: dict[str, Any]) -> None:
        found["answers"].append({"part": part, **answer})
        args.output.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{part}: {answer['model']} {answer['ratio']:.3f} [{answer['low']:.3f}, {answer['high']:.3f}] "
              f"{answer['verdict']} {answer['reason']}", flush=True)  # fmt: skip

    args.output.parent.mkdir(parents=True, exist_ok=True)
    if "identical" in args.parts:
        for _ in range(args.again or 20):
            model = args.models / "squeezenet.onnx"
            keep("identical", verdict(model, ("tvmopt", "tvmopt"), args.threads, plan, folder))
    for part in ("repeated", "disturbed"):
        for name in ("resnet50", "bert_base") if part in args.parts else ():
            model, usual = args.models / f"{name}.onnx", 40.0
            for _ in range(args.again or 5):
                if part == "repeated":
                    answer = verdict(model, ("tvmopt", "onnxruntime"), args.threads, plan, folder)
                else:
                    with Busy(usual / 3, usual / 3):
                        answer = verdict(model, ("tvmopt", "onnxruntime"), args.threads, plan, folder)
                usual = answer["seconds"]
                keep(part, answer)
    for (part, name), counts in sorted(_counts(found["answers"]).items()):
        print(f"{part:10} {name:12} " + ", ".join(f"{n} {word}" for word, n in counts.most_common()))
    return 0


def _counts(answers: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Counter[str]]:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for answer in answers:
        counts.setdefault((answer["part"], answer["model"]), Counter())[answer["verdict"]] += 1
    return counts


if __name__ == "__main__":
    sys.exit(main())
