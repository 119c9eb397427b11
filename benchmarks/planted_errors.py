"""Does the judge catch a wrong kernel? Errors planted in single kernels of running models, the catches counted.

    python benchmarks/planted_errors.py MODEL.onnx [--shape x:1x3x48x320] [--precision bf16] [--count 20]

The compiled module is right. After one call of one kernel an instrument changes what the kernel wrote, in place: all
that is behind it computes with the wrong numbers, as it would behind a wrong kernel:

    share    all of it is 3 % too large (5 % in bf16)
    row      one row is: of a product behind a mask, of a matrix, of an image
    element  one number is 3 % of the largest too large; of integers and quantised values, one step

Kernels are drawn at random. A fault that leaves every number of the run as it was (a channel of zeros) does not count.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis.bounds import integer_bounds
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.samples import trial_inputs
from tvmopt.analysis.verify import Reference
from tvmopt.cli.common import parse_shapes, parse_values
from tvmopt.importer import load, prepare
from tvmopt.importer.shapes import bound_arrays
from tvmopt.runtime.artifact import read
from tvmopt.runtime.model import Model

Array = np.ndarray[Any, Any]
KINDS = ("share", "row", "element")


def memory(tensor: Any) -> Array:
    """A tensor's own memory as an array that can be written."""
    name = str(tensor.dtype)
    dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
    shape = tuple(map(int, tensor.shape))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = (ctypes.c_uint8 * size).from_address(int(tensor.data_ptr()))
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)


def spoil(array: Array, kind: str, share: float, rng: np.random.Generator) -> bool:
    """Change an array in place; whether that changed anything."""
    before = array.copy()
    if kind == "element":
        at = tuple(int(rng.integers(n)) for n in array.shape)
        if array.dtype.kind in "iub":
            array[at] ^= 1
        else:
            array[at] = float(array[at]) + share * float(np.abs(np.nan_to_num(array.astype(np.float32))).max())
    elif array.dtype.kind in "iub":
        return False
    else:
        part = array
        while kind == "row" and part.ndim > 1:
            part = part[int(rng.integers(part.shape[0]))]
        part[...] = (part.astype(np.float32) * (1 + share)).astype(part.dtype)
    return not np.array_equal(before, array)


class Planted:
    """A session one call of which is followed by a fault, also where others observe it."""

    def __init__(self, session: Any, calls: list[str], at: int, fault: Callable[[Array], None]) -> None:
        self.session, self.calls, self.at, self.fault = session, set(calls), at, fault
        self.set_instrument(None)

    def set_instrument(self, instrument: Any) -> None:
        number = -1

        def both(function: Any, symbol: str, before: bool, result: Any, *values: Any) -> int:
            nonlocal number
            if not before and symbol in self.calls:
                number += 1
                if number == self.at:
                    self.fault(memory([v for v in values if hasattr(v, "data_ptr")][-1]))
            return int(instrument(function, symbol, before, result, *values)) if instrument else 0

        self.session.set_instrument(both)

    def main(self, *arguments: Any) -> Any:
        return self.session.main(*arguments)


class Trial:
    """One model, compiled, and what the oracle says of it."""

    def __init__(self, path: Path, shapes: dict[str, Any], values: dict[str, Any], precision: str, seed: int) -> None:
        import tvmopt

        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "model.tvmopt"
        tvmopt.compile(path, precision=precision, shape=shapes, values=values, verify=False, output=file, cache=False)
        self.artifact, self.precision = read(file), precision
        original = load(str(path))
        inputs = self.artifact.manifest.inputs
        self.prepared = prepare(original, {i.name: list(i.shape) for i in inputs}, values)
        self.feeds = trial_inputs(inputs, seed, integer_bounds(self.prepared))
        self.peer = Reference(path).run({**self.feeds, **bound_arrays(original.graph, values)})
        model = Model(self.artifact)
        self.symbols = {k["name"] for k in self.artifact.manifest.report["kernels"]}
        self.truth = Examiner(model, path, self.prepared).judge.truth(self.feeds)
        self.calls: list[str] = []
        session = model.session()
        session.set_instrument(self._count)
        session.main(*model.arguments(self.feeds))
        session.set_instrument(None)

    def _count(self, function: Any, symbol: str, before: bool, result: Any, *values: Any) -> int:
        if not before and symbol in self.symbols:
            self.calls.append(symbol)
        return 0

    def plant(self, at: int, kind: str, share: float, seed: int) -> dict[str, Any]:
        """One fault; at -1 none."""
        model = Model(self.artifact)
        changed: list[bool] = []

        def fault(array: Array) -> None:
            changed.append(spoil(array, kind, share, np.random.default_rng(seed)))

        instance = model._of_this_thread()
        instance.session = Planted(instance.session, self.calls, at, fault)  # type: ignore[assignment]
        examiner = Examiner(model, "", self.prepared)
        examiner.judge.truth = lambda feeds: self.truth  # type: ignore[method-assign]
        found = examiner.thoroughly(self.feeds, self.peer)
        wrong = [o for o in found.comparison.outputs if not o.ok]
        excess = max((o.excess for o in wrong if np.isfinite(o.excess)), default=0.0)
        symbol = self.calls[at] if at >= 0 else ""
        return {
            "kernel": symbol, "call": at, "kind": kind, "changed": any(changed), "caught": not found.ok,
            "blamed": found.kernel, "excess": excess, "problems": [str(o)[:160] for o in wrong[:2]],
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant errors in single kernels; count those that the judge catches.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", action="append", default=[], metavar="NAME:1x3x224x224")
    parser.add_argument("--value", action="append", default=[], metavar="NAME=16000")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--count", type=int, default=20, help="faults of each kind (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="lines of JSON, appended")
    args = parser.parse_args(arguments)
    share = 0.05 if args.precision == "bf16" else 0.03
    trial = Trial(args.model, parse_shapes(args.shape), parse_values(args.value), args.precision, args.seed)
    right = trial.plant(-1, "share", share, 0)
    print(f"{args.model.name} {args.precision}: {len(trial.calls)} calls of kernels, without a fault "
          f"{'REFUSED' if right['caught'] else 'accepted'}", flush=True)  # fmt: skip
    rng = np.random.default_rng(args.seed)
    tally: Counter[tuple[str, str]] = Counter()
    for kind in args.kinds.split(","):
        for at in rng.permutation(len(trial.calls))[: args.count]:
            one = trial.plant(int(at), kind, share, int(rng.integers(1 << 30)))
            outcome = "caught" if one["caught"] else "missed" if one["changed"] else "nothing changed"
            tally[kind, outcome] += 1
            if outcome == "missed":
                print(f"  missed: {kind} in call {at}, {one['kernel']}", flush=True)
            if args.output:
                with args.output.open("a") as file:
                    file.write(json.dumps({"model": args.model.name, "precision": args.precision, **one}) + "\n")
    for kind in args.kinds.split(","):
        print(f"  {kind}: " + ", ".join(f"{n} {o}" for (k, o), n in sorted(tally.items()) if k == kind), flush=True)
    return 1 if right["caught"] or any(outcome == "missed" for _, outcome in tally) else 0


if __name__ == "__main__":
    sys.exit(main())
