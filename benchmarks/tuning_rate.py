"""Trials a second: our tuner beside stock MetaSchedule on the same kernel, the same budget of seconds.

    python benchmarks/tuning_rate.py [--seconds 60] [--output FILE.json]

A trial is a candidate scheduled, built, its output compared (ours; stock compares nothing) and timed. Stock runs in a
process of its own, as `ms.tune_tir` with its default builder and runner; what it could not build counts as no trial.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZE = (196, 256, 1024)  # rows, columns, depth: a 1x1 convolution of ResNet-50, about 0.5 ms on one core

STOCK = """
import sys, time, tempfile, json
import tvm
from tvm.s_tir import meta_schedule as ms
module, seconds, out = tvm.ir.load_json(open(sys.argv[1]).read()), float(sys.argv[2]), sys.argv[3]
target = tvm.target.Target(json.loads(sys.argv[4]))
folder = tempfile.mkdtemp()
ms.tune_tir(module, target, folder, max_trials_global=100000, num_trials_per_iter=16, space="llvm")
"""


def task(machine: Any) -> Any:
    """The task of one matrix product with ReLU."""
    import numpy as np
    from tvm import relax

    from tvmopt.tuning.driver import tasks_of

    rows, columns, depth = SIZE
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, depth), "float32"))
    weight = relax.const(np.random.default_rng(0).standard_normal((depth, columns), dtype=np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, weight))
            out = builder.emit_output(relax.Tuple([builder.emit(relax.op.nn.relu(product))]))
        builder.emit_func_output(out)
    return next(t for t in tasks_of(builder.get(), machine) if t.key.family == "gemm")


def ours(machine: Any, seconds: float) -> dict[str, float]:
    """Trials of the tuner in `seconds`, the warm-up of its workers included."""
    from tvmopt.tuning.measure import LocalRunner
    from tvmopt.tuning.search import Budget, Tuner
    from tvmopt.tuning.store import Store

    work = task(machine)
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder) / "s.db") as store,
        LocalRunner(machine) as runner,
    ):
        tuner = Tuner([work], runner, store, Budget(seconds=seconds))
        tuner.run()
        ok = sum(r.status == "ok" for r in store.records())
    elapsed = time.perf_counter() - start
    kernel = min(r.seconds for r in tuner.states[0].records.values())
    return {"trials": ok, "seconds": elapsed, "per_second": ok / elapsed, "kernel_us": 1e6 * kernel}


def stock(machine: Any, seconds: float) -> dict[str, float]:
    """Trials of `ms.tune_tir` in `seconds`: records of its database when it is stopped."""
    work = task(machine)
    target = {"kind": machine.kind, "mcpu": machine.mcpu, "num-cores": machine.cores}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.json"
        path.write_text(work.kernel.module)
        words = [sys.executable, "-c", STOCK, str(path), str(seconds), folder, json.dumps(target)]
        start = time.perf_counter()
        child = subprocess.Popen(
            words, env={**os.environ, "TMPDIR": folder}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
        elapsed = time.perf_counter() - start
        done = sum(
            line.count("\n") for line in (f.read_text() for f in Path(folder).rglob("database_tuning_record.json"))
        )
    return {"trials": done, "seconds": elapsed, "per_second": done / elapsed}


def main() -> int:
    parser = argparse.ArgumentParser(description="Trials a second: our tuner and stock MetaSchedule.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    from tvmopt.targets import Machine

    machine = Machine.load("cpu")
    kernel = f"matmul {'x'.join(map(str, SIZE))} + relu"
    found = {"kernel": kernel, "machine": machine.name, "cores": machine.cores,
             "load_before": os.getloadavg()[0], "tvmopt": ours(machine, args.seconds),
             "metaschedule": stock(machine, args.seconds)}  # fmt: skip
    for name in ("tvmopt", "metaschedule"):
        row = found[name]
        print(f"{name:14}{row['trials']:5.0f} trials in {row['seconds']:5.0f} s: {row['per_second']:5.2f} a second")
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
