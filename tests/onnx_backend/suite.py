"""Runs ONNX's backend test cases in child processes: no case can crash, hang or abort the run - for the
tests and the command line.

``python tests/onnx_backend/suite.py [--match REGEX] [--workers 1] [--timeout 60] [--json out.json]``
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")


@dataclass(frozen=True)
class Outcome:
    """One case: ``ok`` or why not, in one line, and its seconds."""

    name: str
    ok: bool
    detail: str
    seconds: float


def load_cases(kinds: tuple[str, ...] = ("node",)) -> dict[str, object]:
    """The suite's cases by name."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for kind in kinds for case in load_model_tests(kind=kind)}


def _data_sets(case):
    import glob

    import onnx
    from onnx import numpy_helper

    if case.model is not None:
        return case.model, case.data_sets
    model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
    sets = []
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set_*"))):

        def read(prefix, values, folder=folder):
            out = []
            for i, info in enumerate(values[: len(glob.glob(os.path.join(folder, f"{prefix}_*.pb")))]):
                with open(os.path.join(folder, f"{prefix}_{i}.pb"), "rb") as f:
                    data = f.read()
                if info.type.HasField("sequence_type"):
                    out.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
                else:
                    out.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
            return out

        sets.append((read("input", model.graph.input), read("output", model.graph.output)))
    return model, sets


def run_case(case, pipeline: str = "tvmopt") -> None:
    """Run one case through our backend, with the suite's own comparison; raises where it fails."""
    import numpy as np
    from onnx.backend.test.runner import Runner, _normalize_tensor

    from tvmopt.onnx_backend import TvmoptBackend

    model, sets = _data_sets(case)
    rep = TvmoptBackend.prepare(model, pipeline=pipeline)
    for inputs, expected in sets:
        outputs = rep.run([_normalize_tensor(item) for item in inputs])
        expected = [_normalize_tensor(item) for item in expected]
        with np.errstate(all="ignore"):
            Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)


def _worker(pipeline: str, kinds: tuple[str, ...]) -> None:
    """Read names from stdin, answer a JSON line each on the real stdout; anything else printed is dropped."""
    import warnings

    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    cases = load_cases(kinds)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        name, begin = line.strip(), time.monotonic()
        try:
            run_case(cases[name], pipeline)
            detail = ""
        except BaseException as error:
            text = str(error).strip()
            lines = [x for x in text.splitlines() if x.strip()]
            pick = (
                lines[-1]
                if lines
                and type(error).__name__
                in ("InternalError", "ValueError", "TypeError", "RuntimeError", "DiagnosticError")
                else " | ".join(lines[:4])
            )
            detail = f"{type(error).__name__}: {pick[:400]}"
            if isinstance(error, KeyboardInterrupt):
                raise
        answer = {"name": name, "detail": detail, "seconds": round(time.monotonic() - begin, 3)}
        print(json.dumps(answer), file=answers, flush=True)


def _drive(todo: queue.Queue[str], done: list[Outcome], pipeline: str, kinds: tuple[str, ...], timeout: float) -> None:
    child = None
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            break
        if child is None or child.poll() is not None:
            env = {**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    __file__,
                    "--child",
                    "--pipeline",
                    pipeline,
                    "--kinds",
                    ",".join(kinds),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            child.stdout.readline()  # ready
        begin = time.monotonic()
        timer = threading.Timer(timeout, child.kill)
        timer.start()
        try:
            child.stdin.write(name + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        seconds = time.monotonic() - begin
        if line:
            answer = json.loads(line)
            done.append(Outcome(name, not answer["detail"], answer["detail"], answer["seconds"]))
        else:
            child.wait()
            why = f"timeout after {timeout:.0f} s" if seconds >= timeout - 0.1 else f"crash (exit {child.returncode})"
            done.append(Outcome(name, False, why, seconds))
            child = None
    if child is not None:
        child.stdin.close()
        child.wait()


def run_suite(names, *, workers=1, timeout=60.0, pipeline="tvmopt", kinds=("node",)):
    """Run the named cases; one :class:`Outcome` each, sorted by name."""
    todo: queue.Queue[str] = queue.Queue()
    for name in names:
        todo.put(name)
    done: list[Outcome] = []
    threads = [threading.Thread(target=_drive, args=(todo, done, pipeline, kinds, timeout)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(done, key=lambda outcome: outcome.name)


def main() -> None:
    """Command line: run, print the failures grouped, and the count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--match", default="")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--pipeline", default="tvmopt")
    parser.add_argument("--kinds", default="node")
    parser.add_argument("--json")
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    kinds = tuple(args.kinds.split(","))
    if args.child:
        _worker(args.pipeline, kinds)
        return
    names = [name for name in load_cases(kinds) if re.search(args.match, name)]
    begin = time.monotonic()
    outcomes = run_suite(names, workers=args.workers, timeout=args.timeout, pipeline=args.pipeline, kinds=kinds)
    for outcome in outcomes:
        if not outcome.ok:
            print(f"{outcome.name}: {outcome.detail}")
    slow = sorted(outcomes, key=lambda o: -o.seconds)[:5]
    print("slowest", [(o.name, o.seconds) for o in slow])
    print(Counter(re.sub(r"[0-9]+", "#", o.detail)[:90] for o in outcomes if not o.ok).most_common(25))
    print(f"{sum(o.ok for o in outcomes)} of {len(outcomes)} pass, {time.monotonic() - begin:.0f} s")
    if args.json:
        with open(args.json, "w") as f:
            json.dump([vars(o) for o in outcomes], f)


if __name__ == "__main__":
    main()
