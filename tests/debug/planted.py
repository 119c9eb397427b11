"""Faults planted in the compiler, in a process of their own: `python -m tests.debug.planted FAULT MODEL REPRO`.

What `compare` forks inherits the fault; nothing outside this process does. The result goes to stdout as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_mutate

from tvmopt import pipeline


@mutator
class _Spoil(PyExprMutator):
    """One element of the first 4-d constant with 6 filters becomes wrong."""

    def visit_generic_const_(self, op: Any) -> Any:
        array = op.value.numpy()
        if array.ndim != 4 or 6 not in array.shape:
            return op
        array = array.copy()
        array.reshape(-1)[5] += 3.0
        return relax.const(array, str(array.dtype))


@relax.transform.function_pass(opt_level=0, name="tests.SpoilConstant")
class SpoilConstant:
    """A pass with a bug."""

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        return _Spoil(mod).visit_expr(func)


def plant_pass() -> None:
    """In the middle of the pipeline."""
    real = pipeline.graph_passes
    pipeline.graph_passes = lambda *a: [*real(*a)[:12], SpoilConstant(), *real(*a)[12:]]


def plant_kernel() -> None:
    """Every kernel of a dense convolution adds 1 to what it writes."""
    from tvmopt.scheduling import apply

    real = apply.schedule_one

    def schedule_one(*args: Any, **named: Any) -> Any:
        func, how = real(*args, **named)
        if how.family not in ("conv2d", "planes"):
            return func, how
        out = func.params[-1]
        out = getattr(out, "buffer", out)

        def store(node: Any, mutator: Any) -> Any:
            if node.buffer.same_as(out):
                return tvm.tirx.BufferStore(out, node.value + tvm.tirx.const(1.0, "float32"), node.indices)
            return mutator.default_mutate(node)

        return func.with_body(structural_mutate(func.body, ((tvm.tirx.BufferStore, store),))), how

    apply.schedule_one = schedule_one


def plant_nothing() -> None:
    """A compiler without this bug."""


FAULTS = {"pass": plant_pass, "kernel": plant_kernel, "none": plant_nothing}


def main(fault: str, model: str, repro: str) -> None:
    from tvmopt.debug.compare import Settings
    from tvmopt.debug.run import run
    from tvmopt.debug.session import Session

    FAULTS[fault]()
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(model, engines=("tvmopt",), repro=repro, threads=2)
        found = run(Session(settings, Path(folder), lambda stage: print(stage, file=sys.stderr)))
    print(json.dumps(found.as_dict(), default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
